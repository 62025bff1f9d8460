"""Debian's browser, without any host to reach."""

import os
import shutil

import pytest

#: Arguments with which no host is reached. There is no sandbox for root, as whom CI runs.
OFFLINE = ["--host-resolver-rules=MAP * ~NOTFOUND", "--no-sandbox", "--disable-background-networking"]


def chromium() -> str:
    """The path of the browser. Without one, the test fails in CI and is skipped elsewhere."""
    found = shutil.which("chromium")
    if found is not None:
        return found
    missing = "there is no chromium; make chromium installs Debian's"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
