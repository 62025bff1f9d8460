"""Version, authors and licence are the same wherever they are written, and no page installs fedaf by its name."""

import re
import subprocess
import tomllib

import pytest
import yaml

import fedaf
from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALL = re.compile(r"pip3?\s+(?:install|download|wheel)\s+([^\n`|;&]*)")
BY_NAME = re.compile(r"fedaf(\[[^]]*\])?([=<>~!].*)?")


def tracked() -> list[str]:
    """The files that git tracks and those that are new, without pictures and other data."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    names = (name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())
    return [name for name in names if not name.endswith((".png", ".npz", ".gz", ".safetensors"))]


def installed_by_name(text: str) -> list[str]:
    """The commands of a text that ask an index for fedaf."""
    found = []
    for command in INSTALL.findall(text.replace("\\\n", " ")):
        words = [word.strip("'\".,:)*") for word in re.sub(r"\s*@\s*", "@", command).split()]
        found += [command for word in words if BY_NAME.fullmatch(word)]
    return found


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedaf.__version__
    assert f"## {fedaf.__version__} (" in (ROOT / "CHANGELOG.md").read_text()
    assert f"newest version, {fedaf.__version__}," in " ".join((ROOT / "SECURITY.md").read_text().split())
    wheels = re.findall(r"fedaf-([\d.]+)-py3", (ROOT / "docs" / "howto" / "install.md").read_text())
    assert set(wheels) == {fedaf.__version__}


def test_authors_and_licence_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert [author["name"] for author in PROJECT["authors"]] == [author["name"] for author in citation["authors"]]
    assert PROJECT["license"] == citation["license"] == "Apache-2.0"
    assert not [line for line in PROJECT["classifiers"] if line.startswith("License ::")]  # not beside SPDX


def test_the_classifiers_name_the_versions_of_python_that_are_tested():
    tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    tested = tests["jobs"]["linux"]["strategy"]["matrix"]["python"]
    assert re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE) == tested
    assert PROJECT["requires-python"] == f">={tested[0]}"


@pytest.mark.parametrize(
    "wrong",
    [
        "pip install fedaf",
        "pip install 'fedaf[flower]'",
        "pip install -U -c constraints.txt fedaf==0.1.0",
        "run `pip install fedaf`.",
        "pip3 install \\\n    fedaf",
        "python -m pip install fedaf[flower]>=1",
    ],
)
def test_the_search_finds_commands_that_ask_an_index_for_fedaf(wrong):
    assert installed_by_name(wrong)


@pytest.mark.parametrize(
    "right",
    [
        "pip install -c constraints.txt '.[flower]'",
        "pip install 'fedaf-0.1.0-py3-none-any.whl[flower]'",
        'pip install "fedaf[flower] @ file://$PWD/fedaf-0.1.0-py3-none-any.whl#sha256=HASH"',
        "pip install --editable . flwr",
    ],
)
def test_the_search_permits_checkouts_and_wheels(right):
    assert installed_by_name(right) == []


def test_no_file_asks_an_index_for_fedaf():
    names = [name for name in tracked() if name != "tests/release/test_metadata.py"]
    assert {"README.md", "docs/howto/deploy.md", "src/fedaf/deploy/templates/site.md.j2"} <= set(names)
    found = {name: installed_by_name((ROOT / name).read_text(errors="replace")) for name in names}
    assert {name: commands for name, commands in found.items() if commands} == {}
