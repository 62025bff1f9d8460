"""The examples of custom data, a custom model and a custom method run, and their results make sense."""

import re

import pytest
import torch

import fedaf
from support.examples import EXAMPLES, load, run_script


def accuracies(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"accuracy (\d+\.\d+) %", text)]


def test_custom_data_are_trained_on_and_predicted(tmp_path):
    done = run_script("custom_data.py", "--rounds", 2, where=tmp_path)
    assert done.returncode == 0, done.stderr
    assert accuracies(done.stdout)[-1] > 50  # three classes
    predicted = re.findall(r"a new photo of a (\w+): (\w+)", done.stdout)
    assert [label for label, _ in predicted] == ["circle", "circle", "cross", "cross", "square", "square"]
    assert {name for _, name in predicted} <= {"circle", "cross", "square"}
    assert not list(tmp_path.iterdir())


def test_the_clinics_differ_and_lack_classes():
    custom = load("custom_data")
    bright, dim = (custom.photos({"circle": 20}, brightness, seed=0)[0] for brightness in (200, 80))
    assert bright.shape == (20, 16, 16)
    assert bright.mean() > dim.mean()


def test_a_custom_model_is_compared_with_the_built_in_one(tmp_path):
    done = run_script("custom_model.py", "--rounds", 1, where=tmp_path)
    assert done.returncode == 0, done.stderr
    mixer, convnet = done.stdout.splitlines()
    assert mixer.startswith("MLP-Mixer: 36,778 parameters, accuracy by round [")
    assert convnet.startswith("ConvNet: 19,338 parameters, accuracy by round [")


def test_the_custom_model_runs_by_its_name(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    result = fedaf.run(
        model="custom_model:patch_mixer", method="fedavg", preset="quick", clients=2, alpha=1.0, rounds=1
    )
    assert result.figures["model"] == "custom_model:patch_mixer"
    assert result.last_accuracy > 30


def test_the_custom_method_is_compared_with_fedavg(tmp_path):
    done = run_script("custom_method.py", "--rounds", 1, "--seeds", 1, where=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert re.search(r"custom_method:ClassMeans \d+\.\d+.* %, fedavg \d+\.\d+", first)
    assert [line.partition(":")[0] for line in rest] == ["best test round %", "last %"]


def test_class_means_do_not_depend_on_the_split(monkeypatch):
    """Sums over clients are those over all data: the model is the same for any split."""
    monkeypatch.chdir(EXAMPLES)
    found = [
        fedaf.run(method="custom_method:ClassMeans", clients=clients, alpha=alpha, rounds=1, scale=0.5)
        for clients, alpha in ((1, 1.0), (6, 0.05))
    ]
    pooled, split = (result.model.state_dict() for result in found)
    for name, tensor in pooled.items():
        torch.testing.assert_close(split[name], tensor, rtol=1e-4, atol=1e-5)
    assert found[1].last_accuracy > 60
    assert found[1].rounds[0]["classes_seen"] == 10


def test_the_method_is_about_40_lines():
    source = (EXAMPLES / "custom_method.py").read_text()
    method = source.partition("class Sums")[2].partition("def main")[0]
    assert 30 <= len([line for line in method.splitlines() if line.strip()]) <= 45


@pytest.mark.parametrize("name", ["custom_data.py", "custom_model.py", "custom_method.py"])
def test_every_example_says_how_it_is_run(name):
    assert f"python examples/{name}" in (EXAMPLES / name).read_text()
