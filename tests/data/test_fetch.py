"""Downloads from a faulty server: only the official file ends up on disk, or nothing."""

import fcntl
import hashlib
import os
import random
import socket
from pathlib import Path

import pytest

from fedaf.data.fetch.download import DownloadObserver
from fedaf.data.fetch.fetch import fetch
from fedaf.data.registry import DATASETS
from fedaf.data.spec import OfficialFile
from support.datafiles import offer_files
from support.errors import raises

CONTENT = random.Random(0).randbytes(700_000)
HALF = len(CONTENT) // 2


class Log(DownloadObserver):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def said(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.fixture
def tiny(server, tmp_path, monkeypatch):
    """Register a data set of one file on the server; return the path it is downloaded to."""
    server.files["/there/tiny.bin"] = CONTENT
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    offer_files(monkeypatch, "tiny", OfficialFile(f"{server.url}/there/tiny.bin", sha256, len(CONTENT)))
    (tmp_path / "tiny").mkdir()
    return tmp_path / "tiny" / "tiny.bin"


def leave_part(target: Path, content: bytes, etag: str = "") -> None:
    """Write the files that a killed fetch leaves."""
    target.with_name("tiny.bin.part").write_bytes(content)
    target.with_name("tiny.bin.part.tag").write_text(etag)


def assert_only(target: Path, content: bytes = CONTENT) -> None:
    assert target.read_bytes() == content
    assert os.listdir(target.parent) == [target.name]


def test_a_file_comes_under_its_own_name_and_only_once(server, tiny, tmp_path):
    fetch("tiny", tmp_path)
    assert_only(tiny)
    log = Log()
    fetch("tiny", tmp_path, observer=log)
    assert server.requests == [("/there/tiny.bin", None)]
    (sentence,) = log.sentences
    assert str(tiny) in sentence


def test_only_the_rest_of_a_part_is_downloaded(server, tiny, tmp_path):
    server.etags["/there/tiny.bin"] = '"one"'
    leave_part(tiny, CONTENT[:HALF], '"one"')
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert server.requests == [("/there/tiny.bin", f"bytes={HALF}-")]
    assert server.sent == len(CONTENT) - HALF


def test_a_server_without_ranges_sends_the_whole_file_again(server, tiny, tmp_path):
    server.ranges = False
    leave_part(tiny, b"?" * HALF)
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert len(server.requests) == 1


def test_a_file_that_changed_since_is_not_mixed_with_the_old_one(server, tiny, tmp_path):
    server.etags["/there/tiny.bin"] = '"two"'
    leave_part(tiny, b"?" * HALF, '"one"')
    log = Log()
    fetch("tiny", tmp_path, observer=log)
    assert_only(tiny)
    assert len(server.requests) == 1
    assert not any("starting over" in sentence for sentence in log.sentences)


@pytest.mark.parametrize("held", [HALF, len(CONTENT)])
def test_a_wrong_mixture_is_thrown_away_and_fetched_afresh(server, tiny, tmp_path, held):
    leave_part(tiny, b"?" * held)
    log = Log()
    fetch("tiny", tmp_path, observer=log)
    assert_only(tiny)
    assert any("starting over" in sentence for sentence in log.sentences)
    assert server.requests[-1] == ("/there/tiny.bin", None)


def test_a_wrong_file_is_not_fetched_a_third_time(server, tiny, tmp_path):
    server.files["/there/tiny.bin"] = b"?" * len(CONTENT)
    leave_part(tiny, CONTENT[:HALF])
    with raises("FEDAF-FETCH-CHECKSUM"):
        fetch("tiny", tmp_path)
    assert len(server.requests) == 2
    assert os.listdir(tiny.parent) == []


def test_a_part_longer_than_the_file_is_thrown_away(server, tiny, tmp_path):
    leave_part(tiny, CONTENT + b"more")
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert server.requests == [("/there/tiny.bin", None)]


def test_a_range_that_begins_elsewhere_is_not_used(server, tiny, tmp_path):
    server.shift = -7
    leave_part(tiny, CONTENT[:HALF])
    log = Log()
    fetch("tiny", tmp_path, observer=log)
    assert_only(tiny)
    assert [asked for _, asked in server.requests] == [f"bytes={HALF}-", None]
    assert not any("starting over" in sentence for sentence in log.sentences)


def test_a_broken_connection_is_taken_up_again(server, tiny, tmp_path):
    server.cuts = [HALF, 1000]
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert [asked for _, asked in server.requests] == [None, f"bytes={HALF}-", f"bytes={HALF + 1000}-"]
    assert server.sent == len(CONTENT)


def test_a_connection_that_brings_nothing_is_a_sentence_and_the_part_is_kept(server, tiny, tmp_path):
    server.cuts = [HALF, 0]
    with raises("FEDAF-FETCH-INTERRUPTED") as error:
        fetch("tiny", tmp_path)
    assert f"{HALF} of {len(CONTENT)} bytes" in str(error.value)
    assert not tiny.exists()
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert server.sent == len(CONTENT)


def test_a_server_that_always_breaks_and_knows_no_ranges_is_given_up(server, tiny, tmp_path):
    server.ranges, server.cuts = False, [HALF] * 100
    with raises("FEDAF-FETCH-INTERRUPTED"):
        fetch("tiny", tmp_path)
    assert len(server.requests) <= 20


def test_what_came_before_a_kill_is_used(server, tiny, tmp_path):
    class Killed(DownloadObserver):
        def advanced(self, done: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", tmp_path, observer=Killed())
    assert not tiny.exists()
    held = tiny.with_name("tiny.bin.part").stat().st_size
    assert held > 0
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert server.requests[-1] == ("/there/tiny.bin", f"bytes={held}-")


def test_a_file_of_another_length_is_not_even_downloaded(server, tiny, tmp_path):
    server.files["/there/tiny.bin"] = b"<html>please log in</html>"
    leave_part(tiny, CONTENT[:HALF])
    with raises("FEDAF-FETCH-LENGTH") as error:
        fetch("tiny", tmp_path)
    assert all(word in str(error.value) for word in ("26 bytes", str(len(CONTENT))))
    assert [asked for _, asked in server.requests] == [f"bytes={HALF}-", None]  # the first was answered 416
    assert tiny.with_name("tiny.bin.part").stat().st_size == HALF


def test_a_file_that_does_not_fit_is_refused_before_it_comes(server, tiny, tmp_path, monkeypatch):
    server.length = 10**17
    offer_files(monkeypatch, "tiny", OfficialFile(f"{server.url}/there/tiny.bin", "0" * 64, 10**17))
    with raises("FEDAF-FETCH-DISK") as error:
        fetch("tiny", tmp_path)
    assert f"{10**17} bytes" in str(error.value)
    assert os.listdir(tiny.parent) == []


@pytest.mark.parametrize("status", [403, 404, 503])
def test_an_error_of_the_server_is_a_sentence_with_the_address(server, tiny, tmp_path, status):
    server.status = status
    with raises("FEDAF-FETCH-STATUS") as error:
        fetch("tiny", tmp_path)
    assert all(word in str(error.value) for word in ("/there/tiny.bin", str(status), "--mirror"))
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_a_sentence_with_the_address(tiny, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with raises("FEDAF-FETCH-UNREACHABLE") as error:
        fetch("tiny", tmp_path, mirror=f"http://127.0.0.1:{port}")
    assert all(word in str(error.value) for word in (f"127.0.0.1:{port}/tiny.bin", "Connection refused"))


def test_a_host_without_a_name_is_a_sentence_with_the_address(tiny, tmp_path, monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a real question would leave this machine
    with raises("FEDAF-FETCH-UNREACHABLE") as error:
        fetch("tiny", tmp_path, mirror="http://no.where")
    assert all(word in str(error.value) for word in ("http://no.where/tiny.bin", "Name or service"))


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_mirror_has_all_files_under_their_names(server, tiny, tmp_path, slash):
    server.files = {"/mirror/tiny.bin": CONTENT}
    fetch("tiny", tmp_path, mirror=f"{server.url}/mirror{slash}")
    assert_only(tiny)


@pytest.mark.parametrize("mirror", ["", "mirror", "ftp://host/x", "file:///etc", "http://", "http://[::1"])
def test_a_mirror_that_is_no_address_is_refused(tiny, tmp_path, mirror):
    with raises("FEDAF-FETCH-MIRROR"):
        fetch("tiny", tmp_path, mirror=mirror)


def test_a_wrong_file_in_its_place_is_replaced_and_said(tiny, tmp_path):
    tiny.write_bytes(b"something else")
    log = Log()
    fetch("tiny", tmp_path, observer=log)
    assert_only(tiny)
    assert str(tiny) in log.sentences[0]
    assert "replaced" in log.sentences[0]


def test_two_fetches_do_not_write_into_the_same_files(server, tiny, tmp_path):
    other = os.open(tiny.parent, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with raises("FEDAF-FETCH-LOCKED"):
        fetch("tiny", tmp_path)
    os.close(other)
    assert server.requests == []


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("pacs", "FEDAF-FETCH-BY-HAND", ["https://", "/pacs ", "art_painting"]),
        ("minst", "FEDAF-FETCH-UNKNOWN", ["'minst'", "'mnist'"]),
        ("../mnist", "FEDAF-FETCH-UNKNOWN", ["'../mnist'"]),
        ("npz:mnist", "FEDAF-FETCH-UNKNOWN", ["'npz:mnist'"]),
    ],
)
def test_what_cannot_be_fetched_is_a_sentence(tmp_path, name, code, words):
    with raises(code) as error:
        fetch(name, tmp_path)
    assert all(word in str(error.value) for word in words)
    assert os.listdir(tmp_path) == []


def test_digits_need_no_fetching(tmp_path):
    log = Log()
    fetch("digits", tmp_path, observer=log)
    (sentence,) = log.sentences
    assert "scikit-learn" in sentence


def test_every_official_file_has_a_checksum_and_a_name_of_its_own():
    by_set = {name: DATASETS.find(name).files for name in DATASETS}
    for files in by_set.values():
        assert len({file.name for file in files}) == len(files)
        assert len({file.sha256 for file in files}) == len(files)
        for file in files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
            assert (file.folder is not None) == file.name.endswith((".zip", ".tar.gz"))
    counts = {name: len(files) for name, files in by_set.items() if files}
    assert counts == {"mnist": 4, "fashionmnist": 4, "cifar10": 1, "cifar100": 1, "domainnet": 18}


def test_a_kill_during_the_check_does_not_cost_the_download(server, tiny, tmp_path, monkeypatch):
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny", tmp_path)
    fetch("tiny", tmp_path)
    assert_only(tiny)
    assert len(server.requests) == 1
