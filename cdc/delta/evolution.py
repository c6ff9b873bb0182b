"""`schema.evolution`: fields that a batch's documents have and no column takes become columns.

Only fields at the top of a document, and only those whose names a table can have; all others stay
in `_rescued`. What is rescued already stays there: a column is filled from its first batch on.
"""

from __future__ import annotations

import re

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

from cdc.delta.columns import Columns
from cdc.delta.fit import fields
from cdc.delta.target import quoted
from cdc.delta.typed_column import REFUSED, TypedColumn

# Fields that are data, such as keys of users, would grow a table without end.
MOST_COLUMNS = 1000
_MOST_DIGITS = 38
_TYPES: dict[str, DataType] = {
    "BIGINT": T.LongType(),
    "DOUBLE": T.DoubleType(),
    "STRING": T.StringType(),
    "BOOLEAN": T.BooleanType(),
    "BINARY": T.BinaryType(),
    "TIMESTAMP": T.TimestampType(),
}
_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")


def new_columns(rows: DataFrame, document: str, columns: Columns) -> list[TypedColumn]:
    """Columns for the fields of the VARIANT column `document` that none of `columns` takes, by
    name. One job of Spark.

    Their type is that of all values in `rows`, and variant where there is no one scalar type. Not
    until there is a value that is not null.
    """
    room = MOST_COLUMNS - len(columns.columns)
    found = fields_of(rows, document, columns, room) if room > 0 else {}
    grown: list[TypedColumn] = []
    for name, family in found.items():
        if family == "VOID" or not columns.has_room_for(name):
            continue
        grown.append(TypedColumn(name, type_of(family), (name,), is_evolved=True))
        columns = columns.plus(grown[-1:])
    return grown


def fields_of(rows: DataFrame, document: str, columns: Columns | None, most: int) -> dict[str, str]:
    """What Spark calls the values of each field at the top that could be a column and that none of
    `columns` takes; of `most` fields."""
    known = {column.path[0] for column in columns.columns if column.path} if columns else set()
    name = F.col("name")
    found = (
        rows.select(F.explode(F.expr(fields(quoted(document)))).alias("name", "value"))
        # The first of these keeps the stand-in of a document that cannot be mapped out, too.
        .where(~name.startswith("$") & ~name.rlike(REFUSED) & ~name.isin(*known))
        .groupBy("name")
        .agg(F.schema_of_variant_agg("value").alias("family"))
        .orderBy("name")
        .limit(most)
    )
    return {row.name: row.family for row in found.collect()}


def type_of(family: str) -> DataType:
    """The type of a column for values of a `schema_of_variant`."""
    if decimal := _DECIMAL.fullmatch(family):
        return T.DecimalType(_MOST_DIGITS, int(decimal[1]))
    return _TYPES.get(family, T.VariantType())
