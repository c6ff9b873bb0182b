"""The columns of the source, and the schema that a user may set for a read."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from cdc.errors import BadOption

_DOCUMENT_TYPES: dict[str, DataType] = {
    "variant": VariantType(),
    "json": StringType(),
    "bson": BinaryType(),
}
_TEXT = StringType()
_TRANSACTION = StructType(
    [
        StructField("lsid", _TEXT),
        StructField("number", LongType()),
        StructField("shard", _TEXT),
    ]
)


class SourceColumn(NamedTuple):
    """A column. `kind` None is the type of a document; `comment` is what Spark shows for it."""

    name: str
    kind: DataType | None
    comment: str
    is_nullable: bool = True


COLUMNS = (
    SourceColumn(
        "op",
        _TEXT,
        "read (snapshot), insert, update, replace, delete, an event of DDL, or a control row",
        is_nullable=False,
    ),
    SourceColumn(
        "position",
        _TEXT,
        "Total order of all rows: the resume token of the event; unique together with key",
        is_nullable=False,
    ),
    SourceColumn(
        "cluster_time",
        TimestampType(),
        "Second of the cluster time of the event, or of the snapshot",
        is_nullable=False,
    ),
    SourceColumn("cluster_inc", IntegerType(), "Increment within that second", is_nullable=False),
    SourceColumn("wall_time", TimestampType(), "Clock of the server at the event"),
    SourceColumn("db", _TEXT, "Database"),
    SourceColumn("coll", _TEXT, "Collection"),
    SourceColumn("key", _TEXT, "_id as text; equal exactly when the server holds two _ids equal"),
    SourceColumn("document_key", _TEXT, "Shard key and _id in canonical Extended JSON"),
    SourceColumn("before", None, "Document before the change"),
    SourceColumn("after", None, "Document after the change, or as it was copied"),
    SourceColumn("update_description", _TEXT, "JSON of updated and removed fields"),
    SourceColumn("txn", _TRANSACTION, "Session and number of a transaction, and the shard"),
    SourceColumn("description", _TEXT, "JSON of DDL and of control rows"),
    SourceColumn(
        "exact",
        BooleanType(),
        "False if an image is missing or was read later than the event",
        is_nullable=False,
    ),
)


def row_schema(document_format: str) -> StructType:
    """Return the columns of the source; docs/tables/changelog.md describes them."""
    document = _DOCUMENT_TYPES[document_format]
    return StructType(
        [
            StructField(
                each.name, each.kind or document, each.is_nullable, {"comment": each.comment}
            )
            for each in COLUMNS
        ]
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert the schema of rows to the one of their Arrow batches."""
    return to_arrow_schema(schema, timezone="UTC")


def require_readable(schema: StructType, document_format: str) -> None:
    """Raise BadOption unless each column of a user's schema is one of the source.

    A user may omit columns and choose their order. Types are fixed, and a column that may be null
    cannot be declared NOT NULL.
    """
    own = {each.name: each for each in row_schema(document_format)}
    for field in schema:
        if field.name not in own:
            raise BadOption(
                f"Column '{field.name}' of the schema is not a column of the source.",
                f"Use some of {', '.join(own)}, or set no schema.",
            )
        fixed = own[field.name]
        if field.dataType != fixed.dataType:
            raise BadOption(
                f"Column '{field.name}' of the schema is {field.dataType.simpleString()}, but the"
                f" source has {fixed.dataType.simpleString()}.",
                "Set no schema, and convert the column with CAST.",
            )
        if fixed.nullable and not field.nullable:
            raise BadOption(
                f"Column '{field.name}' of the schema is NOT NULL, but it may be null.",
                "Omit NOT NULL.",
            )


def select_columns(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch that `wanted` has, in its order."""
    if batch.schema.equals(wanted):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name) for name in wanted.names], schema=wanted)
