"""A web server on the loopback interface that can fail like real servers."""

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves ``files`` by path. ``requests`` records (path, Range or None); ``sent`` counts bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.ranges = True
        self.cuts: list[int] = []  # the next responses break after these numbers of bytes
        self.status: int | None = None  # sent instead of any file
        self.length: int | None = None  # a wrong Content-Length
        self.shift = 0  # the response to a range begins this many bytes elsewhere
        self.requests: list[tuple[str, str | None]] = []
        self.sent = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, *_: object) -> None: ...

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers["Range"]
        self.requests.append((request.path, asked))
        content = self.files.get(request.path)
        if self.status or content is None:
            request.send_error(self.status or 404)
            return
        etag = self.etags.get(request.path)
        first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.ranges else 0
        if (validator := request.headers["If-Range"]) and validator != etag:
            first = 0
        if first and first >= len(content):
            request.send_error(416)
            return
        first = max(0, first + self.shift) if first else 0
        request.send_response(206 if first else 200)
        if first:
            request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if etag:
            request.send_header("ETag", etag)
        request.send_header("Content-Length", str(self.length or len(content) - first))
        request.send_header("Content-Disposition", 'attachment; filename="../chosen-by-the-server"')
        request.end_headers()
        body = content[first:]
        body = body[: self.cuts.pop(0)] if self.cuts else body
        self.sent += len(body)
        with contextlib.suppress(ConnectionError):  # the client may have closed the connection
            request.wfile.write(body)
