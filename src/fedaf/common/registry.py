"""The one registry: built-in names, ``module:Name``, and entry points of installed packages.

Each room declares its registries in its ``registry.py``, one line per built-in entry. Help texts, error lists and
presets follow from them. Nothing is imported before it is looked up, so listing names is fast.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedaf.common.naming import nearest
from fedaf.errors import UserError

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Implementations of one kind, found by name.

    Args:
        kind: What is registered, as users call it: ``"method"``.
        group: Entry point group that installed packages add names to: ``"fedaf.methods"``.
        builtin: Path (``module:attribute``) of each entry that ships with fedaf.
        form: How a custom entry is named: ``"module:Class"``.
        check: Called with the name and the loaded object; raises ``UserError`` if it is not of this kind.
        aliases: Old names that still work, with a warning, and the names that replace them.
        hint: Called with an unknown name; returns what the user may have meant, for the error.
    """

    kind: str
    group: str
    builtin: Mapping[str, str]
    form: str
    check: Callable[[str, Any], T]
    aliases: Mapping[str, str] | None = None
    hint: Callable[[str], str] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.builtin)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that ship with fedaf."""
        return tuple(self.builtin)

    @cached_property
    def plugins(self) -> Mapping[str, EntryPoint]:
        """Entry points of installed packages; a built-in name is never replaced by one."""
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.builtin}

    @property
    def choices(self) -> str:
        """Every name that ``find`` accepts, for help texts and errors."""
        last = ", " if " or " in self.form else " or "
        return ", ".join([*self.names, *self.plugins]) + last + self.form

    def canonical(self, name: str) -> str:
        """The current name for an old one."""
        new = (self.aliases or {}).get(name)
        if new is None:
            return name
        log.warning("%s %r is now called %r", self.kind, name, new)
        return new

    def knows(self, name: str) -> bool:
        """Whether ``name`` is built in, installed by a package, or has the form of a custom entry."""
        return name in self.builtin or name in (self.aliases or {}) or ":" in name or name in self.plugins

    def resolve(self, name: str, others: tuple[str, ...] = ()) -> str:
        """Return the current name for ``name`` without loading anything.

        Args:
            name: A name, which may be an alias.
            others: Names that are valid besides, such as ``auto``.

        Raises:
            UserError: If the name is unknown.
        """
        name = self.canonical(name)
        if name not in others and not self.knows(name):
            close = (self.hint(name) if self.hint else "") or nearest(name, [*others, *self.names, *self.plugins])
            message = f"unknown {self.kind} {name!r}{close}; expected one of {', '.join([*others, self.choices])}."
            raise UserError(message, code=f"FEDAF-{self.kind.upper().replace(' ', '-')}-UNKNOWN")
        return name

    def find(self, name: str) -> T:
        """Load the entry called ``name``; modules in the current directory are found too.

        Raises:
            UserError: If the name is unknown, cannot be loaded, or is not of this kind.
        """
        name = self.resolve(name)
        path = self.plugins[name].value if name in self.plugins else self.builtin.get(name, name)
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # as `python -m` does; an installed command does not
        try:
            found = _load(path)
        except Exception as error:  # a custom module may raise anything
            log.debug("loading %s failed", path, exc_info=error)
            message = f"{self.kind} {path!r} cannot be loaded ({reason(error)}); it must be {self.form}."
            raise UserError(message, code="FEDAF-CUSTOM-LOAD") from error
        return self.check(name, found)


def instance_of(path: str, code: str) -> Callable[[str, Any], Any]:
    """Make a check that an entry is an instance of the class at ``path``.

    The class is imported when the check runs, because listing names must not import PyTorch.
    """

    def check(name: str, found: Any) -> Any:
        if not isinstance(found, _load(path)):
            raise UserError(f"{name!r} is a {type(found).__name__}; expected an instance of {path}.", code=code)
        return found

    return check


def subclass_of(path: str, code: str) -> Callable[[str, Any], Any]:
    """Make a check that an entry is a class derived from the one at ``path``, with all its abstract methods."""

    def check(name: str, found: Any) -> Any:
        if not (isinstance(found, type) and issubclass(found, _load(path))):
            raise UserError(f"{name!r} is {found!r}; expected a subclass of {path}.", code=code)
        if missing := getattr(found, "__abstractmethods__", None):
            raise UserError(f"{name!r} does not implement {', '.join(sorted(missing))}.", code=code)
        return found

    return check


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def reason(error: Exception) -> str:
    """What custom code raised, shortened to one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
