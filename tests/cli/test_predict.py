"""``fedaf predict``, ``evaluate`` and ``export``: what they print and write, and what they say about mistakes."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fedaf
from fedaf.data.catalog import load as load_data
from support.commandline import assert_one_sentence
from support.datafiles import pixels, png, write_tree
from support.small import SMALL

DIGITS = load_data("digits", Path("data")).test


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run with a best model."""
    out = tmp_path_factory.mktemp("predict") / "run"
    settings = {**SMALL["settings"], "data.selection": 100}
    fedaf.run(**{**SMALL, "settings": settings}, method="fedavg", lr=0.1, local_epochs=2, out=out)
    return out


@pytest.fixture
def photos(tmp_path):
    """A folder of ten digits."""
    for number in range(10):
        png(tmp_path / "photos" / f"{number}.png", DIGITS.images[number, 0].numpy())
    return tmp_path / "photos"


def test_predict_prints_file_class_and_probability(call, trained, photos):
    code, out, err = call("predict", trained, photos, photos / "0.png")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    model = fedaf.load(trained)
    probabilities = model.predict_proba(DIGITS.images[:10]).max(1)
    assert [line[0] for line in lines] == [*(str(photos / f"{n}.png") for n in range(10)), str(photos / "0.png")]
    assert [line[1] for line in lines[:10]] == model.predict(DIGITS.images[:10])
    assert [float(line[2]) for line in lines[:10]] == pytest.approx(probabilities.tolist(), abs=1e-4)
    assert lines[10][1:] == lines[0][1:]


def test_predict_writes_the_probability_of_every_class(call, trained, photos, tmp_path):
    code, out, err = call("predict", trained, photos, "--which", "last", "--csv", "out.csv")
    assert (code, err) == (0, "")
    assert "10 predictions" in out
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "class", "probability", *(f"p_{digit}" for digit in range(10))]
    expected = fedaf.load(trained, which="last").predict_proba(DIGITS.images[:10])
    found = np.array([[float(row[f"p_{digit}"]) for digit in range(10)] for row in rows])
    assert np.abs(found - expected).max() < 1e-6
    assert [int(row["class"]) for row in rows] == expected.argmax(1).tolist()
    assert [float(row["probability"]) for row in rows] == found.max(1).tolist()


def test_unreadable_images_are_named_and_the_others_predicted(call, trained, photos):
    (photos / "text.png").write_text("hello")
    code, out, err = call("predict", trained, photos)
    assert_one_sentence(code, err, ["1 of 11", "text.png", "[FEDAF-PREDICT-UNREADABLE]"])
    assert len(out.splitlines()) == 10


def test_evaluate_prints_the_accuracy_of_the_run(call, trained):
    result = json.loads((trained / "result.json").read_text())
    code, out, err = call("evaluate", trained, "--which", "last")
    assert (code, err) == (0, "")
    assert f"{result['last_accuracy']:.2f} %" in out
    assert "359 test images of digits" in out
    found = json.loads(call("evaluate", trained, "--json")[1])
    assert found["accuracy"] == result["selected_accuracy"]
    assert (found["which"], found["round"], found["samples"]) == ("best", result["selected_round"], 359)


def test_personal_models_are_used_by_the_name_of_their_client(call, photos, tmp_path):
    fedaf.run(**{**SMALL, "rounds": 1}, method="fedbn", local_epochs=1, out=tmp_path / "bn")
    logged = json.loads((tmp_path / "bn" / "metrics.jsonl").read_text())["personal_accuracy"]
    for client, accuracy in logged.items():
        found = json.loads(call("evaluate", "bn", "--client", client, "--json")[1])
        assert (found["accuracy"], found["client"]) == (accuracy, client)
    model = fedaf.load(tmp_path / "bn", client="client-2")
    code, out, _ = call("predict", "bn", photos, "--client", "client-2")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()] == model.predict(DIGITS.images[:10])
    code, out, _ = call("export", "bn", "--client", "client-2")
    assert (code, "client-2.pt2" in out) == (0, True)


def write_digits(folder: Path, names: str = "0123456789") -> None:
    for number, (image, label) in enumerate(zip(DIGITS.images, DIGITS.labels.tolist(), strict=True)):
        for part in ("train", "test"):
            png(folder / part / names[label] / f"{number}.png", image[0].numpy())


def test_evaluate_takes_another_data_set_of_the_same_classes(call, trained, tmp_path):
    write_digits(tmp_path / "again")
    found = json.loads(call("evaluate", trained, "--dataset", f"folder:{tmp_path / 'again'}", "--json")[1])
    own = json.loads(call("evaluate", trained, "--json")[1])
    assert (found["accuracy"], found["samples"]) == (own["accuracy"], own["samples"])
    assert found["dataset"] != own["dataset"]


def test_evaluate_refuses_other_classes_and_shapes(call, trained, tmp_path):
    write_tree(tmp_path / "pets", {"cat": 10, "dog": 10}, shape=(8, 8))
    code, _, err = call("evaluate", trained, "--dataset", f"folder:{tmp_path / 'pets'}")
    assert_one_sentence(code, err, ["'cat'", "[FEDAF-DATA-CLASSES]"])
    labels = np.arange(20) % 10
    arrays = {"y_train": labels, "y_test": labels, "x_train": pixels(20, 8, 8), "x_test": pixels(20, 8, 8)}
    np.savez(tmp_path / "letters.npz", **arrays, classes=np.array(list("abcdefghij")))
    code, _, err = call("evaluate", trained, "--dataset", f"npz:{tmp_path / 'letters.npz'}")
    assert_one_sentence(code, err, ["a, b, c", "0, 1, 2", "[FEDAF-EVALUATE-CLASSES]"])
    np.savez(tmp_path / "mnist.npz", **{**arrays, "x_train": pixels(20, 28, 28), "x_test": pixels(20, 28, 28)})
    code, _, err = call("evaluate", trained, "--dataset", "mnist", "--data-dir", tmp_path)
    assert_one_sentence(code, err, ["[1, 28, 28]", "[1, 8, 8]", "[FEDAF-EVALUATE-SHAPE]"])


@pytest.mark.parametrize(("format", "file"), [("torch", "best.pt2"), ("onnx", "best.onnx")])
def test_export_writes_one_file_into_the_run(call, trained, format, file):
    code, out, err = call("export", trained, "--format", format)
    assert (code, err) == (0, "")
    assert str(trained / "model" / file) in out
    assert (trained / "model" / file).stat().st_size > 1000


def test_export_writes_the_file_it_is_told(call, trained, tmp_path):
    assert call("export", trained, "--out", "mine.pt2")[0] == 0
    program = torch.export.load(str(tmp_path / "mine.pt2")).module()
    assert program(torch.from_numpy(pixels(3, 1, 8, 8))).shape == (3, 10)


MISTAKES = {
    "no such folder": (["predict", "nowhere", "a.png"], "FEDAF-RUN-NOT-FOUND", ["nowhere"]),
    "a folder of runs": (["evaluate", "runs"], "FEDAF-RUN-SEVERAL", ["runs/one"]),
    "no finished round": (["export", "begun"], "FEDAF-RUN-NO-ROUND", ["--resume begun"]),
    "no best model": (["predict", "plain", "a.png", "--which", "best"], "FEDAF-MODEL-WHICH", ["data.selection"]),
    "a client of a global model": (["evaluate", "plain", "--client", "c"], "FEDAF-MODEL-NOT-PERSONAL", ["fedavg"]),
    "an unknown format": (["export", "plain", "--format", "tf"], "FEDAF-EXPORT-FORMAT", ["torch, onnx"]),
    "a missing image": (["predict", "plain", "a.png"], "FEDAF-PREDICT-UNREADABLE", ["a.png: the file does not exist"]),
    "a text file": (["predict", "plain", "notes.txt"], "FEDAF-PREDICT-UNREADABLE", ["notes.txt", "not an image"]),
    "an empty folder": (["predict", "plain", "empty"], "FEDAF-PREDICT-IMAGES", ["empty", "png"]),
    "an unknown data set": (["evaluate", "plain", "--dataset", "mnits"], "FEDAF-DATA-SET-UNKNOWN", ["'mnist'"]),
    "no folder for the table": (["predict", "plain", "a.png", "--csv", "no/a.csv"], "FEDAF-CLI-FILE", ["no/a.csv"]),
    "no folder for the file": (["export", "plain", "--out", "no/such/a.pt2"], "FEDAF-CLI-FILE", ["no/such"]),
}


@pytest.mark.parametrize(("arguments", "code", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(call, arguments, code, words, trained, tmp_path):
    for name in ("plain", "begun", "runs/one"):
        shutil.copytree(trained, tmp_path / name)
    shutil.rmtree(tmp_path / "plain" / "model")  # as of an older version, which had only checkpoints
    (tmp_path / "begun" / "model" / "model.json").unlink()
    for saved in (tmp_path / "begun").glob("round-*"):
        shutil.rmtree(saved)
    (tmp_path / "begun" / "LATEST").unlink()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    status, _, err = call(*arguments)
    assert_one_sentence(status, err, [*words, f"[{code}]"])


def test_a_table_names_the_figures_by_how_their_round_was_chosen(call, trained, tmp_path):
    code, out, err = call("run", "--resume", trained)
    assert (code, err) == (0, "")
    result = json.loads((trained / "result.json").read_text())
    shown = next(line for line in out.splitlines() if re.match(r"\W*fedavg +\W*\d", line))
    figures = [result[name] for name in ("best_accuracy", "last_accuracy", "selected_accuracy")]
    assert re.findall(r"\d+\.\d\d", shown)[:3] == [f"{figure:.2f}" for figure in figures]
    words = re.sub(r"[┃┏┳┓━\s]+", " ", out)
    assert all(word in words for word in ("best", "test", "last %", "selected"))
    assert f"fedaf predict {trained}" in out
