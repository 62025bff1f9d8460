"""One file over HTTP, into a ``.part`` file that a later attempt continues."""

import http.client
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from fedaf.errors import DownloadFailed, UserError

_TIMEOUT = 60  # seconds without a byte
_CHUNK = 1 << 18
_MOST_TRANSFERS = 20  # in one call: a connection that broke is taken up again while that brings something


class Watch:
    """Hears how a fetch goes. This one does nothing with it."""

    def began(self, what: str, done: int, total: int) -> None:
        """``what`` has ``done`` of ``total`` bytes behind it."""

    def advanced(self, done: int) -> None: ...

    def ended(self) -> None: ...

    def said(self, sentence: str) -> None: ...


def download(url: str, part: Path, *, size: int, watch: Watch) -> bool:
    """Fill ``part`` with the ``size`` bytes at ``url``, after what it holds already. Returns whether it was put
    together from more than one transfer: then it may be a mixture, which only its checksum can tell."""
    if _length(part) > size:
        part.unlink()
    continued = _length(part) == size
    watch.began(part.name.removesuffix(".part"), _length(part), size)
    try:
        for _ in range(_MOST_TRANSFERS):
            before = _length(part)
            if before == size:
                break
            continued |= _transfer(url, part, size, watch)
            if _length(part) <= before:
                break
    finally:
        watch.ended()
    if (held := _length(part)) < size:
        raise DownloadFailed(
            f"the connection to {url} broke after {held} of {size} bytes; the same command goes on from there."
        )
    _tag(part).unlink(missing_ok=True)
    return continued


def _transfer(url: str, part: Path, size: int, watch: Watch) -> bool:
    """One request and what it brings before it ends or breaks; whether it continued an earlier one."""
    with _ask(url, part, _length(part), size) as response:
        continued = response.status == http.HTTPStatus.PARTIAL_CONTENT
        done = _length(part) if continued else 0
        free = shutil.disk_usage(part.parent).free
        if free < size - done:
            missing = f"{part.name.removesuffix('.part')} needs {size - done} bytes"
            raise UserError(f"{missing}, but only {free} are free in {part.parent}; make room or choose another disk.")
        if not continued:
            part.unlink(missing_ok=True)
            _tag(part).write_text(_validator(response), encoding="latin-1")
        with part.open("ab") as file:
            while done < size:
                try:
                    chunk = response.read(min(_CHUNK, size - done))
                except (OSError, http.client.HTTPException):  # what came so far is kept
                    break
                if not chunk:
                    break
                file.write(chunk)
                done += len(chunk)
                watch.advanced(done)
    return continued


def _ask(url: str, part: Path, held: int, size: int) -> http.client.HTTPResponse:
    """The answer to a request for the bytes after the first ``held``: these, or the whole file."""
    headers = {"User-Agent": "fedaf", "Accept-Encoding": "identity"}
    if held:
        headers["Range"] = f"bytes={held}-"
        if _tag(part).exists() and (validator := _tag(part).read_text(encoding="latin-1")):
            headers["If-Range"] = validator  # a file that has changed comes whole
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()
        if held and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _ask(url, part, 0, size)
        raise _answered(url, error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadFailed(
            f"{url} could not be reached ({_reason(error)}); check the network and try again, or name a server that "
            "has the file with --mirror."
        ) from error
    if response.status == http.HTTPStatus.OK:
        length = response.headers["Content-Length"]
        if length is None or length == str(size):
            return response
        response.close()
        raise DownloadFailed(
            f"{url} offers {length:.20} bytes, but the official file has {size}; it is another file, or a page in its "
            "place: look at it in a browser, or name a server that has the file with --mirror."
        )
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        begins, total = _range(response)
        if begins == held and total == size:
            return response
    response.close()
    if held:
        return _ask(url, part, 0, size)
    raise _answered(url, response.status)


def _answered(url: str, status: int) -> DownloadFailed:
    phrase = f" ({http.HTTPStatus(status).phrase})" if status in list(http.HTTPStatus) else ""
    return DownloadFailed(
        f"{url} answered {status}{phrase}; try again later, or name a server that has the file with --mirror."
    )


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(cause, "strerror", None) or cause or type(cause).__name__)


def _range(response: http.client.HTTPResponse) -> tuple[int, int]:
    """The first byte and the length of the whole file, of an answer that holds a part."""
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers["Content-Range"] or "")
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def _validator(response: http.client.HTTPResponse) -> str:
    """What tells this version of the file from another; weak tags do not."""
    tag = response.headers["ETag"] or ""
    found = tag if tag.startswith('"') else response.headers["Last-Modified"] or ""
    return found if found.isprintable() else ""  # it goes into a header of ours


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
