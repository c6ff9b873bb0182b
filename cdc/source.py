"""Spark's Data Source `mongodb-cdc`: translates between Spark and what lies below.

It decides nothing. Stream: offset ⇄ JSON, planner → splits → partitions, rows → Arrow batches.
Batch: the same splits, all at one cluster time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc.errors import BadOption, ForeignOffset, TransientError, UnsuitableSource
from cdc.model import timestamp
from cdc.model.change import Change, control_rows, event_row, read_row
from cdc.model.document import encoder
from cdc.model.offset import Offset, beginning, decode_key, streaming
from cdc.model.selection import Namespace, Selection
from cdc.model.split import ControlSplit, SnapshotSplit, Split, StreamSplit
from cdc.model.timestamp import Timestamp
from cdc.mongo import cluster, sharded, snapshot, stream
from cdc.mongo.client import Member, member
from cdc.mongo.cluster import Source
from cdc.mongo.enumerator import Listing, estimated_documents
from cdc.mongo.examination import Examination, examine
from cdc.mongo.planner import Planner, read_of
from cdc.mongo.preflight import Wanted, check, shards_of
from cdc.mongo.retry import Progress
from cdc.mongo.scan import Documents
from cdc.mongo.splits import below_splits, snapshot_splits
from cdc.mongo.topology import discover

_log = logging.getLogger(__name__)
NAME = "mongodb-cdc"
_DOCUMENT_TYPES = {"variant": "variant", "json": "string", "bson": "binary"}
_ROWS_PER_BATCH = 2000
# latestOffset runs in the query's own thread: a longer wait would delay stop().
_WAIT_SECONDS = 0.4
_POLL_SECONDS = 0.02
_START_SECONDS = 10.0


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
        return SnapshotReader(declared.parse(self.options), schema)

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
    source = _source(options)
    found = check(source, _wanted(options, is_new))
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
    return examine(_source(options), _wanted(options), options["split.size.mb"] * 2**20)


# --- batch ---------------------------------------------------------------------------------------


class SnapshotReader(DataSourceReader):
    """The selected collections as of one cluster time: `snapshot.at`, or the live edge."""

    def __init__(self, options: Mapping[str, Any], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        source = _source(self._options)
        found = check(source, _wanted(self._options, follows=False))
        given = self._options["snapshot.at"]
        at = timestamp.parse(given) if given else _confirmed_edge(source, found)
        size, below = self._options["split.size.mb"] * 2**20, self._options["snapshot.below"]
        if below is not None:
            return [Partition(split) for split in below_splits(found, decode_key(below), at)]
        return [Partition(split) for split in snapshot_splits(source, found, size, at)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, may_be_void=False)


# --- stream --------------------------------------------------------------------------------------


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Snapshot and changes; all progress is in the offset that Spark keeps for it."""

    def __init__(self, options: Mapping[str, Any], schema: StructType) -> None:
        for name in ("snapshot.at", "snapshot.below"):
            if options[name] is not None:
                raise BadOption(f"Option '{name}' is for batch reads.", "Remove it.")
        self._options, self._schema = options, schema
        self._selection = Selection.parse(options["collections"])
        self._known_planner: Planner | None = None
        self._answered = Progress()
        self._until: Offset | None = None  # set by Trigger.AvailableNow

    def initialOffset(self) -> dict[str, Any]:
        source = self._planner().source
        wanted = _wanted(self._options)
        edge = _confirmed_edge(source, check(source, wanted))
        if wanted.start is not None:
            edge = timestamp.before(wanted.start)
        begin = beginning if wanted.copies else streaming
        offset = begin(edge, source.name, self._selection.text)
        # What begins now does so behind the transactions that a read would see now.
        late = source.late(edge) if wanted.start is None else ()
        return read_of(source, offset, late).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = self._own(start)
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            if self._is_done(offset):
                return start
            end = self._next(offset)
            if end != offset:
                return end.to_json()
            # With AvailableNow, an offset that stands still would end the query for good.
            if self._until is None and time.monotonic() > deadline:
                return start
            time.sleep(_POLL_SECONDS)

    def _next(self, offset: Offset) -> Offset:
        """Like the planner's, but a server that cannot answer for less than `retry.seconds` (a
        shard without a primary, for instance) only means that there is nothing new yet."""
        try:
            end = self._planner().next_offset(offset)
        except TransientError as error:
            if self._answered.idle_seconds > self._options["retry.seconds"]:
                raise
            _log.warning("planning a batch: %s", error)
            return offset
        self._answered.made()
        return end

    def _is_done(self, offset: Offset) -> bool:
        until = self._until
        if until is None or not offset.is_streaming or offset.selection != until.selection:
            return False
        return bool(offset.time >= until.time)

    def prepareForTriggerAvailableNow(self) -> None:
        source = self._planner().source
        edge = source.live_edge(timestamp.parse("0:0"))
        self._until = streaming(edge, source.name, self._selection.text)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        source = self._planner().source
        edge = source.live_edge(timestamp.parse("0:0"))
        return streaming(edge, source.name, self._selection.text).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        control = self._options["emit.watermark"]
        splits = self._planner().splits(self._own(start), self._own(end), control)
        return [Partition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema, may_be_void=True)

    def _own(self, data: dict[str, Any]) -> Offset:
        """An offset of the checkpoint, if it belongs to this source."""
        offset = Offset.from_json(data)
        name = self._planner().source.name
        if offset.source != name:
            raise ForeignOffset(
                f"The checkpoint was written for '{offset.source}', and 'uri' leads to '{name}'.",
                "Correct 'uri', or start with a new checkpoint.",
            )
        return offset

    def _open(self, shard: str) -> Member:
        return self._planner().source.open(shard)

    def _planner(self) -> Planner:
        if self._known_planner is None:
            options, source = self._options, _source(self._options)
            self._known_planner = Planner(
                source,
                self._open,
                self._selection,
                options["split.size.mb"] * 2**20,
                options["snapshot.splits.per.batch"],
                options["retry.seconds"],
                copies=options["mode"] == "initial",
            )
        return self._known_planner


# --- what both need ------------------------------------------------------------------------------


def _source(options: Mapping[str, Any]) -> Source:
    if options["shards.direct"]:
        return _shards(options)
    return discover(options["uri"], options["server.timeout.ms"])


def _shards(options: Mapping[str, Any]) -> cluster.Cluster:
    return cluster.discover(options["uri"], options["server.timeout.ms"])


def _open(options: Mapping[str, Any]) -> Member:
    return member(options["uri"], options["server.timeout.ms"])


def _wanted(options: Mapping[str, Any], is_new: bool = True, follows: bool = True) -> Wanted:
    start = options["start"]
    return Wanted(
        Selection.parse(options["collections"]),
        options["images"] == "required",
        is_new,
        follows,
        copies=options["mode"] == "initial",
        start=timestamp.parse(start) if start and is_new else None,
    )


def _confirmed_edge(source: Source, found: Listing) -> Timestamp:
    edge = source.confirmed(found, _START_SECONDS)
    if edge is None and found.term is None and not found.parts:
        raise UnsuitableSource(
            "The member that answered is not, or did not stay, the primary, which alone knows what"
            " collections there are.",
            "Leave out directConnection; say with readPreference which members are to be read.",
        )
    if edge is None:
        raise UnsuitableSource(*source.unconfirmed)
    return edge


def _read(
    partition: InputPartition, options: Mapping[str, Any], schema: StructType, may_be_void: bool
) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Partition)
    arrow = to_arrow_schema(schema, timezone="UTC")
    rows = _rows(partition.split, options, may_be_void)
    chunk: list[Change] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _ROWS_PER_BATCH:
            yield _batch(chunk, arrow)
            chunk = []
    if chunk:
        yield _batch(chunk, arrow)


def _rows(split: Split, options: Mapping[str, Any], may_be_void: bool) -> Iterator[Change]:
    encode = encoder(options["document.format"], options["document.json"])
    patience = float(options["retry.seconds"])
    if isinstance(split, ControlSplit):
        yield from control_rows(split)
    elif isinstance(split, SnapshotSplit):
        for documents in _documents(split, options, patience, may_be_void):
            for raw in documents.raw:
                yield read_row(raw, split.namespace, split.at, documents.exact_from, encode)
    elif isinstance(split, StreamSplit):
        selection = Selection.parse(split.collections)
        for events in _changes(split, options, patience):
            for event in events:
                yield event_row(*event, split.shard, selection, encode)


def _documents(
    split: SnapshotSplit, options: Mapping[str, Any], patience: float, may_be_void: bool
) -> Iterator[Documents]:
    if options["shards.direct"]:
        return sharded.read(_shards(options), split, patience, may_be_void)
    return snapshot.read(partial(_open, options), split, patience, may_be_void)


def _changes(
    split: StreamSplit, options: Mapping[str, Any], patience: float
) -> Iterator[list[stream.Event]]:
    images = stream.IMAGES[options["images"]]
    if options["shards.direct"]:
        return sharded.changes(_shards(options), split, images, patience)
    return stream.read(partial(_open, options), split, images, patience)


def _batch(rows: list[Change], arrow: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array(_cells(column, field.type), field.type)
        for column, field in zip(zip(*rows, strict=True), arrow, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _cells(column: tuple[Any, ...], kind: pa.DataType) -> Sequence[Any]:
    """A VARIANT crosses as the struct of its two binaries."""
    if pa.types.is_struct(kind) and kind.field(0).name == "value":
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return [None if cell is None else dict(zip(names, cell, strict=True)) for cell in column]
    return column
