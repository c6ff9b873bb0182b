"""Infer typed columns from documents and add them to a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomlkit
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tomlkit.items import AoT

from cdc.delta.columns import Columns, TypedColumn, has_room, path_text
from cdc.delta.tables import MATCH, MOST_COLUMNS, families_of, main_type
from cdc.model import Namespace, Selection
from cdc.pipeline.config import Config
from cdc.source import NAME, register


@dataclass(frozen=True, slots=True)
class InferredColumns:
    """Columns that a collection's documents suggest in addition to the configured ones.

    `documents` is the number of documents that were read. By column, `present` counts the documents
    with a value that is not null, and `fitting` the values that fit the column's type.
    """

    namespace: Namespace
    documents: int
    columns: tuple[TypedColumn, ...]
    present: Mapping[str, int]
    fitting: Mapping[str, int]


def infer(
    spark: SparkSession, config: Config, namespace: Namespace, sample: int
) -> InferredColumns:
    """Infer columns from the first `sample` documents by `_id`.

    Each top-level field gets the type of most of its values; objects and arrays get variant.
    """
    register(spark)
    options = {
        name: value for name, value in config.source.items() if name not in ("mode", "start")
    }
    options |= {"collections": Selection.of([namespace]).text, "document.format": "variant"}
    rows = spark.read.format(NAME).options(**options).load().select("after").limit(sample).persist()
    try:
        return _infer_columns(rows, namespace, config.layout.of(namespace).columns)
    finally:
        rows.unpersist()


def _infer_columns(
    rows: DataFrame, namespace: Namespace, configured: Columns | None
) -> InferredColumns:
    columns = list(configured.columns) if configured else []
    families = families_of(rows, "after", columns)
    added: list[TypedColumn] = []
    for field, types in sorted(families.items()):
        name = _name(field, [*columns, *added])
        if name is not None and len(columns) + len(added) < MOST_COLUMNS:
            added.append(TypedColumn(name, main_type(types), (field,)))
    present = {column.name: sum(families[column.path[0]].values()) for column in added}
    documents, fitting = _count_fitting(rows, added)
    return InferredColumns(namespace, documents, tuple(added), present, fitting)


def _name(field: str, columns: list[TypedColumn]) -> str | None:
    """The field's name, or else that name without leading underscores; None if neither is free."""
    for name in (field, field.lstrip("_")):
        if has_room(name, columns):
            return name
    return None


def _count_fitting(rows: DataFrame, columns: list[TypedColumn]) -> tuple[int, dict[str, int]]:
    """The number of rows, and by column the number of values that fit its type."""
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


def add_columns(text: str, inferred: InferredColumns) -> str:
    """Add columns to a configuration, in the [[override]] of this collection alone.

    A missing override is created with the settings that apply to the collection now. All other
    text stays the same, including comments.
    """
    document = tomlkit.parse(text)
    if not inferred.columns:
        return text
    overrides = document.get("override")
    if overrides is None:
        overrides = document["override"] = tomlkit.aot()
    override = _override_of(overrides, inferred.namespace)
    if "columns" not in override:
        # The columns of an override replace those of [table].
        override["columns"] = _table(document.get("table", {}).get("columns", {}))
    for column in inferred.columns:
        override["columns"][column.name] = column_text(column)
    return tomlkit.dumps(document)


def _override_of(overrides: AoT, namespace: Namespace) -> Any:
    """The override that matches this namespace alone, inserted into `overrides` if missing."""
    match = Selection.of([namespace]).text
    for number, override in enumerate(overrides):
        if override.get(MATCH) == match:
            return override
        if Selection.parse(override[MATCH]).matches(namespace):
            # The first override that matches applies: insert the new one before it, as a copy.
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
    """The column's value in the configuration, such as `string from address.city`."""
    kind = column.type.simpleString()
    return kind if column.path == (column.name,) else f"{kind} from {path_text(column.path)}"
