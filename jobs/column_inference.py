"""Infer typed columns of a collection from its documents, and write them into a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomlkit
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tomlkit.items import AoT

import cdc
from cdc.delta.columns import Columns, has_room
from cdc.delta.evolution import MOST_COLUMNS, families_of, main_type
from cdc.delta.layout import MATCH
from cdc.delta.typed_column import TypedColumn, path_text
from cdc.model.selection import Namespace, Selection
from cdc.source import NAME
from jobs.config import Config


@dataclass(frozen=True, slots=True)
class Inferred:
    """The columns that a collection's documents suggest besides those that are configured.

    `present`: how many of the `documents` that were read have a value for a column that is not
    null; `fitting`: how many of those fit.
    """

    namespace: Namespace
    documents: int
    columns: tuple[TypedColumn, ...]
    present: Mapping[str, int]
    fitting: Mapping[str, int]


def infer(spark: SparkSession, config: Config, namespace: Namespace, sample: int) -> Inferred:
    """From the first `sample` documents by `_id`. Of each field at the top the type that most of
    its values have; variant for objects and arrays."""
    cdc.register(spark)
    options = {
        name: value for name, value in config.source.items() if name not in ("mode", "start")
    }
    options |= {"collections": Selection.of([namespace]).text, "document.format": "variant"}
    rows = spark.read.format(NAME).options(**options).load().select("after").limit(sample).persist()
    try:
        return _inferred(rows, namespace, config.layout.of(namespace).columns)
    finally:
        rows.unpersist()


def _inferred(rows: DataFrame, namespace: Namespace, configured: Columns | None) -> Inferred:
    columns = list(configured.columns) if configured else []
    families = families_of(rows, "after", columns)
    added: list[TypedColumn] = []
    for field, found in sorted(families.items()):
        name = _name(field, [*columns, *added])
        if name is not None and len(columns) + len(added) < MOST_COLUMNS:
            added.append(TypedColumn(name, main_type(found), (field,)))
    present = {column.name: sum(families[column.path[0]].values()) for column in added}
    documents, fitting = _fitting(rows, added)
    return Inferred(namespace, documents, tuple(added), present, fitting)


def _name(field: str, columns: list[TypedColumn]) -> str | None:
    """The column's name: the field's own, or without the underscores that it begins with."""
    for name in (field, field.lstrip("_")):
        if has_room(name, columns):
            return name
    return None


def _fitting(rows: DataFrame, columns: list[TypedColumn]) -> tuple[int, dict[str, int]]:
    if not columns:
        return rows.count(), {}
    typed = Columns(tuple(columns)).select(rows, "after")
    fits = [
        F.count(F.when(~F.is_variant_null(name), 1) if column.is_variant else name)
        for column in columns
        for name in [f"`{column.name}`"]
    ]
    counts = typed.agg(F.count(F.lit(1)), *fits).collect()[0]
    return counts[0], dict(zip((column.name for column in columns), counts[1:], strict=True))


def written(text: str, inferred: Inferred) -> str:
    """The configuration with the columns in the [[override]] of the collection alone, which is
    made if need be, of what holds for it until now. All else stays as it is, comments too."""
    document = tomlkit.parse(text)
    if not inferred.columns:
        return text
    overrides = document.get("override")
    if overrides is None:
        overrides = document["override"] = tomlkit.aot()
    own = _own(overrides, inferred.namespace)
    if "columns" not in own:
        # Those of an override hold instead of those of [table], not besides.
        own["columns"] = _table(document.get("table", {}).get("columns", {}))
    for column in inferred.columns:
        own["columns"][column.name] = column_text(column)
    return tomlkit.dumps(document)


def _own(overrides: AoT, namespace: Namespace) -> Any:
    match = Selection.of([namespace]).text
    for number, override in enumerate(overrides):
        if override.get(MATCH) == match:
            return override
        if Selection.parse(override[MATCH]).matches(namespace):
            # The first that matches holds, so the new one goes before it, and says what it says.
            values = tomlkit.parse(tomlkit.dumps(override)) | {MATCH: match}
            overrides.insert(number, _table(values))
            return overrides[number]
    overrides.append(_table({MATCH: match}))
    return overrides[-1]


def _table(values: Mapping[str, Any]) -> Any:
    table = tomlkit.table()
    for name, value in values.items():
        table[name] = value
    return table


def column_text(column: TypedColumn) -> str:
    kind = column.type.simpleString()
    return kind if column.path == (column.name,) else f"{kind} from {path_text(column.path)}"
