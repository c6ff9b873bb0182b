"""The compiled functions of this package, loaded at first use.

Compiling takes half a minute. The result is cached on disk for this version of the sources and of
numba; loading it takes a fraction of a second. If several processes of a machine need it at the
same time, one compiles and the others wait, even if they load the sources from different places.
The cache is in `NUMBA_CACHE_DIR` if that is set and writable, otherwise where `cdc.private_cache`
puts it.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any

from cdc.file_lock import lock
from cdc.private_cache import create_folder

# The kernel, and the packages whose constants it compiles into its functions.
_COMPILED = ("cdc.kernel", "cdc.model.bson", "cdc.model.encoding", "cdc.model.typed")


@functools.cache
def columns() -> ModuleType:
    """Load `cdc.kernel.columns`, compiled. Raises OSError if no cache folder is writable."""
    return _load("columns")


@functools.cache
def typed() -> ModuleType:
    """Load `cdc.kernel.typed.typed_columns`, compiled. Raises OSError if no cache folder is
    writable."""
    return _load("typed.typed_columns")


def _load(name: str) -> ModuleType:
    import numba

    folder = _folder(numba.__version__)
    with lock(folder), _use_cache(numba.config, folder):
        module = importlib.import_module(f"cdc.kernel.{name}")
        module.compile_all()
    freeze_objects(name)
    return module


def _folder(version: str) -> Path:
    """The cache folder for these sources and this version of numba.

    numba itself notices changes of a function's own file, but not of other files whose functions
    and constants it compiles into it.
    """
    sources = [source for package in _COMPILED for source in _sources(package)]
    digest = hashlib.sha256(b"\0".join([version.encode(), *sources])).hexdigest()[:16]
    return create_folder(digest, os.environ.get("NUMBA_CACHE_DIR"))


def _sources(package: str) -> Iterator[bytes]:
    """The sources of all modules below a package, in the order of their names; it may be in a
    zip."""
    return _sources_below(resources.files(package))


def _sources_below(folder: Traversable) -> Iterator[bytes]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _sources_below(each)
        elif each.name.endswith(".py"):
            yield each.read_bytes()


@contextmanager
def _use_cache(config: Any, folder: Path) -> Iterator[None]:
    """Set the cache folder of the functions declared meanwhile; others keep their own."""
    before = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = str(folder), "cdc.kernel.compiled.CacheLocator"
    try:
        yield
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = before


@cache
def freeze_objects(loaded: str) -> None:
    """Exclude all objects that exist now from garbage collection, in a Spark Python worker only.

    Spark's worker collects garbage after each task. With the objects of numba alone that takes
    0.1 s. Call this after loading something that stays loaded; `loaded` names it, and a second
    call with the same name does nothing. In any other process this does nothing.
    """
    if "SPARK_REUSE_WORKER" in os.environ:
        gc.collect()
        gc.freeze()
