"""The source's Arrow schema, without the JVM that would parse its DDL."""

from __future__ import annotations

import pyarrow as pa

from cdc.options import SourceOptions, parse

VARIANT = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), False)]
)
KINDS = {"variant": VARIANT, "json": pa.string(), "bson": pa.binary()}
_TIME, _TXN = pa.timestamp("us", tz="UTC"), [("lsid", "string"), ("number", "int64")]


def options(format: str) -> SourceOptions:
    """Those of a source that is not there, whose documents are to be in a format."""
    return parse({"uri": "mongodb://h", "collections": "a.b", "document.format": format})


def schema(format: str) -> pa.Schema:
    image, text = KINDS[format], pa.string()
    return pa.schema(
        [
            ("op", text),
            ("position", text),
            ("cluster_time", _TIME),
            ("cluster_inc", pa.int32()),
            ("wall_time", _TIME),
            ("db", text),
            ("coll", text),
            ("key", text),
            ("document_key", text),
            ("before", image),
            ("after", image),
            ("update_description", text),
            ("txn", pa.struct([*_TXN, ("shard", "string")])),
            ("description", text),
            ("exact", pa.bool_()),
        ]
    )
