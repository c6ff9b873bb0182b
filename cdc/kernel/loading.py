"""The compiled functions of this package, loaded when they are first asked for.

Compiling takes half a minute; what was compiled is kept on disk, for this version of the sources
and of numba, and loading it takes a part of a second. Of the processes of a machine that need it at
the same time one compiles, the others wait for it, wherever each has the sources from. The folder
is the first of these that can be written: `NUMBA_CACHE_DIR`, the user's cache (`XDG_CACHE_HOME`,
`~/.cache`), the one for temporary files. None of it is shared with other users: what is loaded from
it is run.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from cdc.locked import locked


@functools.cache
def columns() -> ModuleType:
    """`cdc.kernel.columns`, compiled. Raises OSError if no folder can be written."""
    return _compiled("columns")


@functools.cache
def typed() -> ModuleType:
    """`cdc.kernel.typed`, in the same way."""
    return _compiled("typed")


def _compiled(name: str) -> ModuleType:
    import numba

    folder = _folder(numba.__version__)
    with locked(folder), _cached_in(numba.config, folder):
        module = importlib.import_module(f"cdc.kernel.{name}")
        module.compiled()
    settled(name)
    return module


def _folder(version: str) -> Path:
    """numba notices changes of one file, but not of those whose functions and constants it
    compiles into it."""
    sources = [*_sources("cdc.kernel"), *_sources("cdc.model")]
    digest = hashlib.sha256(b"\0".join([version.encode(), *sources])).hexdigest()[:16]
    failed: list[OSError] = []
    for base in _bases():
        try:
            return _private(base, digest)
        except OSError as error:
            failed.append(error)
    raise failed[0]


def _sources(package: str) -> Iterator[bytes]:
    """Of its modules, in the order of their names; also where it lies in a zip."""
    files = {each.name: each for each in resources.files(package).iterdir()}
    return (files[name].read_bytes() for name in sorted(files) if name.endswith(".py"))


def _bases() -> Iterator[Path]:
    given, home = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if given:
        yield Path(given)
    yield (Path(home) if home else Path("~/.cache").expanduser()) / "mongodb-cdc"
    yield Path(tempfile.gettempdir()) / f"mongodb-cdc-{os.getuid()}"


def _private(base: Path, name: str) -> Path:
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = base / name
    folder.mkdir(mode=0o700, exist_ok=True)
    for each in (base, folder):
        found = each.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise PermissionError(f"{each} belongs to others, or they can write to it")
    with tempfile.TemporaryFile(dir=folder):
        return folder


@contextmanager
def _cached_in(config: Any, folder: Path) -> Iterator[None]:
    """Where functions are kept is decided when they are declared; others keep theirs."""
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = str(folder), "cdc.kernel.compiled.Kept"
    try:
        yield
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before


@cache
def settled(loaded: str) -> None:
    """To be called once something is loaded that stays: Spark's Python worker searches all objects
    for garbage behind each task, which takes 0.1 s with what numba alone has made of them. They are
    left out of it from then on. In any other process this does nothing.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        gc.collect()
        gc.freeze()
