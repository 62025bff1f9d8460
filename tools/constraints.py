"""Write constraints.txt: one version of every package that fedaf and its extras need, directly or not.

    make constraints                        keep the pins that fit, add what is missing, drop what nothing needs
    make constraints UPGRADE="numpy scipy"  take the newest versions of these two that fit
    make constraints UPGRADE=all            take the newest versions of everything but torch

torch keeps its version unless UPGRADE names it, since results and timings depend on it. pip resolves all extras at once
in a temporary virtual environment and installs nothing. Run it on Linux with the oldest supported Python, so that the
packages that only this Python needs are in the file too.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "constraints.txt"
HEADER = "# One version of everything that fedaf and its extras need. Written by make constraints; do not edit.\n"
OLDEST = (3, 11)


def normalised(name: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[str]:
    """Return what pyproject.toml requires, with all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return list(dict.fromkeys(line for each in lists for line in each))


def pins() -> dict[str, str]:
    """Return the lines of constraints.txt by normalised name."""
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return {normalised(line.partition("==")[0]): line for line in lines}


def resolved(wanted: list[str], kept: list[str]) -> list[str]:
    """Return ``name==version`` for everything that pip would install for the wanted requirements."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python, limits, report = Path(folder, "bin", "python"), Path(folder, "limits.txt"), Path(folder, "report.json")
        limits.write_text("\n".join(kept) + "\n")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)  # the resolver of Python's own pip is slow
        dry = ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(limits)]
        subprocess.run([*pip, *dry, *wanted], check=True)
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    # A local version such as 2.13.0+cpu names a build; its public version fits every build.
    return [f"{each['name']}=={each['version'].partition('+')[0]}" for each in found]


def main() -> None:
    """Write the file and print what changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upgrade", nargs="*", default=[], metavar="NAME", help="take the newest versions of these")
    upgrade = {normalised(name) for name in parser.parse_args().upgrade}
    if sys.platform != "linux" or sys.version_info[:2] != OLDEST:
        sys.exit(f"run this on Linux with Python {OLDEST[0]}.{OLDEST[1]}, not {sys.platform} {sys.version.split()[0]}")
    before = pins()
    if unknown := upgrade - before.keys() - {"all"}:
        sys.exit(f"not in {FILE.name}: {', '.join(sorted(unknown))}")
    free = upgrade | (before.keys() - {"torch"} if "all" in upgrade else set())
    try:
        found = resolved(requirements(), [line for name, line in before.items() if name not in free])
    except subprocess.CalledProcessError:
        sys.exit('pip found no versions that fit together; free the pins it names with UPGRADE="NAME NAME"')
    FILE.write_text(HEADER + "".join(line + "\n" for line in sorted(found, key=str.lower)))
    after = pins()
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            print(f"{before.get(name, 'new')} -> {after.get(name, 'dropped')}")


if __name__ == "__main__":
    main()
