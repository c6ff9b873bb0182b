"""Imports point down only, and reach a package by what its `__init__` exports."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

# What each package, or module that stands alone, may import besides the standard library and
# `cdc.errors`. A package comes after all that it may import, so there is no cycle.
LAYERS: dict[str, set[str]] = {
    "cdc.errors": set(),
    "cdc.logs": set(),
    "cdc.file_lock": set(),
    "cdc.private_cache": set(),
    "cdc.forked_python": set(),
    "cdc.fork_server": {"cdc.forked_python"},
    "cdc.secrets": set(),
    "cdc.terminal": {"rich", "cdc.logs"},
    "cdc.shutdown": {"cdc.logs"},
    "cdc.model.bson": {"bson"},
    "cdc.model.encoding": {"bson", "cdc.model.bson"},
    "cdc.model.typed": {"numpy", "cdc.model.encoding"},
    "cdc.model.keystring": {"bson", "cdc.model.bson"},
    "cdc.model": {"bson", "cdc.model.bson", "cdc.model.encoding", "cdc.model.keystring"},
    "cdc.model.oplog": {"bson", "cdc.model", "cdc.model.bson"},
    "cdc.options": {"cdc.model"},
    "cdc.kernel": {
        *("llvmlite", "numba", "numpy", "pyarrow"),
        *("cdc.file_lock", "cdc.private_cache"),
        *("cdc.model.bson", "cdc.model.encoding", "cdc.model.typed"),
    },
    "cdc.mongo.connection": {
        *("bson", "dns", "pymongo", "tenacity"),
        *("cdc.kernel", "cdc.model", "cdc.model.bson", "cdc.secrets"),
    },
    "cdc.mongo.query": {"bson", "cdc.model", "cdc.model.bson"},
    "cdc.mongo.collections": {"bson", "pymongo", "cdc.model", "cdc.mongo.connection"},
    "cdc.mongo.topology": {
        *("bson", "pymongo", "cdc.model"),
        *("cdc.mongo.connection", "cdc.mongo.collections", "cdc.mongo.query"),
    },
    "cdc.mongo.read": {
        *("bson", "numpy", "pymongo", "cdc.kernel", "cdc.model", "cdc.model.bson"),
        "cdc.model.oplog",
        *("cdc.mongo.connection", "cdc.mongo.collections", "cdc.mongo.query"),
        "cdc.mongo.topology",
    },
    "cdc.mongo.plan": {
        *("bson", "pymongo", "cdc.model"),
        *("cdc.mongo.connection", "cdc.mongo.collections", "cdc.mongo.query"),
        *("cdc.mongo.topology", "cdc.mongo.read"),
    },
    "cdc.mongo.inspect": {
        *("bson", "pymongo", "cdc.model"),
        *("cdc.mongo.connection", "cdc.mongo.collections", "cdc.mongo.query"),
        *("cdc.mongo.topology", "cdc.mongo.read", "cdc.mongo.plan"),
    },
    "cdc.mongo.destination": {
        *("bson", "pymongo", "cdc.model", "cdc.model.bson", "cdc.mongo.connection"),
    },
    "cdc.arrow": {
        *("numpy", "pyarrow"),
        *("cdc.kernel", "cdc.model", "cdc.model.encoding", "cdc.model.typed"),
    },
    "cdc.tasks": {
        *("bson", "numpy", "pyarrow"),
        *("cdc.arrow", "cdc.kernel", "cdc.model", "cdc.model.bson", "cdc.model.encoding"),
        *("cdc.options", "cdc.secrets"),
        *("cdc.mongo.connection", "cdc.mongo.topology", "cdc.mongo.read"),
    },
    "cdc.source": {
        *("bson", "pyarrow", "pyspark"),
        *("cdc.kernel", "cdc.logs", "cdc.model", "cdc.options", "cdc.secrets", "cdc.shutdown"),
        "cdc.tasks",
        *("cdc.mongo.connection", "cdc.mongo.collections", "cdc.mongo.topology"),
        *("cdc.mongo.plan", "cdc.mongo.inspect", "cdc.mongo.query"),
    },
    "cdc.delta.sql": set(),
    "cdc.delta.columns": {
        "pyarrow",
        "pyspark",
        "cdc.arrow",
        "cdc.model",
        "cdc.model.typed",
        "cdc.delta.sql",
    },
    "cdc.delta.log": {
        *("delta", "deltalake", "py4j", "pyarrow", "pyroaring", "pyspark", "tenacity"),
        *("cdc.model", "cdc.tasks", "cdc.delta.sql"),
    },
    "cdc.delta.tables": {
        *("pyarrow", "pyspark", "cdc.model", "cdc.model.typed", "cdc.options", "cdc.tasks"),
        *("cdc.delta.columns", "cdc.delta.log", "cdc.delta.sql"),
    },
    "cdc.delta.landing": {
        *("pyarrow", "pyspark", "cdc.model", "cdc.model.encoding", "cdc.options"),
        *("cdc.source", "cdc.tasks", "cdc.delta.columns", "cdc.delta.log", "cdc.delta.tables"),
    },
    "cdc.delta.landing_source": {"pyspark", "cdc.delta.landing"},
    "cdc.delta.followers": {
        *("delta", "numpy", "py4j", "pyarrow", "pyroaring", "pyspark", "cdc.model", "cdc.tasks"),
        *("cdc.delta.columns", "cdc.delta.landing", "cdc.delta.log", "cdc.delta.sql"),
        "cdc.delta.tables",
    },
    "cdc.delta.sink": {
        *("pyspark", "cdc.model"),
        *("cdc.delta.followers", "cdc.delta.landing", "cdc.delta.log", "cdc.delta.tables"),
    },
    "cdc.delta.reading": {
        *("bson", "pyspark", "cdc.model", "cdc.model.bson", "cdc.model.encoding"),
        *("cdc.delta.columns", "cdc.delta.followers", "cdc.delta.landing", "cdc.delta.log"),
        "cdc.delta.tables",
    },
    "cdc.delta.maintenance": {
        *("deltalake", "py4j", "pyspark", "cdc.model", "cdc.model.encoding"),
        *("cdc.delta.columns", "cdc.delta.followers", "cdc.delta.landing", "cdc.delta.log"),
        *("cdc.delta.sql", "cdc.delta.tables"),
    },
    "cdc.checkpoint": {"py4j", "pyspark", "cdc.file_lock", "cdc.model", "cdc.tasks"},
    "cdc.pipeline": {
        *(
            "bson",
            "delta",
            "py4j",
            "pyarrow",
            "pyspark",
            "tomlkit",
            "cdc.fork_server",
            "cdc.checkpoint",
            "cdc.file_lock",
            "cdc.private_cache",
            "cdc.logs",
        ),
        *("cdc.kernel", "cdc.model", "cdc.options", "cdc.shutdown", "cdc.source", "cdc.tasks"),
        *("cdc.mongo.connection", "cdc.mongo.destination", "cdc.mongo.inspect"),
        *("cdc.mongo.topology", "cdc.delta.landing_source"),
        *("cdc.delta.columns", "cdc.delta.followers", "cdc.delta.landing", "cdc.delta.log"),
        *("cdc.delta.maintenance", "cdc.delta.reading", "cdc.delta.sink", "cdc.delta.tables"),
    },
    "cdc.monitoring": {
        *("deltalake", "pyarrow", "pyspark", "rich"),
        *("cdc.checkpoint", "cdc.delta.followers", "cdc.delta.landing", "cdc.delta.sink"),
        *("cdc.delta.log", "cdc.delta.tables", "cdc.logs", "cdc.model"),
        *("cdc.mongo.inspect", "cdc.options", "cdc.pipeline", "cdc.shutdown", "cdc.source"),
        "cdc.tasks",
    },
    "cdc.monitoring.prometheus": {
        "prometheus_client",
        *("cdc.delta.landing", "cdc.model", "cdc.mongo.inspect", "cdc.monitoring", "cdc.pipeline"),
    },
    "cdc.api": {
        *(
            "bson",
            "pyspark",
            "cdc.checkpoint",
            "cdc.delta.followers",
            "cdc.delta.log",
            "cdc.delta.reading",
            "cdc.delta.sink",
            "cdc.model",
        ),
        *("cdc.mongo.inspect", "cdc.monitoring", "cdc.pipeline", "cdc.source"),
    },
    "cdc": {"pyspark", "cdc.api", "cdc.pipeline", "cdc.source"},
    "cdc.demo": {"bson", "pymongo", "cdc.model", "cdc.mongo.connection", "cdc.shutdown"},
    "cdc.cli": {
        *(
            "click",
            "tomlkit",
            "pyspark",
            "rich",
            "cdc.terminal",
            "cdc.api",
            "cdc.checkpoint",
            "cdc.demo",
            "cdc.logs",
            "cdc.model",
        ),
        *("cdc.monitoring", "cdc.monitoring.prometheus", "cdc.mongo.inspect"),
        *("cdc.mongo.connection", "cdc.options", "cdc.pipeline", "cdc.shutdown", "cdc.source"),
        *("cdc.delta.columns", "cdc.delta.followers", "cdc.delta.maintenance"),
        *("cdc.delta.sink", "cdc.delta.tables"),
    },
    "cdc.airflow": {"airflow", "cdc.cli"},
}
# Packages without a line of their own belong to the one that they lie in.
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.glob("cdc/**/*.py"))
}
_MOST_MODULES = 14
_SHORT, _MOST_SHORT = 50, 15


@cache
def package_of(module: str) -> str:
    """The longest name of `LAYERS` that the module has or lies in; "" if there is none."""
    return max((name for name in LAYERS if module in (name, *_below(name, module))), default="")


def _below(name: str, module: str) -> list[str]:
    return [module] if name != "cdc" and module.startswith(f"{name}.") else []


def test_modules_import_only_from_the_layers_below_them() -> None:
    wrong = {module: names for module in MODULES if (names := wrongly_imported(module))}
    assert wrong == {}


def wrongly_imported(module: str) -> set[str]:
    own = package_of(module)
    assert own or not imports(MODULES[module]), f"{module} belongs to no layer"
    allowed = LAYERS[own] | {own, "cdc.errors"} if own else set()
    found = {package_of(name) if known(name) else name.partition(".")[0] for name in seen(module)}
    return found - allowed - sys.stdlib_module_names


def test_the_layers_are_in_the_order_of_their_imports() -> None:
    order = list(LAYERS)
    for number, (name, below) in enumerate(LAYERS.items()):
        assert {each for each in below if each in LAYERS} <= set(order[:number]), name


def test_modules_import_from_another_package_only_what_that_exports() -> None:
    assert {module: names for module in MODULES if (names := hidden_imports(module))} == {}


def hidden_imports(module: str) -> set[str]:
    inner = {
        name
        for name in seen(module)
        if known(name) and package_of(name) != package_of(module) and name not in LAYERS
    }
    # A module is exported like a class: its name stands in `__all__`.
    return {name for name in inner if name.rpartition(".")[2] not in exported(name)}


@cache
def exported(name: str) -> set[str]:
    """What the `__init__` of the package around a module lists in `__all__`, if it is that
    package's module itself, not one of a package within."""
    around = name.rpartition(".")[0]
    if around not in LAYERS:
        return set()
    for node in ast.parse(MODULES[around].read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_nobody_but_the_topology_chooses_by_the_kind_of_a_source() -> None:
    """Others pass `shards.direct` on, or ask the source."""
    choosing = {
        module
        for module, path in MODULES.items()
        if not module.startswith(("cdc.mongo.topology.", "cdc.options."))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.If | ast.IfExp | ast.BoolOp | ast.UnaryOp)
        and "shards_direct" in ast.unparse(getattr(node, "test", node))
    }
    assert choosing == set()


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    folders: dict[Path, int] = {}
    for path in MODULES.values():
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
    assert {folder.name for folder, count in folders.items() if count > _MOST_MODULES} == set()


def test_few_modules_are_so_short_that_a_reader_hops() -> None:
    paths = [path for path in MODULES.values() if path.name != "__init__.py"]
    short = [path for path in paths if len(path.read_text().splitlines()) < _SHORT]
    assert len(short) < _MOST_SHORT, sorted(str(path.relative_to(ROOT)) for path in short)


def seen(module: str) -> frozenset[str]:
    return imports(MODULES[module])


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that the file imports anywhere, in functions and for types too.

    `from a import b` counts as `a.b` if that is a module of ours, else as `a`.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its layer"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if known(name) else str(node.module) for name in inner}
    return frozenset(names)


def known(name: str) -> bool:
    """Whether a module of that name is ours."""
    return name in MODULES
