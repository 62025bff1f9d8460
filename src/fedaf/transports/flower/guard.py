"""Flower's SuperLink and SuperNode with two security restrictions added.

A SuperLink serves sites and operators on one port without a password for operators: anyone who reaches the port could
register a key or start any app. Here it accepts operator requests from its own machine only.

A SuperNode runs any app that the link sends, and an app that is not ours would ignore the site's policy. Here a node
runs only the app of its own fedaf installation.

Both programs end when their standard input closes, so they never outlive the process that started them.

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
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fedaf.errors import FedafError
from fedaf.transports.flower import app_directory

_FOR_SITES = "/v1/fleet/"
_LOOPBACK = ("127.0.0.1", "::1")
_GRACE_SECONDS = 6.0


class OperatorsAreLocal:
    """ASGI middleware: other machines may use the routes for sites only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = PlainTextResponse("Only allowed from the SuperLink's machine.", 403)
        await (self._app if self._admits(scope) else refusal)(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        if scope["type"] == "lifespan" or scope["path"].startswith(_FOR_SITES):
            return True
        client, server = scope.get("client"), scope.get("server")
        # A request from the address it was sent to comes from this machine.
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
            app.verifications.setdefault("valid_license", "not asked for")  # otherwise Flower refuses it unverified
            return app

        return pull(**{**given, "get_fab": get_app, "trusted_entities": {"fedaf": "by its content"}})

    node._pull_and_store_message = pull_verified
    node._verify_fab = lambda app, trusted: is_ours(app.content)
    flower_supernode()


def end_with_input() -> None:
    """End this process when its standard input closes: with SIGTERM, and after a grace period with SIGKILL.

    Flower's child processes notice that and end too, by sending themselves SIGINT.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def is_ours(bundle: bytes) -> bool:
    """Return whether a Flower app bundle holds exactly the files of the installed app.

    The files are compared, because the bytes of an archive depend on how a machine compresses.
    """
    from flwr.cli.build import build_fab_from_disk

    try:
        return _files(bundle) == _files(build_fab_from_disk(app_directory()))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError):
        return False


def _files(bundle: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return sorted((info.filename, archive.read(info)) for info in archive.infolist())


def _must_have(module: Any, *names: str) -> None:
    """Refuse to start if the restrictions cannot be installed."""
    for name in names:
        if not hasattr(module, name):
            what = f"this version of Flower has no {module.__name__}.{name}; install 'fedaf[flower]' again."
            raise FedafError(what, code="FEDAF-FLOWER-VERSION")


if __name__ == "__main__":
    end_with_input()
    {"superlink": superlink, "supernode": supernode}[sys.argv.pop(1)]()
