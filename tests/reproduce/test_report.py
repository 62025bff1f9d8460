"""The report is made of the runs that are there, says nothing of those that are not, and needs no data."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedaf.reporting import comparison
from fedaf.reporting.comparison import Row
from fedaf.reproduce.archive import Archive
from fedaf.reproduce.cells import Line, Section, Table, shown
from fedaf.reproduce.domain_features import domain_map
from fedaf.reproduce.order import Filter, plan
from fedaf.reproduce.report import render
from fedaf.reproduce.tables import METHODS
from support import ROOT
from support.digit_cells import FEDAVG, FEDAVG_1, TABLE, reproduced
from support.errors import raises


def a_run(*curve: float, **more) -> dict:
    return {"curve": list(curve), "best_accuracy": max(curve), "upload_bytes_per_client_round": 2.0 * (1 << 20), **more}


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables in a report by their first cell; of several, the first."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(name, cells)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tally, _ = reproduced([FEDAVG, FEDAVG_1], folder)
    assert len(tally.finished) == 2
    return folder / "results"


def test_the_report_of_the_same_runs_is_the_same_to_the_byte(results):
    made = []
    for name in ("docs-1", "docs-2"):
        docs = results.parent / name
        render(results, docs, made=[TABLE])
        made.append({path.relative_to(docs): path.read_bytes() for path in docs.rglob("*") if path.is_file()})
    assert made[0] == made[1]
    assert {path.name for path in made[0]} == {"RESULTS.md", "curves-digits.png", "split-digits.png"}


def test_measured_figures_stand_beside_the_papers_and_what_was_not_run_stays_empty(results, tmp_path):
    render(results, tmp_path, made=[TABLE])
    text = (tmp_path / "RESULTS.md").read_text()
    best = [run.figures["best_accuracy"] for run in map(Archive(results).find, [FEDAVG, FEDAVG_1])]
    mean = sum(best) / 2
    paper, measured, seeds, difference, *_ = rows(text)["FedAvg"]
    assert (paper, seeds) == ("50.00 ± 1.00", "2")
    assert measured == f"{mean:.2f} ± {abs(best[0] - best[1]) / 2**0.5:.2f}"
    assert difference == f"{mean - 50:+.2f}"
    assert rows(text)["FedAF"] == ["60.00", *[""] * 7]
    assert "2 of 3 runs are finished." in text
    assert "- digits-alpha0.1: fedaf (0)" in text
    for cell in (FEDAVG, FEDAVG_1):
        assert f"[{cell.directory}]" in text


def test_a_damaged_run_and_one_of_other_settings_are_named_and_not_counted(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    (tmp_path / "results" / FEDAVG.directory / "result.json").write_text("{")
    config = tmp_path / "results" / FEDAVG_1.directory / "config.toml"
    config.write_text(config.read_text().replace("local_epochs = 1", "local_epochs = 9"))
    said = render(tmp_path / "results", tmp_path / "docs", made=[TABLE])
    assert str(tmp_path / "results" / FEDAVG.directory / "result.json") in said[0]
    text = (tmp_path / "docs" / "RESULTS.md").read_text()
    assert rows(text)["FedAvg"] == ["50.00 ± 1.00", *[""] * 7]
    assert f"- `{FEDAVG.directory}` is damaged" in text
    assert f"unlike {FEDAVG_1.directory}, method.local_epochs is 9, not 1" in text


def test_of_two_runs_with_the_same_settings_one_counts_and_the_other_is_named(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    again = tmp_path / "results" / f"{FEDAVG.directory}-again"
    shutil.copytree(tmp_path / "results" / FEDAVG.directory, again)
    render(tmp_path / "results", tmp_path / "docs", made=[TABLE])
    text = (tmp_path / "docs" / "RESULTS.md").read_text()
    assert rows(text)["FedAvg"][2] == "2"
    assert f"the same as {FEDAVG.directory}, which is used" in text


def test_a_line_counted_twice_within_different_rounds_can_differ_from_the_paper_twice(results, tmp_path):
    line = Line("FedAvg", (FEDAVG,), (99.0, 0.1))
    late, early = (Section(name, name, (line,), within=within) for name, within in (("late", None), ("early", 1)))
    made = [Table("one", "One", "", (late,)), Table("two", "Two", "", (early, late))]
    render(results, tmp_path, made=made)
    listed = [each for each in (tmp_path / "RESULTS.md").read_text().splitlines() if each.startswith("- FedAvg, ")]
    assert [each.split(":")[0] for each in listed] == ["- FedAvg, late", "- FedAvg, early"]


def test_pictures_that_need_data_stay_as_they_are_without(results, tmp_path):
    kept = tmp_path / "results" / "tsne-pacs.png"
    kept.parent.mkdir()
    kept.write_bytes(b"a picture")
    said = render(results, tmp_path, made=[TABLE])
    assert "tsne-pacs.png was not changed, because no --data-dir was given." in said
    assert "tsne-domainnet.png was not drawn, because no --data-dir was given." in said
    assert kept.read_bytes() == b"a picture"
    assert "(results/tsne-pacs.png)" in (tmp_path / "RESULTS.md").read_text()


def test_the_report_in_the_repository_is_that_of_its_runs(tmp_path):
    """Pictures differ with the version of what draws them; the text does not."""
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    for picture in (ROOT / "docs" / "results").glob("tsne-*.png"):
        shutil.copy(picture, tmp_path / "docs" / "results")
    render(tmp_path / "results", tmp_path / "docs")
    text = (tmp_path / "docs" / "RESULTS.md").read_text()
    assert text == (ROOT / "docs" / "RESULTS.md").read_text(), "run fedaf reproduce --render"
    assert all(f"| {shown(method)} |" in text for method in METHODS)
    for cell in plan("all", Filter()):
        assert cell.setting in text


def test_an_accuracy_table_has_the_mean_the_difference_and_the_audit():
    one = dict.fromkeys(("psnr_mean", "held_out_psnr_mean"), 10.0) | dict.fromkeys(
        ("psnr_max", "held_out_psnr_max"), 20.0
    )
    shares = {"from_source": 0.5, "held_out_from_source": 0.1}
    runs = [
        a_run(10, 40, 30, copy_audit={**one, **shares}),
        a_run(
            20, 30, 20, copy_audit={**one, **shares, "psnr_max": 25.0, "from_source": 0.25, "held_out_psnr_mean": 12.0}
        ),
    ]
    (row,) = [
        cells for name, cells in rows(comparison.accuracy_table([Row("a", runs, (30.0, 2.0))])).items() if name == "a"
    ]
    audit = "10.0 / 25.0 dB, 50 % (11.0 / 20.0 dB, 10 %)"
    of_all = "25.00 ± 2.36"  # means of the three rounds there are: 26.67 and 23.33
    assert row == ["30.00 ± 2.00", "35.00 ± 7.07", "2", "+5.00", of_all, "25.00 ± 7.07", "2.00", audit]
    copies = [
        {**run, "copy_audit": {**run["copy_audit"], "copied": share}}
        for run, share in zip(runs, (0.01, 0.034), strict=True)
    ]
    assert comparison.audit(copies) == f"{audit}, copied 3.4 %"
    assert comparison.audit([runs[0], copies[1]]).endswith(", copied 3.4 %")  # older runs do not have it
    early = rows(comparison.accuracy_table([Row("a", runs[:1], (30.0, None))], within=1))["a"]
    assert early[:6] == ["30.00", "10.00", "1", "-20.00", "10.00", "10.00"]


def test_the_mean_of_the_last_five_rounds_leaves_out_the_others():
    run = a_run(90, 10, 20, 30, 40, 50)
    assert rows(comparison.accuracy_table([Row("a", [run])]))["a"][:4] == ["90.00", "1", "30.00", "50.00"]
    assert rows(comparison.accuracy_table([Row("a", [run])], within=5))["a"][2:4] == ["38.00", "40.00"]


def test_models_of_clients_own_have_a_row_of_their_own():
    run = a_run(10.0, personal={"best_accuracy": 77.0})
    table = rows(comparison.accuracy_table([Row("FedBN", [run], (30.0, None))]))
    assert table["FedBN, personal models"][:3] == ["", "77.00", "1"]


def test_where_the_paper_prints_nothing_there_is_no_column_for_it():
    found = rows(comparison.accuracy_table([Row("a", [a_run(10.0, 20.0)]), Row("b", [])]))
    assert found["a"] == ["20.00", "1", "15.00", "20.00", "2.00", ""]
    assert found["b"] == ["", "", "", "", "", ""]
    assert "difference" not in comparison.accuracy_table([Row("a", [])])
    assert "difference" in comparison.accuracy_table([Row("a", []), Row("b", [], (30.0, None))])


def test_domains_stand_below_the_papers():
    run = a_run(40.0, 50.0, best_accuracy_by_domain={"x": 40.0, "y": 60.0})
    table = Row("a", [run], paper_by_domain={"x": 41.0, "y": 61.5, "average": 51.25})
    found = rows(
        comparison.domains_table([table, Row("b", [], None, {"x": 1.0, "y": 2.0, "average": 1.5})], ["x", "y"])
    )
    assert found["a, paper"][:3] == ["41.00", "61.50", "51.25"]
    assert found["a, measured"][:5] == ["40.00", "60.00", "50.00", "45.00", "1"]
    assert found["a, difference"][:3] == ["-1.00", "-1.50", "-1.25"]
    assert found["b, measured"] == [""] * 6
    assert "b, difference" not in found


def test_rounds_to_a_target_are_those_of_the_mean_curve():
    runs = [a_run(50, 55, 70), a_run(50, 65, 50)]
    assert rows(comparison.rounds_table([Row("a", runs, (3.0, None))], 60.0))["a"] == ["3", "2", "2"]
    assert rows(comparison.rounds_table([Row("a", [], (3.0, None))], 60.0))["a"] == ["3", "", ""]


@pytest.mark.parametrize(
    ("row", "measure", "found"),
    [
        (Row("a", [a_run(54.0)], (50.0, 2.0)), "accuracy", None),
        (Row("a", [a_run(54.1)], (50.0, 2.0)), "accuracy", "+4.10"),
        (Row("a", [a_run(47.9)], (50.0, None)), "accuracy", "-2.10"),
        (Row("a", [a_run(52.0)], (50.0, None)), "accuracy", None),
        (Row("a", [], (50.0, 2.0)), "accuracy", None),
        (Row("a", [a_run(54.0)]), "accuracy", None),
        (Row("a", [a_run(54.0)], None, {"average": 50.0}), "domains", "+4.00"),
        (Row("a", [a_run(1.0)], (2.1, None)), "upload", None),
        (Row("a", [a_run(1.0)], (1.5, None)), "upload", "+0.50 MiB"),
        (Row("a", [a_run(1.0, 60.0)], (2.0, None)), "rounds", None),
        (Row("a", [a_run(1.0, 59.0)], (2.0, None)), "rounds", "never, not 2 rounds to 60 %"),
    ],
)
def test_what_is_too_far_from_the_paper_is_told(row, measure, found):
    assert comparison.mismatch(row, measure, target=60.0) == found


@pytest.fixture
def two_domains(tmp_path):
    """Dark and bright pictures of the same two classes."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"domains": np.array(["dark", "bright"]), "classes": np.array(["a", "b"])}
    for split, count in (("train", 80), ("test", 40)):
        domains, labels = np.arange(count) % 2, np.arange(count) // 2 % 2
        pixels = rng.integers(0, 40, (count, 16, 16, 3)) + 200 * domains[:, None, None, None]
        pixels[:, :8] += 15 * labels[:, None, None, None]
        arrays |= {f"x_{split}": pixels.astype(np.uint8), f"y_{split}": labels, f"domain_{split}": domains}
    np.savez(tmp_path / "two.npz", **arrays)
    return f"npz:{tmp_path / 'two.npz'}"


def separated(points: np.ndarray, domains: list[int]) -> bool:
    """Whether every point is nearer to the centre of its own domain."""
    of = np.array(domains)
    centres = np.stack([points[of == d].mean(0) for d in (0, 1)])
    return bool((np.linalg.norm(points[:, None] - centres, axis=2).argmin(1) == of).all())


@pytest.mark.parametrize("backbone", [None, "support.zoo:plain_convnet"])
def test_features_of_unlike_domains_lie_apart(two_domains, backbone):
    points, domains, names = domain_map(two_domains, Path(), device="cpu", backbone=backbone, epochs=1, most=15)
    assert points.shape == (30, 2)
    assert names == ("dark", "bright")
    assert (domains.count(0), domains.count(1)) == (15, 15)
    assert separated(points, domains)


def test_data_without_domains_have_no_map_of_them():
    with raises("FEDAF-REPRODUCE-DOMAINS"):
        domain_map("digits", Path(), device="cpu")


def test_a_report_without_any_run_has_the_papers_numbers_alone(call, tmp_path):
    code, out, err = call("reproduce", "--render", "--docs", "report")
    assert (code, err) == (0, "")
    assert "RESULTS.md" in out
    text = (tmp_path / "report" / "RESULTS.md").read_text()
    assert f"0 of {len(plan('all', Filter()))} runs are finished." in text
    assert rows(text)["FedAF"][0] == "65.15 ± 0.86"
    assert not list((tmp_path / "report").rglob("*.png"))
