"""Archives, good and hostile: all of the folder comes to its place, or nothing does."""

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from fedaf.data.fetch.remotes import REMOTES, Remote

from fedaf.data.fetch.download import Watch
from fedaf.data.fetch.fetch import fetch
from fedaf.errors import DownloadFailed, UserError

FILES = {"pictures/cat/1.png": b"one", "pictures/dog/2.png": b"two" * 1000, "__MACOSX/junk": b"junk"}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes], *members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def zip_with_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("pictures/link")
        info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc")
    return buffer.getvalue()


@pytest.fixture
def offer(server, tmp_path, monkeypatch):
    """Puts an archive on the server as the only file of a data set; gives the folder it belongs to."""

    def offer(content: bytes, name: str) -> Path:
        server.files[f"/{name}"] = content
        remote = Remote(f"{server.url}/{name}", hashlib.sha256(content).hexdigest(), len(content), "pictures")
        monkeypatch.setitem(REMOTES, "set", (remote,))
        return tmp_path / "set"

    return offer


GOOD = {"a.zip": zipped(FILES), "a.tar.gz": tarred(FILES)}
HOSTILE = {
    "a zip that climbs": ("a.zip", zipped({**FILES, "pictures/../../evil": b""}), "leads elsewhere"),
    "an absolute zip": ("a.zip", zipped({**FILES, "/tmp/evil": b""}), "leads elsewhere"),
    "a zip for another system": ("a.zip", zipped({**FILES, "pictures\\..\\evil": b""}), "leads elsewhere"),
    "a link in a zip": ("a.zip", zip_with_link(), "a link"),
    "a zip bomb": ("a.zip", zipped({"pictures/zeros": bytes(65 << 20)}), "expand to more than"),
    "a zip without the folder": ("a.zip", zipped({"others/1.png": b"one"}), "no folder 'pictures'"),
    "a tar that climbs": ("a.tar.gz", tarred({**FILES, "../evil": b""}), "leads elsewhere"),
    "an absolute tar": ("a.tar.gz", tarred({**FILES, "/tmp/evil": b""}), "leads elsewhere"),
    "a link in a tar": ("a.tar.gz", tarred(FILES, special("pictures/l", tarfile.SYMTYPE, "../..")), "neither a file"),
    "a hard link in a tar": ("a.tar.gz", tarred({}, special("pictures/l", tarfile.LNKTYPE, "/etc")), "neither a file"),
    "a device in a tar": ("a.tar.gz", tarred({}, special("pictures/null", tarfile.CHRTYPE)), "neither a file"),
    "a tar bomb": ("a.tar.gz", tarred({"pictures/zeros": bytes(65 << 20)}), "expand to more than"),
    "a zip cut short": ("a.zip", GOOD["a.zip"][:-30], "cannot be unpacked"),
    "a tar cut short": ("a.tar.gz", GOOD["a.tar.gz"][:-30], "cannot be unpacked"),
    "no archive at all": ("a.tar.gz", b"hello", "cannot be unpacked"),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_archive_becomes_its_folder_and_is_not_fetched_again(server, offer, tmp_path, name):
    place = offer(GOOD[name], name)
    fetch("set", tmp_path)
    assert (place / "pictures/cat/1.png").read_bytes() == b"one"
    assert (place / "pictures/dog/2.png").read_bytes() == b"two" * 1000
    assert sorted(os.listdir(place)) == [f".{name}.receipt", "pictures"]
    fetch("set", tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_or_damaged_archive_leaves_nothing_behind(offer, tmp_path, case):
    name, content, words = HOSTILE[case]
    place = offer(content, name)
    with pytest.raises(DownloadFailed, match=words):
        fetch("set", tmp_path)
    assert os.listdir(place) == [name]
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.parametrize("name", GOOD)
def test_a_kill_while_unpacking_leaves_no_folder_and_costs_no_second_download(server, offer, tmp_path, name):
    class Killed(Watch):
        def began(self, what: str, done: int, total: int) -> None:
            self.unpacking = what.startswith("unpacking")

        def advanced(self, done: int) -> None:
            if self.unpacking:
                raise KeyboardInterrupt

    place = offer(GOOD[name], name)
    with pytest.raises(KeyboardInterrupt):
        fetch("set", tmp_path, watch=Killed())
    assert not (place / "pictures").exists()
    (place / ".unpacking-pictures").mkdir()  # a kill without mercy would leave that, too
    (place / ".unpacking-pictures" / "half").write_bytes(b"a picture")
    fetch("set", tmp_path)
    assert sorted(os.listdir(place)) == [f".{name}.receipt", "pictures"]
    assert len(server.requests) == 1


def test_a_folder_that_lost_a_file_is_not_taken_for_whole_and_not_touched(server, offer, tmp_path):
    place = offer(GOOD["a.zip"], "a.zip")
    fetch("set", tmp_path)
    (place / "pictures/cat/1.png").unlink()
    with pytest.raises(UserError, match=r"no longer, what fedaf unpacked from a\.zip"):
        fetch("set", tmp_path)
    assert (place / "pictures/dog/2.png").exists()
    assert len(server.requests) == 1


def test_a_folder_of_ones_own_is_not_overwritten(server, offer, tmp_path):
    place = offer(GOOD["a.zip"], "a.zip")
    (place / "pictures").mkdir(parents=True)
    with pytest.raises(UserError, match="move it away and fetch again"):
        fetch("set", tmp_path)
    assert server.requests == []
