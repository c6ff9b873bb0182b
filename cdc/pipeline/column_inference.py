"""Infer typed columns from documents and add them to a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import tomlkit
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType
from tomlkit.items import AoT

from cdc.delta.columns import Columns, TypedColumn, has_room, path_text
from cdc.delta.tables import MATCH, MOST_COLUMNS, count_families, main_type
from cdc.model import Namespace, Selection
from cdc.options import parse
from cdc.pipeline.config import Config
from cdc.source import sample_documents

# The value of a VARIANT that is null.
_NULL = b"\0"


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


def infer(config: Config, namespace: Namespace, sample: int) -> InferredColumns:
    """Infer columns from the first `sample` documents by `_id`, as of now. Does not start Spark.

    Each top-level field gets the type of most of its values; objects and arrays get variant.
    """
    given = {name: value for name, value in config.source.items() if name not in ("mode", "start")}
    options = parse(given | {"collections": Selection.of([namespace]).text})
    documents = list(sample_documents(options, sample))
    return _infer_columns(documents, namespace, config.layout.of(namespace).columns)


def _infer_columns(
    documents: Sequence[pa.StructArray], namespace: Namespace, configured: Columns | None
) -> InferredColumns:
    columns = list(configured.columns) if configured else []
    families = count_families(documents, columns)
    added: list[TypedColumn] = []
    for field, types in sorted(families.items()):
        name = _name(field, [*columns, *added])
        if name is not None and len(columns) + len(added) < MOST_COLUMNS:
            added.append(TypedColumn(name, main_type(types), (field,)))
    present = {column.name: sum(families[column.path[0]].values()) for column in added}
    fitting = _count_fitting(documents, added)
    return InferredColumns(namespace, sum(map(len, documents)), tuple(added), present, fitting)


def _name(field: str, columns: list[TypedColumn]) -> str | None:
    """The field's name, or else that name without leading underscores; None if neither is free."""
    for name in (field, field.lstrip("_")):
        if has_room(name, columns):
            return name
    return None


def _count_fitting(
    documents: Iterable[pa.StructArray], columns: Sequence[TypedColumn]
) -> dict[str, int]:
    """By column, the number of values that fit its type."""
    counts = dict.fromkeys((column.name for column in columns), 0)
    if not columns:
        return counts
    typed = Columns(tuple(columns))
    kind = to_arrow_type(StructType(typed.fields()), timezone="UTC")
    for array in documents:
        taken = typed.take(array, kind)
        for number, column in enumerate(columns):
            values = taken.field(number)
            counts[column.name] += len(values) - values.null_count
            if column.is_variant:
                counts[column.name] -= pc.sum(pc.equal(values.field(0), _NULL)).as_py() or 0
    return counts


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
