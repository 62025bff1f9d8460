"""The errors a caller may meet: each message is one sentence a user can act on."""


class FedafError(Exception):
    """Anything this package reports on purpose."""


class UserError(FedafError):
    """What was asked for cannot be done; the message says what is allowed."""


class InUse(UserError):
    """A run directory that another process is at work in."""


class DownloadFailed(FedafError):
    """A file did not come, or not the right one."""


class Refused(FedafError):
    """A payload from a peer that breaks its schema."""


class BelowQuorum(FedafError):
    """Too few clients answered for the round to count."""


class DeadlineExceeded(FedafError):
    """A phase ran past its deadline."""
