"""constraints.txt names one version of everything that fedaf and its extras need, and the tests run with these."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
PINS = {canonicalize_name(pin.name): pin.specifier for pin in map(Requirement, LINES)}


def needed(lines: list[str]) -> dict[str, set[str]]:
    """Every package that requirements lead to on this platform, with the packages that require it.

    What a package requires is known only if it is installed.
    """
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    todo = [("fedaf", "", line) for line in lines]
    while todo:
        parent, extra, line = todo.pop()
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, set()).add(parent)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                try:
                    requires = distribution(name).requires or []
                except PackageNotFoundError:
                    continue
                todo += [(name, extra, line) for line in requires]
    return found


ALL = needed([line for each in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()] for line in each])


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_everything_that_an_extra_needs_is_pinned(extra):
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    missing = {name: sorted(parents) for name, parents in needed(lines).items() if name not in PINS}
    assert missing == {}, "run make constraints"


def test_the_search_for_what_is_needed_goes_deep():
    assert "matplotlib" in ALL["contourpy"]
    assert "uvicorn" in ALL["httptools"]  # only by its extra, which flwr asks for


def test_the_installed_versions_are_the_pinned_ones():
    wrong = {}
    for name in ALL.keys() & PINS.keys():
        try:
            version = distribution(name).version
        except PackageNotFoundError:
            continue
        if not PINS[name].contains(version, prereleases=True):
            wrong[name] = f"{version} is installed, pinned is {PINS[name]}"
    assert wrong == {}


def test_every_line_is_one_version_in_order_and_torch_is_the_version_of_the_results():
    assert [line for line in LINES if not re.fullmatch(r"[\w.-]+==[\w.!]+", line)] == []
    assert sorted(LINES, key=str.lower) == LINES
    assert str(PINS["torch"]) == "==2.13.0"


def test_the_pins_fit_the_ranges_of_the_project():
    for line in [
        line for each in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()] for line in each
    ]:
        requirement = Requirement(line)
        version = str(PINS[canonicalize_name(requirement.name)]).removeprefix("==")
        assert requirement.specifier.contains(version), line
