"""New typed columns: which fields of documents can be columns, and of what type.

For a table that grows, and for a configuration that is to be written. Only top-level fields whose
names a table can have become columns. All other fields stay in `_rescued`. Values that are already
in `_rescued` stay there: a column is filled from its first batch on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

from cdc.delta.columns import (
    REFUSED,
    Columns,
    TypedColumn,
    family_of,
    fields,
    has_room,
    is_storable,
)
from cdc.delta.sql import quoted
from cdc.delta.tables.layout import Table
from cdc.delta.tables.pipeline_tables import Tables
from cdc.delta.tables.writes import add_columns
from cdc.model.typed import list_families

# Fields that are data, such as keys of users, would grow a table without end.
MOST_COLUMNS = 1000
_MOST_DIGITS = 38
_MOST_GROUPS = 5000
_TYPES: dict[str, DataType] = {
    "STRING": T.StringType(),
    "BOOLEAN": T.BooleanType(),
    "BINARY": T.BinaryType(),
    "TIMESTAMP": T.TimestampType(),
}
_NUMBER = re.compile(r"BIGINT|DOUBLE|DECIMAL\(\d+,(\d+)\)")


def grow(spark: SparkSession, rows: DataFrame, table: Table, tables: Tables) -> None:
    """Add typed columns to a table before `rows` are written to it.

    These are the columns that were added to the configuration and, with `schema.evolution`, those
    that the documents in `rows` suggest.
    """
    columns, configured = tables.image(table).typed, table.options.columns
    if columns is None or configured is None:
        return
    names = {column.name for column in columns.columns}
    more = [column for column in configured.columns if column.name not in names]
    if table.options.evolves:
        more += new_columns(rows, "after", columns.plus(more))
    if more:
        add_columns(spark, table, tables, more)


def new_columns(rows: DataFrame, document: str, columns: Columns) -> list[TypedColumn]:
    """Return columns for the fields of the VARIANT column `document` that no column takes.

    They are sorted by name. A column gets the type of all values in `rows`, and variant if no
    scalar type takes them. A field gets no column before it has a value that is not null. One Spark
    job.
    """
    grown: list[TypedColumn] = []
    for name, families in sorted(families_of(rows, document, columns.columns).items()):
        there = [*columns.columns, *grown]
        if len(there) < MOST_COLUMNS and has_room(name, there):
            grown.append(TypedColumn(name, type_of(families), (name,), is_evolved=True))
    return grown


def families_of(
    rows: DataFrame, document: str, columns: Iterable[TypedColumn]
) -> dict[str, Counter[str]]:
    """Count the values of each field by family.

    Families are BIGINT, DOUBLE, DECIMAL(digits,scale), STRING, OBJECT, ARRAY …. Only top-level
    fields that none of `columns` takes, and only values that are not null.
    """
    known = {column.path[0] for column in columns if column.path}
    name = F.col("name")
    groups = (
        rows.select(F.explode(F.expr(fields(quoted(document)))).alias("name", "value"))
        # The first of these keeps the placeholder of a document that cannot be mapped out, too.
        .where(~name.startswith("$") & ~name.rlike(REFUSED) & ~name.isin(*known))
        .select(name, F.split_part(F.expr(family_of("value")), F.lit("<"), F.lit(1)).alias("of"))
        .where(F.col("of") != "VOID")
        .groupBy("name", "of")
        .agg(F.count(F.lit(1)).alias("values"))
        .orderBy(F.desc("values"), "name", "of")
        .limit(_MOST_GROUPS)
    )
    return _by_name((row.name, row.of, row["values"]) for row in groups.collect())


def count_families(
    documents: Iterable[pa.StructArray], columns: Iterable[TypedColumn]
) -> dict[str, Counter[str]]:
    """Count like `families_of`, in VARIANTs of this process and without Spark."""
    known = {column.path[0] for column in columns if column.path}
    counts = Counter[tuple[str, str]]()
    for array in documents:
        for document in array.to_pylist():
            counts.update(list_families(document["value"], document["metadata"]))
    groups = sorted(
        (-count, name, family)
        for (name, family), count in counts.items()
        if is_storable(name) and not name.startswith("$") and name not in known
    )
    return _by_name((name, family, -count) for count, name, family in groups[:_MOST_GROUPS])


def _by_name(groups: Iterable[tuple[str, str, int]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for name, family, count in groups:
        found.setdefault(name, Counter())[family] = count
    return found


def type_of(families: Iterable[str]) -> DataType:
    """The type of a column that takes values of all these families; variant if no scalar does."""
    families = set(families)
    numbers = [_NUMBER.fullmatch(family) for family in families]
    if not all(numbers):
        return _TYPES.get(min(families), T.VariantType()) if len(families) == 1 else T.VariantType()
    if "DOUBLE" in families:
        return T.DoubleType()
    scales = [int(number[1]) for number in numbers if number and number[1]]
    return T.DecimalType(_MOST_DIGITS, max(scales)) if scales else T.LongType()


def main_type(families: Mapping[str, int]) -> DataType:
    """The type of most of the values. All kinds of numbers count together."""
    counts: Counter[str] = Counter()
    for family, count in families.items():
        counts["" if _NUMBER.fullmatch(family) else family] += count
    most = min(counts, key=lambda family: (-counts[family], family))
    return type_of(
        [family for family in families if not most and _NUMBER.fullmatch(family)] or [most]
    )
