"""A complete configuration: built from layers of settings, written as TOML."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedaf.common.naming import nearest
from fedaf.common.options import Options, allowed, meaning, one_of
from fedaf.config import tables
from fedaf.config.presets import preset_values
from fedaf.config.privacy import check_private, private_values
from fedaf.config.tables import TABLES, Tables
from fedaf.config.toml import toml_value, validate
from fedaf.data.spec import PATHS
from fedaf.errors import UserError
from fedaf.methods.registry import METHODS
from fedaf.privacy.options import PrivacyOptions

Settings = Mapping[str, Any]

_AUTO_SPLITS = ("natural", "domain", "dirichlet")  # see ``split_kind``


@dataclass(frozen=True)
class Config:
    """A complete, validated configuration; ``method`` holds the options of the method called ``method_name``."""

    preset: str
    run: tables.RunTable
    data: tables.DataTable
    partition: tables.PartitionTable
    model: tables.ModelTable
    federation: tables.FederationTable
    training: tables.TrainingTable
    privacy: PrivacyOptions
    method_name: str
    method: Options

    def untracked(self) -> "Config":
        """Return the configuration without its trackers, which have no effect on the numbers."""
        return replace(self, run=self.run.model_copy(update={"track": []}))

    @property
    def flat(self) -> dict[str, Any]:
        """Every setting under its flat name, such as ``run.seed``; ``None`` if it is unset."""
        values = {name: getattr(self, name).model_dump(mode="json") for name in TABLES}
        settings = {f"{table}.{key}": value for table, of in values.items() for key, value in of.items()}
        return {"preset": self.preset, "method.name": self.method_name, **settings}

    def to_toml(self) -> str:
        """Return the configuration as TOML from which ``build`` makes the same one."""
        values = {name: getattr(self, name).model_dump(mode="json", exclude_none=True) for name in TABLES}
        values["method"] = {"name": self.method_name, **values["method"]}
        return tomli_w.dumps({"preset": self.preset, **values})


def build(given: Settings, *, preset: str | None = None) -> Config:
    """Build a configuration: the given settings, over the values of the preset, over the defaults.

    Args:
        given: Settings by table, as a TOML file has them.
        preset: Name of the preset; it wins over the one in ``given``.

    Raises:
        UserError: If a setting is unknown or has a wrong value.
    """
    layer = merge({"preset": "paper"}, given, {"preset": preset} if preset else {})
    chosen = validate(Tables, {"preset": layer["preset"]}).preset
    dataset = validate(tables.DataTable, _name_in(layer, "data"), table="data").name
    method_name = validate(tables.MethodTable, _name_in(layer, "method"), table="method").name
    method = METHODS.find(method_name)
    privacy = validate(PrivacyOptions, layer.get("privacy", {}), table="privacy")
    merged = merge(preset_values(chosen, dataset, method), private_values(privacy, method_name, method), layer)
    options = {key: value for key, value in merged.pop("method", {}).items() if key != "name"}
    validated = validate(Tables, merged)
    config = Config(
        **{name: getattr(validated, name) for name in Tables.model_fields},
        method_name=method_name,
        method=validate(method.Options, options, table="method", owner=f"method {method_name}"),
    )
    _check_toml(config)
    check_private(privacy, config.method, method)
    return config


def _name_in(given: Settings, table: str) -> Settings:
    """The key ``name`` of a table, if it is given."""
    return {key: value for key, value in given.get(table, {}).items() if key == "name"}


def merge(*layers: Settings) -> dict[str, Any]:
    """Merge layers of settings key by key; later layers win.

    A layer that names another method drops the method options of the layers before it.
    """
    result: dict[str, Any] = {}
    known = ", ".join(TABLES)
    for name, value in (item for layer in layers for item in layer.items()):
        if name == "preset":
            result[name] = value
            continue
        if not isinstance(value, Mapping):
            raise UserError(f"{name!r} is not in a table; the tables are {known}.", code="FEDAF-CONFIG-NO-TABLE")
        if name not in TABLES:
            message = f"unknown table {name!r}{nearest(name, TABLES)}; expected one of {known}."
            raise UserError(message, code="FEDAF-CONFIG-TABLE")
        before = result.get(name, {})
        other_method = name == "method" and value.get("name") not in (None, before.get("name"))
        result[name] = {**value} if other_method and "name" in before else {**before, **value}
    return result


def describe(config: Config) -> list[tuple[str, str, str]]:
    """Return the path of every setting, its value in ``config`` as TOML (empty if unset), and its meaning.

    The meaning ends with the values that the setting accepts.
    """
    return [
        (f"{table}.{key}", "" if (value := getattr(values, key)) is None else toml_value(value), _explained(field))
        for table, values in ((name, getattr(config, name)) for name in TABLES)
        for key, field in type(values).model_fields.items()
    ]


def changed(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings in which a configuration differs from its preset, by path.

    Where the data are is left out: it has no effect on the numbers. So is the kind of split that ``auto`` stands for.

    Returns:
        For each path the value of the ``preset`` and that of the ``run``; ``None`` means unset.
    """
    names = {"data": {"name": config.data.name}, "method": {"name": config.method_name}}
    usual, found = build(names, preset=config.preset).flat, {}
    for path, value in config.flat.items():
        is_auto = path == "partition.kind" and value in _AUTO_SPLITS
        if value != usual[path] and path != "data.dir" and not is_auto:
            found[path] = {"preset": usual[path], "run": value}
    return found


def _explained(field: FieldInfo) -> str:
    values = allowed(field)
    return f"{meaning(field)} ({values})" if values else meaning(field)


def custom_names(given: Settings) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of every setting that names code outside fedaf: a plugin or ``module:Name``.

    ``npz:FILE``, ``folder:DIR`` and ``parquet:DIR`` are data, not code. Nothing is loaded or validated.
    """
    fields = [(table, key, one_of(f)) for table, model in TABLES.items() for key, f in model.model_fields.items()]
    for table, key, known in fields:
        values = given.get(table)
        value = values.get(key) if isinstance(values, Mapping) else None
        for name in value if isinstance(value, list) else [value]:
            if known is None or not isinstance(name, str) or not known.is_custom(name):
                continue
            if table != "data" or not name.startswith(PATHS):
                yield f"{table}.{key}", name


def split_kind(config: Config, *, has_domains: bool, has_clients: bool = False) -> str:
    """Return the kind of partition.

    ``auto`` means the natural clients, else one client per domain, unless alpha or clients is set.
    """
    table = config.partition
    if table.kind != "auto":
        return table.kind
    if table.model_fields_set & {"alpha", "clients"}:
        return "dirichlet"
    return "natural" if has_clients else "domain" if has_domains else "dirichlet"


def _check_toml(config: Config) -> None:
    """Refuse options of a custom method that TOML cannot hold, now and not when the run is resumed."""
    options = type(config.method)
    try:
        stored = tomllib.loads(config.to_toml())["method"]
        stored.pop("name")
        restored = options.model_validate(stored)
    except (TypeError, ValidationError):
        restored = None
    has_tables = any(isinstance(value, dict) for value in config.method.model_dump(mode="json").values())
    if restored != config.method or has_tables or "name" in options.model_fields:
        allowed = "use plain types (numbers, strings, booleans, lists of them), and no option called 'name'"
        message = f"the options of method {config.method_name} cannot be stored as TOML; {allowed}."
        raise UserError(message, code="FEDAF-CONFIG-OPTIONS")
