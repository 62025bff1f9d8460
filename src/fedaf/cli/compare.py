"""``fedaf compare``: run several methods on the same partitions, with one or several seeds."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import (
    ConfigFile,
    Flags,
    Format,
    Metrics,
    Out,
    Preset,
    Quiet,
    Resume,
    Settings,
    Verbose,
    with_flags,
)
from fedaf.cli.terminal import Job, Terminal, continued_by
from fedaf.cli.usage import METHODS_FORM
from fedaf.errors import UserError
from fedaf.methods.registry import METHODS, PAPER_METHODS
from fedaf.reporting.targets import TARGET_HELP, Target

if TYPE_CHECKING:
    from fedaf.runs.assembly import SharedData
    from fedaf.runs.experiment import Experiment

COMPARISON = "comparison.json"
_SEEDS = "Seeds, such as 0,1,2 or 0-4: one run per method and seed. Every seed has its own split. (default: --seed)"
_METHODS = (
    f"Methods, separated by commas: {METHODS.choices}; or all: the paper's and fedaf-plus. (default: fedaf,fedavg)"
)

MethodNames = Annotated[str | None, typer.Option("--methods", "--method", help=_METHODS, rich_help_panel="Method")]
Seeds = Annotated[str | None, options.run_option(help=_SEEDS)]


@with_flags(without=["method"])
def compare(
    *,
    config: ConfigFile = None,
    flags: Flags,
    methods: MethodNames = None,
    seeds: Seeds = None,
    preset: Preset = None,
    settings: Settings = None,
    target: Annotated[str | None, options.output_option(metavar="[METRIC=]VALUE", help=TARGET_HELP)] = None,
    metrics: Metrics = None,
    against: Annotated[str | None, options.output_option(metavar="METHOD")] = None,
    out: Out = None,
    resume: Resume = None,
    format: Format = "png",
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same partition and seed, or several seeds: one table, one figure.

    Each run gets a directory under --out.
    Options such as --ipc and --set method.KEY apply to the methods that have them.
    With several seeds, the differences between methods come with an interval and a verdict.

    Args:
        against: Compare the other methods with this one. (default: the first of --methods)
    """
    terminal, shown = Terminal(verbose=verbose, quiet=quiet), options.metric_names(metrics)
    goal = None if target is None else Target.parse(target)
    if resume is not None:
        given = {**flags, "methods": methods, "seeds": seeds, "preset": preset, "out": out, "set": settings}
        options.refuse_beside_resume(config, **given)
        _finish(resume, {}, goal, shown, against, terminal, format)
        return
    names = PAPER_METHODS if methods == "all" else options.split("fedaf,fedavg" if methods is None else methods)
    if config is not None and not config.exists() and METHODS.knows(str(config)):
        message = f"{config} is a method, and the place after the flags is for a TOML file; {METHODS_FORM}."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        message = f"--methods names {', '.join(twice)} more than once; name every method once."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    if not names:
        message = "--methods needs at least one method, for example --methods fedaf,fedavg."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    _check_against(against, names)
    configs = _planned(names, config, flags, settings, preset, seeds)
    first = next(iter(configs.values()))
    configuration.refuse_unused(flags, first)
    from fedaf.common.files import write_atomically
    from fedaf.federation.run_directory import check_new, refuse_in_use
    from fedaf.runs.assembly import SharedData

    label = f"seed{first.run.seed}" if len({built.run.seed for built in configs.values()}) == 1 else f"seeds{seeds}"
    folder = out or options.new_directory(first.data.name, "comparison", label)
    check_new(folder)
    shared = SharedData()
    experiments = {name: terminal.prepare(built, shared) for name, built in configs.items()}
    refuse_in_use(folder)  # again, because reading the data may have taken long
    folder.mkdir(parents=True, exist_ok=True)
    runs = {name: experiment.config.to_toml() for name, experiment in experiments.items()}
    plan = {"target": target, "metrics": shown, "against": against, "runs": runs}
    write_atomically(folder / COMPARISON, json.dumps(plan, indent=2))
    terminal.say(f"Writing to {folder}.")
    _finish(folder, experiments, goal, shown, against, terminal, format)


def _planned(
    names: Sequence[str],
    file: Path | None,
    flags: Flags,
    settings: Sequence[str] | None,
    preset: str | None,
    seeds: str | None,
) -> dict[str, configuration.Config]:
    """Return the configuration of each run by its directory below that of the comparison.

    All methods of a seed come before the next seed, so that a comparison that was stopped has whole pairs.
    """
    if seeds is None:
        configs = _configs(names, options.layered(file, flags, settings), preset)
        return {options.slug(name): built for name, built in configs.items()}
    if "seed" in options.layered(None, flags, settings).get("run", {}):
        message = "--seeds and --seed (run.seed) exclude each other; use one of them."
        raise UserError(message, code="FEDAF-CLI-SEEDS")
    numbers = options.seeds(seeds)
    planned = {}
    for seed in numbers:
        given = configuration.merge(options.layered(file, flags, settings), {"run": {"seed": seed}})
        for name, built in _configs(names, given, preset).items():
            folder = options.slug(name)
            planned[folder if len(numbers) == 1 else f"{folder}/seed{seed}"] = built
    return planned


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


def _check_against(against: str | None, methods: Sequence[str]) -> None:
    """Raise ``UserError`` if ``--against`` is not one of the methods."""
    if against is not None and against not in methods:
        message = f"--against is {against!r}, which is not compared here; expected one of {', '.join(methods)}."
        raise UserError(message, code="FEDAF-CLI-AGAINST")


def _finish(
    folder: Path,
    prepared: "Mapping[str, Experiment]",
    target: Target | None,
    metrics: Sequence[str],
    against: str | None,
    terminal: Terminal,
    picture: str,
) -> None:
    """Bring a comparison to its end: keep finished runs, continue stopped ones, start the rest."""
    from fedaf.federation.run_directory import CONFIG

    if (folder / CONFIG).is_file():
        message = f"{folder} holds a single run; continue it with {options.resume_command('run', folder)}."
        raise UserError(message, code="FEDAF-CLI-NOT-A-COMPARISON")
    from fedaf.runs.assembly import SharedData
    from fedaf.runs.experiment import continue_run, execute

    try:
        saved = json.loads((folder / COMPARISON).read_text())
        if target is None and saved.get("target") is not None:
            target = Target.parse(str(saved["target"]))
        metrics = metrics or saved.get("metrics", ())
        against = against or saved.get("against")
        runs = {name: tomllib.loads(text) for name, text in saved["runs"].items()}
        methods = list(dict.fromkeys(str(settings["method"]["name"]) for settings in runs.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = "give --resume a directory that fedaf compare wrote"
        message = f"{folder} is not a comparison of fedaf: it has no readable {COMPARISON}; {advice}."
        raise UserError(message, code="FEDAF-CLI-NOT-A-COMPARISON") from error
    _check_against(against, methods)
    shared = SharedData()
    jobs = [_job(folder / name, settings, prepared.get(name), shared, terminal) for name, settings in runs.items()]
    left = [job for job in jobs if job is not None]
    terminal.announce_all(left)
    with continued_by(options.resume_command("compare", folder)):
        for job in left:
            start = continue_run if job.rounds_done is not None else execute
            one_of_several = job.run.parent != folder
            note = f"seed {job.experiment.config.run.seed}" if one_of_several else ""
            start(job.experiment, job.run, terminal.observer(note=note))
    terminal.report(folder, list(runs), target=target, metrics=metrics, against=against or methods[0], picture=picture)


def _job(
    run: Path,
    settings: dict[str, Any],
    prepared: "Experiment | None",
    shared: "SharedData",
    terminal: Terminal,
) -> Job | None:
    """Return what is left to do of a run of a comparison; ``None`` if it is finished."""
    from fedaf.federation.run_directory import CONFIG, RESULT, read_metrics
    from fedaf.runs.experiment import reopen

    if (run / RESULT).is_file():
        return None
    if (run / CONFIG).is_file():
        return Job(run, reopen(run, shared=shared), len(read_metrics(run)))
    return Job(run, prepared or terminal.prepare(configuration.build(settings), shared))
