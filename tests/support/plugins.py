"""Installed packages that add entry points, as pip would leave them."""

from pathlib import Path

import pytest

from fedaf.common.registry import Registry

#: A method that computes nothing.
METHOD = """
from fedaf.protocol import Method

class Nothing(Method):
    @property
    def phases(self):
        return ()
"""


def install(folder: Path, group: str, names: dict[str, str], **modules: str) -> None:
    """Install a distribution into ``folder``: its entry points (name to ``module:attribute``) and its modules."""
    info = folder / "fedaf_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fedaf-plugin\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in names.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)


def activate(folder: Path, monkeypatch: pytest.MonkeyPatch, *registries: Registry) -> None:
    """Put ``folder`` on the path for one test, and let these registries look for plugins again."""
    monkeypatch.syspath_prepend(str(folder))
    for registry in registries:
        monkeypatch.delitem(registry.__dict__, "plugins", raising=False)
        monkeypatch.setitem(registry.__dict__, "plugins", registry.__class__.plugins.func(registry))
