"""Options that several commands share. Most follow from the declarations of settings; see ``fedaf.config.flags``."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaf import config as configuration
from fedaf.config.presets import PRESETS
from fedaf.errors import UserError

Flags = Mapping[str, Any]
ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file, such as the config.toml of an earlier run.", show_default=False)
]
Preset = Annotated[
    str | None,
    typer.Option(
        help=f"Preset: {' or '.join(f'{name} ({text})' for name, text in PRESETS.items())}. (default: paper)",
        rich_help_panel="Run",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any setting, such as method.gamma=0.8; can be repeated. fedaf settings lists all of them.",
        rich_help_panel="Run",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="New directory for the results. (default: a new one under runs/)", rich_help_panel="Output"),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        help="Continue the stopped run in this directory, with its settings; add --data-dir if the data moved.",
        rich_help_panel="Output",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Verbose output.", rich_help_panel="Output")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.", rich_help_panel="Output")]


def with_flags(*names: str, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command declared flags in place of its parameter ``flags``, which gets their values by name.

    Args:
        names: The flags; all of them if none is named.
        without: Flags to leave out.
    """
    chosen = [configuration.FLAGS[name] for name in names or configuration.FLAGS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_values(**given: Any) -> None:
            command(flags={flag.name: given.pop(flag.name) for flag in chosen}, **given)

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name != "flags":
                parameters.append(parameter)
                continue
            for flag in chosen:
                option = typer.Option(None, flag.option, help=flag.help, rich_help_panel=flag.mark.group)
                parameters.append(parameter.replace(name=flag.name, default=option, annotation=flag.type | None))
        with_values.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_values

    return decorate


def layers(config: Path | None, flags: Flags, settings: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the settings of a command, from weak to strong: its TOML file, its flags, its ``--set``."""
    file = [configuration.read_toml(config)] if config is not None else []
    return [*file, configuration.from_flags(**flags), *map(configuration.parse_setting, settings or ())]


def refuse_beside_resume(flags: Flags, config: Path | None, **others: object) -> None:
    """Raise ``UserError`` if anything was given beside ``--resume``, which takes the settings of its directory."""
    given = [name for name, value in {**flags, **others}.items() if value not in (None, [])]
    extra = ["--" + name.replace("_", "-") for name in given] + (["the TOML file"] if config else [])
    if extra:
        raise UserError(
            f"--resume takes the settings of its directory; leave out {', '.join(extra)}.", code="FEDAF-CLI-RESUME"
        )


def new_directory(name: str) -> Path:
    """Return a directory under ``runs/`` that does not exist yet."""
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


def slug(name: str) -> str:
    """Return a name that is safe as a directory."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).name)
