"""Loaded by every Python process of a network test: records each process and each connection beyond this machine.

Nodes poll for messages every 0.5 s instead of 3 s, so that tests take less time.
"""

import os
import sys
import time

_FILE = os.environ.get("FEDAF_TEST_WATCH", "")


def _note(line: str) -> None:
    with open(_FILE, "a") as file:
        file.write(line + "\n")


def _watch(event: str, args: tuple) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = args[1]
        host = str(address[0]) if isinstance(address, tuple) else ""  # a path means a Unix socket
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0].decode() if isinstance(args[0], bytes) else str(args[0] or "")
    else:
        return
    if host and not host.startswith("127.") and host not in ("::1", "localhost", "0.0.0.0"):
        _note(f"connected {event} {host} {' '.join(sys.argv)}")


if _FILE:
    # Not sys.argv, which is not set yet.
    _note("watched " + " ".join(sys.orig_argv))
    sys.addaudithook(_watch)
    if any("supernode" in word for word in sys.orig_argv):
        _sleep = time.sleep
        time.sleep = lambda seconds: _sleep(0.5 if seconds == 3 else seconds)
