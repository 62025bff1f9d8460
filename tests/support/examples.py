"""The example scripts, as modules and as commands."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from support import ROOT

EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    """Import an example; the script's ``main`` does not run."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run_script(name: str, *arguments: object, where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a user would, from another folder."""
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        cwd=where,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
