"""Decorators that compile functions to machine code without the GIL, cached on disk.

`loading` chooses the cache folder. In compiled functions all indices have the type int64; a value
of another width is converted where it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])
_config: Any = numba.config
# Without `_nrt` numba counts the references to each array around each call, which takes half of the
# time. It is not needed: no compiled function makes an array, and the caller keeps those it passes.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "_nrt": False}


def entry(function: F) -> F:
    """Compile a function that Python calls; the cache contains it and everything that it calls."""
    compiled: F = numba.njit(cache=True, **_OPTIONS)(function)
    return compiled


def part(function: F) -> F:
    """Compile a function that only compiled functions call."""
    compiled: F = numba.njit(**_OPTIONS)(function)
    return compiled


class CacheLocator:
    """Makes numba cache a function in `config.CACHE_DIR`, whose name identifies the sources.

    By default numba derives the place from the path of the source. Spark copies a zip of it to
    another path for each application and executor: each of them would compile again, and leave its
    files on disk.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._folder = Path(_config.CACHE_DIR)
        self._disambiguator = str(function.__code__.co_firstlineno)

    @classmethod
    def from_function(cls, function: Callable[..., object], _: str) -> Self:
        return cls(function)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return self._disambiguator
