"""Archives, good and hostile: either the whole folder is unpacked or nothing."""

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedaf.data.fetch import unpack
from fedaf.data.fetch.download import DownloadObserver
from fedaf.data.fetch.fetch import fetch
from fedaf.data.spec import OfficialFile
from support.datafiles import offer_files
from support.errors import raises

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
        sha256 = hashlib.sha256(content).hexdigest()
        offer_files(monkeypatch, "set", OfficialFile(f"{server.url}/{name}", sha256, len(content), "pictures"))
        return tmp_path / "set"

    return offer


GOOD = {"a.zip": zipped(FILES), "a.tar.gz": tarred(FILES)}
HOSTILE = {
    "a zip that climbs": ("a.zip", zipped({**FILES, "pictures/../../evil": b""}), "evil"),
    "an absolute zip": ("a.zip", zipped({**FILES, "/tmp/evil": b""}), "evil"),
    "a zip for another system": ("a.zip", zipped({**FILES, "pictures\\..\\evil": b""}), "evil"),
    "a link in a zip": ("a.zip", zip_with_link(), "pictures/link"),
    "a zip bomb": ("a.zip", zipped({"pictures/zeros": bytes(65 << 10)}), str(64 << 10)),
    "a zip without the folder": ("a.zip", zipped({"others/1.png": b"one"}), "'pictures'"),
    "a tar that climbs": ("a.tar.gz", tarred({**FILES, "../evil": b""}), "evil"),
    "an absolute tar": ("a.tar.gz", tarred({**FILES, "/tmp/evil": b""}), "evil"),
    "a link in a tar": ("a.tar.gz", tarred(FILES, special("pictures/l", tarfile.SYMTYPE, "../..")), "'pictures/l'"),
    "a hard link in a tar": ("a.tar.gz", tarred({}, special("pictures/l", tarfile.LNKTYPE, "/etc")), "'pictures/l'"),
    "a device in a tar": ("a.tar.gz", tarred({}, special("pictures/null", tarfile.CHRTYPE)), "'pictures/null'"),
    "a tar bomb": ("a.tar.gz", tarred({"pictures/zeros": bytes(65 << 10)}), str(64 << 10)),
}
DAMAGED = {
    "a zip cut short": ("a.zip", GOOD["a.zip"][:-30], "a.zip"),
    "a tar cut short": ("a.tar.gz", GOOD["a.tar.gz"][:-30], "a.tar.gz"),
    "no archive at all": ("a.tar.gz", b"hello", "a.tar.gz"),
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


@pytest.mark.parametrize("case", [*HOSTILE, *DAMAGED])
def test_a_hostile_or_damaged_archive_leaves_nothing_behind(offer, tmp_path, monkeypatch, case):
    monkeypatch.setattr(unpack, "_ALWAYS_ALLOWED", 64 << 10)  # the bombs are small, to be quick
    name, content, words = (HOSTILE | DAMAGED)[case]
    place = offer(content, name)
    with raises("FEDAF-FETCH-UNSAFE" if case in HOSTILE else "FEDAF-FETCH-DAMAGED") as error:
        fetch("set", tmp_path)
    assert words in str(error.value)
    assert os.listdir(place) == [name]
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.parametrize("name", GOOD)
def test_a_kill_while_unpacking_leaves_no_folder_and_costs_no_second_download(server, offer, tmp_path, name):
    class Killed(DownloadObserver):
        def began(self, what: str, done: int, total: int) -> None:
            self.unpacking = what.startswith("unpacking")

        def advanced(self, done: int) -> None:
            if self.unpacking:
                raise KeyboardInterrupt

    place = offer(GOOD[name], name)
    with pytest.raises(KeyboardInterrupt):
        fetch("set", tmp_path, observer=Killed())
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
    with raises("FEDAF-FETCH-CONFLICT") as error:
        fetch("set", tmp_path)
    assert "a.zip" in str(error.value)
    assert (place / "pictures/dog/2.png").exists()
    assert len(server.requests) == 1


def test_a_folder_of_ones_own_is_not_overwritten(server, offer, tmp_path):
    place = offer(GOOD["a.zip"], "a.zip")
    (place / "pictures").mkdir(parents=True)
    with raises("FEDAF-FETCH-CONFLICT"):
        fetch("set", tmp_path)
    assert server.requests == []
