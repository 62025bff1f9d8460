"""The Python API: runs as functions, as loops, and their results."""

import io
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.data import TensorDataset

import fedaf
from fedaf.data import catalog
from fedaf.data.pixels import normalise
from fedaf.data.sets.digits import SPEC
from fedaf.errors import InUse
from fedaf.federation.events import EventReader
from fedaf.federation.observer import Observer, StopRun
from fedaf.federation.summary import flat
from fedaf.reporting.progress import LiveProgress, PlainProgress, display
from support.errors import raises

SMALL = {
    "dataset": "digits",
    "method": "fedavg",
    "clients": 3,
    "rounds": 4,
    "alpha": 0.5,
    "local_epochs": 1,
    "settings": {"model.width": 4, "model.depth": 2, "run.device": "cpu", "run.threads": 1},
}

COMPARED = {name: value for name, value in SMALL.items() if name != "method"}
NORMALISATION = SPEC.mean, SPEC.std


@pytest.fixture(scope="module")
def whole():
    return fedaf.run(**SMALL)


def test_a_loop_over_rounds_gives_the_numbers_of_run(whole):
    active = fedaf.start(**SMALL)
    assert [metrics["accuracy"] for metrics in active] == whole.curve
    assert active.result().curve == whole.curve
    assert active.result() is active.result()


def test_a_loop_that_breaks_keeps_the_result_of_the_rounds_it_played(whole, tmp_path):
    active = fedaf.start(**SMALL, out=tmp_path / "run")
    for metrics in active:
        if metrics["round"] == 2:
            break
    result = active.result()
    assert result.curve == whole.curve[:2]
    assert (result.figures["rounds"], result.figures["planned_rounds"]) == (2, 4)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result.figures
    assert list(active) == []


def test_a_run_that_was_stopped_early_can_be_resumed_to_its_end(whole, tmp_path):
    fedaf.run(**SMALL, out=tmp_path / "run", on_round=lambda metrics: metrics["round"] == 1)
    resumed = fedaf.resume(tmp_path / "run")
    assert resumed.curve == whole.curve
    assert resumed.figures["rounds"] == resumed.figures["planned_rounds"] == 4


def test_a_second_loop_goes_on_where_the_first_stopped(whole):
    active = fedaf.start(**SMALL)
    first = next(active)
    rest = list(active)
    assert [m["round"] for m in [first, *rest]] == [1, 2, 3, 4]
    assert [m["accuracy"] for m in [first, *rest]] == whole.curve


def test_a_block_ends_the_run_and_releases_its_directory(tmp_path):
    with fedaf.start(**SMALL, out=tmp_path / "run") as active:
        next(active)
        with pytest.raises(InUse):
            fedaf.resume(tmp_path / "run")
    assert active.result().figures["rounds"] == 1
    assert len(fedaf.resume(tmp_path / "run").curve) == 4


def test_a_callback_that_raises_releases_the_directory_and_the_run_can_be_resumed(whole, tmp_path):
    def fail(metrics):
        raise RuntimeError("the user's own error")

    with pytest.raises(RuntimeError, match="own error"):
        fedaf.run(**SMALL, out=tmp_path / "run", on_round=fail)
    assert not (tmp_path / "run" / "result.json").exists()
    assert fedaf.resume(tmp_path / "run").curve == whole.curve


def test_a_callback_that_returns_nothing_does_not_stop_the_run(whole):
    seen = []
    assert fedaf.run(**SMALL, on_round=seen.append).curve == whole.curve
    assert [metrics["round"] for metrics in seen] == [1, 2, 3, 4]


def test_observers_are_told_once_that_a_run_ended(tmp_path):
    class Count(Observer):
        ended_calls = 0

        def ended(self):
            self.ended_calls += 1

    for stop in (False, True):
        observer = Count()
        fedaf.run(**SMALL, observer=observer, on_round=lambda metrics, stop=stop: stop)
        assert observer.ended_calls == 1
    fedaf.run(**SMALL, out=tmp_path / "run", on_round=lambda metrics: True)
    assert EventReader(tmp_path / "run").read()[-1]["event"] == "ended"


def test_nothing_stays_on_disk_without_out(whole):
    assert whole.directory is None


def test_the_repr_of_a_result_is_one_short_line(whole):
    best, last = whole.best_accuracy, whole.last_accuracy
    shown = f"RunResult(fedavg on digits: 4 rounds, last accuracy {last:.2f} %, best test round {best:.2f} %)"
    assert repr(whole) == shown
    stopped = fedaf.run(**SMALL, on_round=lambda metrics: True)
    assert re.match(r"RunResult\(fedavg on digits: 1 of 4 rounds, ", repr(stopped))


def test_metrics_have_flat_names_and_totals():
    metrics = {
        "round": 2,
        "accuracy": 50.0,
        "losses": {"ce": 1.5},
        "seconds": {"fit": 1.0, "server": 0.5},
        "upload_bytes": {"fit": {"a": 3, "b": 4}, "count": {"a": 1, "b": 1}},
        "personal_accuracy": {"a": 1.0},
        "asked": ["a", "b"],
        "failures": {"b": "away"},
        "curve": [1, 2],
    }
    assert flat(metrics) == {
        "round": 2,
        "accuracy": 50.0,
        "losses.ce": 1.5,
        "seconds": 1.5,
        "seconds.fit": 1.0,
        "seconds.server": 0.5,
        "upload_bytes": 9,
        "asked": 2,
        "failures": 1,
    }


def test_a_frame_has_a_row_per_round(whole):
    frame = whole.to_frame()
    assert frame["round"].tolist() == [1, 2, 3, 4]
    assert frame["accuracy"].tolist() == whole.curve
    assert frame["upload_bytes"].mean() == 3 * whole.figures["upload_bytes_per_client_round"]


def test_a_missing_pandas_is_said(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises("FEDAF-RUN-PANDAS"):
        whole.to_frame()


def test_progress_is_a_bar_in_a_terminal_and_lines_elsewhere(capsys):
    assert type(display(Console(file=io.StringIO(), force_terminal=True))) is LiveProgress
    assert type(display(Console(file=io.StringIO()))) is PlainProgress
    fedaf.run(**SMALL, progress=True)
    assert re.search(r"round 4/4: accuracy \d+\.\d\d %", capsys.readouterr().out)


def test_a_loop_has_no_callback():
    with raises("FEDAF-CONFIG-KEY") as caught:
        fedaf.start(**SMALL, on_round=print)
    assert "fedaf.start has no argument 'on_round'" in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 3, TensorDataset(torch.zeros(3, 1, 8, 8, dtype=torch.uint8))])
def test_what_are_no_images_is_refused(whole, wrong):
    with raises("FEDAF-PREDICT-IMAGES"):
        whole.predict(wrong)


def test_an_unknown_argument_is_refused_with_the_nearest_one():
    with raises("FEDAF-CONFIG-KEY") as caught:
        fedaf.run(**SMALL, on_rounds=print)
    assert "on_round" in str(caught.value).partition(";")[0]


def test_a_result_predicts_and_plots(whole):
    digits = catalog.load("digits", Path("data")).test
    predicted = whole.predict(digits.images[:50])
    expected = whole.trained.module(normalise(digits.images[:50], *NORMALISATION)).argmax(1)
    assert predicted == [str(label) for label in expected.tolist()]
    figure = whole.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    (axes,) = figure.axes
    line = next(line for line in axes.lines if line.get_label() == "fedavg")
    assert line.get_ydata().tolist() == whole.curve


def test_a_run_that_was_stopped_before_its_first_round_has_no_model():
    stopped = fedaf.start(**SMALL).result()
    assert (stopped.curve, stopped.best_accuracy, stopped.last_accuracy) == ([], None, None)
    with raises("FEDAF-MODEL-NOT-GLOBAL"):
        stopped.predict("photo.png")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    given = {**COMPARED, "rounds": 2}
    out = tmp_path_factory.mktemp("comparison") / "c"
    return fedaf.compare(methods=["fedavg", "fedprox"], seeds=[0, 1], out=out, **{**given, "mu": 10.0})


def test_a_comparison_has_a_run_per_method_and_seed_with_the_numbers_of_run(comparison):
    assert [(run["method"], run["seed"]) for run in comparison.results] == [
        ("fedavg", 0),
        ("fedprox", 0),
        ("fedavg", 1),
        ("fedprox", 1),
    ]
    alone = fedaf.run(**{**SMALL, "rounds": 2}, seed=1)
    assert comparison.by_method["fedavg"][1]["curve"] == alone.curve


def test_a_comparison_has_paired_differences_and_one_line_as_its_repr(comparison):
    best = comparison.differences()[0]
    assert (best.method, best.against, best.difference.seeds) == ("fedprox", "fedavg", 2)
    runs = comparison.by_method
    gaps = [b["best_accuracy"] - a["best_accuracy"] for a, b in zip(runs["fedavg"], runs["fedprox"], strict=True)]
    assert best.difference.mean == pytest.approx(sum(gaps) / 2)
    assert comparison.differences("fedprox")[0].difference.mean == pytest.approx(-sum(gaps) / 2)
    assert [one.measure.name for one in comparison.differences(metrics=["loss"])][-1] == "loss"
    assert re.match(
        r"Comparison\(digits, 3 clients, .* 2 seeds; best test round: fedavg \d+\.\d\d ± ", repr(comparison)
    )


def test_a_comparison_is_a_frame_and_a_figure(comparison):
    frame = comparison.to_frame()
    assert frame["method"].tolist() == ["fedavg", "fedprox", "fedavg", "fedprox"]
    assert frame["loss"].notna().all()
    assert {"fedavg", "fedprox"} <= {line.get_label() for line in comparison.plot().axes[0].lines}


def test_a_comparison_from_python_is_resumed_by_the_command(comparison, call):
    run = comparison.directory / "fedprox" / "seed1"
    (run / "result.json").unlink()
    code, out, err = call("compare", "--resume", str(comparison.directory), "-q")
    assert (code, err) == (0, "")
    assert "paired over 2 seeds" in out


def test_wrong_arguments_of_a_comparison_are_refused():
    for wrong, code in (
        ({"methods": ["fedavg", "fedavg"]}, "FEDAF-CLI-METHODS"),
        ({"methods": "fedaf,fedavg"}, "FEDAF-CLI-METHODS"),
        ({"method": "fedavg"}, "FEDAF-CONFIG-KEY"),
        ({"seeds": []}, "FEDAF-CLI-SEEDS"),
        ({"seeds": 3}, "FEDAF-CLI-SEEDS"),
        ({"seeds": [1, 1]}, "FEDAF-CLI-SEEDS"),
        ({"seeds": [1], "seed": 2}, "FEDAF-CLI-SEEDS"),
        ({"methods": []}, "FEDAF-CLI-METHODS"),
        ({"against": "moon"}, "FEDAF-CLI-AGAINST"),
        ({"gama": 1}, "FEDAF-CONFIG-KEY"),
    ):
        with raises(code):
            fedaf.compare(**wrong)


def test_wrong_questions_to_a_comparison_are_refused(comparison):
    with raises("FEDAF-CLI-AGAINST"):
        comparison.differences("fedpox")
    with raises("FEDAF-METRIC-UNKNOWN"):
        comparison.differences(metrics=["los"])


def test_a_comparison_on_domains_has_one_split_also_after_it_is_resumed(tmp_path, call):
    images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 2
    images[labels == 1] = 200
    parts = {f"{name}_{part}": value for part in ("train", "test") for name, value in (("x", images), ("y", labels))}
    domains = {f"domain_{part}": np.arange(60) % 3 for part in ("train", "test")}
    np.savez(tmp_path / "d.npz", **parts, **domains, domains=np.array(["a", "b", "c"]))
    small = {"rounds": 1, "local_epochs": 1, "settings": {"model.width": 4, "model.depth": 2}}
    out = tmp_path / "c"
    fedaf.compare(methods=["fedavg", "fedprox"], dataset=f"npz:{tmp_path / 'd.npz'}", out=out, **small)
    shutil.rmtree(out / "fedprox")
    assert call("compare", "--resume", str(out), "-q")[0] == 0
    splits = [json.loads((out / name / "partition.json").read_text())["rows"] for name in ("fedavg", "fedprox")]
    assert splits[0] == splits[1]
    assert len(splits[0]) == 3


def test_a_run_whose_round_failed_has_ended(tmp_path):
    class Fail(Observer):
        def round_started(self, round):
            raise StopRun

    active = fedaf.start(**SMALL, observer=Fail())
    with pytest.raises(StopRun):
        next(active)
    for call_again in (active.__next__, active.result):
        with raises("FEDAF-RUN-ENDED"):
            call_again()


def test_a_failed_extension_leaves_the_run_as_it_was(tmp_path):
    run = tmp_path / "run"
    fedaf.run(**{**SMALL, "rounds": 1}, out=run)
    before = {name: (run / name).read_bytes() for name in ("config.toml", "result.json")}
    for round in (0, 1):
        (run / f"round-{round}" / "model.safetensors").write_bytes(b"damaged")
    with raises("FEDAF-RUN-NO-CHECKPOINT"):
        fedaf.resume(run, rounds=3)
    assert {name: (run / name).read_bytes() for name in before} == before


def test_methods_are_judged_by_the_selected_model_too():
    small = {**COMPARED, "rounds": 2}
    small["settings"] = {**SMALL["settings"], "data.selection": 100}
    found = fedaf.compare(methods=["fedavg", "fedprox"], **small)
    assert [one.measure.name for one in found.differences()] == ["best_accuracy", "last_accuracy", "selected_accuracy"]
    assert found.to_frame()["selected_accuracy"].notna().all()
