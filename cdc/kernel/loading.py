"""The compiled functions of this package, loaded at first use.

A library is the machine code of the entries of some modules. A process of its own compiles it, see
`cdc.kernel.compiling`; LLVM loads it without numba in a tenth of a second. The library is
stored for these sources, this compiler and this kind of processor. If several processes of a
machine need one at the same time, one compiles and the others wait, even if they load the sources
from different places. The folder is in `NUMBA_CACHE_DIR` if that is set and writable, otherwise
where `cdc.private_cache` puts it.

A library that is in a folder of modules (`sys.path`) is loaded from there. That is where Spark puts
the files of a job: executors on machines like the driver's compile nothing.
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
from typing import Any, NamedTuple
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
        "cdc.kernel.typed.lists",
        "cdc.kernel.typed.rescued",
        "cdc.kernel.variant.variant_dictionary",
    ),
}
# With this setting of numba each access is checked; for tests.
_BOUNDS = "NUMBA_BOUNDSCHECK"
# Of this process: LLVM loads one library at a time.
_loading = threading.RLock()


class Library(NamedTuple):
    """An object file, and the symbol in it of each entry."""

    symbols: dict[str, str]
    code: bytes


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

    symbols, code = _find(name)
    modules = [importlib.import_module(module) for module in LIBRARIES[name]]
    engine = _engine(llvm)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    for entry, symbol in symbols.items():
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


def stored_libraries() -> list[Path]:
    """The libraries that this machine has compiled. Their names are different for each processor,
    compiler and state of the sources, so all of them may be given to any machine."""
    digest = _own_digest()
    try:
        folder = _folder(digest)
    except OSError:
        return []  # no cache folder is writable, so nothing was compiled
    files = (folder / _file_name(name, digest) for name in LIBRARIES)
    return [file for file in files if file.exists()]


def library(name: str) -> Path:
    """The file of a library, which may not exist. Raises OSError if no cache folder is writable."""
    digest = _own_digest()
    return _folder(digest) / _file_name(name, digest)


def _find(name: str) -> Library:
    """Read a library that came with the job, or was compiled here; compile it otherwise."""
    digest = _own_digest()
    file_name = _file_name(name, digest)
    for folder in sys.path:
        stored = _read(Path(folder, file_name))
        if stored is not None:
            return stored
    file = _folder(digest) / file_name
    with lock(file.parent):
        stored = _read(file)
        if stored is None:
            _compile(file, name)
            stored = _read(file)
    if stored is None:
        raise RuntimeError(f"{file} was changed after it was written.")
    return stored


def _read(file: Path) -> Library | None:
    """The content of a library; None if there is none, or if it is damaged."""
    if not os.access(file, os.R_OK):
        return None
    digest, _, content = file.read_text().partition("\n")
    if digest != hashlib.sha256(content.encode()).hexdigest():
        return None
    stored = json.loads(content)
    return Library(stored["symbols"], base64.b64decode(stored["code"]))


def write_library(file: Path, stored: Library) -> None:
    """Write a library that `_read` accepts; a reader finds all of it or none."""
    code = base64.b64encode(stored.code).decode()
    content = json.dumps({"symbols": stored.symbols, "code": code})
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
    # numba formats an error for each type of an operand that it tries in vain.
    environment["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"The encoders cannot be compiled:\n{ended.stderr[-4000:]}")


def _processor() -> str:
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"


def _own_digest() -> str:
    """The digest for this machine. It reads all sources."""
    return _digest(version("numba"), _processor())


def _digest(numba: str, processor: str) -> str:
    """What names these sources, this version of numba and this processor."""
    sources = [source for package in _COMPILED for source in _sources(package)]
    if not sources:
        raise RuntimeError("The sources of cdc.kernel are not there.")
    parts = numba.encode(), processor.encode(), os.environ.get(_BOUNDS, "0").encode(), *sources
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _folder(digest: str) -> Path:
    return create_folder(digest, os.environ.get("NUMBA_CACHE_DIR"))


def _file_name(name: str, digest: str) -> str:
    return f"mongodb-cdc-{name}-{digest}.json"


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
