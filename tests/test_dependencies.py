"""Every third-party module that the package imports belongs to a declared dependency."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import fedaf
from support import ROOT


def imported_modules() -> dict[str, str]:
    """The top-level modules that the package imports, at the top of a file or inside functions, with one such file."""
    found = {}
    for path in Path(fedaf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            found |= {name.partition(".")[0]: str(path) for name in names}
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    return {normalised(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def test_every_third_party_import_is_a_declared_dependency():
    known, distributions = declared(), packages_distributions()
    third_party = {
        module: path
        for module, path in imported_modules().items()
        if module not in sys.stdlib_module_names and module != fedaf.__name__
    }
    assert {"torch", "flwr", "cryptography", "starlette", "psutil", "jinja2", "tomli_w"} <= third_party.keys()
    undeclared = {
        module: path
        for module, path in third_party.items()
        if not known & {normalised(name) for name in distributions.get(module, [module])}
    }
    assert not undeclared
