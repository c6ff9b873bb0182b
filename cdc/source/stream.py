"""The stream: what Spark asks of it at each trigger, answered by the planner and the watch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cdc.errors import BadOption, LoginRefused, TransientError
from cdc.model.offset import NEVER, Offset, streaming
from cdc.model.timestamp import Timestamp
from cdc.mongo.client import Member
from cdc.mongo.cluster import Source
from cdc.mongo.metrics import Gauges
from cdc.mongo.oplog import Lookout
from cdc.mongo.planner import Planner
from cdc.mongo.preflight import check
from cdc.mongo.retry import Progress, repeated
from cdc.mongo.standing import require_own
from cdc.mongo.start import first_offset
from cdc.mongo.sweep import Sweeper
from cdc.mongo.watch import Watch
from cdc.options import SourceOptions
from cdc.source.translation import limited, limits_of, partitions, read, wanted_of
from cdc.task import found

_log = logging.getLogger(__name__)
T = TypeVar("T")
# Each answer costs Spark a round. But latestOffset runs in the query's own thread: a longer wait
# would delay stop().
_WAIT_SECONDS = 2.0
_POLL_SECONDS = 0.02


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Snapshot and changes; all progress is in the offset that Spark keeps for it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        for name in options.of_batch_reads():
            raise BadOption(f"Option '{name}' is for batch reads.", "Remove it.")
        self._options, self._schema = options, schema
        self._limits = limits_of(options)
        self._known_planner: Planner | None = None
        captured = options.selection, options.capture
        self._gauges = Gauges(Lookout(options.oplog_window_warn), *captured)
        self._watch = Watch(self._open, *captured, float(options.heartbeat_interval))
        self._answered = Progress()
        self._until: Timestamp | None = None  # set by Trigger.AvailableNow
        self._planned: tuple[Offset, Offset] | None = None
        self._first: Offset | None = None
        self._keeps_start = False

    def initialOffset(self) -> dict[str, Any]:
        if self._first is None:
            self._first = self._answer(partial(self._beginning, self._planner().source))
            # Spark keeps where a batch ends, and asks for the start of the first one again when it
            # reads it: by then "now" is later, and "the oldest change" another one. So the first
            # batch of a run that copies nothing ends where it begins.
            self._keeps_start = self._first.is_streaming
        return self._first.to_json()

    def _beginning(self, source: Source) -> Offset:
        wanted = wanted_of(source, self._options)
        listed = check(source, wanted)
        return first_offset(source, wanted.selection, wanted.start, listed, wanted.excerpt)

    def _answer(self, question: Callable[[], T]) -> T:
        """Asked again for `retry.seconds`; `latestOffset`, which Spark asks again, needs it not."""
        return repeated(question, self._options.retry_seconds, "Asking MongoDB")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = self._own(start)
        end = offset if self._keeps_start else self._awaited(offset, limit)
        self._keeps_start = False
        self._planned = offset, end
        return end.to_json()

    def _awaited(self, offset: Offset, limit: ReadLimit) -> Offset:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            if self._is_done(offset):
                return offset
            end = self._next(offset, limit)
            # With AvailableNow, an offset that stands still would end the query for good.
            if end != offset or (self._until is None and time.monotonic() > deadline):
                return end
            time.sleep(_POLL_SECONDS)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limits.events)

    def _next(self, offset: Offset, limit: ReadLimit) -> Offset:
        """Like the planner's, but a server that cannot answer for less than `retry.seconds` (a
        shard without a primary, for instance) only means that there is nothing new yet; nor one
        that refuses the password, see `retrying`."""
        planner = self._planner()
        planner.limits = limited(self._limits, limit)
        try:
            # A bounded query has to come to its end, be there changes or not.
            is_due = self._until is not None or self._watch.is_due(offset, planner.source.shards)
            end = planner.next_offset(offset) if is_due else offset
        except (TransientError, LoginRefused) as error:
            if self._answered.failed() >= self._options.retry_seconds:
                raise
            _log.warning("planning a batch: %s", error)
            return offset
        self._answered.made()
        return end

    def _is_done(self, offset: Offset) -> bool:
        """Whether a bounded query has come to its end: the source is asked for no more, ever."""
        is_same = offset.is_of(self._options.selection.text, self._options.capture.text)
        if not offset.is_streaming or not is_same:
            return False
        if self._options.mode == "snapshot":
            return True
        return self._until is not None and bool(offset.time >= self._until)

    def prepareForTriggerAvailableNow(self) -> None:
        source = self._planner().source
        self._until = self._answer(partial(source.live_edge, NEVER))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The live edge, and the metrics of the batch that was planned last; never an error of the
        source, which is planning's to tell."""
        if self._planned is None:
            return None
        planner, (start, end) = self._planner(), self._planned
        events = 0 if end == start else planner.events
        metrics = self._gauges.read(planner.source, start, end, events)
        edge = metrics.live_edge or end.time
        captured = self._options.selection.text, self._options.capture.text
        offset = streaming(edge, planner.source.name, *captured)
        return {**offset.to_json(), "metrics": metrics.to_json()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        control = self._options.emit_watermark
        batch = self._own(start), self._own(end), control
        splits = self._answer(partial(self._planner().splits, *batch))
        return partitions(splits, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options, self._schema, may_be_void=True)

    def stop(self) -> None:
        self._watch.close()

    def _own(self, data: dict[str, Any]) -> Offset:
        """An offset of the checkpoint, if it belongs to this source."""
        offset = Offset.from_json(data)
        require_own(offset, self._planner().source)
        return offset

    def _open(self, shard: str) -> Member:
        return self._planner().source.open(shard).asked(self._options.comment)

    def _planner(self) -> Planner:
        if self._known_planner is None:
            options, source = self._options, found(self._options)
            self._known_planner = Planner(
                source,
                self._open,
                options.selection,
                options.capture,
                Sweeper(options.split_size_mb * 2**20, options.snapshot_splits_per_batch),
                self._limits,
                options.retry_seconds,
                copies=options.mode in ("initial", "snapshot"),
                on_history_lost=options.on_history_lost,
                on_replaced=options.on_replaced,
                on_missing=options.missing_collections,
            )
        return self._known_planner
