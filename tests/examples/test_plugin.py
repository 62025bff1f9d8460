"""The plugin package: built and installed without a network, listed by ``--help``, and run by its names."""

import os
import shutil
import subprocess
import sys

import pytest

from support.commandline import command
from support.examples import EXAMPLES


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that pip has installed a copy of the plugin into; a build leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLES / "plugin", folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", folder / "installed", folder / "source"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "installed"


@pytest.fixture
def _active(installed, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.mark.usefixtures("_active")
def test_help_lists_the_plugins_method_and_data_set(tmp_path):
    shown = command("run", "--help", cwd=tmp_path).stdout
    assert "trimmed-mean" in shown
    assert "stripes" in shown
    assert "trimmed-mean" in command("compare", "--help", cwd=tmp_path).stdout


def test_without_the_plugin_its_names_are_unknown(tmp_path):
    assert "trimmed-mean" not in command("run", "--help", cwd=tmp_path).stdout
    assert "[FEDAF-METHOD-UNKNOWN]" in command("run", "--method", "trimmed-mean", cwd=tmp_path).stderr


@pytest.mark.usefixtures("_active")
def test_help_with_the_plugin_imports_neither_it_nor_pytorch(tmp_path):
    code = (
        "import sys, fedaf.cli.main; from fedaf.methods.registry import METHODS; "
        "print('trimmed-mean' in METHODS.choices, sorted({'torch', 'numpy', 'fedaf_robust'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "True []"


@pytest.mark.usefixtures("_active")
def test_settings_list_the_plugins_option(tmp_path):
    shown = command("settings", "--method", "trimmed-mean", cwd=tmp_path).stdout
    assert "method.trim" in shown
    assert "share of the clients that is left out at each end" in shown


@pytest.mark.usefixtures("_active")
def test_a_run_uses_both_names(tmp_path):
    flags = ["--method", "trimmed-mean", "--dataset", "stripes", "--clients", "4", "--alpha", "1", "--rounds", "2"]
    small = ["--set", "model.width=8", "--set", "method.trim=0.25", "--set", "run.threads=1", "--device", "cpu"]
    done = command("run", *flags, *small, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Trimmed mean" in done.stdout or "trimmed-mean" in done.stdout
    assert '"method": "trimmed-mean"' in (tmp_path / "here" / "result.json").read_text()


@pytest.mark.usefixtures("_active")
def test_an_option_out_of_range_is_refused_in_a_sentence(tmp_path):
    done = command("run", "--method", "trimmed-mean", "--set", "method.trim=0.5", cwd=tmp_path)
    assert done.returncode == 2
    assert "method.trim" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_wrong_client_cannot_move_the_trimmed_mean(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    import torch
    from fedaf_robust.trimmed_mean import TrimmedMean, TrimmedMeanOptions

    from fedaf.protocol import Key, Payload
    from support.tiny import CONVNET, TASK

    method = TrimmedMean(TrimmedMeanOptions(trim=0.25), TASK, CONVNET)
    server = method.initial(Key(0))
    honest = {name: tensor + 1 for name, tensor in server.model.items()}
    wrong = {name: tensor + 1000 for name, tensor in server.model.items()}
    replies = {f"client-{k}": Payload(honest if k < 3 else wrong, {"samples": 10}) for k in range(4)}
    combined = method.phases[0].combine(server, replies).model
    for name, tensor in honest.items():
        torch.testing.assert_close(combined[name], tensor)
