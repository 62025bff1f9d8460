"""The registry: built-in names, installed plugins and ``module:Name``, each loaded only when it is looked up."""

import logging
import sys

import pytest

from fedaf.common.registry import Registry
from fedaf.errors import UserError
from support.commandline import command
from support.errors import raises
from support.plugins import METHOD, install


def check(name: str, found: object) -> object:
    if not callable(found):
        raise UserError(f"{name} is not callable", code="FEDAF-TOOL-TYPE")
    return found


def registry(**changes) -> Registry:
    fields = {
        "kind": "hand tool",
        "group": "fedaf.tools",
        "builtin": {"join": "os.path:join", "split": "os.path:split"},
        "form": "module:function",
        "check": check,
        "aliases": {"glue": "join"},
    }
    return Registry(**{**fields, **changes})


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package with the tools ``saw``, ``broken`` and another ``join``."""
    names = {"saw": "fedaf_saw:saw", "broken": "fedaf_broken:x", "join": "fedaf_saw:saw"}
    install(tmp_path, "fedaf.tools", names, fedaf_saw="def saw(): return 'plugin'", fedaf_broken="1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("fedaf_saw", None)


def test_a_built_in_name_is_loaded():
    assert registry().find("split").__name__ == "split"
    assert registry().names == tuple(registry()) == ("join", "split")


def test_an_entry_point_of_an_installed_package_is_found_and_listed(plugin):
    tools = registry()
    assert tools.find("saw")() == "plugin"
    assert tools.choices == "join, split, saw, broken or module:function"
    assert tools.names == ("join", "split")


def test_a_plugin_is_not_imported_before_it_is_looked_up(plugin):
    assert "saw" in registry().choices
    assert registry().knows("saw")
    assert "fedaf_saw" not in sys.modules


def test_a_plugin_cannot_replace_a_built_in_name(plugin):
    assert registry().find("join")("a", "b") == "a/b"


def test_a_plugin_that_fails_to_import_is_an_error_with_the_reason(plugin):
    with raises("FEDAF-CUSTOM-LOAD") as caught:
        registry().find("broken")
    assert "ZeroDivisionError" in str(caught.value)


def test_a_custom_name_is_found_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "my_tools.py").write_text("def drill(): return 'mine'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert registry().find("my_tools:drill")() == "mine"


@pytest.mark.parametrize("name", ["no_such_module:x", "os:no_such_name", "..os:x", ":", "os.path:"])
def test_a_custom_name_that_cannot_be_loaded_is_an_error(name):
    with raises("FEDAF-CUSTOM-LOAD") as caught:
        registry().find(name)
    assert repr(name) in str(caught.value)
    assert "module:function" in str(caught.value)


def test_what_is_loaded_is_checked():
    with raises("FEDAF-TOOL-TYPE"):
        registry().find("os:sep")


def test_an_unknown_name_is_an_error_with_the_nearest_and_all_names():
    with raises("FEDAF-HAND-TOOL-UNKNOWN") as caught:
        registry().find("splt")
    assert all(word in str(caught.value) for word in ("'splt'", "did you mean 'split'", "join", "module:function"))


def test_an_old_name_works_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert registry().resolve("glue") == "join"
    assert "'glue' is now called 'join'" in caplog.text
    assert registry().knows("glue")


def test_help_lists_an_installed_method(tmp_path, monkeypatch):
    install(tmp_path, "fedaf.methods", {"nothing-at-all": "fedaf_nothing:Nothing"}, fedaf_nothing=METHOD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("COLUMNS", "200")
    assert "nothing-at-all" in command("run", "--help", cwd=tmp_path).stdout
