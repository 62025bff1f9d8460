"""CUDA MPS, which lets the kernels of several processes run on one GPU at the same time.

Without it the GPU switches between processes, and several runs at once take as long as one after the other.
"""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

log = logging.getLogger(__name__)

_CONTROL = "nvidia-cuda-mps-control"
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Start an MPS daemon of our own for the processes that are started in the block, and stop it afterwards.

    A daemon that the user has started (``CUDA_MPS_PIPE_DIRECTORY`` is set) is used as it is. Where MPS is not available
    the block runs without it, after a warning.
    """
    if _PIPE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fedaf-mps-") as folder:
        settings = {_PIPE: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if problem := _start({**os.environ, **settings}):
            log.warning("CUDA MPS %s: several runs at once are no faster", problem)
            yield
            return
        os.environ |= settings
        try:
            yield
        finally:
            subprocess.run([_CONTROL], input="quit\n", text=True, capture_output=True, check=False, timeout=60)
            for name in settings:
                del os.environ[name]


def _start(environment: Mapping[str, str]) -> str | None:
    """Start the daemon, or say why it does not run."""
    if shutil.which(_CONTROL) is None:
        return f"is not available ({_CONTROL} is not installed)"
    done = subprocess.run([_CONTROL, "-d"], env=environment, capture_output=True, text=True, check=False)
    return f"could not be started ({(done.stderr or done.stdout).strip()})" if done.returncode else None
