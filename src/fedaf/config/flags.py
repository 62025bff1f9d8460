"""Flags of the command line, which are also the keyword arguments of ``fedaf.run``.

They follow from the fields that are marked with ``Flag``; nothing about a flag is written anywhere else.
"""

import inspect
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fedaf.common.options import Flag, Options, meaning
from fedaf.condensation.options import CondensationOptions
from fedaf.config.configuration import Config, merge
from fedaf.config.tables import TABLES
from fedaf.data.registry import PARTITIONS
from fedaf.errors import UserError

_GROUPS = ("Data", "Method", "Run")
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declared:
    """A flag and the setting that declares it."""

    name: str
    table: str
    key: str
    mark: Flag
    field: FieldInfo

    @property
    def path(self) -> str:
        """The setting that the flag changes, such as ``run.seed``."""
        return f"{self.table}.{self.key}"

    @property
    def option(self) -> str:
        """How the command line calls it, such as ``--data-dir``."""
        return "--" + self.name.replace("_", "-")

    @property
    def type(self) -> type:
        """The type of its value, if it is given."""
        annotation: Any = self.field.annotation
        if get_origin(annotation) in (Union, UnionType):
            annotation = next(each for each in get_args(annotation) if each is not type(None))
        if get_origin(annotation) is list:
            return list[str]
        return str if get_origin(annotation) is Literal else annotation

    @property
    def help(self) -> str:
        """Its meaning, the values it accepts, and its default."""
        text = meaning(self.field).partition("; unset")[0]
        default = self.mark.default or self.field.default
        return f"{text[0].upper()}{text[1:]}. (default: {default})"


def declared(table: str, model: type[Options]) -> Iterator[Declared]:
    """Yield the flags that the fields of a table declare."""
    for key, field in model.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Flag):
                yield Declared(mark.name or key, table, key, mark, field)


_METHOD = (*declared("method", TABLES["method"]), *declared("method", CondensationOptions))
_ALL = (*_METHOD, *(flag for table, model in TABLES.items() for flag in declared(table, model)))

#: Every flag by its name as a keyword argument, in the order in which ``--help`` shows them.
FLAGS: Mapping[str, Declared] = {flag.name: flag for group in _GROUPS for flag in _ALL if flag.mark.group == group}


def from_flags(**given: Any) -> dict[str, Any]:
    """Return the settings behind flags; those that are ``None`` were not given."""
    values = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return merge(*(setting(FLAGS[name].path, value) for name, value in values.items() if value is not None))


def setting(path: str, value: Any) -> dict[str, Any]:
    """Return one setting, such as ``run.seed``, as tables."""
    table, _, key = path.partition(".")
    if not (table and key):
        message = f"the setting {path!r} must be named table.key, for example method.gamma."
        raise UserError(message, code="FEDAF-CONFIG-SETTING")
    return {table: {key: value}}


def parse_setting(text: str) -> dict[str, Any]:
    """Return ``table.key=value`` as tables; the value is TOML, and a bare word is a string."""
    path, equals, raw = text.partition("=")
    if not equals:
        message = f"--set {text!r} must have the form table.key=value, for example method.gamma=0.8."
        raise UserError(message, code="FEDAF-CONFIG-SETTING")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"] if "\n" not in raw else raw
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return setting(path.strip(), value)


def refuse_unused(given: Mapping[str, Any], config: Config) -> None:
    """Raise ``UserError`` if a given flag has no effect on the partition of a configuration."""
    kind = config.partition.kind
    if kind == "auto":
        return
    used = PARTITIONS.find(kind).uses
    for name in (name for name, value in given.items() if name in FLAGS and value is not None):
        if FLAGS[name].table == "partition" and FLAGS[name].key not in used:
            message = f"{name} has no effect on a partition of kind {kind!r}; leave it out or change partition.kind."
            raise UserError(message, code="FEDAF-CONFIG-NO-EFFECT")


def accepts_flags(function: _Function, without: Sequence[str] = ()) -> _Function:
    """Add every flag to the signature and the docstring of a function that takes them as ``**options``.

    The docstring says where, with a line ``{flags}`` in its ``Args:``.

    Args:
        function: The function.
        without: Flags to leave out.
    """
    signature = inspect.signature(function)
    *explicit, options = signature.parameters.values()
    flags = [flag for flag in FLAGS.values() if flag.name not in (*signature.parameters, *without)]
    keyword = inspect.Parameter("flag", inspect.Parameter.KEYWORD_ONLY, default=None)
    added = [keyword.replace(name=flag.name, annotation=flag.type | None) for flag in flags]
    function.__signature__ = signature.replace(parameters=[*explicit, *added, options])  # type: ignore[attr-defined]
    lines = [f"{flag.name}: {flag.help}" for flag in flags]
    function.__doc__ = (function.__doc__ or "").replace("{flags}", "\n        ".join(lines))
    return function
