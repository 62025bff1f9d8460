"""``fedaf privacy audit``: its table, its explanation and its file."""

import json
import stat

import pytest
from PIL import Image

from support.commandline import TINY, assert_one_sentence

AUDIT = ["privacy", "audit", *TINY, "--canaries", "60"]


def test_the_audit_prints_its_figures_and_what_they_mean(call, tmp_path):
    code, out, err = call(*AUDIT)
    assert code == 0, err
    for word in ("60 outlier canaries", "50 shared images", "AUC", "epsilon at least (95 %)", "mean features"):
        assert word in out
    assert "a low value proves nothing" in out
    assert "Copy audit of fedaf" in out
    assert not list(tmp_path.iterdir())


def test_natural_canaries_add_the_half_out_test_and_the_file_is_private(call, tmp_path):
    file = tmp_path / "audit.json"
    file.write_text("an earlier one, which others can read")
    code, out, err = call(*AUDIT, "--kind", "natural", "-q", "--out", file)
    assert code == 0, err
    assert "In pixels, " in out
    assert "one-sided" in out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = json.loads(file.read_text())
    assert found["kind"] == "natural"
    assert found["features"]["canaries"] == 60
    assert 0 <= found["half_out_features"]["share"] <= 1
    assert found["copy_audit"]["images"] == 50
    assert 0 < found["accuracy"] <= 100
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]


def test_pictures_of_nearest_private_images_are_for_the_owner_alone(call, tmp_path):
    file = tmp_path / "mine.png"
    code, out, err = call(*AUDIT, "--pictures", file)
    assert code == 0, err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with Image.open(file) as picture:
        assert picture.width > 300
        assert picture.height > 500  # three rows for each of ten classes
    assert "They show private images" in out
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


@pytest.mark.parametrize("option", ["--out", "--pictures"])
@pytest.mark.parametrize("place", ["run/x.png", "run/model/x.png", "cmp/x.png"])
def test_nothing_about_private_images_comes_into_a_run_directory(call, tmp_path, option, place):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "cmp").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    (tmp_path / "cmp" / "comparison.json").touch()
    code, _, err = call(*AUDIT, option, place)
    assert_one_sentence(code, err, [option, "run directory", "FEDAF-AUDIT-FILE"])
    assert not (tmp_path / place).exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--method fedavg", ["fedavg", "condensing method", "FEDAF-AUDIT-METHOD"]),
        ("--canaries 3", ["3 canaries", "at least 20", "FEDAF-AUDIT-CANARIES"]),
        ("--kind natural --canaries 5000", ["5000", "1438", "FEDAF-AUDIT-CANARIES"]),
        ("--kind odd", ["'odd'", "outlier, natural", "FEDAF-AUDIT-KIND"]),
        ("--canaries many", ["many", "FEDAF-CLI-USAGE"]),
        ("--out nowhere/audit.json", ["nowhere", "FEDAF-CLI-FILE"]),
        ("--out .", ["folder", "FEDAF-CLI-FILE"]),
    ],
)
def test_a_mistake_is_one_sentence(call, arguments, words):
    code, _, err = call("privacy", "audit", *arguments.split())
    assert_one_sentence(code, err, words)
