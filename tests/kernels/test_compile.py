"""Every kernel compiles for GPUs that this machine need not have."""

import os
import subprocess
import sys

import pytest

from support import TESTS

pytest.importorskip("triton")

KERNELS = {
    "_take", "unfold", "pool", "gram", "finish_gram", "gradient_products", "finish_gradients", "patch_gradients",
    "fold", "forward", "statistics", "finish_statistics", "sums", "source_gradient",
}  # fmt: skip


@pytest.mark.parametrize(("capability", "channels", "dtype"), [(90, 128, "bfloat16"), (80, 16, "float32")])
def test_every_kernel_compiles(capability, channels, dtype, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = TESTS / "support" / "compile_kernels.py"
    done = subprocess.run(
        [sys.executable, script, str(capability), str(channels), dtype],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.split()) == KERNELS
