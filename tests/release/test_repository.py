"""Files that other programs read: workflows, the Dockerfile, hooks and templates."""

import fnmatch
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path, key: str) -> list[str]:
    return [step[key] for job in jobs(path).values() for step in job["steps"] if key in step]


def test_there_is_a_workflow_for_each_purpose():
    assert {path.stem for path in WORKFLOWS} == {"tests", "docs", "release", "weekly"}
    assert [job["runs-on"] for job in jobs(ROOT / ".github" / "workflows" / "tests.yml").values()].count(
        "macos-latest"
    ) == 1


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_only_targets_and_files_that_exist(path):
    commands = "\n".join(steps(path, "run"))
    targets = re.findall(r"^\s*make ([\w-]+)", commands, re.MULTILINE)
    assert [name for name in targets if not re.search(rf"^{name}:", MAKEFILE, re.MULTILINE)] == []
    for name in re.findall(r"(?<![\w/.])((?:\.ci|tests|src)/[\w/.]+)", commands):
        assert (ROOT / name).exists(), name
    assert targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_versions_of_its_actions(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in jobs(path).values())
    for action in steps(path, "uses"):
        assert re.fullmatch(r"(actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v1)", action), action
    checkouts = [step for job in jobs(path).values() for step in job["steps"] if "checkout@" in step.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert "secrets." not in path.read_text()


def test_only_the_jobs_that_attest_and_publish_get_an_identity_and_they_run_no_code_of_the_checkout():
    found = jobs(ROOT / ".github" / "workflows" / "release.yml")
    trusted = {name for name, job in found.items() if "id-token" in job.get("permissions", {})}
    assert trusted == {"attest", "publish"}
    for name in trusted:
        assert not [step for step in found[name]["steps"] if "run" in step or "checkout" in step["uses"]]
    assert found["publish"]["environment"] == "pypi"
    assert found["publish"]["permissions"] == {"id-token": "write"}


def instructions() -> list[list[str]]:
    """The instructions of the Dockerfile, as words."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip()]


def test_the_image_runs_as_a_user_without_rights():
    last = max(at for at, words in enumerate(instructions()) if words[0] == "FROM")
    stage = instructions()[last:]
    users = [words[1] for words in stage if words[0] == "USER"]
    assert users
    assert int(users[-1].partition(":")[0]) > 0
    after = stage[[words[0] for words in stage].index("USER") :]
    assert [words[0] for words in after] == ["USER", "WORKDIR", "ENTRYPOINT", "CMD"]
    assert not any("sudo" in words for words in stage)


def test_the_image_is_built_from_files_of_the_checkout_that_docker_may_see():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    visible = {line[1:] for line in ignored if line.startswith("!")}
    copied = [words[1:-1] for words in instructions() if words[0] == "COPY" and not words[1].startswith("--from")]
    assert copied
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in visible), source
    assert not [words for words in instructions() if words[0] == "ADD"]
    assert not [words for words in instructions() if any(word.startswith(("curl", "wget")) for word in words)]


def test_the_image_has_the_pinned_versions():
    built = " ".join(word for words in instructions() if words[0] == "RUN" for word in words)
    assert "-c constraints.txt" in built
    python = next(words[1] for words in instructions() if words[0] == "ARG")
    assert python == "PYTHON=3.11"  # with which constraints.txt is made


def test_the_hooks_are_programs_that_make_lint_runs():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    programs = [shlex.split(hook["entry"])[0] for hook in hooks]
    assert {hook["language"] for hook in hooks} == {"system"}
    linted = re.findall(r"\$\(BIN\)/(ruff|mypy)", MAKEFILE.partition("lint:")[2].partition("\n\n")[0])
    assert [Path(program).name for program in programs] == linted
    assert {os.path.dirname(program) for program in programs} == {".venv/bin"}


def test_forms_for_issues_are_complete():
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form["name"]
        assert form["description"]
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(set(ids)) == len(ids)
        assert all(part["attributes"].get("label") for part in form["body"] if part["type"] != "markdown")
