"""Functions that are compiled to machine code, and called without the compiler.

In `cdc.kernel.compiling` these decorators make functions of numba. Everywhere else an entry is
called at its address in a loaded library, see `cdc.kernel.loading`; numba is not imported. In
compiled functions all indices have the type int64. A number is passed as the annotated type.
"""

from __future__ import annotations

import ctypes
import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

F = TypeVar("F", bound=Callable[..., object])
_SCALARS: Final = {int: ctypes.c_int64, bool: ctypes.c_uint8}
# All entries that were imported, by their names.
entries: Final = dict[str, "Entry"]()
# Set by `cdc.kernel.compiling`.
compile_part: Callable[[Any], Any] | None = None
compile_hot: Callable[[Any], Any] | None = None


def part(function: F) -> F:
    """Compile a function that only compiled functions call."""
    return function if compile_part is None else compile_part(function)


def hot(function: F) -> F:
    """Compile a part into its callers: a call passes each array as seven numbers and more."""
    return function if compile_hot is None else compile_hot(function)


def entry(function: F) -> F:
    """Compile a function that Python calls.

    Its parameters are int, bool and arrays, contiguous and of the annotated type. It returns int, a
    tuple of int, or None. Such a function does not hold the GIL.
    """
    found: Any = Entry(function)
    entries[found.name] = found
    return found


class Entry:
    """A compiled function.

    Attributes:
        function: the function itself.
        module: its module.
        name: the same and its own name.
        parameters: for each parameter int, bool, or the (data type, dimensions) of an array.
        results: the number of its results.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function if compile_part is None else compile_part(function)
        self.module = function.__module__
        self.name = f"{self.module}.{function.__qualname__}"
        hints = typing.get_type_hints(function)
        returned = hints.pop("return")
        self.parameters = [_parameter(hint) for hint in hints.values()]
        is_tuple = typing.get_origin(returned) is tuple
        self.results = len(typing.get_args(returned)) if is_tuple else int(returned is int)
        self._is_tuple = is_tuple
        self._room: Any = ctypes.c_int64 * max(self.results, 1)
        self._call: Callable[..., int] | None = None

    def load(self, address: int) -> None:
        """Take the machine code at that address, in numba's calling convention.

        Source: https://numba.readthedocs.io/en/stable/developer/architecture.html and the modules
        numba.core.callconv and numba.core.datamodel: a place for the results, a place for an
        exception, then the members of each argument; an array has seven of them, and more for each
        further dimension.
        """
        kinds: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        for each in self.parameters:
            kinds += [_SCALARS[each]] if isinstance(each, type) else _array_kinds(each[1])
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)

    def __call__(self, *arguments: Any) -> Any:
        if self._call is None:
            raise RuntimeError(f"{self.name} is not loaded.")
        results, exception = self._room(), ctypes.c_void_p()
        flat: list[Any] = [ctypes.byref(results), ctypes.byref(exception)]
        for kind, value in zip(self.parameters, arguments, strict=True):
            if isinstance(kind, type):
                flat.append(kind(value))
            else:
                flat += _array_members(value, *kind)
        if self._call(*flat) != 0:
            raise RuntimeError(f"{self.name} failed.")
        if self._is_tuple:
            return tuple(results[:])
        return results[0] if self.results else None


def _parameter(hint: Any) -> Any:
    if hint in (int, bool):
        return hint
    shape, kind = typing.get_args(hint)
    return np.dtype(typing.get_args(kind)[0]), len(typing.get_args(shape))


def _array_kinds(dimensions: int) -> list[Any]:
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return [pointer, pointer, number, number, pointer, *[number] * (2 * dimensions)]


def _array_members(array: Any, kind: np.dtype[Any], dimensions: int) -> list[Any]:
    """The owner and the parent, which are not needed, the count and size of items, the place of
    the first one, and the shape and the strides."""
    if array.dtype != kind or array.ndim != dimensions or not array.flags.c_contiguous:
        raise TypeError(f"not a contiguous array of {dimensions} dimensions of {kind}")
    # NumPy's own ways to the address of an array take ten times as long.
    place = pa.py_buffer(array).address
    return [None, None, array.size, kind.itemsize, place, *array.shape, *array.strides]
