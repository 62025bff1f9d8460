"""Memory that a process frees stays with it, so that the next step finds it without page faults."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from fedaf.bench.work import Scale, Work
from fedaf.engine import allocation, make_engine, resolve_device
step = Work(make_engine("eager", resolve_device("cpu")), Scale(100, 1, 1, 1)).our_training(64)
if sys.argv[1] == "returns":
    allocation.return_freed_memory()
for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_training_steps_on_a_cpu_reuse_the_memory_of_earlier_steps():
    faults = [
        int(subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True, check=True).stdout)
        for what in ("keeps", "returns")
    ]
    assert faults[0] < faults[1] / 3
