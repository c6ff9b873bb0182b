"""Batch reads: documents as of one cluster time, or changes of a time window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cdc.errors import BadOption
from cdc.model import MAX_KEY, MIN_KEY, KeyRange, SnapshotSplit, StreamSplit, decode_key, timestamp
from cdc.mongo.inspect import Wanted, check
from cdc.mongo.plan import (
    Start,
    confirm_edge,
    range_splits,
    snapshot_splits,
    wait_until,
    window_splits,
)
from cdc.mongo.topology import Source
from cdc.options import SourceOptions
from cdc.source.translation import (
    arrow_schema,
    make_limits,
    make_partitions,
    make_wanted,
    read_partition,
)
from cdc.tasks import query_source


class SnapshotReader(DataSourceReader):
    """Reads the selected collections as of one cluster time: `snapshot.at` or the live edge."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        return make_partitions(query_source(self._options, self._splits), self._options)

    def _splits(self, source: Source) -> list[SnapshotSplit]:
        found = check(source, make_wanted(source, self._options, follows=False))
        given = self._options.snapshot_at
        at = timestamp.parse(given) if given else confirm_edge(source, found)
        size, capture = self._options.split_size_mb * 2**20, self._options.capture
        begin, below = self._options.snapshot_from, self._options.snapshot_below
        if begin is None and below is None:
            return snapshot_splits(source, found, size, at, capture)
        lower = MIN_KEY if begin is None else decode_key(begin)
        upper = MAX_KEY if below is None else decode_key(below)
        return range_splits(found, KeyRange(lower, upper), at, capture)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(
            partition, self._options, arrow_schema(self._schema), may_be_void=False
        )


class WindowReader(DataSourceReader):
    """Reads the changes of the selected collections from `from` on, and before `to`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        return make_partitions(query_source(self._options, self._splits), self._options)

    def _splits(self, source: Source) -> list[StreamSplit]:
        selection, capture = self._options.selection, self._options.capture
        assert self._options.from_ is not None, "a window has a start"
        after = timestamp.before(timestamp.parse(self._options.from_))
        start = Start(False, after, option="from")
        check(source, Wanted(selection, is_new=False, start=start, excerpt=capture))
        given = self._options.to
        until = timestamp.before(timestamp.parse(given)) if given else source.live_edge(after)
        if not wait_until(source, until):
            raise BadOption(
                "Option 'to' is later than the server's time.", "Set it to an earlier time."
            )
        patience = float(self._options.retry_seconds)
        limits = make_limits(self._options)
        return window_splits(source, selection, capture, after, until, limits, patience)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(
            partition, self._options, arrow_schema(self._schema), may_be_void=False
        )
