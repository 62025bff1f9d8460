"""The gallery of a run directory: a bounded selection of shared images, of rounds that nothing else decides."""

import json
from pathlib import Path

import torch
from PIL import Image

from fedaf.federation.run_directory import RunDirectory
from fedaf.protocol import Exhibit


def exhibit(round: int, *, classes: int = 2, images: int = 3) -> Exhibit:
    return Exhibit(list(range(classes)), torch.full((classes, images, 1, 4, 4), round, dtype=torch.uint8))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rounds_1_2_4_8_stay_and_the_newest_images_are_where_they_always_were(tmp_path):
    with RunDirectory(tmp_path) as directory:
        for round in range(1, 11):
            directory.write_exhibits({"client-0": exhibit(round)}, round)
    kept = tmp_path / "condensed" / "gallery"
    assert sorted(int(folder.name) for folder in kept.iterdir()) == [1, 2, 4, 8]
    for folder in kept.iterdir():
        with Image.open(folder / "client-0.png") as sheet:
            assert sheet.getpixel((0, 0)) == int(folder.name)
    with Image.open(tmp_path / "condensed" / "client-0.png") as sheet:
        assert sheet.getpixel((0, 0)) == 10
    assert list(json.loads((tmp_path / "condensed" / "index.json").read_text())) == ["client-0"]


def test_the_selection_is_bounded_in_clients_classes_and_images(tmp_path):
    with RunDirectory(tmp_path) as directory:
        many = {f"client-{c}": exhibit(1, classes=30, images=50) for c in (11, 2, 0, 7)}
        directory.write_exhibits(many, 1)
    kept = json.loads((tmp_path / "condensed" / "gallery" / "1" / "index.json").read_text())
    assert list(kept) == ["client-0", "client-2", "client-7"]
    assert all(len(facts["classes"]) == 10 and facts["columns"] == 5 for facts in kept.values())
    assert len(json.loads((tmp_path / "condensed" / "index.json").read_text())) == 4


def test_a_round_that_is_played_again_leaves_the_same_bytes(tmp_path):
    made = []
    for name, rounds in (("whole", (1, 2, 3)), ("killed", (1, 2, 2, 3))):
        (tmp_path / name).mkdir()
        with RunDirectory(tmp_path / name) as directory:
            for round in rounds:
                directory.write_exhibits({"client-0": exhibit(round)}, round)
        made.append(files(tmp_path / name / "condensed"))
    assert made[0] == made[1]
