"""Configurations: what a run writes builds the same run again, and presets hold what the paper states."""

import sys
import tomllib
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaf.config.settings import Augmentation, build, from_flags, merge, parse_setting, read_toml, split_kind
from fedaf.data.registry import AUGMENTATIONS
from fedaf.methods.registry import METHODS
from fedaf.protocol import UserError
from support.errors import raises

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy


def again(config):
    return build(tomllib.loads(config.to_toml()))


def paper(dataset: str, method: str = "fedaf"):
    return build({"data": {"name": dataset}, "method": {"name": method}})


@pytest.mark.parametrize(
    ("tables", "preset"),
    [
        ({}, None),
        ({}, "quick"),
        ({"method": {"name": "fedavg"}}, None),
        ({"method": {"name": "fedavg", "lr": 1e-5, "momentum": 0.0}}, "quick"),
        ({"data": {"name": "cifar100"}, "method": {"image_lr": 0.3, "image_clip": 2.0, "init": "noise"}}, None),
        ({"data": {"name": "domainnet"}}, None),
        ({"method": {"name": "moon", "projection_dim": 16}, "partition": {"alpha": 0.5}}, None),
        ({"method": {"name": "feddyn", "alpha": 0.2}, "partition": {"alpha": 0.5}}, "quick"),
        ({"method": {"name": "fedgen", "generator_steps": 0}}, None),
        ({"data": {"name": "cifar10"}, "training": {"augment": []}}, None),
        ({"data": {"mean": [0.1, 0.2, 0.3], "std": [1e-3, 1.0, 2.5]}}, None),
        ({"method": {"init": "real", "allow_real_init": True, "continue_images": True, "min_samples": 3}}, None),
        ({"run": {"seed": 2**62 - 1, "threads": 1, "memory_budget_mib": 100}}, None),
        ({"partition": {"kind": "file", "path": 'a "quoted" \\ path/é\t漢\n.json'}}, None),
        ({"federation": {"deadline": 1e-300, "participation": 0.1}}, None),
    ],
)
def test_the_toml_of_a_configuration_builds_the_same_one(tables, preset):
    config = build(tables, preset=preset)
    assert again(config) == config
    assert again(config).to_toml() == config.to_toml()


@unhurried
@given(folder=st.text(), name=st.text(max_size=10))
def test_any_text_survives_the_toml(folder, name):
    config = build({"data": {"dir": folder, "name": "npz:" + name}, "partition": {"path": name}})
    assert again(config) == config


@unhurried
@given(
    alpha=st.floats(min_value=0, exclude_min=True, max_value=1e6),
    gamma=st.floats(0, 1),
    mean=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    seed=st.integers(0, 2**62 - 1),
)
def test_any_number_survives_the_toml(alpha, gamma, mean, seed):
    tables = {"partition": {"alpha": alpha}, "method": {"gamma": gamma}, "data": {"mean": mean}, "run": {"seed": seed}}
    config = build(tables)
    assert again(config) == config


def test_a_written_configuration_states_every_setting_so_that_later_defaults_do_not_matter():
    config = build({"data": {"name": "cifar10"}})
    written = tomllib.loads(config.to_toml())
    for table in ("run", "data", "partition", "model", "federation", "training", "method"):
        values = {key: value for key, value in getattr(config, table).model_dump().items() if value is not None}
        assert {key: value for key, value in written[table].items() if key != "name" or table != "method"} == values
    assert written["method"]["name"] == "fedaf"
    assert written["preset"] == "paper"


@pytest.mark.parametrize(
    ("dataset", "image_lr", "lambda_loc", "lambda_glob", "ipc", "rounds"),
    [
        ("cifar10", 1.0, 1e-4, 0.01, 50, 20),
        ("cifar100", 0.1, 1e-4, 0.01, 50, 20),
        ("fashionmnist", 0.2, 1e-3, 2.0, 50, 20),
        ("domainnet", 1.0, 0.01, 0.1, 20, 10),
    ],
)
def test_the_paper_preset_holds_the_papers_values(dataset, image_lr, lambda_loc, lambda_glob, ipc, rounds):
    config = paper(dataset)
    method = config.method
    assert (method.image_lr, method.lambda_loc, method.lambda_glob) == (image_lr, lambda_loc, lambda_glob)
    assert (method.ipc, config.run.rounds) == (ipc, rounds)
    assert (method.local_steps, method.real_batch, method.gamma) == (1000, 256, 0.9)
    assert (method.server_epochs, method.server_batch, method.server_lr) == (500, 256, 0.001)
    assert (method.image_momentum, method.server_momentum) == (0.9, 0.9)
    assert (config.model.name, config.model.depth, config.model.width, config.model.norm) == (
        "convnet",
        3,
        128,
        "batch",
    )


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedbn", "moon", "feddyn", "fedgen"])
@pytest.mark.parametrize("dataset", ["digits", "cifar10", "cifar100", "fashionmnist", "domainnet", "pacs"])
def test_averaging_methods_train_as_in_the_paper_on_every_data_set(name, dataset):
    config = paper(dataset, name)
    method = config.method
    assert (method.local_epochs, method.lr, method.batch_size, method.momentum) == (10, 0.01, 64, 0.9)
    assert config.run.rounds == (20 if dataset in ("cifar10", "cifar100", "fashionmnist") else 10)
    assert build({"data": {"name": dataset}, "method": {"name": name}}, preset="quick").method.local_epochs == 2


def test_what_averaging_methods_add_has_the_weights_of_the_comparison():
    assert paper("cifar10", "fedprox").method.mu == 0.001
    moon, fedgen = paper("cifar10", "moon").method, paper("cifar10", "fedgen").method
    assert (moon.mu, moon.temperature, moon.projection_dim) == (1.0, 0.5, None)
    assert paper("cifar10", "feddyn").method.alpha == 0.01
    assert (fedgen.noise_dim, fedgen.hidden_dim, fedgen.weight, fedgen.weight_decay_rate) == (64, 512, 10.0, 0.98)
    assert (fedgen.generator_steps, fedgen.generator_batch, fedgen.generator_lr) == (50, 32, 3e-4)
    assert (fedgen.generator_decay, fedgen.diversity) == (0.01, 1.0)


@pytest.mark.parametrize(("dataset", "mean_of"), [("cifar10", 10), ("cifar100", 5), ("fashionmnist", 10)])
def test_what_the_paper_leaves_open_is_as_settled(dataset, mean_of):
    config = paper(dataset)
    method = config.method
    assert method.temperature == 2.0
    assert (method.init, method.init_mean_of, method.allow_real_init) == ("mean", mean_of, False)
    assert method.bn_mode == "eval"
    assert method.lgkm_from_round == 2
    assert (method.lgkm_reduction, method.lgkm_students) == ("mean", "batch")
    assert method.max_staleness == 5
    assert method.shared_resampling
    assert method.continue_images
    assert (method.cdc, method.lgkm) == (True, True)
    assert method.image_clip is None
    assert method.min_samples is None
    assert method.threshold == method.ipc
    assert (config.partition.kind, config.partition.clients, config.partition.min_size) == ("auto", 10, 10)
    assert (config.federation.participation, config.federation.quorum) == (1.0, 0.5)


def test_the_digits_preset_is_as_settled():
    method = paper("digits").method
    assert (method.ipc, method.local_steps, method.image_lr, method.continue_images) == (10, 50, 1.0, False)
    assert (method.server_lr, method.server_epochs, method.server_batch) == (0.01, 30, 64)
    assert paper("digits").run.rounds == 10


def test_every_augmentation_there_is_can_be_chosen():
    assert get_args(Augmentation) == tuple(AUGMENTATIONS)


def test_augmentation_is_one_choice_for_all_methods():
    for dataset in ("cifar10", "fashionmnist"):
        assert len({str(paper(dataset, name).training) for name in METHODS}) == 1
    chosen = ["flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation"]
    assert paper("cifar10").training.augment == paper("pacs").training.augment == chosen
    assert paper("digits").training.augment == paper("fashionmnist").training.augment == []


def test_quick_is_the_papers_lambdas_with_less_work():
    quick, whole = build({"data": {"name": "fashionmnist"}}, preset="quick"), paper("fashionmnist")
    assert quick.method.lambda_glob == whole.method.lambda_glob == 2.0
    assert quick.method.image_lr == whole.method.image_lr
    assert quick.run.rounds < whole.run.rounds
    assert quick.method.local_steps < whole.method.local_steps
    assert quick.method.server_epochs < whole.method.server_epochs


CUSTOM_METHODS = """
from fedaf.methods.averaging import AveragingMethod
from fedaf.methods.fedaf import FedAF
from fedaf.methods.fedavg import FedAvg
from fedaf.methods.feddm import FedDM
from fedaf.protocol import Method, Options

class MyFedAF(FedAF): pass
class MyFedDM(FedDM): pass
class MyFedAvg(FedAvg): pass
class MyFamily(FedAF):
    family = "mine"
class Few(FedAF):
    class Options(Options):
        ipc: int = 7
        image_lr: float = 5.0
class Bare(Method):
    class Options(Options):
        ipc: int = 7
    @property
    def phases(self): return ()
"""


@pytest.fixture
def custom_methods(tmp_path, monkeypatch):
    (tmp_path / "custom_methods.py").write_text(CUSTOM_METHODS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("custom_methods", None)


@pytest.mark.parametrize("preset", ["paper", "quick"])
@pytest.mark.parametrize("dataset", ["digits", "cifar100", "fashionmnist", "domainnet", "npz:x.npz"])
@pytest.mark.parametrize(
    ("name", "like"), [("MyFedAF", "fedaf"), ("MyFamily", "fedaf"), ("MyFedDM", "feddm"), ("MyFedAvg", "fedavg")]
)
def test_a_custom_method_gets_the_values_of_the_class_it_derives_from(custom_methods, name, like, dataset, preset):
    own = build({"data": {"name": dataset}, "method": {"name": f"custom_methods:{name}"}}, preset=preset)
    known = build({"data": {"name": dataset}, "method": {"name": like}}, preset=preset)
    assert own.method == known.method
    assert (own.run, own.training) == (known.run, known.training)


def test_a_custom_method_gets_only_values_for_options_that_it_has(custom_methods):
    method = paper("cifar100", "custom_methods:Few").method
    assert (method.ipc, method.image_lr) == (7, 0.1)
    assert build({"method": {"name": "custom_methods:Few"}}, preset="quick").method.ipc == 10


def test_a_method_of_no_family_gets_no_values(custom_methods):
    config = build({"data": {"name": "domainnet"}, "method": {"name": "custom_methods:Bare"}}, preset="quick")
    assert (config.method.ipc, config.run.rounds) == (7, 3)


def test_a_custom_data_set_brings_its_own_values(tmp_path, monkeypatch):
    (tmp_path / "custom_set.py").write_text(
        "from fedaf.data.spec import DatasetSpec\n"
        "SPEC = DatasetSpec((1, 4, 4), 2, (0.5,), (0.25,), name='mine',\n"
        "    paper={'run': {'rounds': 4}, 'fedaf': {'image_lr': 0.7}})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = paper("custom_set:SPEC")
    assert (config.run.rounds, config.method.image_lr) == (4, 0.7)
    assert paper("npz:x.npz").run.rounds == 20


def test_an_unknown_preset_and_an_unknown_data_set_have_codes():
    with raises("FEDAF-PRESET-UNKNOWN"):
        build({}, preset="slow")
    with raises("FEDAF-DATA-SET-UNKNOWN"):
        paper("cifar11")


def test_a_class_is_condensed_from_min_samples_on_but_no_mean_is_taken_of_fewer_than_it_names():
    def threshold(**options) -> int:
        return build({"method": options}).method.threshold

    assert threshold(ipc=50) == 50
    assert threshold(ipc=50, min_samples=20) == 20
    assert threshold(ipc=5) == 10
    assert threshold(ipc=5, min_samples=1, init_mean_of=7) == 7
    assert threshold(ipc=5, init="noise") == 5
    assert threshold(ipc=5, init="real", allow_real_init=True, min_samples=2) == 2


FILE = """
preset = "quick"
[run]
rounds = 7
seed = 5
[method]
gamma = 0.3
"""


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    layers = [read_toml(path), from_flags(rounds=9, ipc=4, alpha=None), parse_setting("method.lambda_loc=0.5")]
    config = build(merge(*layers))
    assert config.run.rounds == 9  # flag over file
    assert (config.run.seed, config.method.gamma) == (5, 0.3)  # file
    assert (config.method.ipc, config.method.lambda_loc) == (4, 0.5)  # flag and --set over preset
    assert (config.preset, config.method.server_epochs) == ("quick", 20)  # the file's preset
    assert config.partition.alpha == 0.1  # nobody's


def test_a_preset_on_the_command_line_wins_over_that_of_the_file():
    config = build(tomllib.loads(FILE), preset="paper")
    assert (config.preset, config.run.rounds, config.method.server_epochs) == ("paper", 7, 30)


def test_of_two_settings_the_later_wins_and_the_rest_of_the_table_stays():
    merged = merge({"run": {"seed": 1, "rounds": 2}}, {"run": {"seed": 3}}, {"data": {"name": "cifar10"}})
    assert merged == {"run": {"seed": 3, "rounds": 2}, "data": {"name": "cifar10"}}


@pytest.mark.parametrize(
    ("flag", "value", "table", "key"),
    [
        ("dataset", "cifar10", "data", "name"),
        ("data_dir", "there", "data", "dir"),
        ("alpha", 0.3, "partition", "alpha"),
        ("clients", 3, "partition", "clients"),
        ("rounds", 4, "run", "rounds"),
        ("seed", 8, "run", "seed"),
        ("device", "cpu", "run", "device"),
        ("ipc", 6, "method", "ipc"),
        ("local_steps", 2, "method", "local_steps"),
        ("participation", 0.5, "federation", "participation"),
        ("model", "resnet18", "model", "name"),
    ],
)
def test_every_flag_reaches_its_setting(flag, value, table, key):
    assert getattr(getattr(build(from_flags(**{flag: value})), table), key) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method.gamma=0.8", {"method": {"gamma": 0.8}}),
        (" method.gamma = 0.8", {"method": {"gamma": 0.8}}),
        ("run.rounds=3", {"run": {"rounds": 3}}),
        ("partition.kind=iid", {"partition": {"kind": "iid"}}),
        ("partition.kind='iid'", {"partition": {"kind": "iid"}}),
        ("training.augment=['flip']", {"training": {"augment": ["flip"]}}),
        ("method.cdc=false", {"method": {"cdc": False}}),
        ("data.dir=/a=b", {"data": {"dir": "/a=b"}}),
    ],
)
def test_a_setting_is_a_toml_value_or_a_bare_word(text, expected):
    assert parse_setting(text) == expected


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"method": {"gama": 1}}, ["'method.gama'", "'gamma'", "method fedaf"]),
        ({"method": {"name": "fedavg", "ipc": 5}}, ["method.ipc", "method fedavg", "local_epochs"]),
        ({"method": {"name": "fedvag"}}, ["'fedvag'", "'fedavg'"]),
        ({"run": {"round": 3}}, ["run.round", "'rounds'"]),
        ({"partitions": {}}, ["partitions", "'partition'"]),
        ({"metod": {"gamma": 1}}, ["metod", "'method'"]),
        ({"rounds": 3}, ["'rounds'", "outside any table"]),
        ({"run": 3}, ["'run'", "outside any table"]),
        ({"run": {"rounds": "many"}}, ["run.rounds", "'many'", "integer"]),
        ({"method": {"gamma": 1.5}}, ["method.gamma", "1.5", "less than or equal to 1"]),
        ({"partition": {"alpha": 0}}, ["partition.alpha", "greater than 0"]),
        ({"partition": {"alpha": float("nan")}}, ["partition.alpha", "nan"]),
        ({"partition": {"alpha": float("inf")}}, ["partition.alpha", "inf"]),
        ({"partition": {"kind": "round robin"}}, ["partition.kind", "'iid'"]),
        ({"training": {"augment": ["flap"]}}, ["training.augment", "'flap'", "'flip'"]),
        ({"method": {"init": "real"}}, ["init = 'real'", "allow_real_init"]),
        ({"method": {"init_mean_of": 4}}, ["init_mean_of", "5"]),
        ({"data": {"name": 3}}, ["data.name", "3"]),
        ({"preset": "slow"}, ["'slow'", "paper or quick"]),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(tables, words):
    with pytest.raises(UserError) as error:
        build(tables)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("file", [{"run": 5}, {"run": [{"rounds": 1}]}], ids=["a number", "an array of tables"])
def test_a_file_that_has_something_else_in_place_of_a_table_is_a_user_error(file):
    with pytest.raises(UserError, match="run"):
        build(merge(file, from_flags(rounds=1)))


@pytest.mark.parametrize("kind", ["Tuple", "Dict", "Name"])
def test_options_of_ones_own_that_toml_cannot_hold_are_refused_at_once(kind, tmp_path, monkeypatch):
    fields = {"Tuple": "x: tuple[int, ...] = (1, 2)", "Dict": "x: dict[str, int] = {'a': 1}", "Name": "name: str = 'x'"}
    (tmp_path / f"own_{kind}.py").write_text(
        "from fedaf.protocol import Method, Options\n"
        "class Own(Method):\n"
        "    class Options(Options):\n"
        f"        {fields[kind]}\n"
        "    @property\n"
        "    def phases(self): return ()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="TOML"):
        build({"method": {"name": f"own_{kind}:Own"}})


@pytest.mark.parametrize(
    ("given", "has_domains", "kind"),
    [
        ({}, False, "dirichlet"),
        ({}, True, "domain"),
        ({"alpha": 0.1}, True, "dirichlet"),
        ({"clients": 4}, True, "dirichlet"),
        ({"kind": "iid"}, True, "iid"),
        ({"kind": "domain", "clients": 4}, True, "domain"),
        ({"min_size": 3}, True, "domain"),
    ],
)
def test_a_split_is_by_domain_where_there_are_domains_and_nothing_else_is_wished(given, has_domains, kind):
    assert split_kind(build({"partition": given}), has_domains=has_domains) == kind


def test_options_of_another_method_do_not_stand_in_the_way():
    file = {"method": {"name": "fedaf", "ipc": 10}, "run": {"rounds": 3}}
    config = build(merge(file, {"method": {"name": "fedavg"}}, {"method": {"lr": 0.5}}))
    assert (config.method_name, config.method.lr, config.run.rounds) == ("fedavg", 0.5, 3)
    assert build(merge(file, {"method": {"ipc": 20}})).method.ipc == 20


def test_a_layer_called_by_a_number_is_a_name():
    assert build({"model": {"classifier": 1}}).model.classifier == "1"
