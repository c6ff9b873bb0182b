"""Compile a library of the kernel into a file: `python -m cdc.kernel.compiling FILE LIBRARY`.

This is a program of its own because numba and what it compiles take 250 MB, which a Spark worker
would never give back. The result is one JSON file: for each entry its symbol, and an object file of
it and of all that it calls, in base64.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numba

from cdc.kernel import compiled
from cdc.kernel.loading import LIBRARIES, write_library

# Without `_nrt` numba counts the references to each array around each call, which takes half of the
# time. It is not needed: no compiled function makes an array, and the caller keeps those it passes.
# Without the wrappers for Python and C only the functions themselves are compiled.
_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def main(file: str, library: str) -> None:
    modules = LIBRARIES[library]
    compiled.compile_part = numba.njit(**_OPTIONS)
    compiled.compile_hot = numba.njit(forceinline=True, **_OPTIONS)
    for module in modules:
        importlib.import_module(module)
    own = [each for each in compiled.entries.values() if each.module in modules]
    content = json.dumps({each.name: _compile(each) for each in own})
    write_library(Path(file), content)


def _compile(entry: compiled.Entry) -> tuple[str, str]:
    """Return the symbol of an entry and its object file."""
    dispatcher: Any = entry.function
    dispatcher.compile(tuple(map(_numba_type, entry.parameters)))
    [found] = dispatcher.overloads.values()
    returned = found.signature.return_type
    if str(returned) not in ("none", "int64", "UniTuple(int64 x 2)"):
        raise TypeError(f"{entry.name} returns {returned}.")
    code = found.library._get_compiled_object()
    return found.fndesc.llvm_func_name, base64.b64encode(code).decode()


def _numba_type(parameter: Any) -> Any:
    if isinstance(parameter, type):
        return numba.int64 if parameter is int else numba.boolean
    kind, dimensions = parameter
    return numba.types.Array(numba.from_dtype(kind), dimensions, "C")


if __name__ == "__main__":
    main(*sys.argv[1:])
