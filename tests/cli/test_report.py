"""``fedaf report``: which runs it finds, where the file is, and one sentence for every mistake."""

import json

import pytest

import fedaf
from support.commandline import SMALL, TINY, assert_one_sentence
from support.reports import Content, invented


def test_run_and_compare_write_a_report_and_say_where_it_is(call, tmp_path):
    code, out, err = call("run", *TINY, "--clients", "3", "--out", "one", "-q")
    assert code == 0, err
    assert "The report is in one/report.html." in out
    page = Content(tmp_path / "one" / "report.html")
    assert "fedaf on digits" in page.text
    assert json.loads((tmp_path / "one" / "result.json").read_text())["best_accuracy"] in page.values
    assert {"gallery", "holdings", "audits", "settings"} <= set(page.sections)
    assert "method.local_steps" in page.text
    code, out, err = call("compare", *SMALL, "--methods", "fedavg,local", "--clients", "3", "--out", "two", "-q")
    assert code == 0, err
    assert "The report is in two/report.html." in out
    assert "2 methods on digits" in Content(tmp_path / "two" / "report.html").text


def test_runs_comparisons_and_folders_are_accepted(call, tmp_path):
    for seed in (0, 1):
        for method in ("fedavg", "fedaf"):
            invented(tmp_path / "cmp" / method / f"seed{seed}", method=method, seed=seed)
    plan = {"runs": {f"{m}/seed{s}": "" for s in (0, 1) for m in ("fedavg", "fedaf")}, "against": None}
    (tmp_path / "cmp" / "comparison.json").write_text(json.dumps(plan))
    invented(tmp_path / "alone", method="feddm")
    code, out, err = call("report", "cmp")
    assert (code, out) == (0, "The report is in cmp/report.html.\n"), err
    assert "Difference to fedavg, paired over seeds" in Content(tmp_path / "cmp" / "report.html").text
    code, out, err = call("report", "cmp/fedaf", "alone", "--title", "Both", "--against", "feddm")
    assert (code, out) == (0, "The report is in report.html.\n"), err
    page = Content(tmp_path / "report.html")
    assert {"Both", "feddm"} <= set(page.text.split())
    assert "fedavg" not in page.text
    code, _, err = call("report", ".", "--out", "all.html")
    assert code == 0, err
    assert "5: 3 methods, seeds 0, 1" in Content(tmp_path / "all.html").text


def test_the_method_of_a_comparison_to_compare_with_may_not_be_finished_yet(call, tmp_path):
    invented(tmp_path / "cmp" / "fedaf")
    (tmp_path / "cmp" / "comparison.json").write_text(json.dumps({"runs": {"fedaf": ""}, "against": "fedavg"}))
    code, _, err = call("report", "cmp")
    assert code == 0, err


def test_a_result_has_its_difference_to_the_preset_also_after_a_resume(call, tmp_path):
    code, _, err = call("run", *TINY, "--clients", "3", "--out", "one", "-q")
    assert code == 0, err
    before = json.loads((tmp_path / "one" / "result.json").read_text())
    changed = before["settings_changed"]
    assert changed["method.local_steps"] == {"preset": 20, "run": 2}
    assert changed["partition.clients"] == {"preset": 10, "run": 3}
    assert not {"data.dir", "partition.kind", "method.lgkm"} & changed.keys()
    (tmp_path / "one" / "result.json").unlink()
    code, _, err = call("run", "--resume", "one", "-q")
    assert code == 0, err
    after = json.loads((tmp_path / "one" / "result.json").read_text())
    assert after["settings_changed"] == changed
    assert after["preset"] == "quick"
    assert after["test_images"] == 359


def test_python_writes_the_same_report(tmp_path):
    run = invented(tmp_path / "run")
    assert fedaf.report(run) == run / "report.html"
    assert fedaf.report([run], tmp_path / "x.html", title="Mine").read_text().count("Mine") >= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere", ["nowhere", "FEDAF-REPORT-NO-RUNS"]),
        ("empty", ["no finished run", "FEDAF-REPORT-NO-RUNS"]),
        ("begun", ["not finished", "--resume begun", "FEDAF-REPORT-NO-RUNS"]),
        ("broken", ["broken/result.json", "FEDAF-RUN-DAMAGED"]),
        ("run/result.json", ["not a directory", "FEDAF-REPORT-NO-RUNS"]),
        ("run --against fedavgg", ["'fedavgg'", "fedaf", "FEDAF-REPORT-AGAINST"]),
        ("run --out nowhere/a.html", ["nowhere", "FEDAF-CLI-FILE"]),
        ("run --out empty", ["folder", "FEDAF-CLI-FILE"]),
        ("run --out run/result.json", ["run/result.json", "FEDAF-REPORT-FILE"]),
        ("", ["FEDAF-CLI-USAGE"]),
    ],
)
def test_a_mistake_is_one_sentence(call, tmp_path, arguments, words):
    invented(tmp_path / "run")
    for name, file in (("empty", "a.txt"), ("begun", "config.toml"), ("broken", "result.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{")
    before = (tmp_path / "run" / "result.json").read_bytes()
    code, _, err = call("report", *arguments.split())
    assert_one_sentence(code, err, words)
    assert (tmp_path / "run" / "result.json").read_bytes() == before
