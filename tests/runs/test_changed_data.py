"""A run goes on with the data it began with, wherever they are now, or not at all."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

import fedaf
from fedaf.data import catalog
from fedaf.protocol import UserError
from support.commandline import assert_one_sentence

SMALL = ["--rounds", "2", "--preset", "quick", "--local-steps", "1", "--set", "method.server_epochs=1"]
TINY = ["--set", "model.width=4", "--set", "model.depth=2", "--alpha", "1", "--clients", "2", "--device", "cpu"]


def photographs(folder: Path, shift: int = 0) -> Path:
    """Two classes of 30 grey images each."""
    for c, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(30):
            Image.new("L", (8, 8), 100 * c + number + shift).save(folder / name / f"{number:02}.png")
    return folder


def overwrite(folder: Path) -> None:
    photographs(folder, shift=1)


def move_one(folder: Path) -> None:
    (folder / "cat" / "00.png").rename(folder / "dog" / "moved.png")


def swap_names(folder: Path) -> None:
    (folder / "cat").rename(folder / "zebra")


def remove_one(folder: Path) -> None:
    (folder / "cat" / "00.png").unlink()


@pytest.mark.parametrize("change", [overwrite, move_one, swap_names, remove_one])
def test_a_run_does_not_continue_run_with_changed_data(call, tmp_path, change):
    folder = photographs(tmp_path / "mine")
    assert call("run", "--dataset", "folder:mine", *SMALL, *TINY, "--out", "run")[0] == 0
    change(folder)
    code, _, err = call("run", "--resume", "run")
    assert_one_sentence(code, err, ["'folder:mine'", "run"])


def test_data_that_moved_are_named_beside_resume(call, tmp_path):
    photographs(tmp_path / "mine")
    assert call("run", "--dataset", "folder:mine", *SMALL, *TINY, "--out", "run")[0] == 0
    shutil.move(tmp_path / "mine", tmp_path / "elsewhere")
    assert call("run", "--resume", "run")[0] == 2
    code, out, err = call("run", "--resume", "run", "--dataset", "folder:elsewhere")
    assert code == 0, err
    assert "Results are in run" in out


def test_a_file_that_cannot_be_read_does_not_decide_for_the_others(tmp_path):
    folder = photographs(tmp_path / "mine")
    Image.new("RGB", (300, 200), "red").save(folder / "cat" / "0-first.jpg")
    whole = (folder / "cat" / "0-first.jpg").read_bytes()
    (folder / "cat" / "0-first.jpg").write_bytes(whole[: len(whole) // 2])
    data = catalog.load(f"folder:{folder}", tmp_path, max_unreadable=0.1)
    assert data.unreadable == ("cat/0-first.jpg",)
    assert data.train.images.shape[1:] == (1, 8, 8)


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "val"), ("train", "Test")])
def test_folders_that_look_like_splits_are_not_taken_for_domains(tmp_path, names):
    for name in names:
        photographs(tmp_path / "mine" / name)
    with pytest.raises(UserError, match=r"train"):
        catalog.load(f"folder:{tmp_path / 'mine'}", tmp_path)


def test_one_domain_is_no_split_by_domain(tmp_path):
    photographs(tmp_path / "mine" / "photos")
    settings = {"partition.min_size": 4, "partition.max_redraws": 0}
    with pytest.raises(UserError, match=r"48 samples over 10 clients with alpha 0.1"):
        fedaf.run(dataset=f"folder:{tmp_path / 'mine'}", settings=settings)
