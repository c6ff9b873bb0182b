"""The connector without Spark: plans batches, reads their splits, and keeps what they held.

A test writes to the server between `plan` and `read`, or between batches; `replayed` is the oracle
that says what a sink would hold after all rows so far.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import bson
import bson.json_util
import tenacity
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import AutoReconnect

from cdc import options as declared
from cdc.model import (
    MAX_KEY,
    NEVER,
    SEPARATOR,
    Change,
    Copying,
    KeyRange,
    Offset,
    SnapshotSplit,
    Split,
    StreamSplit,
    key_of,
    merge_key,
)
from cdc.mongo.connection import Member, member, reply_time, retry
from cdc.mongo.plan import Limits, Planner, Sweeper, first_offset, start_of
from cdc.mongo.topology import Source, commit_point, replica_set, router
from cdc.mongo.topology.sharded_cluster import Cluster
from cdc.tasks import task
from tests.mongo.abilities import Abilities, abilities

Document = dict[str, Any]
Client = MongoClient[Document]
Contents = dict[str, bytes]  # merge key -> document

RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
EMPTYING = ("drop", "rename", "dropDatabase", "resync")
TIMEOUT_MS = 5000
SETTLE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: its offsets, its splits, and its rows in the order they were read; those
    that only a sink asks for apart."""

    start: Offset
    end: Offset
    splits: list[Split]
    rows: list[Change]
    resyncs: list[Change]

    @property
    def snapshot_splits(self) -> list[SnapshotSplit]:
        return [split for split in self.splits if isinstance(split, SnapshotSplit)]

    @property
    def stream_splits(self) -> list[StreamSplit]:
        return [split for split in self.splits if isinstance(split, StreamSplit)]

    @property
    def ops(self) -> list[tuple[str, Any]]:
        """(op, _id) of each row in the order of position; the collection's name for DDL."""
        ordered = sorted(self.rows, key=lambda row: (row.position, *_number(row)))
        return [(row.op, row.coll if row.document_key is None else id_of(row)) for row in ordered]

    def ids(self, *ops: str) -> list[Any]:
        return [name for op, name in self.ops if op in ops]


def cut_every(count: int, client: Client, copying: Copying, most: int, *_: Any) -> list[KeyRange]:
    """Stands in for `enumerator.ranges`: a split for every `count` documents, however small."""
    namespace, lower = copying.namespace, copying.below
    database = client.get_database(namespace.db, codec_options=RAW)
    command = {
        "find": namespace.coll,
        "min": RawBSONDocument(lower),
        "hint": {"_id": 1},
        "sort": {"_id": 1},
        "projection": {"_id": 1},
        "batchSize": 10_000,
    }
    reply = database.command(command, codec_options=RAW)
    found = [bytes(document.raw) for document in reply["cursor"]["firstBatch"]]
    cuts = found[count::count][:most]
    keys = [lower, *cuts, *([MAX_KEY] if len(cuts) < most else [])]
    return [KeyRange(low, high) for low, high in itertools.pairwise(keys)]


class Capture:
    """One pipeline over `collections`, at `offset`.

    Snapshot splits hold `documents_per_split`, or as many as the enumerator gives them if None.
    """

    def __init__(
        self,
        uri: str,
        collections: str,
        *,
        mode: str = "initial",
        documents_per_split: int | None = 10,
        splits_per_batch: int = 2,
        limits: Limits | None = None,
        seed: int = 1,
        **options: str,
    ) -> None:
        given = {name.replace("_", "."): value for name, value in options.items()}
        defaults = {"document.format": "bson", "retry.seconds": "20"}
        defaults["server.timeout.ms"] = str(TIMEOUT_MS)
        named = {"uri": uri, "collections": collections, "mode": mode}
        self.options = declared.parse({**named, **defaults, **given})
        self.selection, self.capture_filter = self.options.selection, self.options.capture
        found = task.discover_once(self.options)
        start = start_of(found, mode, self.options.start)
        self.open_member: Callable[[], Member] = partial(member, uri, TIMEOUT_MS)
        self.planner = Planner(
            found,
            self._open,
            self.selection,
            self.capture_filter,
            Sweeper(2**20, splits_per_batch),
            limits or Limits(10**6, 2**30, 1),
            self.options.retry_seconds,
            copies=start.copies,
            on_history_lost=self.options.on_history_lost,
            on_replaced=self.options.on_replaced,
            on_missing=self.options.missing_collections,
        )
        self._cut = (
            partial(cut_every, documents_per_split) if documents_per_split else replica_set.ranges
        )
        self.batches: list[Batch] = []
        self._random = random.Random(seed)
        listed = found.list_collections(self.selection)
        self.offset = first_offset(found, self.selection, start, listed, self.capture_filter)

    def restarted(self, collections: str, **settings: Any) -> Capture:
        """Another process that goes on where this one is, with these collections."""
        again = Capture(self.options.uri, collections, **settings)
        again.offset = Offset.from_json(json.loads(json.dumps(self.offset.to_json())))
        again.batches = self.batches
        return again

    @property
    def source(self) -> Source:
        """As the planner knows it: shards come and go."""
        return self.planner.source

    def now(self) -> Timestamp:
        """A majority time at or after every write that the test has made."""
        parts = list(self.source.parts.values()) if isinstance(self.source, Cluster) else []
        clients = [part.client for part in parts or [self.source]]
        time_seen = max(_reported_by(client) for client in clients)
        edges: list[Timestamp] = []
        until(lambda: edges.append(self._edge(time_seen)) or edges[-1] >= time_seen)
        return edges[-1]

    def _edge(self, at_least: Timestamp) -> Timestamp:
        if isinstance(self.source, Cluster):
            return commit_point.edge(self.source.parts, at_least)
        return self.source.live_edge(NEVER)

    def plan(self) -> Offset:
        """The end of the next batch, whatever it is: the server is given time to confirm first."""
        self.now()
        return self.plan_now()

    def plan_now(self) -> Offset:
        cut = partial(patch.object, attribute="ranges", new=self._cut)
        with cut(replica_set), cut(router):
            return self.planner.next_offset(self.offset)

    def read(self, end: Offset, meanwhile: Callable[[], Any] = lambda: None) -> Batch:
        """Reads the batch up to `end` in a random order of its splits, and makes it the newest.

        `meanwhile` is called when the splits are made and none is read yet.
        """
        splits = self.planner.splits(self.offset, end, control=True)
        meanwhile()
        shuffled = self._random.sample(splits, len(splits))
        return self.done(end, splits, [row for split in shuffled for row in self.rows_of(split)])

    def done(self, end: Offset, splits: list[Split], rows: list[Change]) -> Batch:
        """Makes what was read of these splits the newest batch."""
        data = [row for row in rows if row.op not in ("watermark", "resync")]
        resyncs = [row for row in rows if row.op == "resync"]
        batch = Batch(self.offset, end, splits, data, resyncs)
        self.batches.append(batch)
        self.offset = end
        return batch

    def _open(self, shard: str) -> Member:
        return self.source.open(shard) if shard else self.open_member()

    def rows_of(self, split: Split, may_be_void: bool = True) -> list[Change]:
        return list(task.read_split(split, self.options, may_be_void))

    def batch(self) -> Batch:
        """Plans and reads one batch."""
        return self.read(self.plan())

    def run(self, most: int = 60) -> list[Batch]:
        """Batches until everything is copied and nothing is left to read; those batches."""
        target, before = self.now(), len(self.batches)
        for _ in range(most):
            reached = self.offset.is_streaming and self.offset.time >= target
            if reached and self.offset.is_of(self.selection.text, self.capture_filter.text):
                return self.batches[before:]
            self.batch()
        raise AssertionError(f"not settled after {most} batches, at {self.offset}")

    @property
    def rows(self) -> list[Change]:
        return [row for batch in self.batches for row in batch.rows]

    @property
    def resyncs(self) -> list[Change]:
        return [row for batch in self.batches for row in batch.resyncs]

    @property
    def namespaces_copied(self) -> list[str]:
        return [str(split.namespace) for batch in self.batches for split in batch.snapshot_splits]

    def replayed(self, coll: Collection[Document] | Collection[RawBSONDocument]) -> Contents:
        return replayed([*self.resyncs, *self.rows], coll.database.name, coll.name)


def _reported_by(client: Client) -> Timestamp:
    """A member's time, which a newly started one does not report to an ordinary user at once."""
    asked = partial(client.admin.command, "ping")
    time: Timestamp = retry.retry_call(lambda: reply_time(asked()), 20, "Asking for the time")
    return time


def replayed(rows: Iterable[Change], db: str, coll: str) -> Contents:
    """What a sink holds: the last row of each key after the last DDL row that emptied it."""
    held: Contents = {}
    rows = list(rows)
    homes = _homes(rows)
    for row in sorted(rows, key=lambda row: row.position):
        if row.op in EMPTYING:
            if {(db, coll), (db, None), (None, None)} & {*_emptied(row)}:
                held.clear()
        elif (row.db, row.coll) == (db, coll) and row.key is not None:
            if row.txn and _place(row) != homes[_in_transaction(row)]:
                continue  # it has moved to another shard
            if row.op == "delete":
                held.pop(row.key, None)
            elif row.after is not None:
                held[row.key] = bytes(row.after)  # type: ignore[arg-type]
    by_id = {key.partition(SEPARATOR)[0]: document for key, document in held.items()}
    assert len(by_id) == len(held), "there are documents with one _id"
    return by_id


def _homes(rows: list[Change]) -> dict[Any, str]:
    """Where each document is that a transaction changed; if on no shard, on the first to say so."""
    ends: dict[Any, dict[str, Change]] = {}
    for row in sorted(rows, key=lambda row: row.position):
        if row.txn and row.key is not None:
            ends.setdefault(_in_transaction(row), {})[_place(row)] = row
    return {
        document: min(last, key=lambda shard: (last[shard].op == "delete", last[shard].position))
        for document, last in ends.items()
    }


def _place(row: Change) -> Any:
    """The shard of a row of a transaction; a router reports none, but the document's shard key."""
    return (row.txn or {})["shard"] or row.document_key


def _in_transaction(row: Change) -> Any:
    txn = row.txn or {}
    return row.db, row.coll, row.key, txn["lsid"], txn["number"]


def repeated(rows: Iterable[Change], can: Abilities) -> list[Change]:
    """In order, what a replay has to report again: everything but the documents that the server has
    no image of, which are as they are found."""

    def reported(row: Change) -> Change:
        is_image = can.before_images if row.op == "read" else can.exact(row.op)
        return row if is_image else row._replace(after=None, description=None, exact=False)

    return sorted(map(reported, rows), key=lambda row: (row.position, row.key or ""))


def _emptied(row: Change) -> list[tuple[str | None, str | None]]:
    emptied = [(row.db, row.coll)]
    if row.op != "rename":
        return emptied
    to = json.loads(row.description or "")["to"]
    return [*emptied, (to["db"], to["coll"])]


# Where members fail, or the machine is slow, the primary may be another one just now: pymongo does
# not try a bare command again.
@tenacity.retry(
    retry=tenacity.retry_if_exception_type(AutoReconnect),
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(20),
    reraise=True,
)
def contents(coll: Collection[Any], at: Timestamp | None = None, **find: Any) -> Contents:
    """What the server holds, now or at a time: `filter` and `projection` as of a find."""
    raw = coll.database.with_options(codec_options=RAW)
    concern = {"level": "snapshot", "atClusterTime": at} if at else {"level": "local"}
    command = {"find": coll.name, "batchSize": 100_000, "readConcern": concern, **find}
    reply = raw.command(command, codec_options=RAW)
    assert not reply["cursor"]["id"]
    documents = [bytes(document.raw) for document in reply["cursor"]["firstBatch"]]
    return {merge_key(key_of(document)): document for document in documents}


def _number(row: Change) -> tuple[int, str]:
    """Rows of one position (a snapshot's) in the order of their integer keys."""
    key = row.key or ""
    return (int(key), "") if key.isdecimal() else (0, key)


def id_of(row: Change) -> Any:
    return bson.json_util.loads(row.document_key or "null")["_id"]


def document(image: Any) -> Document | None:
    """A `before` or `after` of a row in `document.format = bson`."""
    return None if image is None else bson.decode(bytes(image))


def filled(
    database: Database[Document],
    name: str,
    ids: Iterable[Any],
    images: bool = True,
    **options: Any,
) -> Any:
    """A collection with what images the server has, and a document of about 500 bytes per `_id`."""
    recording = abilities(database.client).recording if images else {}
    coll = database.create_collection(name, **{**recording, **options})
    documents = [{"_id": each, "n": 0, "pad": "x" * 450} for each in ids]
    if documents:
        coll.insert_many(documents)
    return coll


def last_write(client: Client) -> Timestamp:
    """The time of the newest oplog entry of the test's own making."""
    newest = client.local["oplog.rs"].find({"op": {"$ne": "n"}}).sort("$natural", -1).limit(1)
    return next(newest)["ts"]


class Watched(Member):
    """A member that reports `before` of each command, before it is sent: faults and writes of a
    test arrive at a known point of a read."""

    def __init__(self, inner: Member, before: Callable[[Mapping[str, Any]], None]) -> None:
        self._inner, self._before = inner, before

    def command(self, db: str, command: Mapping[str, Any]) -> RawBSONDocument:
        self._before(command)
        return self._inner.command(db, command)

    def hello(self) -> Document:
        return self._inner.hello()

    def kill_cursor(self, namespace: str, cursor: int) -> None:
        self._inner.kill_cursor(namespace, cursor)

    def end(self) -> None:
        self._inner.end()


@contextmanager
def failing(client: Client, mode: Any, **data: Any) -> Iterator[None]:
    """The server fails the connector's own commands (`failCommands`, `errorCode`, …)."""
    data = {"appName": "mongodb-cdc", **data}
    client.admin.command({"configureFailPoint": "failCommand", "mode": mode, "data": data})
    try:
        yield
    finally:
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


@contextmanager
def asked(database: Database[Document]) -> Iterator[list[Document]]:
    """The connector's own operations on a database meanwhile, as the server's profiler saw them."""
    seen: list[Document] = []
    database.command("profile", 2)
    try:
        yield seen
    finally:
        database.command("profile", 0)
        seen += database["system.profile"].find({"appName": "mongodb-cdc"})


def open_cursors(client: Client) -> int:
    return int(client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"])


def until(true: Callable[[], Any], seconds: float = SETTLE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.02)
