"""``fedaf compare``: the table, the figure, rounds to a target accuracy, and resuming a comparison."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedaf.methods.registry import PAPER_METHODS
from fedaf.reporting.tables import disclosure_sentence, domains_table, results_table
from fedaf.reporting.targets import Target, rounds_to
from support.commandline import SMALL, TINY, assert_one_sentence

ALL = [
    *TINY,
    "--clients",
    "4",
    "--set",
    "method.local_epochs=1",
    "--set",
    "method.hidden_dim=8",
    "--set",
    "method.generator_steps=2",
]


def result_of(directory: Path) -> dict:
    found: dict = json.loads((directory / "result.json").read_text())
    return found


def rows(out: str) -> dict[str, list[str]]:
    """The lines of the tables in an output, by their first cell."""
    lines = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in out.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in lines if cells[0]}


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_all_methods_of_the_paper_are_run_and_shown_with_rounds_to_a_target_and_bytes(call, tmp_path, wide):
    code, out, err = call("compare", "--methods", "all", *ALL, "--set", "run.rounds=2", "--target", "11", "--out", "c")
    assert (code, err) == (0, "")
    assert "rounds to 11 %" in out
    found = rows(out)
    splits = set()
    for name in PAPER_METHODS:
        result = result_of(tmp_path / "c" / name)
        best, last, rounds, up, down, _, images = found[name]
        assert (best, last) == (f"{result['best_accuracy']:.2f}", f"{result['last_accuracy']:.2f}")
        assert rounds == rounds_to(result["curve"], 11)
        assert up.split()[0] in f"{result['upload_bytes_per_client_round'] / 1024:.2f}"
        assert down.split()[0] in f"{result['download_bytes_per_client_round'] / 1024:.2f}"
        disclosed = result["disclosed"]
        assert (disclosed is not None) == (name in ("fedaf", "fedaf-plus", "feddm"))
        assert images == (f"{disclosed['most_images']}\xa0(≤{disclosed['per_sample_at_most']:g})" if disclosed else "")
        assert (f"Disclosure of {name}:" in out) == (disclosed is not None)
        splits.add((tmp_path / "c" / name / "partition.json").read_text())
    assert len(splits) == 1
    assert {path.name for path in (tmp_path / "c").iterdir() if path.is_dir()} == set(PAPER_METHODS)
    personal = result_of(tmp_path / "c" / "fedbn")["personal"]
    assert found["fedbn (personal)"][:2] == [f"{personal['best_accuracy']:.2f}", f"{personal['last_accuracy']:.2f}"]
    assert "fedbn has no global model" in out
    pictures = [path.name for path in (tmp_path / "c").glob("*.png")]
    assert pictures.count("curves.png") == 1
    assert (tmp_path / "c" / "curves.png").stat().st_size > 1000

    done, cut = tmp_path / "c" / "moon" / "result.json", tmp_path / "c" / "feddyn"
    before, curve = done.read_bytes(), result_of(cut)["curve"]
    shutil.rmtree(cut)
    code, again, err = call("compare", "--resume", "c", "-q")
    assert (code, err) == (0, "")
    assert "rounds to 11 %" in again
    assert done.read_bytes() == before
    assert result_of(cut)["curve"] == curve
    code, again, _ = call("compare", "--resume", "c", "-q", "--target", "99.5")
    assert code == 0
    assert {rows(again)[name][2] for name in PAPER_METHODS} == {"never"}
    assert "rounds to 99.5 %" in again

    shown = ["--metrics", "loss,worst_client,per_class,confusion", "--target", "loss=1000"]
    code, again, err = call("compare", "--resume", "c", "-q", *shown)
    assert (code, err) == (0, "")
    assert "rounds to test loss 1000" in again
    totals, _, metrics = again.partition("Metrics after the last round")
    assert {rows(totals)[name][2] for name in PAPER_METHODS} == {"1"}
    for name in PAPER_METHODS:
        last = result_of(tmp_path / "c" / name)["metrics"]["last"]
        assert rows(metrics.partition("Accuracy by class")[0])[name] == [
            f"{last['loss']:.4f}",
            f"{last['client_spread']['lowest']:.2f}",
        ]
        assert f"Confusion matrix of {name}, seed 0 " in metrics


@pytest.mark.parametrize("target", ["0", "-5", "100.1", "nan"])
@pytest.mark.parametrize("how", [["--methods", "all", "--out", "c"], ["--resume", "c"]], ids=" ".join)
def test_a_target_that_is_no_accuracy_is_one_sentence(call, tmp_path, how, target):
    code, _, err = call("compare", *how, "--target", target)
    assert_one_sentence(code, err, ["[FEDAF-CLI-TARGET]", "--target", target])
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_metric_is_one_sentence_before_anything_is_computed(call, tmp_path):
    for command in ("run", "compare"):
        code, _, err = call(command, "--out", "c", "--metrics", "loss,balanced")
        assert_one_sentence(code, err, ["[FEDAF-METRIC-UNKNOWN]", "'balanced'", "'balanced_accuracy'"])
    assert list(tmp_path.iterdir()) == []


def test_target_and_metrics_of_a_comparison_are_kept_for_its_resume(call, tmp_path, wide):
    shown = ["--target", "balanced_accuracy=1", "--metrics", "client_std"]
    code, _, err = call("compare", "--methods", "fedavg", *SMALL, "--clients", "4", *shown, "--out", "c", "-q")
    assert (code, err) == (0, "")
    code, again, err = call("compare", "--resume", "c", "-q")
    assert (code, err) == (0, "")
    assert "rounds to balanced accuracy 1 %" in again
    assert "deviation of clients %" in again
    saved = json.loads((tmp_path / "c" / "comparison.json").read_text())
    (tmp_path / "c" / "comparison.json").write_text(json.dumps({"target": 12.5, "runs": saved["runs"]}))
    code, again, err = call("compare", "--resume", "c", "-q")  # as an older version wrote it
    assert (code, err) == (0, "")
    assert "rounds to 12.5 %" in again


def test_rounds_to_an_accuracy_are_to_the_first_that_reaches_it():
    assert rounds_to([10.0, 40.0, 30.0, 50.0], 40) == "2"
    assert rounds_to([10.0, 40.0, 30.0, 50.0], 40.1) == "4"
    assert rounds_to([10.0], 50.1) == "never"


def a_result(method: str, curve: list[float], **more) -> dict:
    facts = {"dataset": "d", "clients": 2, "alpha": None, "partition": "domain", "rounds": len(curve), "seed": 0}
    figures = {"best_accuracy": max(curve), "last_accuracy": curve[-1], "curve": curve, "seconds": 1.0}
    sizes = {"upload_bytes_per_client_round": 2048.0, "download_bytes_per_client_round": 10.0}
    return {"method": method, **facts, **figures, **sizes, **more}


def cells(table) -> list[list[str]]:
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_without_a_target_it_is_what_all_reach():
    table = results_table([a_result("a", [20.0, 61.5]), a_result("b", [61.2, 70.0, 71.0])])
    assert [column.header for column in table.columns][3] == "rounds to 61 %"
    assert [row[3] for row in cells(table)] == ["2", "1"]


def test_one_method_without_a_target_has_no_rounds_to_it():
    assert len(results_table([a_result("a", [20.0])]).columns) == 6
    assert len(results_table([a_result("a", [20.0])], target=Target(15)).columns) == 7


def test_disclosed_images_are_a_column_beside_methods_that_send_none():
    disclosed = {"most_images": 1500, "per_sample_at_most": 10.0, "clients": {}}
    sends, other = a_result("a", [20.0], disclosed=disclosed), a_result("b", [20.0], disclosed=None)
    table = results_table([sends, other])
    assert table.columns[-1].header == "images sent (per sample)"
    assert [row[-1] for row in cells(table)] == ["1500\xa0(≤10)", ""]
    assert len(results_table([other, a_result("c", [20.0])]).columns) == 7  # also a result of an older version
    sentence = disclosure_sentence(sends)
    assert "at most 1500 condensed images" in sentence
    assert "at most 10 images of a class" in sentence
    assert disclosure_sentence(other) is disclosure_sentence(a_result("c", [20.0])) is None


def test_a_domain_whose_client_was_away_in_the_best_round_keeps_its_column():
    by_domain = {"art painting": 40.0, "photo": 60.0, "sketch": 50.0}
    personal = {"best_accuracy": 65.0, "last_accuracy": 1.0, "best_by_client": {"sketch": 70.0, "art-painting": 60.0}}
    table = domains_table([a_result("fedbn", [50.0], best_accuracy_by_domain=by_domain, personal=personal)])
    assert cells(table) == [
        ["fedbn", "40.00", "60.00", "50.00", "50.00"],
        ["fedbn (personal)", "60.00", "·", "70.00", "65.00"],
    ]


def write_domains(path: Path) -> Path:
    """Bright and dark stripes, upright or not; one domain is the negative of the other."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"domains": np.array(["plain", "negative"]), "classes": np.array(["up", "across"])}
    for part, count in (("train", 80), ("test", 40)):
        labels, domains = np.arange(count) % 2, np.arange(count) // 2 % 2
        images = np.zeros((count, 8, 8), np.uint8)
        images[labels == 0, :, ::2] = 200
        images[labels == 1, ::2, :] = 200
        images += rng.integers(0, 40, images.shape, dtype=np.uint8)
        images[domains == 1] = 255 - images[domains == 1]
        arrays |= {f"x_{part}": images, f"y_{part}": labels, f"domain_{part}": domains}
    np.savez(path, **arrays)
    return path


def test_on_domains_fedbn_has_rows_of_its_own_in_both_tables(call, tmp_path, wide):
    data = f"npz:{write_domains(tmp_path / 'stripes.npz')}"
    flags = ["--methods", "fedavg,fedbn", "--dataset", data, "--rounds", "2", "--device", "cpu", "--out", "c"]
    small = ["--set", "model.width=8", "--set", "method.local_epochs=2", "--set", "method.batch_size=10"]
    code, out, err = call("compare", *flags, *small, "-q")
    assert (code, err) == (0, "")
    result = result_of(tmp_path / "c" / "fedbn")
    totals, domains = (rows(part) for part in out.split("Accuracy by domain"))
    personal = result["personal"]
    assert totals["fedbn (personal)"][0] == f"{personal['best_accuracy']:.2f}"
    assert totals.keys() >= {"fedavg", "fedbn", "fedbn (personal)"}
    of_clients = [personal["best_by_client"][name] for name in ("plain", "negative")]
    assert domains["fedbn (personal)"] == [f"{value:.2f}" for value in (*of_clients, personal["best_accuracy"])]
    assert domains["fedbn"] == [
        f"{value:.2f}" for value in (*result["best_accuracy_by_domain"].values(), result["best_accuracy"])
    ]
    assert re.search(r"'personal' is the mean accuracy of the personal models", out)
    assert result["evaluation_bytes_per_client_round"] > 0
    assert result_of(tmp_path / "c" / "fedavg")["evaluation_bytes_per_client_round"] == 0
