"""What makes two runs the same: the settings that change their numbers."""

from collections.abc import Mapping

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.data.registry import PARTITIONS

# Settings that have no effect on the numbers of a run. Engine and precision do: they are part of its conditions.
_NO_EFFECT = {
    *("run.device", "run.engine", "run.precision", "run.threads", "run.clients_at_once", "run.memory_budget_mib"),
    "run.keep_checkpoints",
    "run.track",
    *("data.dir", "data.max_unreadable", "partition.max_redraws"),
}

Identity = Mapping[str, str]


def identity(config: Config) -> Identity:
    """Return the settings that change the numbers of a run, by their full names."""
    idle = set(_NO_EFFECT)
    if (kind := config.partition.kind) != "auto":
        used = {"kind", *PARTITIONS.find(kind).uses}
        idle |= {f"partition.{name}" for name in type(config.partition).model_fields if name not in used}
    settings = {name: value for name, value, _ in configuration.describe(config) if name not in idle}
    return {**settings, "method.name": config.method_name}


def differences(found: Identity, wanted: Identity) -> list[str]:
    """Describe every setting in which two runs differ."""
    names = sorted({name for name, _ in wanted.items() ^ found.items()})
    return [f"{name} is {found.get(name, 'unset')}, not {wanted.get(name, 'unset')}" for name in names]
