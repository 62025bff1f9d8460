"""Whether the kernels can run on a device."""

import logging
from functools import lru_cache

import torch

log = logging.getLogger(__name__)


@lru_cache
def kernels_work(device: torch.device) -> bool:
    """Return whether a small kernel can be built for a GPU and gives the right result; if not, log the reason."""
    try:
        from fedaf.kernels import pixels

        image, one = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device=device), torch.ones(1, device=device)
        return float(pixels.take(image, torch.zeros(1, dtype=torch.int64, device=device), one, one)) == 1
    except Exception as error:  # no Triton, no compiler, an unknown GPU: PyTorch's own kernels do the work
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        log.warning("kernels for this GPU cannot be built, and PyTorch's own are slower: %s", reason[:200])
        return False
