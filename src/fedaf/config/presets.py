"""Presets: named sets of values for a data set and a method. ``paper`` is the default."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedaf.common.naming import nearest
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.protocol import Method

PRESETS = {
    "paper": "the paper's values, or our choice for data sets that are not in the paper",
    "quick": "three short rounds, to try it out",
}

_QUICK_TRAINING = {"server_epochs": 20, "server_batch": 64, "server_lr": 0.01}
_QUICK: Mapping[str, Mapping[str, Any]] = {
    "run": {"rounds": 3},
    "condensing": {"ipc": 10, "local_steps": 20, "real_batch": 64, **_QUICK_TRAINING},
    "fedaf-plus": {"server_steps": 60},
    "averaging": {"local_epochs": 2},
}


def preset_values(preset: str, dataset: str, method: "type[Method]") -> Mapping[str, Mapping[str, Any]]:
    """Return the tables ``run``, ``training`` and ``method`` that a preset sets.

    The values for a data set are in its specification. A method gets the values of its families: every class that it
    derives from and that sets ``family``, base classes first. Options that a class does not have are left out.

    Args:
        preset: A name in ``PRESETS``.
        dataset: The data set as ``data.name`` has it; ``npz:`` and ``folder:`` have no values of their own.
        method: The class of the method.

    Raises:
        UserError: If the preset or the data set is unknown.
    """
    if preset not in PRESETS:
        message = f"unknown preset {preset!r}{nearest(preset, PRESETS)}; expected {' or '.join(PRESETS)}."
        raise UserError(message, code="FEDAF-PRESET-UNKNOWN")
    from fedaf.data.catalog import find_spec  # imports PyTorch, which --help does without

    spec = find_spec(dataset)
    families = [base.__dict__["family"] for base in reversed(method.__mro__) if "family" in base.__dict__]
    values: dict[str, dict[str, Any]] = {"run": {}, "training": {}, "method": {}}
    for layer in (spec.paper if spec else {}, _QUICK if preset == "quick" else {}):
        for table, source in [("run", "run"), ("training", "training"), *(("method", family) for family in families)]:
            values[table].update(layer.get(source, {}))
    values["method"] = {key: value for key, value in values["method"].items() if key in method.Options.model_fields}
    return values
