"""The report: the numbers of result.json, nothing else of a run than it should show, and no traceback."""

import itertools
import json
import shutil
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from fedaf.data import catalog
from fedaf.reporting.html import write_report
from support.browser import chromium
from support.errors import raises
from support.reports import Content, a_line, digits_runs, invented, private_blocks, shared_images

LEFT_OUT = "This section is left out"
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    return digits_runs(tmp_path_factory.mktemp("digits"))


def page_of(runs: list[Path], folder: Path, **options) -> Content:
    return Content(write_report(runs, folder / "page.html", **options))


def figures(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def private_digits() -> np.ndarray:
    return catalog.load("digits", Path()).train.images[:, 0].numpy()


def test_a_report_of_real_runs_has_every_section_and_the_numbers_of_result_json(runs, tmp_path):
    page = page_of(runs, tmp_path)
    assert LEFT_OUT not in page.text
    assert page.sections == [
        *("summary", "curves", "losses", "classes", "clients", "holdings", "gallery", "costs", "failures", "audits"),
        *("settings", "versions"),
    ]
    for method in ("fedaf", "fedavg"):
        results = [figures(run) for run in runs if run.parent.name == method]
        for key in ("best_accuracy", "last_accuracy", "seconds", "upload_bytes_per_client_round"):
            assert fmean(result[key] for result in results) in page.values, key
        for metric in ("balanced_accuracy", "macro_auc", "loss", "worst_client"):
            for at_round in zip(*(result["curves"][metric] for result in results), strict=True):
                assert fmean(at_round) in page.values, metric
    audit = figures(runs[0])["copy_audit"]
    assert {audit["psnr_mean"], audit["psnr_max"]} <= page.values
    counts = json.loads((runs[0] / "partition.json").read_text())["counts"]
    assert {float(sum(row)) for row in counts.values()} <= page.values
    assert figures(runs[0])["commit"][:12] in page.text
    assert "Difference to fedaf, paired over seeds" in page.text


def test_a_page_loads_nothing_and_has_no_script(runs, tmp_path):
    page = page_of(runs, tmp_path)
    assert not page.all("script")
    assert not page.all("iframe")
    addresses = [tag.get(name) for kind, tag in page.tags for name in ("src", "href") if tag.get(name)]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "url(" not in page._raw
    assert "@import" not in page._raw
    policy = next(tag["content"] for tag in page.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_every_chart_has_a_title_a_description_and_a_table_and_every_table_a_caption(runs, tmp_path):
    page = page_of(runs, tmp_path)
    charts = [tag for tag in page.all("svg") if tag.get("role") == "img"]
    assert len(charts) >= 20
    ids = [tag["id"] for _, tag in page.tags if "id" in tag]
    assert len(ids) == len(set(ids))
    assert all(set(chart["aria-labelledby"].split()) <= set(ids) for chart in charts)
    cards = [tag for tag in page.all("figure") if "card" in (tag.get("class") or "")]
    assert len(page.all("details")) >= len(cards)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(tag.get("scope") in ("row", "col") for tag in page.all("th"))
    levels = [int(kind[1]) for kind, _ in page.tags if kind in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_no_private_image_is_in_the_report_and_a_planted_one_is_found(runs, tmp_path):
    private = private_digits()
    page = page_of(runs, tmp_path)
    assert sum(1 for _ in page.images()) >= 6
    assert private_blocks(page, private) == 0
    planted = tmp_path / "planted"
    shutil.copytree(runs[0], planted)
    shared_images(planted, private[40:42].reshape(1, 2, 8, 8))
    assert private_blocks(page_of([planted], tmp_path), private) >= 2


def test_the_gallery_shows_rounds_of_the_same_client_side_by_side(runs, tmp_path):
    page = page_of([runs[0]], tmp_path)
    names = [tag["alt"] for tag in page.all("img")]
    for round in (1, 2, 3):
        assert any(f"client-0 by fedaf in round {round};" in name for name in names)
    assert len(names) <= 9


def test_images_of_a_client_that_forbids_publication_are_left_out(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    state = run / (run / "LATEST").read_text() / "state.json"
    facts = json.loads(state.read_text())
    assert facts["publishable"]["client-0"] is True
    state.write_text(json.dumps({**facts, "publishable": {**facts["publishable"], "client-0": False}}))
    page = page_of([run], tmp_path)
    names = [tag["alt"] for tag in page.all("img")]
    assert names
    assert not any("client-0" in name for name in names)
    assert "the policies of client-0 do not allow their images to be published" in page.text


def test_runs_of_several_seeds_are_one_row_with_their_mean(tmp_path):
    made = [invented(tmp_path / str(s), seed=s, best_accuracy=best) for s, best in enumerate((50.0, 60.0, 76.0))]
    page = page_of(made, tmp_path)
    assert 62.0 in page.values
    assert "62.00\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}13.11" in page.text
    assert "seeds 0 to 2" in page.text


def test_a_verdict_is_that_of_the_paired_differences(tmp_path):
    made = [
        invented(tmp_path / f"{method}{s}", method=method, seed=s, best_accuracy=50.0 + s + gain + s * 0.01 * gain)
        for s in range(3)
        for method, gain in (("fedavg", 0.0), ("fedaf", 5.0))
    ]
    page = page_of(made, tmp_path, against="fedavg")
    assert "fedaf compared with fedavg: +5.05 points in the best test round" in page.text
    assert "better" in page.text
    assert "worse" in page_of(made, tmp_path, against="fedaf").text


def test_runs_are_grouped_by_data_and_named_by_the_settings_in_which_they_differ(tmp_path):
    for name, dataset, ipc in (("a", "digits", 5), ("b", "digits", 10), ("c", "mnist", 5)):
        invented(tmp_path / name, dataset=dataset)
        (tmp_path / name / "config.toml").write_text(f'preset = "paper"\n[method]\nname = "fedaf"\nipc = {ipc}\n')
    page = page_of([tmp_path / name for name in "abc"], tmp_path)
    assert "fedaf (ipc 5)" in page.text
    assert "fedaf (ipc 10)" in page.text
    assert {"g1-summary", "g2-summary"} <= set(page.sections)
    assert "mnist, 2 clients, Dirichlet 0.1" in page.text


def test_an_older_name_of_the_engine_and_an_unrecorded_first_version_do_not_divide_seeds(tmp_path):
    made = [
        invented(tmp_path / "old", seed=0, engine="compiled", precision="bf16"),
        invented(tmp_path / "new", seed=1, engine="cuda-graphs", precision="bf16", method_version=1),
    ]
    assert "2: 1 method, seeds 0, 1" in page_of(made, tmp_path).text
    made.append(invented(tmp_path / "other", seed=2, engine="cuda-graphs", precision="bf16", method_version=2))
    page = page_of(made, tmp_path)
    assert "1 method in 2 variants" in page.text
    assert "fedaf (method_version 2)" in page.text


def test_settings_that_are_zero_or_missing_have_lines_of_their_own(tmp_path):
    made = []
    for name, option in (("zero", "gamma = 0.0\n"), ("unset", ""), ("off", "lgkm = false\n")):
        made.append(invented(tmp_path / name, seed=len(name)))
        (made[-1] / "config.toml").write_text(f'[method]\nname = "fedaf"\n{option}')
    page = page_of(made, tmp_path)
    assert "1 method in 2 variants" in page.text  # an option that is off and one that is unknown are the same
    assert "fedaf (gamma 0.0)" in page.text
    assert "fedaf (gamma unset)" in page.text


def test_a_repeated_run_is_not_counted_twice(tmp_path):
    made = [invented(tmp_path / "a", best_accuracy=50.0), invented(tmp_path / "b", best_accuracy=90.0)]
    page = page_of(made, tmp_path)
    assert 50.0 in page.values
    assert 70.0 not in page.values
    assert "settings and the seed of another one: b" in page.text


def test_what_is_missing_is_a_missing_section(tmp_path):
    page = page_of([invented(tmp_path / "run")], tmp_path)
    assert page.sections == ["summary", "curves", "settings", "versions"]
    assert LEFT_OUT not in page.text


def test_text_of_peers_is_never_markup(tmp_path):
    failed = a_line(1, failures={EVIL: f"fit: {EVIL}"}, asked=[EVIL], upload_bytes={EVIL: {EVIL: 5}})
    last = {"accuracy_by_client": {EVIL: 50.0}, "accuracy_by_class": [1.0, 2.0, 3.0], "confusion": [[1, 0, 0]] * 3}
    more = {"classes": [EVIL, "a", "b"], "metrics": {"last": last}, "device": EVIL, "commit": EVIL, "preset": EVIL}
    disclosed = {"clients": {EVIL: {"images": {EVIL: 1}, "total": 1, "per_sample_at_most": 1.0}}}
    disclosed |= {"most_images": 1, "per_sample_at_most": 1.0}
    changed = {EVIL: {"preset": EVIL, "run": EVIL}}
    run = invented(
        tmp_path / "run", lines=[failed], dataset=EVIL, settings_changed=changed, disclosed=disclosed, **more
    )
    (run / "counts.json").write_text(json.dumps({EVIL: [1, 2, 3]}))
    page = page_of([run], tmp_path, title=EVIL)
    assert LEFT_OUT not in page.text
    assert {"failures", "clients", "holdings", "audits", "settings"} <= set(page.sections)
    assert page.text.count("alert(1)") > 10
    assert not page.all("script")
    assert not page.all("img")
    assert not [tag for _, tag in page.tags if any(name.startswith("on") for name in tag)]


def test_with_differential_privacy_exact_counts_and_audits_are_absent(tmp_path):
    stated = {"epsilon": 3.25, "delta": 1e-5, "unit": "one image", "neighbours": "add or remove one image"}
    stated |= {"replace_one_epsilon": 7.5, "simulated": False, "outside_guarantee": ["a person with several images"]}
    secret = {"copy_audit": {"images": 4321, "psnr_mean": 43.21}, "left_out": {"samples": 4321}}
    secret |= {"metrics": {"last": {"accuracy_by_client": {"client-0": 43.21}}}}
    clients = {"client-0": {"images": {"0": 4321}, "total": 4321, "per_sample_at_most": 4321.0}}
    secret |= {"disclosed": {"clients": clients, "most_images": 4321, "per_sample_at_most": 4321.0}}
    run = invented(tmp_path / "run", lines=[a_line(1)], privacy=stated, **secret)
    (run / "partition.json").write_text(json.dumps({"counts": {"client-0": [4321, 0, 1]}}))
    page = page_of([run], tmp_path)
    assert "privacy" in page.sections
    assert not {"holdings", "audits", "clients"} & set(page.sections)
    assert "4321" not in page._raw
    assert "43.21" not in page._raw
    assert "epsilon 3.25" in page.text
    assert "a person with several images" in page.text
    open_run = invented(tmp_path / "open", lines=[a_line(1)], copy_audit={"images": 4321})
    assert "4321" in page_of([open_run], tmp_path)._raw


@pytest.mark.parametrize(
    "damage",
    [
        {"metrics": 5},
        {"metrics": {"last": {"confusion": "x", "accuracy_by_class": 7}}},
        {"curves": []},
        {"curves": {"loss": ["a", None]}},
        {"classes": 3},
        {"copy_audit": {"images": "many", "psnr_mean": "x"}},
        {"disclosed": {"clients": 5}},
        {"best_accuracy_by_domain": {"a": "b"}},
        {"settings_changed": {"a": 5}},
        {"privacy": {"epsilon": "x"}},
        {"versions": []},
        {"left_out": {"samples": 1}},
        {"curve": [float("nan"), 50.0], "seconds": 1e3},
        {"planned_rounds": "x"},
    ],
)
def test_damaged_parts_of_a_result_are_left_out_without_a_traceback(tmp_path, damage):
    lines = [{"round": 1, "losses": 5}, {"seconds": "x", "asked": 3, "upload_bytes": {"a": 5}, "failures": []}]
    run = invented(tmp_path / "run", lines=lines, **damage)
    (run / "partition.json").write_text("{")
    (run / "config.toml").write_text("= broken")
    (run / "condensed").mkdir()
    (run / "condensed" / "index.json").write_text('{"client-0": {"classes": [1]}, "../x": 3}')
    page = page_of([run], tmp_path)
    assert "summary" in page.sections or LEFT_OUT in page.text


@pytest.mark.parametrize(
    "damage",
    [{"curve": "x"}, {"curve": ["x"]}, {"seed": "0"}, {"method": None}, {"seconds": None}, {"best_accuracy": [1]}],
)
def test_a_result_without_its_main_figures_is_one_sentence(tmp_path, damage):
    run = invented(tmp_path / "run", curve=(1.0,), **{key: v for key, v in damage.items() if key != "curve"})
    if "curve" in damage:
        (run / "result.json").write_text(json.dumps({**figures(run), **damage}))
    with raises("FEDAF-RUN-DAMAGED") as caught:
        write_report([run], tmp_path / "page.html")
    assert "--resume" in str(caught.value)


def test_images_that_do_not_match_their_index_are_left_out(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run")
    (tmp_path / "run" / "condensed" / "client-0.png").write_bytes(b"no picture")
    page = page_of([tmp_path / "run"], tmp_path)
    assert "condensed of fedaf is damaged" in page.text


def test_a_client_whose_name_leads_elsewhere_is_not_read(tmp_path):
    run = invented(tmp_path / "run")
    shared_images(run, np.zeros((1, 1, 8, 8), np.uint8))
    shutil.copy(run / "condensed" / "client-0.png", tmp_path / "secret.png")
    index = json.loads((run / "condensed" / "index.json").read_text())
    (run / "condensed" / "index.json").write_text(json.dumps({"../../secret": index["client-0"]}))
    assert not page_of([run], tmp_path).all("img")


def test_the_gallery_keeps_within_its_budget(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (10, 5, 128, 128), np.uint8)
    made = []
    for number in range(8):
        run = invented(tmp_path / f"run{number}", method=f"m{number}")
        shared_images(run, noise, classes=range(10))
        made.append(run)
    page = page_of(made, tmp_path)
    assert len(page.all("img")) == 8  # each method has a share
    assert (tmp_path / "page.html").stat().st_size < 4_000_000


def test_a_method_to_compare_with_must_be_among_the_runs(tmp_path):
    with raises("FEDAF-REPORT-AGAINST"):
        write_report([invented(tmp_path / "run")], tmp_path / "page.html", against="fedavgg")


def test_no_run_is_one_sentence(tmp_path):
    with raises("FEDAF-REPORT-NO-RUNS"):
        write_report([], tmp_path / "page.html")


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_the_tests_in_one_fail_in_ci_and_are_skipped_elsewhere(monkeypatch, ci, outcome):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="make chromium"):
        chromium()


def test_many_classes_and_clients_stay_small(tmp_path):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 9, (100, 100)).tolist()
    names = [f"class {number}" for number in range(100)]
    by_client = {f"client-{c}": 50.0 for c in range(100)}
    last = {"confusion": matrix, "accuracy_by_class": [50.0] * 100, "accuracy_by_client": by_client}
    run = invented(tmp_path / "run", classes=names, metrics={"last": last}, lines=[a_line(1)])
    (run / "counts.json").write_text(json.dumps(dict.fromkeys(by_client, matrix[0])))
    page = page_of([run], tmp_path)
    assert LEFT_OUT not in page.text
    assert {"classes", "clients", "holdings"} <= set(page.sections)
    assert (tmp_path / "page.html").stat().st_size < 1_000_000


def test_seconds_by_client_are_shown_where_a_network_measured_them(tmp_path):
    lines = [a_line(n, client_seconds={"fit": {"client-0": 1.5 * n, "client-1": 4.0}}) for n in (1, 2)]
    page = page_of([invented(tmp_path / "net", lines=lines)], tmp_path)
    assert "Seconds per round by client" in page.text
    assert {2.25, 4.0} <= set(page.values)
    page = page_of([invented(tmp_path / "one", lines=[a_line(1), a_line(2)])], tmp_path)
    assert "Seconds per round by client" not in page.text
