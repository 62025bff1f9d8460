"""What ``make package`` builds: complete, the same from checkout and source distribution, and enough by itself."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

import pytest

import fedaf
from support import ROOT
from support.commandline import COLOURS

pytestmark = pytest.mark.wheel

NAME = f"fedaf-{fedaf.__version__}"
DIST = ROOT / "dist"
WHEEL, SDIST = DIST / f"{NAME}-py3-none-any.whl", DIST / f"{NAME}.tar.gz"


@pytest.fixture(scope="module", autouse=True)
def _built():
    assert WHEEL.is_file(), "there is no wheel in dist/; run make test-wheel"
    assert SDIST.is_file()


def tracked(*under: str) -> list[str]:
    """The files that git tracks and that exist, relative to the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z", *under], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def content(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; ``RECORD`` lists the others and is left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@pytest.fixture(scope="module")
def outside(tmp_path_factory) -> Path:
    """A folder outside of the checkout, with a virtual environment that has the wheel and nothing else.

    To import what fedaf depends on, its path ends with the packages of the environment of these tests. Files named
    ``.pth`` there are not read, and so the editable fedaf, which is such a file, is not on the path.
    """
    folder = tmp_path_factory.mktemp("outside")
    assert ROOT not in folder.parents
    venv.create(folder / "venv", with_pip=True)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", WHEEL], check=True, cwd=folder)
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(outside: Path, *words: str) -> str:
    """The output of a program of the virtual environment, which must succeed."""
    env = {name: value for name, value in os.environ.items() if name not in (*COLOURS, "PYTHONPATH")}
    line = [outside / "venv" / "bin" / words[0], *words[1:]]
    done = subprocess.run(line, cwd=outside, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_wheel_has_every_tracked_file_of_the_package_and_no_other():
    built = {name: data for name, data in content(WHEEL).items() if ".dist-info/" not in name}
    source = {str(PurePosixPath(name).relative_to("src")): ROOT / name for name in tracked("src/fedaf")}
    assert built.keys() == source.keys()
    assert [name for name, path in source.items() if path.read_bytes() != built[name]] == []
    for needed in ("py.typed", "reproduce/tables.toml", "transports/flower/app/pyproject.toml"):
        assert f"fedaf/{needed}" in built


def test_the_wheel_that_is_built_from_the_checkout_is_the_same(tmp_path):
    for name in tracked():
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, tmp_path / "checkout"]
    subprocess.run(build, check=True, capture_output=True)
    ours, theirs = content(tmp_path / WHEEL.name), content(WHEEL)
    assert ours.keys() == theirs.keys()
    # setuptools writes its own version into this file, which may be another in the build of make package
    assert [name for name in ours if ours[name] != theirs[name] and not name.endswith("/WHEEL")] == []


def test_the_source_distribution_has_what_is_needed_to_build_install_and_cite():
    with tarfile.open(SDIST) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(tracked("src/fedaf")) <= names
    assert {"LICENSE", "README.md", "CITATION.cff", "constraints.txt", "docs/howto/install.md"} <= names
    assert not [name for name in names if name.startswith(("runs/", "dist/", ".venv/")) or name.endswith(".pyc")]


def test_the_metadata_say_what_the_project_says():
    metadata = HeaderParser().parsestr(content(WHEEL)[f"{NAME}.dist-info/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("fedaf", fedaf.__version__)
    assert (metadata["License-Expression"], metadata["Author"]) == ("Apache-2.0", "fedaf contributors")
    assert metadata["Requires-Python"] == ">=3.11"
    assert f"{NAME}.dist-info/licenses/LICENSE" in content(WHEEL)


def test_the_installed_package_is_that_of_the_wheel(outside):
    program = "import fedaf, importlib.metadata as m; print(fedaf.__file__, m.distribution('fedaf').locate_file(''))"
    for path in run(outside, "python", "-c", program).split():
        assert (outside / "venv") in Path(path).parents


def test_the_command_answers(outside):
    assert run(outside, "fedaf", "--version") == f"fedaf {fedaf.__version__}\n"
    assert "demo" in run(outside, "fedaf", "--help")


def test_the_demo_runs_from_the_wheel_alone(outside):
    out = run(outside, "fedaf", "demo", "--rounds", "1")
    assert "Open the report in a browser" in out
    for name in ("report.html", "curves.png", "comparison.csv"):
        assert (outside / "runs" / "demo" / name).is_file()
