"""Which tables can get the files that tasks write: what their metadata demands of files."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import StructType

from cdc.delta.log.snapshot import metadata_of

# Readers and writers of such tables need more of a file than its rows and statistics.
_DEMANDING = (
    *("delta.columnMapping.mode", "delta.enableRowTracking", "delta.enableIcebergCompatV1"),
    *("delta.enableIcebergCompatV2", "delta.enableIcebergCompatV3", "delta.enableTypeWidening"),
)
_DEMANDING_METADATA = ("delta.generationExpression", "delta.invariants", "delta.identity")
_OFF = (None, "false", "none")


class UnsuitableTable(Exception):
    """The table demands more of its files than a task writes: `str` says what."""


def require_suitable(transaction: Any, schema: StructType) -> None:
    """Raises UnsuitableTable."""
    found = metadata_of(transaction)
    if found["partitionColumns"]:
        raise UnsuitableTable("it is partitioned")
    for name, value in found["configuration"].items():
        if name.startswith("delta.constraints.") or (name in _DEMANDING and value not in _OFF):
            raise UnsuitableTable(f"it has {name} = {value}")
    columns = {each["name"]: each for each in json.loads(found["schemaString"])["fields"]}
    for name, column in columns.items():
        demands = [key for key in column["metadata"] if key.startswith(_DEMANDING_METADATA)]
        if demands or not column["nullable"]:
            raise UnsuitableTable(f"its column {name} has {', '.join(demands) or 'NOT NULL'}")
    for field in schema:
        if field.name not in columns or columns[field.name]["type"] != field.jsonValue()["type"]:
            raise UnsuitableTable(f"it has no column {field.name} {field.dataType.simpleString()}")


def require_changeable(transaction: Any, schema: StructType) -> None:
    """Raises UnsuitableTable if rows of a table cannot be replaced by a task's rows."""
    found = metadata_of(transaction)
    settings = found["configuration"]
    if settings.get("delta.enableDeletionVectors") != "true":
        raise UnsuitableTable("it has no deletion vectors")
    for name in ("delta.enableChangeDataFeed", "delta.appendOnly"):
        if settings.get(name) == "true":
            raise UnsuitableTable(f"it has {name} = true")
    names = {each["name"] for each in json.loads(found["schemaString"])["fields"]}
    if more := sorted(names - set(schema.names)):
        raise UnsuitableTable(f"somebody has added the column {more[0]}")
