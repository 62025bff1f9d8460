"""What the README shows is what works."""

import re
import subprocess
import sys

import fedaf
from support import ROOT

README = (ROOT / "README.md").read_text()


def test_the_method_in_the_readme_runs(tmp_path, monkeypatch):
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class Means" in block)
    assert len(code.splitlines()) < 40
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    result = fedaf.run(method="mine:Means", rounds=2, clients=3, alpha=0.5, scale=0.5)
    assert len(result.curve) == 2
    assert result.figures["upload_bytes_per_client_round"] == 4 * 8 * 8


def test_the_model_in_the_readme_runs(tmp_path, monkeypatch):
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "def make" in block)
    monkeypatch.chdir(tmp_path)
    quick = 'rounds=2, preset="quick", clients=3, local_steps=2, '
    names: dict[str, fedaf.RunResult] = {}
    exec(code.replace("rounds=2, ", quick), names)
    assert len(names["result"].curve) == 2


def test_the_commands_in_the_readme_have_only_flags_that_exist():
    pages = README + (ROOT / "docs" / "deploy.md").read_text()
    verbs = r"^fedaf (run|compare|reproduce|settings|bench|(?:data|policy|deploy) [a-z]+) (.*?)(?:#.*)?$"
    commands = re.findall(verbs, pages, re.MULTILINE)
    assert len(commands) >= 10
    for verb, arguments in commands:
        shown = subprocess.run(
            [sys.executable, "-m", "fedaf", *verb.split(), "--help"], capture_output=True, text=True, check=True
        )
        for flag in re.findall(r"--[a-z-]+", arguments):
            assert flag in shown.stdout, f"fedaf {verb} {arguments}"
