"""Imports point down only: jobs → source → mongo → model, jobs → delta → model."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

# What a layer may import besides the standard library and itself.
LAYERS = {
    "cdc.errors": set[str](),
    "cdc.options": {"cdc.model", "cdc.errors"},
    "cdc.model": {"bson", "numpy", "cdc.errors"},
    "cdc.locked": set[str](),
    "cdc.logs": set[str](),
    "cdc.kernel": {"numba", "numpy", "cdc.locked", "cdc.model", "cdc.errors"},
    "cdc.mongo": {
        *("bson", "dns", "numpy", "pymongo", "tenacity"),
        *("cdc.kernel", "cdc.model", "cdc.errors"),
    },
    "cdc.arrow": {"numpy", "pyarrow", "cdc.kernel", "cdc.model"},
    "cdc.batches": {
        *("bson", "numpy", "pyarrow"),
        *("cdc.arrow", "cdc.mongo", "cdc.kernel", "cdc.model", "cdc.options"),
    },
    "cdc.ahead": set[str](),
    "cdc.task": {
        *("bson", "pyarrow"),
        *("cdc.ahead", "cdc.batches", "cdc.mongo", "cdc.model", "cdc.options", "cdc.errors"),
    },
    "cdc.source": {
        *("bson", "pyarrow", "pyspark"),
        *(
            "cdc.task",
            "cdc.kernel",
            "cdc.logs",
            "cdc.mongo",
            "cdc.model",
            "cdc.options",
            "cdc.errors",
        ),
    },
    "cdc.delta": {
        *("pyspark", "delta", "tenacity"),
        *("cdc.arrow", "cdc.model", "cdc.errors"),
    },
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.glob("cdc/**/*.py"))
}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"cdc"}))
def test_a_module_imports_only_from_the_layers_below_it(module: str) -> None:
    layer = ".".join(module.split(".")[:2])
    allowed = LAYERS[layer] | {layer} | sys.stdlib_module_names
    above = {name for name in imports(MODULES[module]) if not allowed & prefixes(name)}
    assert above == set()


def test_the_package_knows_nothing_of_the_programs_around_it() -> None:
    found = {
        prefix for path in MODULES.values() for name in imports(path) for prefix in prefixes(name)
    }
    assert "jobs" not in found


def test_nothing_is_declared_as_a_dependency_that_nothing_imports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {Requirement(each).name for each in project["dependencies"]}
    provided, used = packages_distributions(), set[str]()
    for path in (*ROOT.glob("cdc/**/*.py"), *ROOT.glob("jobs/**/*.py")):
        for name in imports(path):
            found = provided.get(name.partition(".")[0], ())
            used.update(each.replace("_", "-") for each in found)
    # PySpark imports pandas itself, wherever Arrow is used.
    assert declared - used == {"pandas"}


def imports(path: Path) -> set[str]:
    """Every module that the file imports anywhere, in functions and for types too.

    `from a import b` counts as `a.b` if that is a module of ours, else as `a`: what is imported
    from the package `cdc` itself is judged by where it lives.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its layer"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if known(name) else str(node.module) for name in inner}
    return names


def known(name: str) -> bool:
    """Whether a module of that name is, or by the rules above could be, ours."""
    return name in MODULES or name in LAYERS


def prefixes(name: str) -> set[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}
