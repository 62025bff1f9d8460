"""``fedaf run``: run one method."""

from pathlib import Path

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import ConfigFile, Flags, Out, Preset, Quiet, Resume, Settings, Verbose, with_flags
from fedaf.cli.terminal import Terminal


@with_flags()
def run(
    *,
    config: ConfigFile = None,
    flags: Flags,
    preset: Preset = None,
    settings: Settings = None,
    out: Out = None,
    resume: Resume = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run one method and keep everything it produced in a directory.

    CONFIG is a TOML file, such as the config.toml that every run writes.
    Flags override the file, and the file overrides the preset.
    Try [bold]fedaf run --dataset digits --alpha 0.02[/].
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if resume is not None:
        moved = {name: flags[name] for name in ("dataset", "data_dir")}
        others = {name: value for name, value in flags.items() if name not in moved}
        options.refuse_beside_resume(others, config, preset=preset, out=out, set=settings)
        _resume(resume, moved, terminal)
        return
    layers = options.layers(config, flags, settings)
    built = configuration.build(configuration.merge(*layers), preset=preset)
    configuration.refuse_unused(flags, built)
    from fedaf.federation.run_directory import refuse_in_use
    from fedaf.runs.experiment import execute

    if out is not None:  # before the data are read, which may take long
        refuse_in_use(out)
    experiment = terminal.prepare(built)
    name = f"{options.slug(built.data.name)}-{options.slug(built.method_name)}-seed{built.run.seed}"
    target = out or options.new_directory(name)
    terminal.announce(experiment)
    terminal.say_where(target)
    terminal.report(execute(experiment, target, terminal.observer()))


def _resume(directory: Path, moved: Flags, terminal: Terminal) -> None:
    from fedaf.runs.experiment import continue_run, reopen

    experiment = reopen(directory, moved=configuration.from_flags(**moved))
    terminal.report(continue_run(experiment, directory, terminal.observer()))
