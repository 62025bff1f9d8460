"""``fedaf run``: run one method."""

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.compare import COMPARISON
from fedaf.cli.options import ConfigFile, Flags, Out, Preset, Quiet, Resume, Settings, Verbose, with_flags
from fedaf.cli.terminal import Terminal
from fedaf.errors import UserError


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
        moved = {name: flags[name] for name in ("dataset", "data_dir", "weights")}
        options.refuse_beside_resume(config, **{**flags, **dict.fromkeys(moved)}, preset=preset, out=out, set=settings)
        if (resume / COMPARISON).is_file():
            message = f"{resume} holds a comparison; continue it with fedaf compare --resume {resume}."
            raise UserError(message, code="FEDAF-RUN-NOT-FOUND")
        from fedaf.runs.experiment import continue_run, reopen

        continue_run(reopen(resume, moved=configuration.from_flags(**moved)), resume, terminal.observer())
        terminal.report(resume)
        return
    built = configuration.build(options.layered(config, flags, settings), preset=preset)
    configuration.refuse_unused(flags, built)
    from fedaf.federation.run_directory import refuse_in_use
    from fedaf.runs.experiment import execute

    if out is not None:  # before the data are read, which may take long
        refuse_in_use(out)
    experiment = terminal.prepare(built)
    target = out or options.new_directory(built.data.name, built.method_name, f"seed{built.run.seed}")
    terminal.announce(experiment)
    terminal.say(f"Writing to {target}.")
    execute(experiment, target, terminal.observer())
    terminal.report(target)
