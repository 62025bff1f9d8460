"""Presets hold the values that the paper states, and those that were tuned where it states none."""

import pytest

from fedaf.config import build
from fedaf.methods.registry import METHODS


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
