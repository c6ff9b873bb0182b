"""The streaming reader: Spark's calls at each trigger, passed to planner and watch."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cdc.errors import LoginRefused, TransientError
from cdc.model import Offset, Timestamp, streaming
from cdc.mongo.connection import Member, Progress, retry_call
from cdc.mongo.inspect import Gauges, check, require_own
from cdc.mongo.plan import Planner, Sweeper, Watch, find_present, first_offset
from cdc.mongo.topology import OplogWatch, Source
from cdc.options import SourceOptions
from cdc.shutdown import silence
from cdc.source.translation import (
    LEAST_SPLITS,
    apply_limit,
    make_limits,
    make_partitions,
    make_wanted,
    plain_errors,
    read_partition,
    read_rows,
)
from cdc.tasks import discover_source

_log = logging.getLogger(__name__)
T = TypeVar("T")
# Each return of latestOffset costs Spark a trigger. But it runs in the query's own thread: a longer
# wait would delay stop().
_WAIT_SECONDS = 2.0
_POLL_SECONDS = 0.02


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads snapshot and changes. All progress is in the offset, which Spark stores."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.require_stream()
        self._options, self._schema = options, schema
        self._limits = make_limits(options)
        self._known_planner: Planner | None = None
        captured = options.selection, options.capture
        self._gauges = Gauges(OplogWatch(options.oplog_window_warn), *captured)
        self._watch = Watch(self._open, *captured, float(options.heartbeat_interval))
        self._answered = Progress()
        self._until: Timestamp | None = None  # set by Trigger.AvailableNow
        self._planned: tuple[Offset, Offset] | None = None
        self._is_first = False
        self._first: Offset | None = None
        self._keeps_start = False

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        if self._first is None:
            self._first = self._answer(partial(self._find_start, self._planner().source))
            # Spark records only the end of a batch. It calls this again when it reads the first
            # batch: then "now" is later, and "the oldest change" is another one. Therefore the
            # first batch of a run that copies nothing ends where it begins.
            self._keeps_start = self._first.is_streaming
        return self._first.to_json()

    def _find_start(self, source: Source) -> Offset:
        wanted = make_wanted(source, self._options)
        listed = check(source, wanted)
        return first_offset(source, wanted.selection, wanted.start, listed, wanted.capture)

    def _answer(self, question: Callable[[], T]) -> T:
        """Repeat a question for `retry.seconds`. Spark itself calls `latestOffset` again."""
        return retry_call(question, self._options.retry_seconds, "Asking MongoDB")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = self._parse_offset(start)
        # A run that copies nothing commits its start as its first batch.
        is_start = offset == self._first and not offset.is_streaming
        self._is_first = is_start or self._keeps_start
        end = offset if self._keeps_start else self._wait_for_end(offset, limit)
        self._keeps_start = False
        self._planned = offset, end
        return end.to_json()

    def _wait_for_end(self, offset: Offset, limit: ReadLimit) -> Offset:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            if self._is_done(offset):
                return offset
            end = self._next_end(offset, limit)
            # With AvailableNow, an unchanged offset would end the query.
            if end != offset or (self._until is None and time.monotonic() > deadline):
                return end
            time.sleep(_POLL_SECONDS)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limits.events)

    def _next_end(self, offset: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch; `offset` if there is nothing new or no answer.

        A server that cannot answer (a shard without a primary, for instance) or refuses the
        password is an error only after `retry.seconds` of failures, see `retry_attempts`.
        """
        planner = self._planner()
        planner.limits = apply_limit(self._limits, limit)
        try:
            # A bounded query must reach its end even if nothing changes.
            is_due = self._until is not None or self._watch.is_due(offset, planner.source.shards)
            end = planner.next_offset(offset) if is_due else offset
        except (TransientError, LoginRefused) as error:
            if self._answered.record_failure() >= self._options.retry_seconds:
                raise
            _log.warning("planning a batch: %s", error)
            return offset
        self._answered.record_progress()
        return end

    def _is_done(self, offset: Offset) -> bool:
        """Whether a bounded query has reached its end and needs no further request."""
        is_same = offset.is_of(self._options.selection.text, self._options.capture.text)
        if not offset.is_streaming or not is_same:
            return False
        if self._options.mode == "snapshot":
            return True
        return self._until is not None and bool(offset.time >= self._until)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._answer(partial(find_present, self._planner().source))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the live edge and the metrics of the last planned batch.

        Raises no error of the source: planning reports those.
        """
        if self._planned is None:
            return None
        planner, (start, end) = self._planner(), self._planned
        events = 0 if end == start else planner.events
        metrics = self._gauges.read(planner.source, start, end, events, self._is_first)
        edge = metrics.live_edge or end.time
        captured = self._options.selection.text, self._options.capture.text
        offset = streaming(edge, planner.source.name, *captured)
        return {**offset.to_json(), "metrics": metrics.to_json()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        control = self._options.emit_watermark
        batch = self._parse_offset(start), self._parse_offset(end), control
        splits = self._answer(partial(self._planner().splits, *batch))
        return make_partitions(splits, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(partition, self._options, self._schema, may_be_void=True)

    def read_as(
        self,
        partition: InputPartition,
        schema: pa.Schema,
        note: Callable[[str], None] = lambda reason: None,
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition in an Arrow schema of the same columns.

        `note` is called with the reason why a slice is not read from the oplog.
        """
        return read_partition(partition, self._options, schema, may_be_void=True, note=note)

    def stop(self) -> None:
        """Spark calls this in the planner's process, when its loop over requests has ended."""
        self._watch.close()
        if isinstance(sys.exception(), EOFError):
            # The query has ended, and closed the connection. The loop prints that as a stack trace.
            silence()

    def _parse_offset(self, data: dict[str, Any]) -> Offset:
        """Parse an offset of the checkpoint. Raises ForeignOffset if it is of another source."""
        offset = Offset.from_json(data)
        require_own(offset, self._planner().source)
        return offset

    def _open(self, shard: str) -> Member:
        return self._planner().source.open(shard).configure(self._options.comment)

    def _planner(self) -> Planner:
        if self._known_planner is None:
            options, source = self._options, discover_source(self._options)
            self._known_planner = Planner(
                source,
                self._open,
                options.selection,
                options.capture,
                Sweeper(
                    options.split_size_mb * 2**20,
                    options.snapshot_splits_per_batch or LEAST_SPLITS,
                ),
                self._limits,
                options.retry_seconds,
                copies=options.copies,
                on_history_lost=options.on_history_lost,
                on_replaced=options.on_replaced,
                on_missing=options.missing_collections,
            )
        return self._known_planner
