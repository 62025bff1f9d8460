"""Read what a report needs from a run directory, or from an archive of finished runs that keeps fewer files."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedaf.errors import UserError
from fedaf.federation.run_directory import CONFIG, COUNTS, PARTITION, RESULT, read_metrics
from fedaf.reporting.figures import read_result
from fedaf.reporting.tables import Result

_NUMBERS = ("alpha", "best_accuracy", "last_accuracy", "selected_accuracy", "seconds")
_BYTES = ("upload_bytes_per_client_round", "download_bytes_per_client_round")
_WHOLE = ("seed", "rounds", "clients")
_TEXTS = ("method", "dataset", "partition")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        path: Its directory.
        result: The content of ``result.json``. Numbers that are not finite are ``None``.
        rounds: The lines of ``metrics.jsonl``.
        settings: The content of ``config.toml`` by path, such as ``method.ipc``; empty if it cannot be read.
        counts: Samples per class by client; ``None`` if they are not known, or exact counts must not be shown.
    """

    path: Path
    result: Result
    rounds: Sequence[Mapping[str, Any]]
    settings: Mapping[str, Any]
    counts: Mapping[str, Sequence[int]] | None

    @property
    def is_private(self) -> bool:
        """Whether the run has differential privacy: exact counts and audits are then not shown."""
        return bool(self.result.get("privacy")) or self.settings.get("privacy.epsilon") is not None

    @property
    def classes(self) -> list[str]:
        """The names of the classes; their numbers if the run does not record names."""
        named = self.result.get("classes")
        if isinstance(named, list) and named:
            return [str(name) for name in named]
        width = max((len(row) for row in (self.counts or {}).values()), default=0)
        return [str(label) for label in range(width)]

    @property
    def last(self) -> Mapping[str, Any]:
        """What ``result.json`` says about the model after the last round."""
        found = (self.result.get("metrics") or {}).get("last")
        return found if isinstance(found, Mapping) else {}


def read_run(path: Path) -> Run:
    """Read a finished run. Files that are missing or damaged are left out, except ``result.json``.

    Raises:
        UserError: ``result.json`` is missing or damaged.
    """
    try:
        result = _finite(read_result(path, advice=_advice(path)))
    except RecursionError:
        raise _damaged(path, "its values are nested too deeply") from None
    _check(path, result)
    run = Run(path, result, _rounds(path), _settings(path / CONFIG), None)
    return run if run.is_private else replace(run, counts=_counts(path))


def _advice(path: Path) -> str:
    return f"delete it, and fedaf run --resume {path} writes it again"


def _check(path: Path, result: Result) -> None:
    """Check the type of everything that a report cannot do without."""

    def is_number(value: object) -> bool:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))

    for key in (*_NUMBERS, *_BYTES):
        if not is_number(result.get(key)):
            raise _damaged(path, f"{key} is {result[key]!r}, which is not a number")
    for key in _WHOLE:
        if not isinstance(result[key], int):
            raise _damaged(path, f"{key} is {result[key]!r}, which is not a whole number")
    for key in _TEXTS:
        if not isinstance(result[key], str):
            raise _damaged(path, f"{key} is {result[key]!r}, which is not text")
    if result["seconds"] is None or not isinstance(result["curve"], list) or not all(map(is_number, result["curve"])):
        raise _damaged(path, "seconds or curve are not numbers")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path / RESULT} is damaged: {what[:200]}; {_advice(path)}.", code="FEDAF-RUN-DAMAGED")


def _finite(value: Any) -> Any:
    """Return a JSON value with ``None`` in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounds(path: Path) -> list[dict[str, Any]]:
    try:
        return [_finite(line) for line in read_metrics(path)]
    except _UNREADABLE:
        return []


def _settings(file: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text())
    except _UNREADABLE:
        return {}
    found: dict[str, Any] = {}
    for table, values in tables.items():
        if isinstance(values, dict):
            found |= {f"{table}.{key}": value for key, value in values.items()}
    return found


def _counts(path: Path) -> dict[str, list[int]] | None:
    """Return the samples per class by client, from a run directory or from an archive."""
    for file, keys in ((path / PARTITION, ("counts",)), (path / COUNTS, ())):
        try:
            found = json.loads(file.read_bytes())
            for key in keys:
                found = found[key]
            counts = {str(client): [int(count) for count in row] for client, row in found.items()}
        except _UNREADABLE:
            continue
        if counts and len({len(row) for row in counts.values()}) == 1:
            return counts
    return None
