"""Presets hold the values that the paper states, and those that were tuned where it states none."""

import sys

import pytest

from fedaf.config import build
from fedaf.methods.registry import METHODS
from fedaf.runs.experiment import prepare
from support.errors import raises
from support.tiny import AVERAGING


def paper(dataset: str, method: str = "fedaf"):
    return build({"data": {"name": dataset}, "method": {"name": method}})


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


@pytest.mark.parametrize(
    ("dataset", "image_lr", "ipc", "rounds"),
    [
        ("cifar10", 1.0, 50, 20),
        ("cifar100", 0.1, 50, 20),
        ("fashionmnist", 0.2, 50, 20),
        ("mnist", 1.0, 50, 20),
        ("domainnet", 1.0, 20, 10),
        ("pacs", 1.0, 20, 10),
        ("npz:x.npz", 1.0, 50, 20),
    ],
)
def test_the_papers_weights_do_not_reach_fedaf_plus(dataset, image_lr, ipc, rounds):
    config = paper(dataset, "fedaf-plus")
    method = config.method
    assert (method.lambda_loc, method.lambda_glob, method.cdc, method.lgkm) == (1.0, 0.01, True, True)
    assert (method.image_lr, method.ipc, config.run.rounds) == (image_lr, ipc, rounds)
    assert (method.init, method.match_clusters, method.continue_images) == ("clusters", True, False)
    assert (method.resampling, method.rho, method.image_lr_decay) == ("distance", 5.0, True)
    assert (method.match_spread, method.match_distribution) == (1.0, 1.0)
    cifar100 = dataset == "cifar100"
    assert (method.init_mean_of, method.server_steps) == ((5, 10_000) if cifar100 else (10, 3000))
    assert (method.replay, method.server_average, method.server_cutmix) == (20, 0.17, 0.5)
    assert method.server_weighting == 0.5
    assert config.training == paper(dataset).training


@pytest.mark.parametrize("dataset", ["digits", "cifar100", "pacs", "npz:x.npz"])
def test_quick_fedaf_plus_has_less_work_in_steps(dataset):
    quick = build({"data": {"name": dataset}, "method": {"name": "fedaf-plus"}}, preset="quick").method
    whole = paper(dataset, "fedaf-plus").method
    assert (quick.lambda_loc, quick.init, quick.replay) == (whole.lambda_loc, "clusters", whole.replay)
    assert quick.server_steps < whole.server_steps
    assert quick.local_steps == 20


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("dataset", ["digits", "cifar10", "cifar100", "fashionmnist", "domainnet", "pacs"])
def test_averaging_methods_train_as_in_the_paper_on_every_data_set(name, dataset):
    config = paper(dataset, name)
    method = config.method
    assert (method.local_epochs, method.lr, method.batch_size, method.momentum) == (10, 0.01, 64, 0.9)
    assert config.run.rounds == (20 if dataset in ("cifar10", "cifar100", "fashionmnist") else 10)
    assert build({"data": {"name": dataset}, "method": {"name": name}}, preset="quick").method.local_epochs >= 2


@pytest.mark.parametrize(
    ("dataset", "epochs"), [("digits", 10), ("cifar10", 2), ("pacs", 2), ("domainnet", 5), ("npz:x.npz", 5)]
)
def test_quick_averaging_has_fewer_epochs_the_more_samples_there_are(dataset, epochs):
    method = build({"data": {"name": dataset}, "method": {"name": "fedavg"}}, preset="quick").method
    assert method.local_epochs == epochs


@pytest.mark.parametrize("alpha", [0.02, 0.1])
def test_quick_gives_averaging_and_condensing_methods_comparable_budgets_on_digits(alpha):
    """In images per round, where a forward pass counts as a third of a training step."""
    budgets = {}
    for name in ("fedaf", "fedaf-plus", "feddm", "fedavg"):
        given = {"partition": {"alpha": alpha}, "method": {"name": name}}
        experiment = prepare(build(given, preset="quick"))
        work = experiment.method.workload(experiment.counts)
        budgets[name] = work.forward / 3 + work.backward
    assert max(budgets.values()) < 1.5 * min(budgets.values()), budgets


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
    assert method.init == "clusters"
    assert paper("digits").run.rounds == 10
    plus = paper("digits", "fedaf-plus").method
    assert (plus.rho, plus.server_steps, plus.lambda_loc, plus.lambda_glob) == (2.0, 200, 1.0, 0.01)
    assert (plus.ipc, plus.local_steps, plus.server_lr, plus.server_batch) == (10, 50, 0.01, 64)


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
