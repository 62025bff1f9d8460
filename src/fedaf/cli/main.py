"""The command line. What it prints is for people; what it leaves on disk is for everything else."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from rich.console import Console

from fedaf import __version__
from fedaf.cli import bench as cli_bench
from fedaf.cli import data as cli_data
from fedaf.cli import deploy as cli_deploy
from fedaf.cli import policy as cli_policy
from fedaf.cli import reproduce as cli_reproduce
from fedaf.cli.terminal import Terminal, print_line
from fedaf.errors import FedafError, UserError

app = typer.Typer(
    name="fedaf",
    help="Aggregation-free federated learning: clients share condensed data, the server trains the model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    rich_markup_mode="rich",
)
app.add_typer(cli_data.app)
app.add_typer(cli_policy.app)
app.add_typer(cli_deploy.app)
app.command()(cli_bench.bench)
app.command()(cli_reproduce.reproduce)

_COMPARISON = "comparison.json"
_INTERRUPTED = 130

ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file, such as the config.toml of an earlier run.", show_default=False)
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="digits, mnist, fashionmnist, cifar10, cifar100, pacs, domainnet, npz:FILE or folder:DIR (default: digits)"
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder that holds the data sets. (default: data)")]
MethodName = Annotated[
    str | None,
    typer.Option(help="fedaf, feddm, fedavg, fedprox, fedbn, moon, feddyn, fedgen or module:Class. (default: fedaf)"),
]
MethodNames = Annotated[
    str | None,
    typer.Option(
        "--methods", "--method", help="Methods to compare, with commas between, or all. (default: fedaf,fedavg)"
    ),
]
Target = Annotated[
    float | None, typer.Option(help="Count rounds to this accuracy in per cent. (default: what all reach)")
]
Preset = Annotated[str | None, typer.Option(help="paper (the paper's values) or quick (a few short rounds).")]
Alpha = Annotated[float | None, typer.Option(help="Dirichlet concentration; smaller is more skewed. (default: 0.1)")]
Clients = Annotated[int | None, typer.Option(help="Number of clients. (default: 10)")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds. (default: by preset)")]
Ipc = Annotated[int | None, typer.Option(help="Condensed images per class. (default: by preset)")]
LocalSteps = Annotated[int | None, typer.Option(help="Condensation steps a round. (default: by preset)")]
Participation = Annotated[float | None, typer.Option(help="Share of clients asked each round. (default: 1)")]
ModelName = Annotated[str | None, typer.Option(help="Model: convnet, resnet18 or module:factory. (default: convnet)")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random. (default: 0)")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps. (default: auto)")]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="auto, eager or compiled (fast, on CUDA). (default: auto)")
]
PrecisionName = Annotated[str | None, typer.Option("--precision", help="auto, fp32, tf32 or bf16. (default: auto)")]
MemoryBudget = Annotated[int | None, typer.Option(help="Memory of a step, in MiB. (default: by device)")]
PolicyName = Annotated[
    str | None,
    typer.Option("--policy", help="A policy every client keeps to: a TOML file, or default. (default: none)"),
]
Out = Annotated[Path | None, typer.Option(help="New directory for the run. (default: a new one under runs/)")]
Resume = Annotated[
    Path | None,
    typer.Option(help="Go on with the run in this directory, with its settings; --data-dir says if data moved."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting: table.key=value, for example method.gamma=0.8. May be repeated."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedaf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None: ...


@app.command()
def run(
    config: ConfigFile = None,
    dataset: Dataset = None,
    data_dir: DataDir = None,
    method: MethodName = None,
    preset: Preset = None,
    alpha: Alpha = None,
    clients: Clients = None,
    rounds: Rounds = None,
    ipc: Ipc = None,
    local_steps: LocalSteps = None,
    participation: Participation = None,
    model: ModelName = None,
    seed: Seed = None,
    device: Device = None,
    engine: EngineName = None,
    precision: PrecisionName = None,
    memory_budget: MemoryBudget = None,
    policy: PolicyName = None,
    out: Out = None,
    resume: Resume = None,
    settings: Set = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run one method and keep everything it produced in a directory.

    CONFIG is a TOML file, such as the config.toml every run leaves. Flags win over it, and it wins over the preset.
    Try [bold]fedaf run --dataset digits --alpha 0.02[/].
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    flags = _flags(locals())
    if resume is not None:
        moved = {name: flags.pop(name) for name in ("dataset", "data_dir")}
        _nothing_beside_resume(config, preset, out, settings, flags)
        _resume(resume, moved, terminal)
        return
    from fedaf.config import settings as configuration
    from fedaf.federation.run_directory import refuse_in_use
    from fedaf.runs.experiment import execute

    layers = _layers(config, flags, settings)
    built = configuration.build(configuration.merge(*layers), preset=preset)
    configuration.refuse_idle(flags, built)
    if out is not None:  # before the data are read, which may take long
        refuse_in_use(out)
    experiment = terminal.prepare(built)
    target = out or _new_directory(f"{_slug(built.data.name)}-{_slug(built.method_name)}-seed{built.run.seed}")
    terminal.announce(experiment)
    terminal.say_where(target)
    terminal.report(execute(experiment, target, terminal.observer()))


@app.command()
def compare(
    config: ConfigFile = None,
    method: MethodNames = None,
    target: Target = None,
    dataset: Dataset = None,
    data_dir: DataDir = None,
    preset: Preset = None,
    alpha: Alpha = None,
    clients: Clients = None,
    rounds: Rounds = None,
    ipc: Ipc = None,
    local_steps: LocalSteps = None,
    participation: Participation = None,
    model: ModelName = None,
    seed: Seed = None,
    device: Device = None,
    engine: EngineName = None,
    precision: PrecisionName = None,
    memory_budget: MemoryBudget = None,
    policy: PolicyName = None,
    out: Out = None,
    resume: Resume = None,
    settings: Set = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same split and seed: one table, one picture.

    Each method gets a run directory under --out. Options that only some methods have (--ipc, --set method.KEY)
    reach those that have them.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if target is not None and not 0 < target <= 100:
        raise UserError(f"--target is {target:g}, but it must be an accuracy in per cent, above 0 and at most 100.")
    flags = _flags({**locals(), "method": None})
    if resume is not None:
        _nothing_beside_resume(config, preset, out, settings, {**flags, "methods": method})
        _compare_again(resume, target, terminal)
        return
    from fedaf.common.files import write_atomically
    from fedaf.config import settings as configuration
    from fedaf.federation.run_directory import refuse_in_use
    from fedaf.methods.registry import METHODS
    from fedaf.runs.experiment import execute

    names = list(METHODS) if method == "all" else _names(method or "fedaf,fedavg")
    configs = _configs(names, _layers(config, flags, settings), preset)
    first = next(iter(configs.values()))
    configuration.refuse_idle(flags, first)
    if out is not None:
        refuse_in_use(out)
    experiments = {name: terminal.prepare(built) for name, built in configs.items()}
    folder = out or _new_directory(f"{_slug(first.data.name)}-comparison-seed{first.run.seed}")
    refuse_in_use(folder)  # again, as the data may have taken long to read
    folder.mkdir(parents=True, exist_ok=True)
    settings_by_run = {_slug(name): experiment.config.to_toml() for name, experiment in experiments.items()}
    write_atomically(folder / _COMPARISON, json.dumps({"target": target, "runs": settings_by_run}, indent=2))
    terminal.say_where(folder)
    for number, (name, experiment) in enumerate(experiments.items()):
        terminal.announce(experiment, with_split=number == 0)
        execute(experiment, folder / _slug(name), terminal.observer())
    terminal.report_comparison(folder, list(settings_by_run), target=target)


@app.command()
def settings(dataset: Dataset = None, method: MethodName = None, preset: Preset = None) -> None:
    """List every setting that --set and a TOML file take, with its value for this data set and method."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from fedaf.config import settings as configuration
    from fedaf.data import catalog

    config = configuration.build(configuration.from_flags(dataset=dataset, method=method), preset=preset)
    catalog.check_name(config.data.name)
    table = Table(box=SIMPLE)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("meaning")
    for row in configuration.describe(config):
        table.add_row(*map(escape, row))
    Console(emoji=False).print(table)


def main() -> None:
    """DatasetSpec point: errors on purpose are one sentence, Ctrl-C is 130, and a traceback means a bug."""
    # Threads of a busy machine wait for each other: asleep after a while, not spinning. Measured with a core taken by
    # others: 1.2 to 2.8 times as fast; on an idle machine no difference.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    except click.exceptions.NoArgsIsHelpError:  # the help is already on the screen
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except UserError as error:
        _fail(error.labelled, 2)
    except FedafError as error:
        _fail(error.labelled, 1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = "check that the place exists, can be written and has space"
        _fail(f"a file cannot be read or written: {error.strerror or error}{where}; {advice}.", 2)
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this code
        again = "a download or a reproduction with the same command"
        _fail(f"stopped; a run goes on with --resume and its directory, {again}.", code)
    sys.exit(code or 0)


def _fail(sentence: str, code: int) -> NoReturn:
    print_line(Console(stderr=True), f"fedaf: {' '.join(sentence.split())}")
    sys.exit(code)


def _flags(values: Mapping[str, Any]) -> dict[str, Any]:
    names = ("dataset", "method", "alpha", "clients", "rounds", "ipc", "local_steps", "participation", "model", "seed")
    flags = {name: values[name] for name in (*names, "device", "engine", "precision", "memory_budget", "policy")}
    return {**flags, "data_dir": str(values["data_dir"]) if values["data_dir"] is not None else None}


def _layers(config: Path | None, flags: Mapping[str, Any], settings: Sequence[str] | None) -> list[dict[str, Any]]:
    from fedaf.config import settings as configuration

    file = [configuration.read_toml(config)] if config is not None else []
    return [*file, configuration.from_flags(**flags), *(configuration.parse_setting(s) for s in settings or ())]


def _configs(names: Sequence[str], layers: Sequence[Mapping[str, Any]], preset: str | None) -> dict[str, Any]:
    """A configuration for each method, of the options given those it has."""
    from fedaf.config import settings as configuration
    from fedaf.methods.registry import METHODS

    given = configuration.merge(*layers)
    options = {key: value for key, value in given.pop("method", {}).items() if key != "name"}
    known = {name: set(METHODS.find(name).Options.model_fields) for name in names}
    if not known:
        raise UserError("--methods needs at least one method, for example --methods fedaf,fedavg.")
    configs = {}
    for name, fields in known.items():
        nobody_has = {key: value for key, value in options.items() if not any(key in f for f in known.values())}
        mine = {key: value for key, value in options.items() if key in fields}
        table = {"name": name, **mine, **nobody_has}  # what nobody has is an error that names the choices
        configs[name] = configuration.build({**given, "method": table}, preset=preset)
    return configs


def _nothing_beside_resume(
    config: Path | None, preset: str | None, out: Path | None, settings: object, flags: Mapping[str, Any]
) -> None:
    given = [
        *(name for name, value in flags.items() if value is not None),
        *(n for n, v in (("preset", preset), ("out", out), ("set", settings)) if v),
    ]
    given += ["the TOML file"] if config else []
    if given:
        raise UserError(f"--resume takes the settings of its directory; leave out {', '.join(map(_as_flag, given))}.")


def _as_flag(name: str) -> str:
    return name if " " in name else "--" + name.replace("_", "-")


def _resume(directory: Path, moved: Mapping[str, Any], terminal: Terminal) -> None:
    from fedaf.config import settings as configuration
    from fedaf.runs.experiment import continue_run, reopen

    experiment = reopen(directory, moved=configuration.from_flags(**moved))
    terminal.report(continue_run(experiment, directory, terminal.observer()))


def _names(methods: str) -> list[str]:
    return [name.strip() for name in methods.split(",") if name.strip()]


def _compare_again(directory: Path, target: float | None, terminal: Terminal) -> None:
    """Finish a comparison: what is done stays, what was cut short goes on, the rest starts."""
    import tomllib

    from fedaf.config import settings as configuration
    from fedaf.federation.run_directory import CONFIG, RESULT
    from fedaf.runs.experiment import continue_run, execute, reopen

    try:
        saved = json.loads((directory / _COMPARISON).read_text())
        runs: dict[str, str] = saved["runs"]
        goal = target or saved.get("target")
        tables = {name: tomllib.loads(text) for name, text in runs.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{directory} is not a comparison of fedaf: it has no readable {_COMPARISON}.") from error
    for name, table in tables.items():
        folder, observer = directory / name, terminal.observer()
        if (folder / RESULT).is_file():
            continue
        if (folder / CONFIG).is_file():
            continue_run(reopen(folder), folder, observer)
        else:
            execute(terminal.prepare(configuration.build(table)), folder, observer)
    terminal.report_comparison(directory, list(tables), target=goal)


def _new_directory(name: str) -> Path:
    """A directory under runs/ that is not there yet."""
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


def _slug(name: str) -> str:
    """A name fit for a directory."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).name)
