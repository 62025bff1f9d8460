"""Presets: named sets of values for a data set and a method. ``paper`` is the default."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedaf.common.naming import nearest
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.data.spec import DatasetSpec
    from fedaf.protocol import Method

PRESETS = {
    "paper": "the paper's values, or our choice for data sets that are not in the paper",
    "quick": "three short rounds with comparable budgets for all methods, to try it out",
}

# Budgets of ``quick``: with ten clients, a condensing method passes the equivalent of 11 000 to 29 000 training images
# through the network in a round (10 classes, alpha 0.02 to 0.1; a forward pass counts as a third). Averaging methods
# get the local epochs that come closest to _QUICK_IMAGES over all clients together, between these bounds.
_QUICK_IMAGES = 20_000
_FEWEST_EPOCHS, _MOST_EPOCHS = 2, 10  # with one epoch they learn next to nothing; ten are the paper's
_EPOCHS_OF_UNKNOWN_SIZE = 5
_QUICK_TRAINING = {"server_epochs": 20, "server_batch": 64, "server_lr": 0.01}
_QUICK: Mapping[str, Mapping[str, Any]] = {
    "run": {"rounds": 3},
    "condensing": {"ipc": 10, "local_steps": 20, "real_batch": 64, **_QUICK_TRAINING},
    "fedaf-plus": {"server_steps": 60},
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
    for layer in (spec.paper if spec else {}, _quick(spec) if preset == "quick" else {}):
        for table, source in [("run", "run"), ("training", "training"), *(("method", family) for family in families)]:
            values[table].update(layer.get(source, {}))
    values["method"] = {key: value for key, value in values["method"].items() if key in method.Options.model_fields}
    return values


def _quick(spec: "DatasetSpec | None") -> Mapping[str, Mapping[str, Any]]:
    """The values of ``quick`` for a data set; it has no specification if it is ``npz:`` or ``folder:``."""
    samples = spec.training_samples if spec else None
    epochs = round(_QUICK_IMAGES / samples) if samples else _EPOCHS_OF_UNKNOWN_SIZE
    return {**_QUICK, "averaging": {"local_epochs": min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, epochs))}}
