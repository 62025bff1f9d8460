"""Download of one file over HTTP, into a ``.part`` file that a later attempt resumes."""

import http.client
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from fedaf.errors import DownloadFailed, UserError

_TIMEOUT = 60  # seconds without a byte
_CHUNK = 1 << 18
_MAX_TRANSFERS = 20  # in one call; a broken connection is resumed as long as each transfer brings some bytes


class DownloadObserver:
    """Is told how a fetch proceeds; this base class ignores it."""

    def began(self, what: str, done: int, total: int) -> None:
        """A transfer or an unpacking starts with ``done`` of ``total`` bytes."""

    def advanced(self, done: int) -> None:
        """``done`` bytes are complete."""

    def ended(self) -> None:
        """The transfer or unpacking ended."""

    def said(self, sentence: str) -> None:
        """There is a message for the user."""


def download(url: str, part: Path, *, size: int, observer: DownloadObserver) -> bool:
    """Download the ``size`` bytes at ``url`` into ``part``, after the bytes that it already holds.

    Returns:
        Whether the file was put together from several transfers. Then it may mix two versions, which only its checksum
        reveals.

    Raises:
        DownloadFailed: If the server cannot be reached, has another file, or the connection breaks.
        UserError: If the disk is too full.
    """
    if _length(part) > size:
        part.unlink()
    resumed = _length(part) == size
    observer.began(part.stem, _length(part), size)
    try:
        for _ in range(_MAX_TRANSFERS):
            before = _length(part)
            if before == size:
                break
            resumed |= _transfer(url, part, size, observer)
            if _length(part) <= before:
                break
    finally:
        observer.ended()
    if (received := _length(part)) < size:
        what = f"the connection to {url} broke after {received} of {size} bytes"
        raise DownloadFailed(f"{what}; run the same command again to resume.", code="FEDAF-FETCH-INTERRUPTED")
    _tag(part).unlink(missing_ok=True)
    return resumed


def _transfer(url: str, part: Path, size: int, observer: DownloadObserver) -> bool:
    """Make one request and save its bytes until it ends or breaks; return whether it resumed an earlier one."""
    with _request(url, part, _length(part), size) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        done = _length(part) if resumed else 0
        free = shutil.disk_usage(part.parent).free
        if free < size - done:
            what = f"{part.stem} needs {size - done} bytes, but only {free} are free in {part.parent}"
            raise UserError(f"{what}; free some space or choose another disk.", code="FEDAF-FETCH-DISK")
        if not resumed:
            part.unlink(missing_ok=True)
            _tag(part).write_text(_validator(response), encoding="latin-1")
        with part.open("ab") as file:
            while chunk := _read(response, min(_CHUNK, size - done)):
                file.write(chunk)
                done += len(chunk)
                observer.advanced(done)
    return resumed


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    try:
        return response.read(most)
    except (OSError, http.client.HTTPException):  # keep the bytes received so far
        return b""


def _request(url: str, part: Path, start: int, size: int) -> http.client.HTTPResponse:
    """Request the bytes from ``start`` on; the server sends these, or the whole file."""
    headers = {"User-Agent": "fedaf", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if _tag(part).exists() and (validator := _tag(part).read_text(encoding="latin-1")):
            headers["If-Range"] = validator  # a changed file is sent whole
    try:
        request = urllib.request.Request(url, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if start and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _request(url, part, 0, size)
        raise _bad_status(url, error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        what = f"{url} could not be reached ({_reason(error)}); check the network, or give another --mirror."
        raise DownloadFailed(what, code="FEDAF-FETCH-UNREACHABLE") from error
    if response.status == http.HTTPStatus.OK:
        length = response.headers["Content-Length"]
        if length is None or length == str(size):
            return response
        response.close()
        what = f"{url} offers {length:.20} bytes, but the official file has {size}"
        raise DownloadFailed(f"{what}; open it in a browser, or give another --mirror.", code="FEDAF-FETCH-LENGTH")
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        first, total = _range(response)
        if first == start and total == size:
            return response
    response.close()
    if start:
        return _request(url, part, 0, size)
    raise _bad_status(url, response.status)


def _bad_status(url: str, status: int) -> DownloadFailed:
    phrase = f" ({http.HTTPStatus(status).phrase})" if status in list(http.HTTPStatus) else ""
    what = f"{url} answered {status}{phrase}; try again later, or give another --mirror."
    return DownloadFailed(what, code="FEDAF-FETCH-STATUS")


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(cause, "strerror", None) or cause or type(cause).__name__)


def _range(response: http.client.HTTPResponse) -> tuple[int, int]:
    """Return the first byte and the length of the whole file, from a partial response."""
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers["Content-Range"] or "")
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def _validator(response: http.client.HTTPResponse) -> str:
    """Return the validator of this version of the file; weak ETags do not count."""
    tag = response.headers["ETag"] or ""
    found = tag if tag.startswith('"') else response.headers["Last-Modified"] or ""
    return found if found.isprintable() else ""  # it is sent back in a header


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
