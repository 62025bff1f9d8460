"""The validated configuration of a run: TOML in, TOML out, and errors of one sentence."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, PositiveInt, ValidationError, field_validator

from fedaf.common.naming import nearest
from fedaf.config.presets import preset_values
from fedaf.data.registry import PARTITIONS
from fedaf.methods.registry import METHODS
from fedaf.protocol import Options, Policy, UserError
from fedaf.protocol.contract import OPTIONS

Augmentation = Literal["flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation", "cutout"]
Settings = Mapping[str, Mapping[str, Any]]
_Model = TypeVar("_Model", bound=BaseModel)


class _Table(BaseModel):
    model_config = OPTIONS


class RunTable(_Table):
    seed: int = Field(0, ge=0, lt=2**62, description="seed of everything random")
    rounds: int = Field(20, ge=1, description="communication rounds")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:N or mps")
    engine: Literal["auto", "eager", "compiled"] = Field(
        "auto", description="how work is done: compiled is fast and needs CUDA, eager is plain PyTorch"
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto", description="of networks; auto: bf16 where compiled, else tf32 on CUDA and fp32 elsewhere"
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; unset leaves PyTorch's choice")
    memory_budget_mib: int | None = Field(None, ge=1, description="bound on a step's memory; unset: by device")
    keep_checkpoints: int = Field(2, ge=0, description="newest checkpoints to keep; 0 keeps all")


class DataTable(_Table):
    name: str = Field(
        "digits", description="data set of the catalog, npz:FILE or folder:DIR; none: a server without data"
    )
    dir: str = Field("data", description="folder of data files")
    image_size: int | None = Field(
        None, ge=1, le=4096, description="side image files are resized to; unset: 64, or own if small"
    )
    max_unreadable: float = Field(0.01, ge=0, le=1, description="share of image files that may be unreadable")
    validation: int | None = Field(
        None, ge=1, description="test on so many training images held out, to choose settings by; unset: the test set"
    )
    mean: list[float] | None = Field(None, description="normalisation by channel; unset: the catalog's")
    std: list[float] | None = Field(None, description="normalisation by channel; unset: the catalog's")
    shape: list[PositiveInt] | None = Field(
        None, min_length=3, max_length=3, description="over a network: channels, height, width; unset: the catalog's"
    )
    classes: list[str] | None = Field(
        None, min_length=2, description="over a network: the classes by name, in order; unset: the catalog's"
    )


class PartitionTable(_Table):
    kind: Literal["auto", "dirichlet", "domain", "iid", "shards", "file"] = Field(
        "auto", description="how data are split; auto: by domain where the data have domains, else dirichlet"
    )
    clients: int = Field(10, ge=1, description="number of clients; a split by domain has one for each")
    alpha: float = Field(0.1, gt=0, le=1e6, description="Dirichlet concentration; smaller is more skewed")
    min_size: int = Field(10, ge=1, description="fewest samples of a client (dirichlet)")
    max_redraws: int = Field(1000, ge=0, description="draws to throw away before giving up (dirichlet)")
    shards_per_client: int = Field(2, ge=1, description="label-sorted pieces of each client (shards)")
    path: str | None = Field(None, description="a partition.json to re-use (file)")


class ModelTable(_Table):
    name: str = Field("convnet", description="convnet, resnet18 or module:factory")
    depth: int = Field(3, ge=1, le=8, description="blocks of the ConvNet")
    width: int = Field(128, ge=1, le=8192, description="filters of the ConvNet")
    norm: Literal["batch", "instance", "none"] = Field("batch", description="normalisation layers")
    classifier: str | None = Field(None, min_length=1, description="layer after the features; unset: the last Linear")
    keep_weights: bool = Field(False, description="start from the weights an own model comes with, not from fresh ones")

    @field_validator("classifier", mode="before")
    @classmethod
    def _may_be_a_number(cls, name: Any) -> Any:
        """Layers of a Sequential are called by numbers, which TOML does not take for names."""
        return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


class FederationTable(_Table):
    participation: float = Field(1.0, gt=0, le=1, description="share of clients asked each round")
    quorum: float = Field(0.5, gt=0, le=1, description="share of those asked that must answer")
    deadline: float | None = Field(None, gt=0, description="seconds a phase may take")
    min_clients: int = Field(2, ge=1, description="over a network: clients that must be there for a round to begin")
    wait: float = Field(600.0, ge=0, description="over a network: seconds to wait for them")
    policy: str | None = Field(
        None, description="a policy that every client in this process keeps to: a TOML file, or default; unset: none"
    )


class TrainingTable(_Table):
    augment: list[Augmentation] = Field([], description="variations of training images, for every method")


class _Tables(_Table):
    preset: str = "paper"
    run: RunTable = RunTable()
    data: DataTable = DataTable()
    partition: PartitionTable = PartitionTable()
    model: ModelTable = ModelTable()
    federation: FederationTable = FederationTable()
    training: TrainingTable = TrainingTable()


_TABLE_NAMES = [*(name for name in _Tables.model_fields if name != "preset"), "method"]


@dataclass(frozen=True)
class Config:
    """A complete configuration. ``method`` holds the validated options of the method called ``method_name``."""

    preset: str
    run: RunTable
    data: DataTable
    partition: PartitionTable
    model: ModelTable
    federation: FederationTable
    training: TrainingTable
    method_name: str
    method: Options

    def to_toml(self) -> str:
        tables = {
            name: getattr(self, name).model_dump(mode="json") for name in _Tables.model_fields if name != "preset"
        }
        tables["method"] = {"name": self.method_name, **self.method.model_dump(mode="json")}
        lines = [f"preset = {_toml(self.preset)}"]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{key} = {_toml(v)}" for key, v in table.items() if v is not None)]
        return "\n".join(lines) + "\n"


def build(given: Settings, *, preset: str | None = None) -> Config:
    """A configuration from what was given, over the preset's values for its data set and method, over defaults."""
    tables = merge(given)
    in_file = tables.pop("preset", None)
    chosen: Any = preset or in_file or "paper"
    dataset = tables.get("data", {}).get("name", "digits")
    method_name = tables.get("method", {}).get("name", "fedaf")
    _must_be_names({"preset": chosen, "data.name": dataset, "method.name": method_name})
    method = METHODS.find(method_name)
    merged = {"preset": chosen, **merge(preset_values(chosen, dataset, method), tables)}
    options = merged.pop("method", {})
    options.pop("name", None)
    validated = _validate(_Tables, merged, "")
    config = Config(
        **{name: getattr(validated, name) for name in _Tables.model_fields},
        method_name=method_name,
        method=_validate(method.Options, options, "method", owner=f"method {method_name}"),
    )
    _must_be_readable_again(config)
    return config


DEFAULT_POLICY = "default"


def read_policy(name: str) -> Policy:
    """A client's policy from a TOML file, or the default one by its name."""
    if name == DEFAULT_POLICY:
        return Policy()
    policy: Policy = _validate(Policy, read_toml(Path(name), what="policy"), "", owner="a policy")
    for method in policy.methods:
        if ":" not in method and method not in METHODS:
            raise UserError(
                f"the policy {name} admits an unknown method {method!r}{nearest(method, METHODS)}; allowed are "
                f"{', '.join(METHODS)} and names such as module:Class."
            )
    return policy


def read_file(path: Path, model: type[_Model], *, what: str) -> _Model:
    """A TOML file of any kind, checked."""
    checked: _Model = _validate(model, read_toml(path, what=what), "", owner=f"the {what}")
    return checked


def policy_toml(policy: Policy) -> str:
    """A policy as a TOML file that explains itself."""
    lines = []
    for name, field in type(policy).model_fields.items():
        value = getattr(policy, name)
        lines += [f"# {field.description}", f"# {name} =" if value is None else f"{name} = {_toml(value)}", ""]
    return "\n".join(lines)


def read_toml(path: Path, *, what: str = "configuration") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the {what} {path} cannot be read ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the {what} {path} is not valid TOML: {error}.") from error


def parse_setting(text: str) -> dict[str, Any]:
    """``table.key=value`` with a TOML value; a bare word is a string."""
    path, equals, raw = text.partition("=")
    if not equals:
        raise UserError(f"--set {text!r} must look like table.key=value, for example method.gamma=0.8.")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"] if "\n" not in raw else raw
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    return setting(path.strip(), value)


def setting(path: str, value: Any) -> dict[str, Any]:
    """One setting as tables."""
    table, _, key = path.partition(".")
    if not (table and key):
        raise UserError(f"the setting {path!r} must be named table.key, for example method.gamma.")
    return {table: {key: value}}


_FLAGS = {
    "dataset": "data.name",
    "data_dir": "data.dir",
    "method": "method.name",
    "alpha": "partition.alpha",
    "clients": "partition.clients",
    "rounds": "run.rounds",
    "ipc": "method.ipc",
    "local_steps": "method.local_steps",
    "participation": "federation.participation",
    "model": "model.name",
    "seed": "run.seed",
    "device": "run.device",
    "engine": "run.engine",
    "precision": "run.precision",
    "memory_budget": "run.memory_budget_mib",
    "policy": "federation.policy",
}


def from_flags(**given: Any) -> dict[str, Any]:
    """The settings behind the flags of the command line that were given."""
    return merge(*(setting(_FLAGS[name], value) for name, value in given.items() if value is not None))


def split_kind(config: Config, *, has_domains: bool) -> str:
    """The kind of split behind ``auto``. Who names alpha or a number of clients does not want one client a domain."""
    table = config.partition
    if table.kind != "auto":
        return table.kind
    return "domain" if has_domains and not table.model_fields_set & {"alpha", "clients"} else "dirichlet"


def refuse_idle(flags: Mapping[str, Any], config: Config) -> None:
    """Raise ``UserError`` for a flag that was given but has no effect on this kind of split."""
    kind = config.partition.kind
    for name in ("alpha", "clients"):
        if flags.get(name) is not None and kind != "auto" and name not in PARTITIONS.find(kind).uses:
            raise UserError(f"{name} has no effect on a split of kind {kind!r}; leave it out or change partition.kind.")


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win, key by key within tables. What is not a table stands outside of one, and is refused."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name == "preset":
                result[name] = value
            elif not isinstance(value, Mapping):
                raise UserError(f"{name!r} stands outside any table; the tables are {_tables()}.")
            elif name not in _TABLE_NAMES:
                raise UserError(f"unknown table {name!r}{nearest(name, _TABLE_NAMES)}; the tables are {_tables()}.")
            elif name == "method" and _another_method(result.get(name, {}), value):
                result[name] = dict(value)  # options of another method say nothing of this one
            else:
                result[name] = {**result.get(name, {}), **value}
    return result


def _another_method(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return None not in (before.get("name"), after.get("name")) and before["name"] != after["name"]


def _tables() -> str:
    return ", ".join(_TABLE_NAMES)


def describe(config: Config) -> list[tuple[str, str, str]]:
    """Every setting by its full name, its value in ``config`` as TOML, and what it means."""
    tables = {name: getattr(config, name) for name in _TABLE_NAMES}
    return [
        (f"{table}.{key}", "" if (value := getattr(values, key)) is None else _toml(value), field.description or "")
        for table, values in tables.items()
        for key, field in type(values).model_fields.items()
    ]


def _must_be_readable_again(config: Config) -> None:
    """A method of one's own may have options that TOML cannot hold: say so now, not when the run is resumed."""
    advice = "give its options plain types (numbers, strings, booleans, lists of them), and none the name 'name'"
    try:
        table = tomllib.loads(config.to_toml())["method"]
        table.pop("name")
        again = type(config.method).model_validate(table)
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise UserError(f"the options of method {config.method_name} cannot be written as TOML; {advice}.") from error
    if again != config.method or "name" in type(config.method).model_fields:
        raise UserError(f"the options of method {config.method_name} change when written as TOML; {advice}.")


def _must_be_names(given: Mapping[str, Any]) -> None:
    for what, value in given.items():
        if not isinstance(value, str):
            raise UserError(f"{what} is {value!r}, but must be a name.")


def _validate(model: type[Any], values: Mapping[str, Any], table: str, owner: str = "") -> Any:
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise UserError(_sentence(error, model, table, owner)) from error


def _sentence(error: ValidationError, model: type[BaseModel], table: str, owner: str) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in ((table,) if table else ()) + tuple(first["loc"]))
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        names = _siblings(model, first["loc"])
        of = f" of {owner}" if owner else ""
        return f"unknown setting {path!r}{nearest(key, names)}; the settings{of} there are {', '.join(names)}."
    if first["type"] == "missing":
        return f"{path!r} is missing{f' in {owner}' if owner else ''}; give it."
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if first["type"] == "value_error":
        return f"{path or 'the configuration'}: {message}."
    return f"{path} is {first['input']!r}, but it {message}."


def _siblings(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location[:-1]:
        inner = model.model_fields[str(part)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return list(model.model_fields)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return str(value)
