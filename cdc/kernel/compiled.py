"""How functions are compiled: to machine code that needs no GIL, kept on disk (see `loading`).

In them all indices are of type int64; a value of another width is converted where it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])
_config: Any = numba.config


def entry(function: F) -> F:
    """One that Python calls: kept on disk, with everything that it calls in it."""
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


def part(function: F) -> F:
    """One that only compiled functions call."""
    compiled: F = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled


class Kept:
    """Where numba is to keep a function: in `config.CACHE_DIR`, whose name says of which sources.

    By itself numba asks where the source lies, and Spark puts a zip of it at another place for each
    application and executor: each would compile for itself, and leave that behind.
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
