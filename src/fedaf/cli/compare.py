"""``fedaf compare``: run several methods on the same partition."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import ConfigFile, Flags, Format, Out, Preset, Quiet, Resume, Settings, Verbose, with_flags
from fedaf.cli.terminal import Terminal, continued_by
from fedaf.cli.usage import METHODS_FORM
from fedaf.errors import UserError
from fedaf.methods.registry import METHODS

if TYPE_CHECKING:
    from fedaf.runs.experiment import Experiment

COMPARISON = "comparison.json"
_METHODS = f"Methods to compare, separated by commas, or all: {METHODS.choices}. (default: fedaf,fedavg)"

MethodNames = Annotated[str | None, typer.Option("--methods", "--method", help=_METHODS, rich_help_panel="Method")]


@with_flags(without=["method"])
def compare(
    *,
    config: ConfigFile = None,
    flags: Flags,
    methods: MethodNames = None,
    preset: Preset = None,
    settings: Settings = None,
    target: Annotated[float | None, options.output_option()] = None,
    out: Out = None,
    resume: Resume = None,
    format: Format = "png",
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same partition and seed: one table, one figure.

    Each method gets a run directory under --out.
    Options such as --ipc and --set method.KEY apply to the methods that have them.

    Args:
        target: Report the rounds until this accuracy, in per cent. (default: the highest that all reach)
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if target is not None and not 0 < target <= 100:
        message = f"--target is {target:g}, but it must be an accuracy in per cent, above 0 and at most 100."
        raise UserError(message, code="FEDAF-CLI-TARGET")
    if resume is not None:
        options.refuse_beside_resume(config, **flags, methods=methods, preset=preset, out=out, set=settings)
        _finish(resume, {}, target, terminal, format)
        return
    names = tuple(METHODS) if methods == "all" else options.split("fedaf,fedavg" if methods is None else methods)
    if config is not None and not config.exists() and METHODS.knows(str(config)):
        message = f"{config} is a method, and the place after the flags is for a TOML file; {METHODS_FORM}."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        message = f"--methods names {', '.join(twice)} more than once; name every method once."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    if not names:
        message = "--methods needs at least one method, for example --methods fedaf,fedavg."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    configs = _configs(names, options.layered(config, flags, settings), preset)
    first = next(iter(configs.values()))
    configuration.refuse_unused(flags, first)
    from fedaf.common.files import write_atomically
    from fedaf.federation.run_directory import check_new, refuse_in_use

    folder = out or options.new_directory(first.data.name, "comparison", f"seed{first.run.seed}")
    check_new(folder)
    experiments = {options.slug(name): terminal.prepare(built) for name, built in configs.items()}
    refuse_in_use(folder)  # again, because reading the data may have taken long
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: experiment.config.to_toml() for name, experiment in experiments.items()}
    write_atomically(folder / COMPARISON, json.dumps({"target": target, "runs": runs}, indent=2))
    terminal.say(f"Writing to {folder}.")
    _finish(folder, experiments, target, terminal, format)


def _configs(names: Sequence[str], given: dict[str, Any], preset: str | None) -> dict[str, configuration.Config]:
    """Build a configuration for each method, with those of the given options that it has.

    An option that no method has goes to all of them, and is refused with the list of valid ones.
    """
    given_options = {key: value for key, value in given.pop("method", {}).items() if key != "name"}
    known = {name: set(METHODS.find(name).Options.model_fields) for name in names}
    of_any = set().union(*known.values())
    configs = {}
    for name, fields in known.items():
        table = {key: value for key, value in given_options.items() if key in fields or key not in of_any}
        configs[name] = configuration.build({**given, "method": {"name": name, **table}}, preset=preset)
    return configs


def _finish(
    folder: Path, prepared: "Mapping[str, Experiment]", target: float | None, terminal: Terminal, picture: str
) -> None:
    """Bring a comparison to its end: keep finished runs, continue stopped ones, start the rest."""
    from fedaf.federation.run_directory import CONFIG, RESULT

    if (folder / CONFIG).is_file():
        message = f"{folder} holds a single run; continue it with {options.resume_command('run', folder)}."
        raise UserError(message, code="FEDAF-CLI-NOT-A-COMPARISON")
    from fedaf.runs.experiment import continue_run, execute, reopen

    try:
        saved = json.loads((folder / COMPARISON).read_text())
        target = target or saved.get("target")
        runs = {name: tomllib.loads(text) for name, text in saved["runs"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = "give --resume a directory that fedaf compare wrote"
        message = f"{folder} is not a comparison of fedaf: it has no readable {COMPARISON}; {advice}."
        raise UserError(message, code="FEDAF-CLI-NOT-A-COMPARISON") from error
    with continued_by(options.resume_command("compare", folder)):
        for number, (name, settings) in enumerate(runs.items()):
            run = folder / name
            if (run / RESULT).is_file():
                continue
            if (run / CONFIG).is_file():
                continue_run(reopen(run), run, terminal.observer())
                continue
            experiment = prepared.get(name) or terminal.prepare(configuration.build(settings))
            terminal.announce(experiment, with_split=number == 0)
            execute(experiment, run, terminal.observer())
    terminal.report(folder, list(runs), target=target, picture=picture)
