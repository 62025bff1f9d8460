"""``fedaf compare``: run several methods on the same partition."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import ConfigFile, Flags, Out, Preset, Quiet, Resume, Settings, Verbose, with_flags
from fedaf.cli.terminal import Terminal
from fedaf.errors import UserError
from fedaf.methods.registry import METHODS

_COMPARISON = "comparison.json"

MethodNames = Annotated[
    str | None,
    typer.Option(
        "--methods",
        "--method",
        help=f"Methods to compare, separated by commas, or all: {METHODS.choices}. (default: fedaf,fedavg)",
        rich_help_panel="Method",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        help="Report the rounds until this accuracy, in per cent. (default: the highest that all reach)",
        rich_help_panel="Output",
    ),
]


@with_flags(without=["method"])
def compare(
    *,
    config: ConfigFile = None,
    flags: Flags,
    methods: MethodNames = None,
    preset: Preset = None,
    settings: Settings = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same partition and seed: one table, one figure.

    Each method gets a run directory under --out.
    Options such as --ipc and --set method.KEY apply to the methods that have them.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if target is not None and not 0 < target <= 100:
        raise UserError(
            f"--target is {target:g}, but it must be an accuracy in per cent, above 0 and at most 100.",
            code="FEDAF-CLI-TARGET",
        )
    if resume is not None:
        options.refuse_beside_resume(flags, config, methods=methods, preset=preset, out=out, set=settings)
        _resume(resume, target, terminal)
        return
    names = list(METHODS) if methods == "all" else _split(methods or "fedaf,fedavg")
    configs = _configs(names, options.layers(config, flags, settings), preset)
    first = next(iter(configs.values()))
    configuration.refuse_unused(flags, first)
    from fedaf.common.files import write_atomically
    from fedaf.federation.run_directory import refuse_in_use
    from fedaf.runs.experiment import execute

    if out is not None:
        refuse_in_use(out)
    experiments = {options.slug(name): terminal.prepare(built) for name, built in configs.items()}
    folder = out or options.new_directory(f"{options.slug(first.data.name)}-comparison-seed{first.run.seed}")
    refuse_in_use(folder)  # again, because reading the data may have taken long
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: experiment.config.to_toml() for name, experiment in experiments.items()}
    write_atomically(folder / _COMPARISON, json.dumps({"target": target, "runs": runs}, indent=2))
    terminal.say_where(folder)
    for number, (name, experiment) in enumerate(experiments.items()):
        terminal.announce(experiment, with_split=number == 0)
        execute(experiment, folder / name, terminal.observer())
    terminal.report_comparison(folder, list(runs), target=target)


def _split(methods: str) -> list[str]:
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise UserError(
            "--methods needs at least one method, for example --methods fedaf,fedavg.", code="FEDAF-CLI-METHODS"
        )
    return names


def _configs(
    names: Sequence[str], layers: Sequence[Mapping[str, Any]], preset: str | None
) -> dict[str, configuration.Config]:
    """Build a configuration for each method, with those of the given options that it has.

    An option that no method has goes to all of them, and is refused with the list of valid ones.
    """
    given = configuration.merge(*layers)
    given_options = {key: value for key, value in given.pop("method", {}).items() if key != "name"}
    known = {name: set(METHODS.find(name).Options.model_fields) for name in names}
    of_any = set().union(*known.values())
    configs = {}
    for name, fields in known.items():
        table = {key: value for key, value in given_options.items() if key in fields or key not in of_any}
        configs[name] = configuration.build({**given, "method": {"name": name, **table}}, preset=preset)
    return configs


def _resume(directory: Path, target: float | None, terminal: Terminal) -> None:
    """Finish a comparison: keep finished runs, continue stopped ones, start the rest."""
    from fedaf.federation.run_directory import CONFIG, RESULT
    from fedaf.runs.experiment import continue_run, execute, reopen

    try:
        saved = json.loads((directory / _COMPARISON).read_text())
        goal = target or saved.get("target")
        runs = {name: tomllib.loads(text) for name, text in saved["runs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{directory} is not a comparison of fedaf: it has no readable {_COMPARISON}.",
            code="FEDAF-CLI-NOT-A-COMPARISON",
        ) from error
    for name, settings in runs.items():
        folder, observer = directory / name, terminal.observer()
        if (folder / RESULT).is_file():
            continue
        if (folder / CONFIG).is_file():
            continue_run(reopen(folder), folder, observer)
        else:
            execute(terminal.prepare(configuration.build(settings)), folder, observer)
    terminal.report_comparison(directory, list(runs), target=goal)
