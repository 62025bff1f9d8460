"""``fedaf compare``: run several methods on the same partitions, with one or several seeds."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from fedaf.cli.terminal import Terminal, continued_by
from fedaf.cli.usage import METHODS_FORM
from fedaf.errors import UserError
from fedaf.methods.registry import METHODS, PAPER_METHODS
from fedaf.reporting.targets import TARGET_HELP, Target

if TYPE_CHECKING:
    from fedaf.runs.comparison import Plan
    from fedaf.runs.experiment import Experiment

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
    if target is not None:
        Target.parse(target)  # before anything is computed
    if resume is not None:
        beside = {**flags, "methods": methods, "seeds": seeds, "preset": preset, "out": out, "set": settings}
        options.refuse_beside_resume(config, **beside)
        from fedaf.runs.comparison import Plan

        saved = Plan.read(resume)
        plan = replace(
            saved,
            against=against or saved.against,
            target=target or saved.target,
            metrics=shown or saved.metrics,
        )
        _complete(resume, plan, {}, terminal, format)
        return
    names = PAPER_METHODS if methods == "all" else options.split("fedaf,fedavg" if methods is None else methods)
    if config is not None and not config.exists() and METHODS.knows(str(config)):
        message = f"{config} is a method, and the place after the flags is for a TOML file; {METHODS_FORM}."
        raise UserError(message, code="FEDAF-CLI-METHODS")
    if seeds is not None and "seed" in options.layered(None, flags, settings).get("run", {}):
        message = "--seeds and --seed (run.seed) exclude each other; use one of them."
        raise UserError(message, code="FEDAF-CLI-SEEDS")
    from fedaf.runs.comparison import Plan, planned

    numbers = None if seeds is None else options.seeds(seeds)
    runs = planned(names, options.layered(config, flags, settings), preset=preset, seeds=numbers)
    plan = Plan(runs, against, target, shown)
    first = next(iter(runs.values()))
    configuration.refuse_unused(flags, first)
    label = f"seed{first.run.seed}" if len(numbers or (0,)) == 1 else f"seeds{seeds}"
    start(out or options.new_directory(first.data.name, "comparison", label), plan, terminal, format)


def start(folder: Path, plan: "Plan", terminal: Terminal, picture: str = "png") -> None:
    """Run a comparison in a new directory, print its table and draw its figures."""
    from fedaf.federation.run_directory import check_new, refuse_in_use
    from fedaf.runs.assembly import SharedData
    from fedaf.runs.comparison import prepare_all

    check_new(folder)
    shared = SharedData()
    plan, prepared = prepare_all(plan, lambda built: terminal.prepare(built, shared))
    refuse_in_use(folder)  # again, because reading the data may have taken long
    folder.mkdir(parents=True, exist_ok=True)
    plan.save(folder)
    terminal.say(f"Writing to {folder}.")
    terminal.say_trackers(next(iter(plan.runs.values())), folder)
    _complete(folder, plan, prepared, terminal, picture)


def _complete(
    folder: Path, plan: "Plan", prepared: "Mapping[str, Experiment]", terminal: Terminal, picture: str
) -> None:
    """Bring a comparison to its end: keep finished runs, continue stopped ones, start the rest."""
    from fedaf.runs.assembly import SharedData
    from fedaf.runs.comparison import jobs_left

    shared = SharedData()
    jobs = list(jobs_left(folder, plan, prepared, lambda config: terminal.prepare(config, shared), shared))
    terminal.announce_all(jobs)
    with continued_by(options.resume_command("compare", folder)):
        for job in jobs:
            note = "" if job.run.parent == folder else f"seed {job.experiment.config.run.seed}"
            job.complete(terminal.observer(note=note))
    terminal.report(
        folder,
        list(plan.runs),
        target=None if plan.target is None else Target.parse(plan.target),
        metrics=plan.metrics,
        against=plan.against or plan.methods[0],
        picture=picture,
    )
