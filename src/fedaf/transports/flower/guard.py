"""Flower's SuperLink and SuperNode with two doors shut that Flower leaves open.

A SuperLink serves its sites and its operator on one port, and asks the operator for no password: whoever reaches the
port may register a key of their own, or start any app. And a SuperNode runs whatever app the link sends, so that a
site's policy, which our app keeps, binds nobody who may send another. Here a link obeys operators on its own machine
only, and a node runs the app of its own installation and no other. Both end when their standard input does, so that
they never outlive whoever started them, not even one that was killed.

    python -m fedaf.transports.flower.guard superlink ARGUMENTS
    python -m fedaf.transports.flower.guard supernode ARGUMENTS
"""

import io
import os
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedaf.errors import FedafError
from fedaf.transports.flower import app_directory

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_FOR_SITES = "/v1/fleet/"
_LOOPBACK = ("127.0.0.1", "::1")
_GRACE_SECONDS = 6.0


class OperatorsAreLocal:
    """An ASGI layer: other machines are answered what sites ask, and nothing else."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"Only from the machine of the SuperLink."})

    def _admits(self, scope: Scope) -> bool:
        if str(scope["path"]).startswith(_FOR_SITES):
            return True
        client, server = scope.get("client"), scope.get("server")
        # Who comes from the address that was called sits on this machine.
        return client is not None and (client[0] in _LOOPBACK or (server is not None and client[0] == server[0]))


def superlink() -> None:
    """Run a SuperLink with the arguments of this process."""
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    _must_have(extensions, "get_middleware")
    extensions.get_middleware = lambda: (Middleware(OperatorsAreLocal),)
    flower_superlink()


def supernode() -> None:
    """Run a SuperNode with the arguments of this process."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    node: Any = start_client_internal
    _must_have(node, "_verify_fab", "_pull_and_store_message")
    pull = node._pull_and_store_message

    def pull_verified(**given: Any) -> Any:
        def get_app(*which: Any) -> Any:
            app = given["get_fab"](*which)
            app.verifications.setdefault("valid_license", "not asked for")  # else Flower refuses before it verifies
            return app

        return pull(**{**given, "get_fab": get_app, "trusted_entities": {"fedaf": "by its content"}})

    node._pull_and_store_message = pull_verified
    node._verify_fab = lambda app, trusted: is_ours(app.content)
    flower_supernode()


def end_with_input() -> None:
    """From now on, end when standard input has no other end any more: by request, and if that takes long, by force.
    What this process has started notices that and ends too: Flower's programs then send themselves SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts in its background

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def is_ours(bundle: bytes) -> bool:
    """Whether an app as Flower bundles it holds the files of the installed one, and nothing else. Files are compared,
    as the bytes of an archive differ between machines that compress differently."""
    from flwr.cli.build import build_fab_from_disk

    try:
        return _files(bundle) == _files(build_fab_from_disk(app_directory()))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError):
        return False


def _files(bundle: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return sorted((info.filename, archive.read(info)) for info in archive.infolist())


def _must_have(module: Any, *names: str) -> None:
    """Better no deployment than one that is open without saying so."""
    for name in names:
        if not hasattr(module, name):
            raise FedafError(f"this version of Flower has no {module.__name__}.{name}; install 'fedaf[flower]' again.")


if __name__ == "__main__":
    end_with_input()
    {"superlink": superlink, "supernode": supernode}[sys.argv.pop(1)]()
