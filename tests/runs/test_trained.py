"""The model of a run predicts what the run measured, without its training data."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedaf
from fedaf.data.catalog import load as load_data
from fedaf.federation.observer import Observer
from fedaf.runs.evaluation import evaluate
from fedaf.runs.experiment import continue_run, reopen
from support import TESTS, zoo
from support.datafiles import pixels
from support.errors import raises

RUN = {"clients": 3, "alpha": 0.5, "rounds": 2, "device": "cpu", "local_epochs": 1, "lr": 0.1}
KINDS = {
    "convnet": {"method": "fedavg", "settings": {"model.width": 16, "data.selection": 100}},
    "resnet18": {"method": "fedavg", "model": "resnet18", "rounds": 1, "clients": 2, "dataset": "npz:few.npz"},
    "custom": {"method": "fedavg", "model": "support.zoo:mlp"},
    "fedbn": {"method": "fedbn", "settings": {"model.width": 16}},
    "moon": {"method": "moon", "settings": {"model.width": 16}},  # which adds a head to the model
    "tuning": {"method": "fedavg", "settings": {"model.width": 16, "data.validation": 90}},
}
OLD_RUNS = TESTS / "support" / "old_runs"


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """The directory of a finished run of each kind."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / "run"
            given = {**RUN, **KINDS[kind]}
            if "dataset" in given:
                given["dataset"] = f"npz:{few_digits(made[kind].with_name('few.npz'))}"
            fedaf.run(**given, out=made[kind])
        return made[kind]

    return make


def few_digits(path: Path) -> Path:
    """Write the digits with few training images, for a large network."""
    data = load_data("digits", path.parent)
    arrays = {
        f"{key}_{part}": array
        for part, split in (("train", data.train.take(torch.arange(150))), ("test", data.test))
        for key, array in (("x", split.images.permute(0, 2, 3, 1).numpy()), ("y", split.labels.numpy()))
    }
    np.savez(path, **arrays, classes=np.array(data.classes))
    return path


def result_of(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def share_right(model: fedaf.TrainedModel, images: torch.Tensor, labels: torch.Tensor) -> float:
    right = [name == model.classes[label] for name, label in zip(model.predict(images), labels.tolist(), strict=True)]
    return 100 * sum(right) / len(right)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_on_the_test_split_are_as_good_as_the_result_says(kind, run_of):
    run = run_of(kind)
    model = fedaf.load(run, which="last")
    last = result_of(run)["last_accuracy"]
    assert evaluate(model, run).scores.accuracy == last
    if kind != "tuning":  # there the test images are training images
        test = load_data("digits", Path("data")).test
        assert share_right(model, test.images, test.labels) == last


def test_the_best_model_is_the_one_to_use_if_images_were_set_aside(run_of):
    run = run_of("convnet")
    model = fedaf.load(run)
    assert (model.which, model.round) == ("best", result_of(run)["selected_round"])
    assert evaluate(model, run).scores.accuracy == result_of(run)["selected_accuracy"]
    assert fedaf.load(run_of("custom")).which == "last"


def test_personal_models_are_as_good_as_the_result_says(run_of):
    run = run_of("fedbn")
    models = {f"client-{number}": fedaf.load(run, client=f"client-{number}") for number in range(3)}
    found = {client: evaluate(model, run).scores.accuracy for client, model in models.items()}
    assert sum(found.values()) / 3 == result_of(run)["personal"]["last_accuracy"]
    logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["personal_accuracy"]
    assert found == logged
    assert len(set(found.values())) > 1


def test_a_personal_model_is_tested_on_the_domain_of_its_client(tmp_path):
    arrays = {
        f"{domain}_{part}_{split}": pixels(30, 8, 8, seed=seed) if part == "x" else np.arange(30) % 2
        for seed, domain in enumerate(("photo", "sketch"))
        for part in "xy"
        for split in ("train", "test")
    }
    np.savez(tmp_path / "domains.npz", **arrays)
    settings = {"model.width": 8, "data.selection": 10}
    data = {"dataset": f"npz:{tmp_path / 'domains.npz'}", "settings": settings}
    quick = {name: value for name, value in RUN.items() if name not in ("clients", "alpha")}
    fedaf.run(**quick, **data, method="fedbn", out=tmp_path / "run")
    clients = list(json.loads((tmp_path / "run" / "partition.json").read_text())["rows"])
    found = [evaluate(fedaf.load(tmp_path / "run", client=client), tmp_path / "run") for client in clients]
    assert [one.samples for one in found] == [30, 30]
    personal = result_of(tmp_path / "run")["personal"]["last_accuracy"]
    assert sum(one.scores.accuracy for one in found) / 2 == personal
    assert len(evaluate(fedaf.load(tmp_path / "run"), tmp_path / "run").scores.by_domain) == 2


def test_the_training_data_are_not_needed(tmp_path):
    images = pixels(40, 6, 10, 3)
    np.savez(tmp_path / "a.npz", x_train=images, y_train=np.arange(40) % 2, x_test=images, y_test=np.arange(40) % 2)
    data = {"dataset": f"npz:{tmp_path / 'a.npz'}", "settings": {"model.depth": 2, "data.mean": [0.1, 0.2, 0.3]}}
    result = fedaf.run(**{**RUN, **data, "method": "fedavg", "clients": 2}, out=tmp_path / "run")
    (tmp_path / "a.npz").unlink()
    model = fedaf.load(tmp_path / "run")
    assert model.classes == ("0", "1")
    assert share_right(model, torch.from_numpy(images), torch.arange(40) % 2) == result.last_accuracy
    assert model.card.mean == (0.1, 0.2, 0.3)


def test_probabilities_are_a_softmax_of_the_module_on_normalised_images(run_of):
    model = fedaf.load(run_of("convnet"))
    images = pixels(7, 8, 8)
    normalised = (torch.from_numpy(images)[:, None].float() / 255 - 0.305) / 0.376
    expected = model.module(normalised).softmax(1).detach().numpy()
    found = model.predict_proba(images)
    assert (found.shape, found.dtype) == ((7, 10), np.float32)
    assert np.abs(found - expected).max() < 1e-6
    assert model.predict(images) == [model.classes[row.argmax()] for row in found]
    assert not model.module.training


def test_the_card_counts_parameters_and_a_model_describes_itself(run_of):
    model = fedaf.load(run_of("custom"))
    assert model.card.parameters == 64 * 12 + 12 + 12 * 10 + 10
    assert "support.zoo:mlp: fedavg on digits, last model, after round 2; 10 classes, images 1x8x8" in repr(model)


def test_a_model_from_python_is_passed_again(tmp_path):
    network = zoo.mlp(1, 8, 10)
    settings = {"model.keep_weights": True}
    result = fedaf.run(**{**RUN, "rounds": 1}, method="fedavg", model=network, settings=settings, out=tmp_path / "run")
    with raises("FEDAF-MODEL-FROM-PYTHON") as refused:
        fedaf.load(tmp_path / "run")
    assert "fedaf.load(" in str(refused.value)
    model = fedaf.load(tmp_path / "run", model=network)
    assert evaluate(model, tmp_path / "run").scores.accuracy == result.last_accuracy
    assert not torch.equal(next(model.module.parameters()), next(network.parameters()))
    with raises("FEDAF-RUN-OTHER-MODEL"):
        fedaf.load(tmp_path / "run", model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


@pytest.mark.parametrize("method", [path.name for path in sorted(OLD_RUNS.iterdir())])
def test_a_run_of_an_older_version_is_loaded_from_its_checkpoint(method, tmp_path):
    old = OLD_RUNS / method
    model = fedaf.load(old)
    assert (model.which, model.round, model.classes) == ("last", 2, tuple("0123456789"))
    last = json.loads((old / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
    test = load_data("digits", tmp_path).test
    assert share_right(model, test.images, test.labels) == pytest.approx(last, abs=0.6)  # other CPUs round otherwise


def test_an_older_run_has_personal_models_and_gets_its_folder_when_it_is_resumed(tmp_path):
    shutil.copytree(OLD_RUNS / "fedbn", tmp_path / "run")
    assert fedaf.load(tmp_path / "run", client="client-1").client == "client-1"
    continue_run(reopen(tmp_path / "run"), tmp_path / "run", Observer())
    assert fedaf.load(tmp_path / "run").round == 3
    assert (tmp_path / "run" / "model" / "last.safetensors").is_file()


class Stop(Observer):
    def phase_started(self, name: str, clients: int) -> None:
        raise KeyboardInterrupt


def test_a_run_that_has_not_finished_a_round_has_no_model_yet(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fedaf.run(**RUN, method="fedavg", out=tmp_path / "run", observer=Stop())
    with raises("FEDAF-RUN-NO-ROUND") as refused:
        fedaf.load(tmp_path / "run")
    assert f"--resume {tmp_path / 'run'}" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "options", "code", "words"),
    [
        ("custom", {"which": "best"}, "FEDAF-MODEL-WHICH", ["data.selection"]),
        ("custom", {"which": "bets"}, "FEDAF-MODEL-WHICH", ["did you mean 'best'"]),
        ("custom", {"client": "client-1"}, "FEDAF-MODEL-NOT-PERSONAL", ["fedavg"]),
        ("fedbn", {"client": "client-01"}, "FEDAF-MODEL-CLIENT", ["'client-01'", "client-0, client-1, client-2"]),
        ("fedbn", {"client": "client-1", "which": "best"}, "FEDAF-MODEL-WHICH", ["last round"]),
    ],
)
def test_a_model_that_is_not_there_is_refused(kind, options, code, words, run_of):
    with raises(code) as refused:
        fedaf.load(run_of(kind), **options)
    assert all(word in str(refused.value) for word in words)


def test_a_folder_that_is_no_run_is_refused_and_one_of_several_runs_names_them(run_of, tmp_path):
    with raises("FEDAF-RUN-NOT-FOUND"):
        fedaf.load(tmp_path)
    for name in ("fedaf", "fedavg"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    with raises("FEDAF-RUN-SEVERAL") as refused:
        fedaf.load(tmp_path)
    assert f"{tmp_path / 'fedaf'}, {tmp_path / 'fedavg'}" in str(refused.value)
