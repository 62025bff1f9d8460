"""Options of commands. Most follow from the declarations of settings; see ``fedaf.config.flags``."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from fedaf import config as configuration
from fedaf.common.naming import slug
from fedaf.config.presets import PRESETS
from fedaf.data.registry import DATASETS
from fedaf.errors import UserError
from fedaf.methods.registry import METHODS
from fedaf.reporting.targets import METRICS_HELP, check_metrics

_MOST_SEEDS = 1000

Flags = Mapping[str, Any]
Command = Callable[..., None]

run_option = partial(typer.Option, rich_help_panel="Run")
output_option = partial(typer.Option, rich_help_panel="Output")

_PRESETS = " or ".join(f"{name} ({text})" for name, text in PRESETS.items())
_SETTINGS = "Any setting, such as method.gamma=0.8; can be repeated. fedaf settings lists all of them."
_RESUME = (
    "Continue the stopped run in this directory, with its settings; add --data-dir or --weights if these files moved."
)
_WHICH = (
    "The model after the last round, or the best one on the images of data.selection. "
    "(default: best if there are such images, else last)"
)

ConfigFile = Annotated[Path | None, typer.Argument(help="A TOML file, such as the config.toml of an earlier run.")]
Preset = Annotated[str | None, run_option(help=f"Preset: {_PRESETS}. (default: paper)")]
Settings = Annotated[list[str] | None, run_option("--set", metavar="TABLE.KEY=VALUE", help=_SETTINGS)]
Out = Annotated[Path | None, output_option(help="New directory for the results. (default: a new one under runs/)")]
Format = Annotated[str, output_option(click_type=click.Choice(["png", "svg", "pdf"]), help="File format of pictures.")]
Resume = Annotated[Path | None, output_option(help=_RESUME)]
Metrics = Annotated[str | None, output_option(metavar="NAME,NAME,...", help=METRICS_HELP)]
Verbose = Annotated[bool, output_option("--verbose", "-v", help="Print every phase, and what takes time before them.")]
Client = Annotated[
    str | None, typer.Option(help="Use the personal model of this client, for methods that have such models (fedbn).")
]
Which = Annotated[str | None, typer.Option(metavar="last|best", help=_WHICH)]
Quiet = Annotated[bool, output_option("--quiet", "-q", help="Print only the result.")]


def described(command: Command) -> Command:
    """Take the help of a command's options from the ``Args:`` of its docstring.

    A parameter without a default is an argument and every other one an option, unless its annotation says otherwise.
    """
    text, _, arguments = (inspect.getdoc(command) or "").partition("\nArgs:\n")
    descriptions = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE))
    signature = inspect.signature(command)
    parameters = []
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if hasattr(kind, "__metadata__"):
            kind, option = kind.__origin__, copy(kind.__metadata__[0])
        elif parameter.default is parameter.empty:
            option = typer.Argument()
        else:
            option = typer.Option("--" + name.strip("_").replace("_", "-"))
        option.help = " ".join(descriptions.get(name, option.help or "").split())
        if parameter.default not in (None, False, parameter.empty):
            option.help += f" (default: {parameter.default})"
        option.show_default = False  # the help says it, in the same way for every option
        parameters.append(parameter.replace(annotation=Annotated[kind, option]))
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__doc__ = text
    return command


def with_flags(*names: str, without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Give a command declared flags in place of its parameter ``flags``, which gets their values by name.

    Args:
        names: The flags; all of them if none is named.
        without: Flags to leave out.
    """
    chosen = [configuration.FLAGS[name] for name in names or configuration.FLAGS if name not in without]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_values(**given: Any) -> None:
            command(flags={flag.name: given.pop(flag.name) for flag in chosen}, **given)

        signature = inspect.signature(command)
        others = dict(signature.parameters)
        keyword, parameters = others.pop("flags").replace(default=None), []
        for flag in chosen:
            option = typer.Option(flag.option, help=flag.help, rich_help_panel=flag.mark.group)
            parameters.append(keyword.replace(name=flag.name, annotation=Annotated[flag.type | None, option]))
        parameters += others.values()
        with_values.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_values

    return decorate


def layered(config: Path | None, flags: Flags, settings: Sequence[str] | None) -> dict[str, Any]:
    """Return the settings of a command: its TOML file, under its flags, under its ``--set``."""
    if config is not None:
        _refuse_what_is_no_file(config)
    file = configuration.read_toml(config) if config is not None else {}
    explicit = map(configuration.parse_setting, settings or ())
    return configuration.merge(file, configuration.from_flags(**flags), *explicit)


def _refuse_what_is_no_file(config: Path) -> None:
    """Refuse a data set, a method or a directory in the place of the TOML file, with the flag that was meant."""
    name = str(config)
    kinds = {"--dataset": ("data set", name in DATASETS), "--method": ("method", name in METHODS)}
    for flag, (what, is_known) in kinds.items():
        if not config.exists() and is_known:
            message = f"{name} is a {what}, and the argument without a flag is a TOML file; use {flag} {name}."
            raise UserError(message, code="FEDAF-CONFIG-READ")
    if config.is_dir():
        run = f"give the {config / 'config.toml'} of a run to repeat it, or --resume to continue it"
        raise UserError(f"{config} is a directory and not a TOML file; {run}.", code="FEDAF-CONFIG-READ")


def resume_command(verb: str, folder: Path, moved: Mapping[str, Any] | None = None) -> str:
    """Return the command that continues what is in a folder, to paste into a shell.

    Args:
        verb: ``run`` or ``compare``.
        folder: The run directory, or the folder of a comparison.
        moved: Values of flags that the command must be given again, by name.
    """
    values = {name: ",".join(v) if isinstance(v, list) else v for name, v in (moved or {}).items() if v is not None}
    given = [(configuration.FLAGS[name].option, value) for name, value in values.items()]
    words = ["fedaf", verb, "--resume", folder, *(word for pair in given for word in pair)]
    return shlex.join(map(str, words))


def refuse_beside_resume(config: Path | None, **others: object) -> None:
    """Raise ``UserError`` if anything was given beside ``--resume``, which takes the settings of its directory."""
    given = ["--" + name.replace("_", "-") for name, value in others.items() if value not in (None, [])]
    extra = given + (["the TOML file"] if config else [])
    if extra:
        message = f"--resume takes the settings of its directory; leave out {', '.join(extra)}."
        raise UserError(message, code="FEDAF-CLI-RESUME")


def split(names: str | None) -> tuple[str, ...]:
    """Return the parts of a list that is separated by commas, or by spaces within one argument."""
    return tuple(name for name in re.split(r"[\s,]+", names or "") if name)


def seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a list such as ``0,1,2``, ``0-4`` or ``0-2,10``.

    Raises:
        UserError: If it is not such a list, or names a seed twice.
    """
    found: list[int] = []
    for part in split(text):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < _MOST_SEEDS:
            message = (
                f"--seeds has {part!r}; expected numbers and ranges, such as 0,1,2 or 0-4, of at most {_MOST_SEEDS}"
            )
            raise UserError(f"{message} seeds.", code="FEDAF-CLI-SEEDS")
        found += range(first, last + 1)
    doubled = sorted({str(seed) for seed in found if found.count(seed) > 1})
    if doubled or not found:
        what = f"names {', '.join(doubled)} twice" if doubled else "is empty"
        raise UserError(f"--seeds {what}; give each seed once, such as 0,1,2 or 0-4.", code="FEDAF-CLI-SEEDS")
    return tuple(found)


def metric_names(given: str | None) -> tuple[str, ...]:
    """Return the names given to ``--metrics``, after checking them."""
    names = split(given)
    check_metrics(names)
    return names


def new_directory(*parts: str) -> Path:
    """Return a directory under ``runs/`` that does not exist yet, named after the parts."""
    name = "-".join(map(slug, parts))
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


def check_file(option: str, path: Path | None) -> None:
    """Raise ``UserError`` if a file that a command writes cannot have this path."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{option} is the folder {path}; give the name of a file in it.", code="FEDAF-CLI-FILE")
    if not path.parent.is_dir():
        message = f"{option} is {path}, but there is no folder {path.parent}; create it or choose another."
        raise UserError(message, code="FEDAF-CLI-FILE")
