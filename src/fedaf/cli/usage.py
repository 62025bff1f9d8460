"""What to say about a command line that cannot be parsed."""

import sys
from collections.abc import Iterator, Sequence

import click

from fedaf.cli.options import split
from fedaf.config.synonyms import meant, spelled
from fedaf.config.tables import MethodTable
from fedaf.methods.registry import METHODS

#: Options of commands that are no settings, by names that users of other programs try.
_OPTIONS = {
    **dict.fromkeys(("--output", "--output-dir", "--out-dir", "--outdir", "--save-dir", "--log-dir", "--dir"), "--out"),
    **dict.fromkeys(("--config", "--cfg", "--config-file"), "the path of the TOML file without a flag"),
    **dict.fromkeys(("--continue", "--restart", "--restore"), "--resume"),
    **dict.fromkeys(("--ext", "--pictures", "--image-format"), "--format"),
    **dict.fromkeys(("--silent",), "--quiet"),
    **dict.fromkeys(("--debug",), "--verbose"),
}
_WITH_SETTINGS = ("run", "compare")


def sentence(error: click.ClickException) -> str:
    """Return the sentence about a usage error, with what the user may have meant."""
    message = error.format_message()
    command = error.ctx.command.name if isinstance(error, click.UsageError) and error.ctx is not None else None
    if command not in _WITH_SETTINGS:
        return message
    if isinstance(error, click.NoSuchOption):
        return _about_option(error.option_name, message)
    if command == "compare" and "unexpected extra argument" in message:
        return f"{message.rstrip('.')}; {METHODS_FORM}."
    return message


METHODS_FORM = "separate methods by commas and no spaces, for example --methods fedaf,fedavg"


def _about_option(option: str, message: str) -> str:
    if option in _OPTIONS:
        return f"No such option: {option}; use {_OPTIONS[option]}."
    methods = list(_methods(sys.argv[1:])) or [MethodTable().name]
    found = meant(option, methods)
    if not found:
        return message
    choices = " or ".join(f"{spelled(path)} ({what})" for path, what in found.items())
    return f"No such option: {option}; for {', '.join(methods)} use {choices}."


def _methods(words: Sequence[str]) -> Iterator[str]:
    """Yield the methods that a command line names, which was not parsed."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, _, value = word.partition("=")
        if flag in ("--method", "--methods"):
            given = split(value or following)
            yield from METHODS if given == ("all",) else given
