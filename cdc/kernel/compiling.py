"""Compile a library of the kernel into a file: `python -m cdc.kernel.compiling FILE LIBRARY`.

This is a program of its own because numba and what it compiles take 250 MB, which a Spark worker
would never give back.
"""

from __future__ import annotations

import gc
import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core.compiler_lock import global_compiler_lock

from cdc.kernel import compiled, lowering
from cdc.kernel.loading import LIBRARIES, Library, write_library


@global_compiler_lock  # type: ignore[untyped-decorator]
def main(file: str, library: str) -> None:
    gc.disable()  # this process ends soon; to look for its garbage takes a tenth of its time
    names = LIBRARIES[library]
    compiled.compile_part = lowering.Function
    compiled.compile_hot = partial(lowering.Function, forceinline=True)
    for module in names:
        importlib.import_module(module)
    own = [each for each in compiled.entries.values() if each.module in names]
    symbols = {each.name: _lower(each) for each in own}
    write_library(Path(file), Library(symbols, _machine_code(set(symbols.values()))))


def _lower(entry: compiled.Entry) -> str:
    """Lower an entry and all that it calls; return its symbol."""
    dispatcher: Any = entry.function
    dispatcher.compile(tuple(map(_numba_type, entry.parameters)))
    [found] = dispatcher.overloads.values()
    returned = found.signature.return_type
    if str(returned) not in ("none", "int64", "UniTuple(int64 x 2)"):
        raise TypeError(f"{entry.name} returns {returned}.")
    return str(found.fndesc.llvm_func_name)


def _numba_type(parameter: Any) -> Any:
    if isinstance(parameter, type):
        return numba.int64 if parameter is int else numba.boolean
    kind, dimensions = parameter
    return numba.types.Array(numba.from_dtype(kind), dimensions, "C")


def _machine_code(symbols: set[str]) -> bytes:
    """Optimise all that was lowered as one module, and return it as an object file."""
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        # What MCJIT, which loads the code, needs on x86.
        reloc="static",
        codemodel="jitdefault",
        jit=True,
    )
    whole = llvm.parse_assembly("")
    whole.triple, whole.data_layout = target.triple, str(target.target_data)
    for text in lowering.modules:
        whole.link_in(llvm.parse_assembly(text))
    for library in lowering.libraries:
        whole.link_in(library._get_module_for_linking(), preserve=True)
    for function in whole.functions:
        # What nobody else calls may go into its callers, or lose parameters that it does not use.
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"
    whole.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(target, options)
    passes.getModulePassManager().run(whole, passes)
    return bytes(target.emit_object(whole))


if __name__ == "__main__":
    main(*sys.argv[1:])
