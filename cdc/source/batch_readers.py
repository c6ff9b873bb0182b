"""Batch reads: documents as of one cluster time, or changes of a time window.

The filters of a query reduce what is read, see `cdc.source.pushdown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from cdc.errors import BadOption
from cdc.model import (
    MAX_KEY,
    MIN_KEY,
    ROW_EVENTS,
    KeyRange,
    SnapshotSplit,
    Split,
    StreamSplit,
    Timestamp,
    decode_key,
    timestamp,
)
from cdc.mongo.collections import Listing
from cdc.mongo.inspect import Wanted, check
from cdc.mongo.plan import (
    Start,
    confirm_edge,
    find_present,
    range_splits,
    snapshot_splits,
    wait_until,
    window_splits,
)
from cdc.mongo.query import event_filter
from cdc.mongo.topology import Source
from cdc.options import SourceOptions
from cdc.source.pushdown import RowFilter
from cdc.source.translation import (
    Partition,
    make_limits,
    make_partitions,
    make_wanted,
    plain_errors,
    read_rows,
)
from cdc.tasks import query_source


class SnapshotReader(DataSourceReader):
    """Reads the selected collections as of one cluster time: `snapshot.at` or the live edge."""

    row_filter = RowFilter()

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        return _make_partitions(query_source(self._options, self._splits), self._options)

    def _splits(self, source: Source) -> list[SnapshotSplit]:
        found = check(source, make_wanted(source, self._options, follows=False))
        given = self._options.snapshot_at
        at = timestamp.parse(given) if given else confirm_edge(source, found)
        if not self.row_filter.may_pass("read", at):
            return []
        capture = self._options.capture
        begin, below = self._options.snapshot_from, self._options.snapshot_below
        if begin is None and below is None:
            return self._whole_splits(source, found, at)
        lower = MIN_KEY if begin is None else decode_key(begin)
        upper = MAX_KEY if below is None else decode_key(below)
        return range_splits(found, KeyRange(lower, upper), at, capture)

    def _whole_splits(self, source: Source, found: Listing, at: Timestamp) -> list[SnapshotSplit]:
        size, capture = self._options.split_size_mb * 2**20, self._options.capture
        keys = self.row_filter.keys
        if keys is None:
            return snapshot_splits(source, found, size, at, capture)
        # The ranges of keys are in the order of the simple collation.
        plain = tuple(each for each in found.collections if each.collation is None)
        collated = tuple(each for each in found.collections if each.collation is not None)
        splits = snapshot_splits(source, replace(found, collections=collated), size, at, capture)
        for key_range in keys:
            splits += range_splits(replace(found, collections=plain), key_range, at, capture)
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._options, self._schema, may_be_void=False)


class WindowReader(DataSourceReader):
    """Reads the changes of the selected collections from `from` on, and before `to`."""

    row_filter = RowFilter()

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    @plain_errors
    def partitions(self) -> Sequence[InputPartition]:
        return _make_partitions(query_source(self._options, self._splits), self._options)

    def _splits(self, source: Source) -> list[StreamSplit]:
        selection, capture = self._options.selection, self._options.capture
        assert self._options.from_ is not None, "a window has a start"
        after = timestamp.before(timestamp.parse(self._options.from_))
        start = Start(False, after, option="from")
        check(source, Wanted(selection, is_new=False, start=start, capture=capture))
        given = self._options.to
        if not given:
            until = max(after, find_present(source))
        elif not wait_until(source, until := timestamp.before(timestamp.parse(given))):
            raise BadOption(
                "Option 'to' is later than the server's time.", "Set it to an earlier time."
            )
        patience = float(self._options.retry_seconds)
        limits = make_limits(self._options)
        after, until = self._narrow_window(source, after, until)
        splits = window_splits(source, selection, capture, after, until, limits, patience)
        return self._narrow_events(splits, source.shard_keys(selection, until) is not None)

    def _narrow_window(
        self, source: Source, after: Timestamp, until: Timestamp
    ) -> tuple[Timestamp, Timestamp]:
        """Return a part of the window that contains all rows in the time of the filters.

        A window of a sharded cluster begins where it was asked for. It contains changes of
        transactions across shards that have later times; a window that begins between would omit
        them, because they belong to an earlier one.
        """
        wanted = self.row_filter
        if len(source.shards) == 1:
            after = max(after, timestamp.before(max(wanted.first, wanted.after)))
        return after, min(until, wanted.last, wanted.before)

    def _narrow_events(self, splits: list[StreamSplit], has_whole_keys: bool) -> list[StreamSplit]:
        """Let the server select events, where that is faster than reading the oplog in bulk.

        `has_whole_keys` says that whole document keys may be keys of rows.
        """
        operations, keys = self._rare_operations(has_whole_keys), self.row_filter.keys
        if (operations is None and keys is None) or self._options.read_by == "oplog":
            return splits
        lower = None if keys is None else [each.lower for each in keys]
        return [
            replace(
                split,
                pipeline=event_filter.narrow(split.pipeline, operations, lower),
                is_whole=False,
            )
            for split in splits
        ]

    def _rare_operations(self, has_whole_keys: bool) -> frozenset[str] | None:
        """Return the types of events that may become wanted rows; None for most or all of them.

        With a capture filter, an update or replacement may become an insert or a delete. With whole
        document keys, one that changes the key becomes both.
        """
        wanted = self.row_filter.ops
        if wanted is None or wanted & {"update", "replace"}:
            return None
        may_change = self._options.capture.condition is not None or has_whole_keys
        return None if may_change and wanted & set(ROW_EVENTS) else wanted

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._options, self._schema, may_be_void=False)


def _make_partitions(splits: Sequence[Split], options: SourceOptions) -> list[Partition]:
    """Divide splits into partitions. PySpark replaces an empty list by a partition of its own."""
    return make_partitions(splits, options) or [Partition([])]


class _FilteredReader(DataSourceReader):
    """Accepts the filters of a query. All of them stay with Spark, too."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.row_filter = RowFilter.of(filters)
        return filters


class FilteredSnapshotReader(_FilteredReader, SnapshotReader):
    """A `SnapshotReader` that accepts filters."""


class FilteredWindowReader(_FilteredReader, WindowReader):
    """A `WindowReader` that accepts filters."""
