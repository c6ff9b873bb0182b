"""What a mutation is, and how a process of the job gets it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

# The name of the mutation, and the file that shows that its defect was executed.
NAME, MARK = "CDC_TESTS_MUTATION", "CDC_TESTS_MUTATION_MARK"
SINGLE, SHARDS, MANY = "one member", "two shards", "two shards with many documents"
OPLOG, STREAM = "oplog", "change_stream"
_DEFINED_BY = ("reading", "copying", "landing", "following")

# Patches a module; calls the second argument where the defect has an effect.
Patch = Callable[[Any, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a mutation needs to have an effect.

    Attributes:
        source: the servers.
        read_by: the option of this name.
        options: more options of the pipeline.
        faults: kinds of disturbances of the job that befall it, one after the other, once it
            streams. Each start of the job is one with a backlog.
        failing: how the server fails commands of the job until the faults are over, as the data of
            `failCommand` and its `mode`.
        keeps_orphans: shards keep the documents that they gave away.
        reads_live: another process with the mutation reads the live view; the mirror lags then.
    """

    source: str = SINGLE
    read_by: str = OPLOG
    options: Sequence[str] = ()
    faults: Sequence[str] = ()
    failing: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    keeps_orphans: bool = False
    reads_live: bool = False


@dataclass(frozen=True, slots=True)
class Mutation:
    """A defect. `module` is patched by `patch`; `breaks` is the rule that it breaks."""

    module: str
    breaks: str
    patch: Patch
    scene: Scene


MUTATIONS: dict[str, Mutation] = {}


def mutation(module: str, breaks: str, **scene: Any) -> Callable[[Patch], Patch]:
    """Registers a patch under its name."""

    def register(patch: Patch) -> Patch:
        name = patch.__name__.replace("_", " ")  # type: ignore[attr-defined]
        MUTATIONS[name] = Mutation(module, breaks, patch, Scene(**scene))
        return patch

    return register


def environment(name: str, mark: Path, root: Path) -> dict[str, str]:
    """The variables that give a program, whose code is below `root`, a mutation."""
    inject = Path(__file__).parent / "inject"
    return {NAME: name, MARK: str(mark), "PYTHONPATH": f"{inject}{os.pathsep}{root}"}


def install() -> None:
    """Give this process the mutation of its environment, as soon as the module is imported."""
    chosen = MUTATIONS[os.environ[NAME]]

    def mark() -> None:
        Path(os.environ[MARK]).touch()

    sys.meta_path.insert(0, _Patching(chosen, mark))  # type: ignore[arg-type]


class _Patching:
    """Patches the module before anybody has imported a name from it."""

    def __init__(self, chosen: Mutation, mark: Callable[[], None]) -> None:
        self._chosen, self._mark = chosen, mark

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._chosen.module:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._chosen.patch(module, self._mark)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


for _module in _DEFINED_BY:
    importlib.import_module(f"tests.end_to_end.mutations.{_module}")
