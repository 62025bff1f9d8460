"""Every error has a stable code, and docs/errors.md lists exactly the codes that the package raises."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fedaf.common.registry import Registry
from fedaf.errors import FedafError, UserError
from support import ROOT

PACKAGE = ROOT / "src" / "fedaf"
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
CODE = re.compile(r"FEDAF(-[A-Z0-9]+)+")
PAGE = (ROOT / "docs" / "errors.md").read_text()


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield path, node


def called(call: ast.Call) -> str:
    """The last part of the name of what is called: ``UserError`` in ``errors.UserError(...)``."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def error_classes() -> set[str]:
    """``FedafError`` and everything derived from it, in any file."""
    known = {FedafError.__name__}
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in classes:
        known |= {node.name for node in classes for base in node.bases if ast.unparse(base).split(".")[-1] in known}
    return known


def unknown_code(kind: str) -> str:
    """The code of a name that a registry of this kind does not know."""
    try:
        Registry(kind, "fedaf.nothing", {}, "module:Name", lambda name, found: found).find("nothing")
    except UserError as error:
        return error.code
    raise AssertionError("the registry found something")


def used_codes() -> set[str]:
    texts = [
        node.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    written = {text for text in texts if CODE.fullmatch(text)}
    written |= {label[0][1:-1] for text in texts if (label := re.search(rf"\[{CODE.pattern}\]$", text))}
    kinds = {call.args[0] for _, call in calls() if called(call) == "Registry" and call.args}
    named = {kind.value for kind in kinds if isinstance(kind, ast.Constant)}
    assert {"method", "data set"} <= named
    return written | {unknown_code(kind) for kind in named}


def test_every_error_is_raised_with_a_code():
    names, missing = error_classes(), []
    assert {"UserError", "Refused", "InUse"} <= names
    for path, call in calls():
        if called(call) in names and "code" not in {keyword.arg for keyword in call.keywords}:
            missing.append(f"{path.relative_to(PACKAGE)}:{call.lineno} {called(call)}")
    assert not missing, f"{len(missing)} errors without a code:\n" + "\n".join(missing)


def test_a_code_is_not_put_together_from_parts():
    """Except in the registry, whose codes follow from the kind of thing that is registered."""
    found = {
        str(path.relative_to(PACKAGE))
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values[:-1]
        if isinstance(part, ast.Constant) and re.search(r"FEDAF-[A-Z0-9-]*$", part.value)
    }
    assert found == {"common/registry.py"}


def test_the_page_lists_every_code_once_and_no_other():
    listed = Counter(re.findall(r"^\| `?(FEDAF-[A-Z0-9-]+)`? \|", PAGE, re.MULTILINE))
    twice = sorted(code for code, times in listed.items() if times > 1)
    assert not twice
    used = used_codes()
    assert sorted(used - set(listed)) == [], "codes that are not on the page"
    assert sorted(set(listed) - used) == [], "codes on the page that nothing raises"


def test_every_row_of_the_page_is_complete_and_in_order():
    for section in PAGE.split("\n## ")[1:]:
        rows = [line for line in section.splitlines() if line.startswith("| FEDAF-")]
        codes = [row.split("|")[1].strip() for row in rows]
        assert codes == sorted(codes), section.splitlines()[0]
        for row in rows:
            assert all(cell.strip() for cell in row.replace(r"\|", "").split("|")[1:-1]), row
            assert row.replace(r"\|", "").count("|") == 4, row


def test_every_other_page_names_only_codes_that_exist():
    used = used_codes()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        if path.name != "errors.md":
            assert {found.group() for found in CODE.finditer(path.read_text())} <= used, path.name
