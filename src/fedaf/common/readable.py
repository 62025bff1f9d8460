"""JSON for people: one key per line, but a list of numbers or names on one line."""

import json
from typing import Any


def readable_json(value: Any, indent: int = 0) -> str:
    """Format a value as JSON with one key per line; a list without lists and objects in it is one line.

    A matrix has one row per line.
    """
    inner, outer = " " * (indent + 2), " " * indent
    if isinstance(value, dict) and value:
        items = (f"{inner}{json.dumps(str(key))}: {readable_json(item, indent + 2)}" for key, item in value.items())
        return "{\n" + ",\n".join(items) + f"\n{outer}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(item, (dict, list, tuple)) for item in value):
        return "[\n" + ",\n".join(inner + readable_json(item, indent + 2) for item in value) + f"\n{outer}]"
    return json.dumps(value)
