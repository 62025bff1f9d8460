"""A restricted unpickler for arrays and plain containers.

CIFAR is published as pickles of Python 2. A pickle is a program: this reader runs only the instructions that build
numbers, strings, lists, dicts and arrays. The numpy functions that the pickle of an array calls are replaced by
stand-ins, which accept only a plain type, a shape and bytes.
"""

import os
import pickle
import re
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from fedaf.common.naming import printable
from fedaf.data.problems import damaged
from fedaf.protocol import UserError

_INSTRUCTIONS = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
    *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD),
)


def load(path: Path) -> dict[Any, Any]:
    """Return the dict in a pickle.

    Raises:
        UserError: If the file is damaged or holds anything but arrays and plain containers.
    """
    try:
        with open(path, "rb") as file:
            found = _Unpickler(file).load()
    except _Refused as error:
        what = f"{path} {error}; expected only arrays and plain containers. Fetch it again."
        raise UserError(what, code="FEDAF-DATA-UNSAFE") from None
    except Exception as error:  # damaged bytes make an unpickler raise anything
        reason = printable(f"{type(error).__name__}: {error}")
        raise damaged(f"{path} is not a complete pickle ({reason:.100})") from error
    if not isinstance(found, dict):
        raise damaged(f"{path} holds a {type(found).__name__} instead of a dict")
    return {key: value.array if isinstance(value, _Array) else value for key, value in found.items()}


class _Refused(Exception):
    """The pickle has an instruction, function or type that data files do not need."""


class _Type:
    """Stand-in for ``numpy.dtype``: integer types only; the byte order is in its state."""

    def __init__(self, name: Any, *_: Any) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if not isinstance(text, str) or not re.fullmatch(r"[iu][1248]", text):
            raise _Refused(f"holds an array of {text!r:.40}")
        self.dtype = np.dtype(f"<{text}")

    def set(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")
        elif order not in ("|", "<"):
            raise _Refused(f"holds an array with byte order {order!r:.40}")


class _Array:
    """Stand-in for an array. Its state is (version, shape, type, column order, bytes); the array is a view of the
    bytes."""

    array: np.ndarray = np.empty(0, np.uint8)

    def set(self, state: Any) -> None:
        _, shape, kind, by_column, data = state
        if not isinstance(kind, _Type) or not isinstance(data, bytes):
            raise _Refused("holds an array that is not made of bytes")
        if not all(isinstance(size, int) and size >= 0 for size in shape) or not 1 <= len(shape) <= 4:
            raise _Refused(f"holds an array of shape {shape!r:.40}")
        if prod(shape) * kind.dtype.itemsize != len(data):
            raise _Refused(f"holds an array of shape {shape} in {len(data)} bytes")
        flat = np.frombuffer(data, kind.dtype)
        self.array = flat.reshape(shape[::-1]).T if by_column else flat.reshape(shape)


_ARRAY_CLASS, _RECONSTRUCT = object(), object()  # only compared, never called
_STAND_INS = {
    ("numpy", "ndarray"): _ARRAY_CLASS,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


class _Unpickler(pickle._Unpickler):
    """The unpickler in Python: its table of instructions can be reduced, and it holds large strings only once."""

    dispatch: ClassVar[dict[int, Any]] = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _INSTRUCTIONS}
    stack: list[Any]

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(_Bounded(file), encoding="bytes")

    def load(self) -> Any:
        try:
            return super().load()
        except KeyError as error:
            raise _Refused(f"has instruction {error}, which does not build data") from error

    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _STAND_INS[module, name]
        except (KeyError, TypeError):
            raise _Refused(f"asks for {printable(module)}.{printable(name)}") from None

    def load_reduce(self) -> None:
        args = self.stack.pop()
        function = self.stack.pop()
        if function is _RECONSTRUCT and args and args[0] is _ARRAY_CLASS:
            self.stack.append(_Array())
        elif function is _Type:
            self.stack.append(_Type(*args))
        else:
            raise _Refused("calls a function that does not make an array")

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Type):
            raise _Refused("sets the state of something else than an array")
        self.stack[-1].set(state)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build


class _Bounded:
    """A file that refuses to read past its end: a wrong length must not reserve memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, os.fstat(file.fileno()).st_size

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise EOFError(f"{size} bytes are expected, {self._left} are left")
        self._left -= size
        return self._file.read(size)

    def readline(self) -> bytes:
        line = self._file.readline(1000)
        self._left -= len(line)
        return line
