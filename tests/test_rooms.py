"""The architecture: a room imports only rooms above it, and the command line answers before PyTorch is loaded."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedaf

PACKAGE = Path(fedaf.__file__).parent
ROOMS = [
    *("common", "protocol", "kernels", "data", "models", "engine", "condensation", "training", "privacy", "methods"),
    *("client", "transports", "federation", "reporting", "config", "runs", "sweep", "reproduce", "bench", "deploy"),
    "cli",
]
FOR_ALL = {"errors"}  # at the top level, beside the package itself and ``python -m fedaf``
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The parts of the package that a file imports, at its top or inside functions: rooms and top-level modules;
    the package itself is ``""``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import on line {node.lineno}"
            bare = node.module == "fedaf"
            names = [f"fedaf.{alias.name}" for alias in node.names] if bare else [node.module or ""]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "fedaf":
                yield rest.partition(".")[0]


def room_of(path: Path) -> str | None:
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else None


def test_every_file_is_in_a_room():
    assert {room for room in map(room_of, FILES) if room} == set(ROOMS)
    loose = {path.stem for path in FILES if room_of(path) is None}
    assert loose == {"__init__", "__main__", *FOR_ALL}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room):
    allowed = {*ROOMS[: ROOMS.index(room) + 1], *FOR_ALL}
    wrong = {
        f"{path.relative_to(PACKAGE)} imports fedaf.{name}"
        for path in FILES
        if room_of(path) == room
        for name in imported(path)
        if name not in allowed
    }
    assert not wrong


@pytest.mark.parametrize("module", sorted(FOR_ALL))
def test_what_all_may_import_imports_nothing_else_of_the_package(module):
    assert set(imported(PACKAGE / f"{module}.py")) <= FOR_ALL - {module}


def modules_imported(tree: ast.AST, known: set[str]) -> set[str]:
    """The modules of the package that a module imports when it runs, at its top or inside functions. Imports for type
    checkers alone do not count."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & known or {str(node.module)}
        found |= modules_imported(node, known)
    return found & known


def test_no_module_imports_itself_through_others():
    names = {
        ".".join(("fedaf", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in FILES
    }
    graph = {name: modules_imported(ast.parse(path.read_text()), set(names)) - {name} for name, path in names.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def test_methods_know_neither_transport_nor_engine():
    for path in FILES:
        if room_of(path) == "methods":
            assert not {"engine", "transports", "federation"} & set(imported(path)), path


def test_the_check_of_imports_sees_every_way_to_import(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "import fedaf.data.catalog\nfrom fedaf import cli\nfrom fedaf.engine import x\nimport os, fedaf\n"
        "import fedafish\ndef f():\n    from fedaf.methods.fedaf import FedAF\n"
    )
    assert set(imported(file)) == {"data", "cli", "engine", "", "methods"}


@pytest.mark.parametrize("module", ["fedaf", "fedaf.cli.main"])
def test_importing_the_command_line_does_not_load_pytorch(module):
    heavy = "{'torch', 'numpy', 'matplotlib', 'sklearn'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
