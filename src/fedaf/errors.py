"""The errors that users of fedaf may see.

A message says what was given, what is expected and what to do. Every error also has a stable code such as
``FEDAF-DATA-UNKNOWN``; docs/errors.md lists them all. Tests and documentation refer to codes, so that the wording of a
message can change.
"""

from typing import ClassVar


class FedafError(Exception):
    """Base class of everything that fedaf raises on purpose.

    Args:
        message: One sentence that says what is wrong and what to do about it.
        code: The stable code of this error; each class has a general one.
    """

    default_code: ClassVar[str] = "FEDAF-FAILED"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.add_note(f"[{self.code}] docs/errors.md says what to do")  # shown in tracebacks

    @property
    def labelled(self) -> str:
        """The message followed by the code, as commands and logs print it."""
        return f"{self} [{self.code}]"


class UserError(FedafError):
    """The request cannot be carried out; the message says what would be accepted."""

    default_code = "FEDAF-USAGE"


class InUse(UserError):
    """Another process is working in the run directory."""

    default_code = "FEDAF-RUN-LOCKED"


class DownloadFailed(FedafError):
    """A file could not be downloaded, or its checksum is wrong."""

    default_code = "FEDAF-FETCH-FAILED"


class Refused(FedafError):
    """A message from a peer breaks its schema, or asks for more than the client's policy allows."""

    default_code = "FEDAF-REFUSED"


class BelowQuorum(FedafError):
    """Too few clients replied for the round to count."""

    default_code = "FEDAF-QUORUM"


class DeadlineExceeded(FedafError):
    """A phase ran past its deadline."""

    default_code = "FEDAF-DEADLINE"
