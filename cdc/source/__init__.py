"""Spark's Data Source `mongodb-cdc`: translates between Spark and the packages below.

It decides nothing. Stream: offset to JSON, splits to partitions, rows to Arrow batches.
Batch: the same splits, all at one cluster time. `inquiry`: what programs ask without Spark.
"""

from cdc.source.batch_readers import SnapshotReader, WindowReader
from cdc.source.columns import row_schema
from cdc.source.data_source import NAME, MongoCdcSource, SqlNamedSource
from cdc.source.inquiry import plan, preflight, query_status, sample_documents
from cdc.source.registration import register
from cdc.source.stream_reader import ChangeReader
from cdc.source.translation import LEAST_SPLITS, fit_to_cores

__all__ = [
    "LEAST_SPLITS",
    "NAME",
    "ChangeReader",
    "MongoCdcSource",
    "SnapshotReader",
    "SqlNamedSource",
    "WindowReader",
    "fit_to_cores",
    "plan",
    "preflight",
    "query_status",
    "register",
    "row_schema",
    "sample_documents",
]
