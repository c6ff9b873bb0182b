"""How functions are compiled: to machine code that needs no GIL, kept on disk (see `loading`).

In them all indices are of type int64; a value of another width is converted where it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def entry(function: F) -> F:
    """One that Python calls: kept on disk, with everything that it calls in it."""
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def part(function: F) -> F:
    """One that only compiled functions call."""
    compiled: F = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
