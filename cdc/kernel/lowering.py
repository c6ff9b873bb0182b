"""Functions to LLVM's language, by the front end of numba alone.

numba would optimise each function with all that it calls, and translate it to machine code, before
it compiles the callers. So it would do the work for a function that others call many times over.
Here each function is lowered once; `cdc.kernel.compiling` optimises all of a library together.

Source: https://numba.readthedocs.io/en/stable/developer/custom_pipeline.html
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numba import types
from numba.core import cgutils, codegen, compiler, typed_passes, untyped_passes
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher

# Without `_nrt` numba counts the references to each array around each call, which takes half of the
# time. It is not needed: no compiled function makes an array, and the caller keeps those it passes.
# Without the wrappers for Python and C only the functions themselves are compiled.
_OPTIONS: Final[dict[str, Any]] = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
# Those of numba's own passes that the functions of the kernel need. The others are for closures,
# exceptions, constants that choose a type, and expressions of whole arrays.
_PASSES: Final = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
)
_NUMBERS: Final = {int: types.int64, bool: types.boolean, np.uint64: types.uint64}
# Of all functions that were lowered, and of numba's own that they call.
modules: Final = list[str]()
libraries: Final = dict[Any, None]()


class Function(CPUDispatcher):  # type: ignore[misc]
    """A function that is lowered when a caller is.

    A number is passed as the type that the parameter is annotated with. numba would make a copy of
    the function for each constant and each width of a number.
    """

    def __init__(self, function: Callable[..., Any], **options: bool) -> None:
        super().__init__(function, targetoptions=_OPTIONS | options, pipeline_class=_Pipeline)
        hints = typing.get_type_hints(function)
        self._numbers = [_NUMBERS.get(hints[name]) for name in self._compiler.pysig.parameters]

    def get_call_template(self, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        _, given = self.fold_argument_types(args, kws)
        passed = [
            types.unliteral(each) if number is None else number
            for each, number in zip(given, self._numbers, strict=True)
        ]
        return super().get_call_template(passed, {})

    def add_overload(self, cres: Any) -> None:
        """Keep what was lowered; numba would also make it callable from Python."""
        self.overloads[tuple(cres.signature.args)] = cres


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):  # type: ignore[misc]
    """Lower a function, and let others call it by its name."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = True
        state.library = _Code(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        key = object()
        state.targetctx.insert_user_function(key, state.cr.fndesc)
        state.cr = state.cr._replace(cfunc=key)
        return True


class _Code(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Keeps the module of one function."""

    def add_ir_module(self, ir_module: Any) -> None:
        modules.append(cgutils.normalize_ir_text(str(ir_module)))

    def add_linking_library(self, library: Any) -> None:
        libraries[library] = None


class _Pipeline(compiler.CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("kernel")
        for each in (*_PASSES, _Lowering, typed_passes.NoPythonBackend):
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]
