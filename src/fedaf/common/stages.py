"""What takes the time before the first step, as ``-v`` prints it."""

import logging
import time

log = logging.getLogger(__name__)

_STARTED = time.monotonic()  # about when the process did: commands import this module before PyTorch


def reached(stage: str) -> None:
    """Log that a stage of the start-up is reached, and when."""
    log.debug("%5.1f s: %s", time.monotonic() - _STARTED, stage)
