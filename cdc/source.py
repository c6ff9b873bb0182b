"""Spark's Data Source `mongodb-cdc`: translates between Spark and what lies below.

It decides nothing. Stream: offset ⇄ JSON, planner → splits → partitions, rows → Arrow batches.
Batch: the same splits, all at one cluster time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.errors import BadOption, TransientError
from cdc.model import timestamp
from cdc.model.excerpt import Excerpt
from cdc.model.offset import NEVER, Offset, decode_key, streaming
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY, MIN_KEY, KeyRange, Split
from cdc.model.timestamp import Timestamp
from cdc.mongo.client import Member
from cdc.mongo.cluster import Source
from cdc.mongo.enumerator import estimated_documents
from cdc.mongo.examination import Examination, examine
from cdc.mongo.metrics import Gauges
from cdc.mongo.oplog import Lookout
from cdc.mongo.planner import Planner
from cdc.mongo.preflight import Wanted, check, shards_of
from cdc.mongo.retry import Progress
from cdc.mongo.slices import Limits
from cdc.mongo.splits import range_splits, snapshot_splits
from cdc.mongo.standing import Passed, Standing, require_own
from cdc.mongo.standing import standing as stands
from cdc.mongo.start import Start, confirmed_edge, first_offset, reached, start_of
from cdc.mongo.sweep import Sweeper
from cdc.mongo.watch import Watch
from cdc.mongo.window import window_splits
from cdc.task import record_batches, source_of

_log = logging.getLogger(__name__)
NAME = "mongodb-cdc"
_DOCUMENT_TYPES = {"variant": "variant", "json": "string", "bson": "binary"}
# latestOffset runs in the query's own thread: a longer wait would delay stop().
_WAIT_SECONDS = 0.4
_POLL_SECONDS = 0.02


def schema(document_format: str) -> str:
    """The source's columns as Spark DDL. Their meaning is told in the README."""
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
        return schema(declared.parse(self.options)["document.format"])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = declared.parse(self.options)
        kind = SnapshotReader if options["from"] is None else WindowReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChangeReader(declared.parse(self.options), schema)


class Partition(InputPartition):
    """One split on its way to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(None)
        self.split = split


@dataclass(frozen=True, slots=True)
class Captured:
    """A selected collection and about how many documents it holds."""

    namespace: Namespace
    documents: int


def preflight(given: Mapping[str, str], is_new: bool = True) -> list[Captured]:
    """The collections of a run with these options, for jobs: the same checks as the source's own,
    without Spark in between. With a checkpoint (`is_new` False) a collection may be gone, or not
    be there yet, for good reason. Raises CdcError."""
    options = declared.parse(given)
    source = source_of(options)
    found = check(source, _wanted(source, options, is_new))
    return [
        Captured(
            c.namespace,
            sum(
                estimated_documents(source.clients[shard], c.namespace)
                for shard in shards_of(source, c)
            ),
        )
        for c in found.collections
    ]


def plan(given: Mapping[str, str]) -> Examination:
    """What a new run with these options would meet, and whether it could succeed; nothing is read
    for it but numbers. Raises BadOption, SourceUnreachable, UnsuitableSource."""
    options = declared.parse(given)
    source = source_of(options)
    return examine(source, _wanted(source, options), options["split.size.mb"] * 2**20)


def standing(given: Mapping[str, str], at: Offset | None, passed: Passed | None) -> Standing:
    """Where a run with these options stands whose tables are at an offset; `passed` are its last
    batches. Raises CdcError."""
    options = declared.parse(given)
    selection, excerpt = Selection.parse(options["collections"]), _excerpt(options).text
    return stands(source_of(options), selection, excerpt, at, passed)


# --- batch ---------------------------------------------------------------------------------------


class SnapshotReader(DataSourceReader):
    """The selected collections as of one cluster time: `snapshot.at`, or the live edge."""

    def __init__(self, options: Mapping[str, Any], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        source = source_of(self._options)
        found = check(source, _wanted(source, self._options, follows=False))
        given = self._options["snapshot.at"]
        at = timestamp.parse(given) if given else confirmed_edge(source, found)
        size, told = self._options["split.size.mb"] * 2**20, _excerpt(self._options).text
        lower, below = (self._options[name] for name in ("snapshot.from", "snapshot.below"))
        if lower is None and below is None:
            return [Partition(split) for split in snapshot_splits(source, found, size, at, told)]
        lower = MIN_KEY if lower is None else decode_key(lower)
        upper = MAX_KEY if below is None else decode_key(below)
        splits = range_splits(found, KeyRange(lower, upper), at, told)
        return [Partition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, may_be_void=False)


class WindowReader(DataSourceReader):
    """The changes of the selected collections from one time up to, but without, another."""

    def __init__(self, options: Mapping[str, Any], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        source, selection = source_of(self._options), Selection.parse(self._options["collections"])
        after = timestamp.before(timestamp.parse(self._options["from"]))
        start = Start(False, after, option="from")
        excerpt = _excerpt(self._options)
        check(source, Wanted(selection, is_new=False, start=start, excerpt=excerpt))
        given = self._options["to"]
        until = timestamp.before(timestamp.parse(given)) if given else source.live_edge(after)
        if not reached(source, until):
            raise BadOption("Option 'to' lies in the future of the server.", "Set it back.")
        patience = float(self._options["retry.seconds"])
        limits = _limits(self._options)
        found = window_splits(source, selection, excerpt.text, after, until, limits, patience)
        return [Partition(split) for split in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, may_be_void=False)


# --- stream --------------------------------------------------------------------------------------


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Snapshot and changes; all progress is in the offset that Spark keeps for it."""

    def __init__(self, options: Mapping[str, Any], schema: StructType) -> None:
        for name in ("snapshot.at", "snapshot.from", "snapshot.below", "from", "to"):
            if options[name] is not None:
                raise BadOption(f"Option '{name}' is for batch reads.", "Remove it.")
        self._options, self._schema = options, schema
        self._selection = Selection.parse(options["collections"])
        self._limits = _limits(options)
        self._known_planner: Planner | None = None
        self._excerpt = _excerpt(options).text
        text, heartbeat = self._selection.text, float(options["heartbeat.interval"])
        lookout = Lookout(options["oplog.window.warn"])
        self._gauges = Gauges(lookout, self._selection, self._excerpt)
        self._watch = Watch(self._open, text, self._excerpt, heartbeat)
        self._answered = Progress()
        self._until: Timestamp | None = None  # set by Trigger.AvailableNow
        self._planned: tuple[Offset, Offset] | None = None

    def initialOffset(self) -> dict[str, Any]:
        source = self._planner().source
        wanted = _wanted(source, self._options)
        found = check(source, wanted)
        first = first_offset(source, self._selection, wanted.start, found, self._excerpt)
        return first.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = self._own(start)
        end = self._awaited(offset, limit)
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
        shard without a primary, for instance) only means that there is nothing new yet."""
        planner = self._planner()
        planner.limits = _limited(self._limits, limit)
        try:
            # A bounded query has to come to its end, be there changes or not.
            is_due = self._until is not None or self._watch.is_due(offset, planner.source.shards)
            end = planner.next_offset(offset) if is_due else offset
        except TransientError as error:
            if self._answered.failed() >= self._options["retry.seconds"]:
                raise
            _log.warning("planning a batch: %s", error)
            return offset
        self._answered.made()
        return end

    def _is_done(self, offset: Offset) -> bool:
        """Whether a bounded query has come to its end: the source is asked for no more, ever."""
        is_same = offset.is_of(self._selection.text, self._excerpt)
        if not offset.is_streaming or not is_same:
            return False
        if self._options["mode"] == "snapshot":
            return True
        return self._until is not None and bool(offset.time >= self._until)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._planner().source.live_edge(NEVER)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The live edge, and the metrics of the batch that was planned last; never an error of the
        source, which is planning's to tell."""
        if self._planned is None:
            return None
        planner, (start, end) = self._planner(), self._planned
        events = 0 if end == start else planner.events
        metrics = self._gauges.read(planner.source, start, end, events)
        edge = metrics.live_edge or end.time
        offset = streaming(edge, planner.source.name, self._selection.text, self._excerpt)
        return {**offset.to_json(), "metrics": metrics.to_json()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        control = self._options["emit.watermark"]
        splits = self._planner().splits(self._own(start), self._own(end), control)
        return [Partition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, may_be_void=True)

    def stop(self) -> None:
        self._watch.close()

    def _own(self, data: dict[str, Any]) -> Offset:
        """An offset of the checkpoint, if it belongs to this source."""
        offset = Offset.from_json(data)
        require_own(offset, self._planner().source)
        return offset

    def _open(self, shard: str) -> Member:
        return self._planner().source.open(shard)

    def _planner(self) -> Planner:
        if self._known_planner is None:
            options, source = self._options, source_of(self._options)
            self._known_planner = Planner(
                source,
                self._open,
                self._selection,
                self._excerpt,
                Sweeper(options["split.size.mb"] * 2**20, options["snapshot.splits.per.batch"]),
                self._limits,
                options["retry.seconds"],
                copies=options["mode"] in ("initial", "snapshot"),
                on_history_lost=options["on.history.lost"],
                on_replaced=options["on.replaced"],
            )
        return self._known_planner


# --- what both need ------------------------------------------------------------------------------


def _limits(options: Mapping[str, Any]) -> Limits:
    return Limits(
        options["max.events.per.batch"],
        options["max.mb.per.batch"] * 2**20,
        options["stream.parallelism"],
    )


def _limited(own: Limits, limit: ReadLimit) -> Limits:
    """What Spark allows a batch, in rows or in bytes, and of the other our own; everything where it
    asks for no less, as Trigger.Once does."""
    if isinstance(limit, ReadMaxRows):
        return own._replace(events=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return own._replace(bytes=limit.max_bytes)
    return own.lifted


def _wanted(
    source: Source, options: Mapping[str, Any], is_new: bool = True, follows: bool = True
) -> Wanted:
    mode, start = options["mode"], options["start"]
    return Wanted(
        Selection.parse(options["collections"]),
        options["images"] == "required",
        is_new,
        follows,
        start_of(source, mode, start) if is_new and follows else Start(),
        _excerpt(options),
    )


def _excerpt(options: Mapping[str, Any]) -> Excerpt:
    return Excerpt.of(options["filter"], options["fields"])


def _read(
    partition: InputPartition, options: Mapping[str, Any], schema: StructType, may_be_void: bool
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Partition)
    arrow = to_arrow_schema(schema, timezone="UTC")
    return record_batches(partition.split, options, arrow, may_be_void)
