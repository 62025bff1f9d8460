"""Check what the functions of a method return, so that an author's slip is one sentence and not a traceback."""

from typing import TypeVar

from fedaf.errors import UserError

T = TypeVar("T")


def returned(found: object, kind: type[T], function: str) -> T:
    """Return the value that a function of a method returned.

    Args:
        found: The value.
        kind: The type that it must have.
        function: The function, for the error message: ``"aggregate of the phase fit"``.

    Raises:
        UserError: The value has another type.
    """
    if not isinstance(found, kind):
        what = f"{function} returned a value of type {type(found).__name__}, expected {kind.__name__}"
        raise UserError(f"{what}; correct the method.", code="FEDAF-METHOD-RETURN")
    return found
