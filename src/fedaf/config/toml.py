"""TOML files and values."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedaf.errors import UserError


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
        raise UserError(f"the {what} {path} cannot be read ({error}).", code="FEDAF-CONFIG-READ") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the {what} {path} is not valid TOML: {error}.", code="FEDAF-CONFIG-TOML") from error


def write_toml(tables: Mapping[str, Any]) -> str:
    """Return TOML text; keys without a value (``None``) are left out."""

    def without_none(table: Any) -> Any:
        if not isinstance(table, Mapping):
            return table
        return {key: without_none(value) for key, value in table.items() if value is not None}

    return tomli_w.dumps(without_none(tables))


def toml_value(value: Any) -> str:
    """Return one value as TOML, on one line."""
    text = tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip()
    return re.sub(r"\n\s*", " ", text).replace("[ ", "[", 1).replace(", ]", "]") if isinstance(value, list) else text
