"""``fedaf run``: run one method."""

from pathlib import Path

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
from fedaf.errors import UserError

#: Flags that say where files are now, and what follows the run.
_MOVED = ("dataset", "test_dataset", "data_dir", "weights", "track")


@with_flags()
def run(
    *,
    config: ConfigFile = None,
    flags: Flags,
    preset: Preset = None,
    settings: Settings = None,
    out: Out = None,
    resume: Resume = None,
    metrics: Metrics = None,
    format: Format = "png",
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run one method and keep everything it produced in a directory.

    CONFIG is a TOML file, such as the config.toml that every run writes.
    Flags override the file, and the file overrides the preset.
    Try [bold]fedaf run --dataset digits --alpha 0.02[/].
    With --resume, --rounds extends a run: [bold]fedaf run --resume runs/first --rounds 30[/].
    """
    terminal, shown = Terminal(verbose=verbose, quiet=quiet), options.metric_names(metrics)
    if resume is not None:
        beside = {name: value for name, value in flags.items() if name not in (*_MOVED, "rounds")}
        options.refuse_beside_resume(config, **beside, preset=preset, out=out, set=settings)
        _resume(resume, flags, terminal)
        terminal.report(resume, metrics=shown, picture=format)
        return
    built = configuration.build(options.layered(config, flags, settings), preset=preset)
    configuration.refuse_unused(flags, built)
    from fedaf.federation.run_directory import check_new
    from fedaf.runs.experiment import execute

    target = out or options.new_directory(built.data.name, built.method_name, f"seed{built.run.seed}")
    check_new(target)  # before the data are read, which may take long
    experiment = terminal.prepare(built)
    terminal.announce(experiment)
    terminal.say(f"Writing to {target}.")
    terminal.say_trackers(built, target)
    with continued_by(options.resume_command("run", target)):
        execute(experiment, target, terminal.observer())
    terminal.report(target, metrics=shown, picture=format)


def _resume(folder: Path, flags: Flags, terminal: Terminal) -> None:
    """Bring the run in a folder to its end."""
    from fedaf.runs.comparison import COMPARISON

    if (folder / COMPARISON).is_file():
        message = f"{folder} holds a comparison; continue it with {options.resume_command('compare', folder)}"
        raise UserError(f"{message}.", code="FEDAF-RUN-NOT-FOUND")
    from fedaf.runs.experiment import continue_run, reopen

    moved = {name: flags[name] for name in _MOVED}
    experiment = reopen(folder, moved=configuration.from_flags(**moved), rounds=flags["rounds"])
    terminal.say_trackers(experiment.config, folder)
    with continued_by(options.resume_command("run", folder, moved)):
        continue_run(experiment, folder, terminal.observer())
