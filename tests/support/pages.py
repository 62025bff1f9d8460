"""The pages of the documentation, and the blocks of code in them."""

import re
from dataclasses import dataclass
from pathlib import Path

from support import ROOT

DOCS = ROOT / "docs"
GENERATED = DOCS / "RESULTS.md"  # written by fedaf reproduce
RUN = ("bash", "python")  # languages of blocks that are run
OTHER = ("text", "toml", "bibtex")  # shown, and checked where that is possible
NETWORK = ("docs/howto/deploy.md", "docs/tutorials/three-hospitals.md")  # start Flower's programs; see tests/network
_SKIPPED = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line on the page, and the reason if it is not run."""

    language: str
    code: str
    line: int
    reason: str | None

    @property
    def file(self) -> str | None:
        """The file that the reader saves the block in: a block of code may begin with its name in a comment."""
        named = re.match(r"# ([\w./-]+\.(?:py|toml))\n", self.code)
        return named[1] if named else None


def pages() -> dict[str, Path]:
    """Every page that people read, by its path in the repository."""
    found = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return {str(path.relative_to(ROOT)): path for path in sorted(found) if "generated" not in path.parts}


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order; those of MyST directives (``{toctree}``) are left out."""
    found = []
    for match in re.finditer(r"(?ms)^```([^\n`]*)\n(.*?)^```$", text):
        if not match[1].startswith("{"):
            before = text[: match.start()]
            reason = _SKIPPED.search(before)
            found.append(Block(match[1], match[2], before.count("\n") + 1, reason[1] if reason else None))
    return found


def runs(found: list[Block]) -> bool:
    """Whether there is anything to run."""
    return any(block.language in RUN and block.reason is None for block in found)
