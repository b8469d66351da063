"""Reads the data out of a pickle without running what it holds.

A pickle is a program: it may import and call anything. Here the only things it can name are stand-ins that keep
numbers, texts and plain attributes: for NumPy's arrays, scalars and types, and for the classes of packages that the
caller allows. Everything else that a pickle asks for is refused by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from typing import Any

import numpy as np

MAX_BYTES = 1 << 31

# Types of plain numbers; texts, objects and records are not for arrays of signals.
_KINDS = frozenset("biuf")


class Record:
    """An instance of a class that is not ours: its attributes, and none of its code."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """What it was made with is kept where it has no state of its own."""
        self.arguments = arguments
        self.__dict__.update(named)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update({key: value for key, value in state.items() if isinstance(key, str)})


class _DType:
    """Stands for `numpy.dtype`."""

    def __init__(self, text: Any, *_: Any) -> None:
        self._text, self._big = text, False

    def __setstate__(self, state: Any) -> None:
        self._big = state[1] == ">"

    @property
    def holds_objects(self) -> bool:
        return self._text in ("O", "O8", "O4", "|O")

    @property
    def dtype(self) -> np.dtype:
        if not isinstance(self._text, str):
            raise pickle.UnpicklingError("an array without a type")
        known = np.dtype(self._text)
        if known.kind not in _KINDS:
            raise pickle.UnpicklingError(f"an array of {str(known)[:40]}, where numbers are expected")
        return known.newbyteorder(">" if self._big else "<")


class _Array:
    """Stands for `numpy.ndarray` while it is rebuilt; `array` holds its numbers afterwards, or its objects."""

    def __init__(self, *_: Any) -> None:
        self.array: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if isinstance(dtype, _DType) and dtype.holds_objects and isinstance(raw, list):
            self.array = raw if shape else raw[0]
            return
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array that is not made of plain numbers")
        flat = np.frombuffer(raw, dtype.dtype)
        self.array = flat.reshape(tuple(shape), order="F" if fortran else "C")


class _NdarrayType:
    """Stands for the type `numpy.ndarray` where it is an argument."""


def _scalar(dtype: Any, raw: Any) -> Any:
    if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
        raise pickle.UnpicklingError("a number without a type")
    return np.frombuffer(raw, dtype.dtype)[0]


def _latin1(text: Any, *_: Any) -> bytes:
    """Bytes as older pickles write them: a text and its encoding."""
    if not isinstance(text, str):
        raise pickle.UnpicklingError("bytes that are not written as text")
    return text.encode("latin-1")


def _plain_object(kind: Any, *_: Any) -> Record:
    """Stands for `copyreg._reconstructor`."""
    if not (isinstance(kind, type) and issubclass(kind, Record)):
        raise pickle.UnpicklingError("an object of an unknown class")
    return kind()


_NUMPY = {"_reconstruct": _Array, "scalar": _scalar, "dtype": _DType, "ndarray": _NdarrayType}


class DataUnpickler(pickle._Unpickler):
    """Unpickles numbers, texts, lists, dicts, NumPy arrays, and instances of some packages as :class:`Record`.

    It is the unpickler in Python: that in C reserves memory for whatever a damaged file announces.
    """

    def __init__(self, raw: bytes, packages: Collection[str] = ()) -> None:
        """Read from `raw`; instances of classes in `packages` come as records."""
        super().__init__(io.BytesIO(raw))
        self._packages = packages

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for what the pickle names."""
        root = module.partition(".")[0]
        if root == "numpy" and name in _NUMPY:
            return _NUMPY[name]
        if module == "_codecs" and name == "encode":
            return _latin1
        if module == "copyreg" and name == "_reconstructor":
            return _plain_object
        if module in ("builtins", "__builtin__") and name == "object":
            return Record
        if root in self._packages:
            return Record
        raise pickle.UnpicklingError(f"it wants to use {module[:60]}.{name[:60]}")

    def persistent_load(self, pid: Any) -> Any:
        """Nothing is kept outside of the pickle."""
        raise pickle.UnpicklingError("it refers to something outside of the file")


class TrustingUnpickler(pickle.Unpickler):
    """Runs the pickle as Python does, but gives records for classes of packages that are not installed."""

    def __init__(self, raw: bytes, packages: Collection[str] = ()) -> None:
        """Read from `raw`."""
        super().__init__(io.BytesIO(raw))
        self._packages = packages

    def find_class(self, module: str, name: str) -> Any:
        """What the pickle names."""
        if module.partition(".")[0] in self._packages:
            return Record
        return super().find_class(module, name)


def unpickle(raw: bytes, packages: Collection[str], trust: bool) -> Any:
    """The object in `raw`. Raises `pickle.UnpicklingError`, and only that, for all that is not such data.

    With `trust` the pickle runs as a program, with the rights of the user.
    """
    if len(raw) > MAX_BYTES:
        raise pickle.UnpicklingError(f"{len(raw):,} bytes are too many (limit {MAX_BYTES:,})")
    try:
        return (TrustingUnpickler if trust else DataUnpickler)(raw, packages).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # A damaged pickle fails in any way that its instructions can.
        raise pickle.UnpicklingError(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}") from error


def objects(value: Any) -> Any:
    """The list of objects that an array of objects held, or the object that was its only one."""
    return value.array if isinstance(value, _Array) else value


def as_array(value: Any) -> np.ndarray:
    """The array or number that a pickle held, as an array."""
    array = objects(value)
    if isinstance(array, Record | str | bytes | dict) or array is None:
        raise pickle.UnpicklingError("not an array of numbers")
    try:
        made = np.asarray(array)
    except (ValueError, TypeError) as error:
        raise pickle.UnpicklingError("not an array of numbers") from error
    if made.dtype.kind not in _KINDS:
        raise pickle.UnpicklingError(f"an array of {made.dtype}, where numbers are expected")
    return made
