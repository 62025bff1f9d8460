"""Tables of options: how they are validated, and how an option is declared.

An option is one field of one table. The field says everything: type, default, bounds, description, and with
``Flag`` that it is also a flag of the command line and a keyword argument of ``fedaf.run``. This module does not import
PyTorch, so ``--help`` is fast.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.fields import FieldInfo

from fedaf.common.registry import Registry
from fedaf.errors import UserError

T = TypeVar("T", bound="Options")


class Options(BaseModel):
    """A validated table of options.

    Unknown keys, infinities and values of another type (``true`` for 1) are refused. A method's options are the
    ``[method]`` table of a configuration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def needs_rounds(self) -> bool:
        """Whether the numbers of a round depend on how many rounds the run has."""
        return False


def with_defaults(**values: Any) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that gives inherited options other defaults; everything else about them stays."""

    def change(options: type[T]) -> type[T]:
        for name, value in values.items():
            options.model_fields[name] = replaced = copy(options.model_fields[name])
            replaced.default = value
        options.model_rebuild(force=True)
        options(**values)  # pydantic does not validate defaults
        return options

    return change


@dataclass(frozen=True)
class Flag:
    """Mark a field as a flag: ``seed: Annotated[int, Flag("Run")] = Field(0, description="random seed")``.

    Args:
        group: The heading of the flag in ``--help``.
        name: The keyword argument; the flag is ``--`` and the same name with dashes. Unset: the key of the field.
        default: What ``--help`` shows as the default. Unset: the default of the field.
    """

    group: str
    name: str | None = None
    default: str | None = None


@dataclass(frozen=True, eq=False)
class OneOf:
    """Restrict a string to the names of a registry; an alias is replaced by the name it stands for.

    Args:
        registry: The registry that knows the names.
        others: Names that are valid besides, such as ``auto``.
        unlisted: More valid names, which help texts do not list.
    """

    registry: Registry[Any]
    others: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def choices(self) -> str:
        """The names for help texts."""
        return ", ".join([*self.others, self.registry.choices])

    def check(self, name: str) -> str:
        """Return the current name for ``name``; raise ``ValueError`` if it is unknown."""
        try:
            return self.registry.resolve(name, (*self.others, *self.unlisted))
        except UserError as error:
            raise ValueError(error) from error  # pydantic adds the path of the setting

    def is_custom(self, name: str) -> bool:
        """Whether ``name`` stands for code that does not ship with fedaf."""
        return name not in (*self.others, *self.unlisted, *self.registry.names, *(self.registry.aliases or {}))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return AfterValidator(self.check).__get_pydantic_core_schema__(source, handler)


def one_of(field: FieldInfo) -> OneOf | None:
    """The registry that the value of a field, or each item of a list, is named by."""
    item = get_args(field.annotation) if get_origin(field.annotation) is list else ()
    metadata = [*field.metadata, *(getattr(item[0], "__metadata__", ()) if item else ())]
    return next((mark for mark in metadata if isinstance(mark, OneOf)), None)


def meaning(field: FieldInfo) -> str:
    """The description of a field, with the values it accepts if they are a fixed list."""
    description = field.description or ""
    if (names := one_of(field)) is not None:
        several = "a list of" if get_origin(field.annotation) is list else "one of"
        return f"{description}; {several} {names.choices}"
    if get_origin(field.annotation) is Literal:
        return f"{description}; one of {', '.join(map(str, get_args(field.annotation)))}"
    return description


_KINDS = {int: "integer", float: "number", bool: "true or false", str: "text"}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}  # as pydantic calls them


def allowed(field: FieldInfo) -> str:
    """The values that a field accepts: ``integer >= 1``, ``number > 0 and <= 1``, ``list of text``, ``true or false``.

    Empty if its ``meaning`` lists them.
    """
    if one_of(field) is not None or get_origin(field.annotation) is Literal:
        return ""
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not type(None)]
    return " or ".join(_kind(kind) for kind in kinds) + _bounds(field.metadata)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        kind, *metadata = get_args(annotation)
        return _kind(kind) + _bounds(metadata)
    if get_origin(annotation) is list:
        return f"list of {_kind(get_args(annotation)[0])}"
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    return _KINDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(metadata: Iterable[Any]) -> str:
    """The bounds on a number, such as `` > 0 and <= 1``; bounds on a length are left to the meaning."""
    pairs = [(sign, getattr(mark, name, None)) for mark in metadata for name, sign in _BOUNDS.items()]
    found = [f"{sign} {bound}" for sign, bound in pairs if bound is not None]
    return f" {' and '.join(found)}" if found else ""
