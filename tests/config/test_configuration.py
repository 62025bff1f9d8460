"""Configurations: layers of settings are validated, and what a run writes builds the same run again."""

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaf.config import build, changed, from_flags, merge, parse_setting, read_toml, split_kind
from fedaf.errors import UserError
from support.errors import raises

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy


def again(config):
    return build(tomllib.loads(config.to_toml()))


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_nothing_differs_from_the_preset_unless_it_is_set(preset):
    assert changed(build({"data": {"dir": "/elsewhere"}}, preset=preset)) == {}


def test_a_changed_setting_has_the_value_of_the_preset_and_that_of_the_run_also_after_a_resume():
    given = {"method": {"name": "fedaf", "ipc": 7}, "run": {"seed": 3}, "data": {"name": "cifar10"}}
    config = build(given, preset="quick")
    assert changed(config) == {"run.seed": {"preset": 0, "run": 3}, "method.ipc": {"preset": 10, "run": 7}}
    assert changed(again(config)) == changed(config)
    assert changed(build(given))["method.ipc"] == {"preset": 50, "run": 7}


def test_what_comes_with_differential_privacy_differs_from_the_preset():
    found = changed(build({"privacy": {"epsilon": 4.0}}))
    assert found["privacy.epsilon"] == {"preset": None, "run": 4.0}
    assert found["run.rounds"]["run"] == 1


def test_a_split_that_auto_stands_for_is_no_change_but_another_one_is():
    assert changed(build({"partition": {"kind": "dirichlet"}})) == {}
    assert list(changed(build({"partition": {"kind": "iid"}}))) == ["partition.kind"]


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
    ("tables", "code", "words"),
    [
        ({"method": {"gama": 1}}, "CONFIG-KEY", ["'method.gama'", "'gamma'", "method fedaf"]),
        ({"method": {"name": "fedavg", "ipc": 5}}, "CONFIG-KEY", ["method.ipc", "method fedavg", "local_epochs"]),
        ({"method": {"name": "fedvag"}}, "METHOD-UNKNOWN", ["'fedvag'", "'fedavg'"]),
        ({"run": {"round": 3}}, "CONFIG-KEY", ["run.round", "'rounds'"]),
        ({"partitions": {}}, "CONFIG-TABLE", ["partitions", "'partition'"]),
        ({"metod": {"gamma": 1}}, "CONFIG-TABLE", ["metod", "'method'"]),
        ({"rounds": 3}, "CONFIG-NO-TABLE", ["'rounds'"]),
        ({"run": 3}, "CONFIG-NO-TABLE", ["'run'"]),
        ({"run": {"rounds": "many"}}, "CONFIG-VALUE", ["run.rounds", "'many'", "integer"]),
        ({"method": {"gamma": 1.5}}, "CONFIG-VALUE", ["method.gamma", "1.5", "less than or equal to 1"]),
        ({"partition": {"alpha": 0}}, "CONFIG-VALUE", ["partition.alpha", "greater than 0"]),
        ({"partition": {"alpha": float("nan")}}, "CONFIG-VALUE", ["partition.alpha", "nan"]),
        ({"partition": {"alpha": float("inf")}}, "CONFIG-VALUE", ["partition.alpha", "inf"]),
        ({"partition": {"kind": "round robin"}}, "PARTITION-UNKNOWN", ["partition.kind", "iid", "auto"]),
        ({"training": {"augment": ["flap"]}}, "AUGMENTATION-UNKNOWN", ["training.augment", "'flap'", "'flip'"]),
        ({"run": {"engine": "egaer"}}, "ENGINE-UNKNOWN", ["run.engine", "'eager'", "auto"]),
        ({"model": {"name": "convnett"}}, "MODEL-UNKNOWN", ["model.name", "'convnet'", "resnet18"]),
        ({"data": {"name": "cifar-10"}}, "DATA-SET-UNKNOWN", ["data.name", "'cifar10'", "npz:FILE"]),
        ({"method": {"init": "real"}}, "CONFIG-VALUE", ["init = 'real'", "allow_real_init"]),
        ({"method": {"init_mean_of": 4}}, "CONFIG-VALUE", ["init_mean_of", "5"]),
        ({"data": {"name": 3}}, "CONFIG-VALUE", ["data.name", "3"]),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_it(tables, code, words):
    with raises(f"FEDAF-{code}") as caught:
        build(tables)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_unknown_preset_is_one_sentence_that_names_it():
    with pytest.raises(UserError, match=r"'slow'.*paper.*quick"):
        build({"preset": "slow"})


@pytest.mark.parametrize("file", [{"run": 5}, {"run": [{"rounds": 1}]}], ids=["a number", "an array of tables"])
def test_a_file_that_has_something_else_in_place_of_a_table_is_a_user_error(file):
    with raises("FEDAF-CONFIG-NO-TABLE") as caught:
        build(merge(file, from_flags(rounds=1)))
    assert "'run'" in str(caught.value)


@pytest.mark.parametrize(("text", "code"), [(None, "READ"), ("[run", "TOML"), ("\udcff", "READ")])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, text, code):
    path = tmp_path / "given.toml"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    with raises(f"FEDAF-CONFIG-{code}") as caught:
        read_toml(path)
    assert "given.toml" in str(caught.value)


def test_an_engine_by_its_old_name_is_written_by_its_new_one():
    config = build({"run": {"engine": "compiled"}})
    assert config.run.engine == "cuda-graphs"
    assert tomllib.loads(config.to_toml())["run"]["engine"] == "cuda-graphs"


@pytest.mark.parametrize(
    "field",
    [
        "x: tuple[int, ...] = (1, 2)",
        "x: dict[str, int] = {'a': 1}",
        "x: list[int | None] = [None]",
        "name: str = 'x'",
    ],
)
def test_options_of_a_custom_method_that_toml_cannot_hold_are_refused_at_once(field, tmp_path, monkeypatch):
    module = f"custom_{abs(hash(field))}"
    (tmp_path / f"{module}.py").write_text(
        "from fedaf.protocol import Method, Options\n"
        "class Own(Method):\n"
        "    class Options(Options):\n"
        f"        {field}\n"
        "    @property\n"
        "    def phases(self): return ()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with raises("FEDAF-CONFIG-OPTIONS"):
        build({"method": {"name": f"{module}:Own"}})


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


@pytest.mark.parametrize(
    ("given", "kind"), [({}, "natural"), ({"alpha": 0.1}, "dirichlet"), ({"clients": 4}, "dirichlet")]
)
def test_a_split_is_natural_where_there_are_clients_and_nothing_else_is_wished(given, kind):
    assert split_kind(build({"partition": given}), has_domains=True, has_clients=True) == kind


def test_options_of_another_method_do_not_stand_in_the_way():
    file = {"method": {"name": "fedaf", "ipc": 10}, "run": {"rounds": 3}}
    config = build(merge(file, {"method": {"name": "fedavg"}}, {"method": {"lr": 0.5}}))
    assert (config.method_name, config.method.lr, config.run.rounds) == ("fedavg", 0.5, 3)
    assert build(merge(file, {"method": {"ipc": 20}})).method.ipc == 20


def test_a_layer_called_by_a_number_is_a_name():
    assert build({"model": {"classifier": 1}}).model.classifier == "1"
