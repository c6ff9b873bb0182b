"""Spark's data source `mongodb-cdc`: translation between Spark and the packages below.

It decides nothing. Stream: offset ⇄ JSON, planner → splits → partitions, rows → Arrow batches.
Batch: the same splits, all at one cluster time. `inquiry` queries the source without Spark.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.source.batch_readers import SnapshotReader, WindowReader
from cdc.source.stream_reader import ChangeReader

NAME = "mongodb-cdc"
_DOCUMENT_TYPES = {"variant": "variant", "json": "string", "bson": "binary"}


def schema(document_format: str) -> str:
    """Return the columns of the source as Spark DDL; the README describes them."""
    document = _DOCUMENT_TYPES[document_format]
    return (
        "op string, position string, cluster_time timestamp, cluster_inc int, wall_time timestamp,"
        " db string, coll string, key string, document_key string,"
        f" before {document}, after {document}, update_description string,"
        " txn struct<lsid: string, number: bigint, shard: string>, description string,"
        " exact boolean"
    )


class MongoCdcSource(DataSource):
    """`spark.read` and `spark.readStream` with format `mongodb-cdc`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema(declared.parse(self.options).document_format)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = declared.parse(self.options)
        kind = SnapshotReader if options.from_ is None else WindowReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChangeReader(declared.parse(self.options), schema)
