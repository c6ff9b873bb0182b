"""The compiled functions of this package, loaded at first use.

A library is the machine code of the entries of some modules. A process of its own compiles it, see
`cdc.kernel.compiling`; LLVM loads it without numba in a tenth of a second. The library is
stored for these sources, this compiler and this kind of processor. If several processes of a
machine need one at the same time, one compiles and the others wait, even if they load the sources
from different places. The folder is in `NUMBA_CACHE_DIR` if that is set and writable, otherwise
where `cdc.private_cache` puts it.
"""

from __future__ import annotations

import base64
import functools
import gc
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from cdc.file_lock import lock
from cdc.private_cache import create_folder

# The kernel, and the packages whose constants it compiles into its functions.
_COMPILED = ("cdc.kernel", "cdc.model.bson", "cdc.model.encoding", "cdc.model.typed")
# The modules of each library. Callers use the first one, and what it names in `__all__`.
LIBRARIES = {
    "columns": ("cdc.kernel.columns", "cdc.kernel.bson.change_events"),
    "oplog": ("cdc.kernel.oplog.events", "cdc.kernel.oplog.operations"),
    "typed": (
        "cdc.kernel.typed.typed_columns",
        "cdc.kernel.typed.casts",
        "cdc.kernel.typed.rescued",
        "cdc.kernel.variant.variant_dictionary",
    ),
}
# With this setting of numba each access is checked; for tests.
_BOUNDS = "NUMBA_BOUNDSCHECK"
# Of this process: LLVM loads one library at a time.
_loading = threading.RLock()


def columns() -> ModuleType:
    """Load `cdc.kernel.columns`, compiled. Raises OSError if no cache folder is writable."""
    with _loading:
        return _load("columns")


def oplog() -> ModuleType:
    """Load `cdc.kernel.oplog.events`, compiled. Raises OSError if no cache folder is writable."""
    with _loading:
        return _load("oplog")


def typed() -> ModuleType:
    """Load `cdc.kernel.typed.typed_columns`, compiled. Raises OSError if no cache folder is
    writable."""
    with _loading:
        _load("columns")
        return _load("typed")


@functools.cache
def _load(name: str) -> ModuleType:
    import llvmlite.binding as llvm

    from cdc.kernel import compiled

    file = library(name)
    with lock(file.parent):
        stored = _read(file)
        if stored is None:
            _compile(file, name)
            stored = _read(file)
    if stored is None:
        raise RuntimeError(f"{file} was changed after it was written.")
    modules = [importlib.import_module(module) for module in LIBRARIES[name]]
    engine = _engine(llvm)
    for _, code in stored.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(base64.b64decode(code)))
    engine.finalize_object()
    for entry, (symbol, _) in stored.items():
        compiled.entries[entry].load(engine.get_function_address(symbol))
    freeze_objects(name)
    return modules[0]


@functools.cache
def _engine(llvm: Any) -> Any:
    """What loads machine code. It owns the code, so it is never freed."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def library(name: str) -> Path:
    """The file of a library, which may not exist. Raises OSError if no cache folder is writable."""
    import llvmlite.binding as llvm

    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    return _folder(version("numba"), processor) / f"{name}.json"


def _read(file: Path) -> dict[str, tuple[str, str]] | None:
    """The content of a library; None if there is none, or if it is damaged."""
    if not file.exists():
        return None
    digest, _, content = file.read_text().partition("\n")
    if digest != hashlib.sha256(content.encode()).hexdigest():
        return None
    stored: dict[str, tuple[str, str]] = json.loads(content)
    return stored


def write_library(file: Path, content: str) -> None:
    """Write a library that `_read` accepts; a reader finds all of it or none."""
    written = file.with_name(f"{uuid4()}.part")
    try:
        with written.open("w") as stream:
            stream.write(f"{hashlib.sha256(content.encode()).hexdigest()}\n{content}")
            stream.flush()
            os.fsync(stream.fileno())
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def _compile(file: Path, name: str) -> None:
    """Compile a library. Raises RuntimeError with what the compiler printed if it fails."""
    command = [sys.executable, "-P", "-m", "cdc.kernel.compiling", str(file), name]
    # Settings of numba that change the code are not part of the file's name.
    environment = {n: value for n, value in os.environ.items() if not n.startswith("NUMBA_")}
    environment[_BOUNDS] = os.environ.get(_BOUNDS, "0")
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"The encoders cannot be compiled:\n{ended.stderr[-4000:]}")


def _folder(numba: str, processor: str) -> Path:
    """The folder for these sources, this version of numba and this processor."""
    sources = [source for package in _COMPILED for source in _sources(package)]
    if not sources:
        raise RuntimeError("The sources of cdc.kernel are not there.")
    parts = numba.encode(), processor.encode(), os.environ.get(_BOUNDS, "0").encode(), *sources
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
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
