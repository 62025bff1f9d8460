"""TOML: reading, validating with pydantic, and writing. Errors are one sentence with a code."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from fedaf.common.naming import nearest
from fedaf.errors import UserError

T = TypeVar("T", bound=BaseModel)


def read_toml(path: Path, *, what: str = "configuration") -> dict[str, Any]:
    """Return the content of a TOML file.

    Args:
        path: The file.
        what: What the file is, for error messages.

    Raises:
        UserError: If the file cannot be read or is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the {what} {path} cannot be read ({error}); check its path.", code="FEDAF-CONFIG-READ"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the {what} {path} is not valid TOML: {error}.", code="FEDAF-CONFIG-TOML") from error


def toml_value(value: Any) -> str:
    """Return one value as TOML, on one line."""
    text = tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip()
    return re.sub(r"\n\s*", " ", text).replace("[ ", "[", 1).replace(", ]", "]") if isinstance(value, list) else text


def validate(model: type[T], values: Mapping[str, Any], *, table: str = "", owner: str = "") -> T:
    """Return ``values`` as a ``model``.

    Args:
        model: The table.
        values: Its keys and values.
        table: The name of the table, which error messages put before a key.
        owner: What the keys belong to, for error messages: ``"method fedaf"``.

    Raises:
        UserError: If a key is unknown or missing, or a value is not accepted.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise _user_error(error, model, table, owner) from error


def read_file(path: Path, model: type[T], *, what: str) -> T:
    """Return a TOML file as a ``model``; see ``read_toml`` and ``validate``."""
    return validate(model, read_toml(path, what=what), owner=f"the {what}")


def _user_error(error: ValidationError, model: type[BaseModel], table: str, owner: str) -> UserError:
    first = error.errors()[0]
    location = first["loc"]
    path = ".".join(map(str, [*([table] if table else []), *location]))
    if first["type"] == "extra_forbidden":
        keys = _keys(model, location)
        known = f"the settings of {owner or 'this table'} are {', '.join(keys)}"
        message = f"unknown setting {path!r}{nearest(str(location[-1]), keys)}; {known}."
        return UserError(message, code="FEDAF-CONFIG-KEY")
    if first["type"] == "missing":
        return UserError(f"{path!r} is missing in {owner or 'its table'}; add it.", code="FEDAF-CONFIG-MISSING")
    code = "FEDAF-CONFIG-VALUE"
    if first["type"] == "value_error":
        cause = first["ctx"]["error"].args[0]
        code = cause.code if isinstance(cause, UserError) else code
        return UserError(f"{path or 'the configuration'}: {str(cause).removesuffix('.')}.", code=code)
    example = f", for example [{first['input']!r}]" if first["type"] == "list_type" else ""
    what = first["msg"].removeprefix("Input ")
    return UserError(f"{path} is {first['input']!r}, but it {what}{example}.", code=code)


def _keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of the table in which ``location`` lies."""
    for part in location[:-1]:
        inner = model.model_fields[str(part)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return list(model.model_fields)
