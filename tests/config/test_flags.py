"""Flags follow from the declarations of settings: for the command line, for ``fedaf.run``, for help."""

import inspect
from pathlib import Path
from typing import Annotated

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

import fedaf
from fedaf import config as configuration
from fedaf.cli.options import with_flags
from fedaf.common.options import Flag
from fedaf.config import FLAGS, build, custom_names, from_flags, parse_setting, refuse_unused
from fedaf.config.flags import declared
from fedaf.config.tables import RunTable
from fedaf.methods.registry import METHODS
from support.errors import raises


class Extended(RunTable):
    """A table with one more option, declared in one line."""

    patience: Annotated[int, Flag("Run")] = Field(3, ge=1, description="rounds without progress before a stop")


def test_an_option_is_one_line_from_which_its_flag_follows(monkeypatch):
    flag = {flag.name: flag for flag in declared("run", Extended)}["patience"]
    assert (flag.option, flag.path, flag.type) == ("--patience", "run.patience", int)
    assert flag.help == "Rounds without progress before a stop. (default: 3)"
    monkeypatch.setattr(configuration, "FLAGS", {**FLAGS, "patience": flag})
    app, seen = typer.Typer(), []

    @app.command()
    @with_flags("patience", "seed")
    def train(*, flags: dict, quiet: bool = False) -> None:
        seen.append(flags)

    result = CliRunner().invoke(app, ["--patience", "5", "--quiet"])
    assert (result.exit_code, seen) == (0, [{"patience": 5, "seed": None}])
    assert "Rounds without progress" in CliRunner().invoke(app, ["--help"]).output


def test_the_keyword_arguments_of_run_are_the_flags():
    arguments = inspect.signature(fedaf.run).parameters
    assert set(FLAGS) < set(arguments)
    assert set(arguments) - set(FLAGS) == {
        *("preset", "out", "on_round", "observer", "progress", "settings", "options"),
    }
    for name, flag in FLAGS.items():
        assert name in ("model", "dataset") or f"{name}: {flag.help}" in fedaf.run.__doc__
    assert "{flags}" not in fedaf.run.__doc__


def test_a_flag_says_which_names_it_accepts_and_what_the_default_is():
    assert METHODS.choices in FLAGS["method"].help
    assert FLAGS["method"].help.endswith("(default: fedaf)")
    assert FLAGS["rounds"].help.endswith("(default: by preset)")
    assert "fp32" in FLAGS["precision"].help
    assert "unset" not in FLAGS["policy"].help


@pytest.mark.parametrize(
    ("flag", "value", "table", "key"),
    [
        ("dataset", "cifar10", "data", "name"),
        ("data_dir", "there", "data", "dir"),
        ("test_dataset", "digits", "data", "test"),
        ("alpha", 0.3, "partition", "alpha"),
        ("clients", 3, "partition", "clients"),
        ("rounds", 4, "run", "rounds"),
        ("seed", 8, "run", "seed"),
        ("device", "cpu", "run", "device"),
        ("ipc", 6, "method", "ipc"),
        ("local_steps", 2, "method", "local_steps"),
        ("participation", 0.5, "federation", "participation"),
        ("model", "resnet18", "model", "name"),
        ("engine", "eager", "run", "engine"),
        ("precision", "fp32", "run", "precision"),
        ("memory_budget", 100, "run", "memory_budget_mib"),
        ("policy", "default", "federation", "policy"),
    ],
)
def test_every_flag_reaches_its_setting(flag, value, table, key):
    assert getattr(getattr(build(from_flags(**{flag: value})), table), key) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method.gamma=0.8", {"method": {"gamma": 0.8}}),
        (" method.gamma = 0.8", {"method": {"gamma": 0.8}}),
        ("run.rounds=3", {"run": {"rounds": 3}}),
        ("partition.kind=iid", {"partition": {"kind": "iid"}}),
        ("partition.kind='iid'", {"partition": {"kind": "iid"}}),
        ("training.augment=['flip']", {"training": {"augment": ["flip"]}}),
        ("method.cdc=false", {"method": {"cdc": False}}),
        ("data.dir=/a=b", {"data": {"dir": "/a=b"}}),
    ],
)
def test_a_setting_is_a_toml_value_or_a_bare_word(text, expected):
    assert parse_setting(text) == expected


def test_paths_become_text():
    assert build(from_flags(data_dir=Path("there"))).data.dir == "there"


@pytest.mark.parametrize("text", ["method.gamma", "gamma=0.5", ".gamma=1", "method.=1"])
def test_a_setting_of_another_form_is_refused(text):
    with raises("FEDAF-CONFIG-SETTING"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("kind", "unused"),
    [
        ("auto", []),
        ("dirichlet", []),
        ("iid", ["alpha"]),
        ("shards", ["alpha"]),
        ("domain", ["alpha", "clients"]),
        ("file", ["alpha", "clients"]),
    ],
)
def test_a_flag_without_effect_on_the_partition_is_refused(kind, unused):
    config = build({"partition": {"kind": kind}})
    refuse_unused({"alpha": None, "clients": None, "rounds": 3}, config)
    for name in ("alpha", "clients"):
        if name not in unused:
            refuse_unused({name: 1}, config)
            continue
        with raises("FEDAF-CONFIG-NO-EFFECT") as caught:
            refuse_unused({name: 1}, config)
        assert name in str(caught.value)
        assert repr(kind) in str(caught.value)


def test_code_outside_fedaf_is_found_wherever_a_setting_names_it():
    assert not list(custom_names({"data": {"name": "npz:x"}, "run": {"engine": "compiled"}, "method": 3}))
    assert not list(custom_names({"data": {"name": "none"}, "partition": {"kind": "auto"}, "model": {"name": 5}}))
    given = {
        "run": {"engine": "a:Engine", "seed": 1},
        "data": {"name": "b:SPEC"},
        "partition": {"kind": "c:KIND"},
        "model": {"name": "d:factory"},
        "training": {"augment": ["flip", "e:AUGMENT"]},
        "method": {"name": "f:Method", "lr": 1},
    }
    assert dict(custom_names(given)) == {
        "run.engine": "a:Engine",
        "data.name": "b:SPEC",
        "partition.kind": "c:KIND",
        "model.name": "d:factory",
        "training.augment": "e:AUGMENT",
        "method.name": "f:Method",
    }
