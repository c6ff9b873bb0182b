"""Read one SnapshotSplit: the documents of a key range exactly as of a cluster time.

The ordinary way is a read at that time. Where the server cannot give one any more (it keeps 300
seconds of history by default; capped collections and servers before 5.0 keep none), the range is
**rewound**: read at the newest majority state, then undone by the first before-image that the
change stream holds for each key. That gives the same rows in any amount of time that the oplog
spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import bson
import pymongo.errors
from bson.max_key import MaxKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, TransientError, UnsuitableSource
from cdc.model import timestamp
from cdc.model.key import merge_key
from cdc.model.split import MAX_KEY, SnapshotSplit, StreamSplit, key_of, literal
from cdc.mongo import pipeline, stream
from cdc.mongo.client import (
    FIELD_UNKNOWN,
    INCARNATION_GONE,
    SNAPSHOT_REFUSED,
    TIME_UNREADABLE,
    Member,
)
from cdc.mongo.retry import Progress, retrying

_BATCH = 10_000
_REWIND_BYTES = 64 * 2**20


class Documents(NamedTuple):
    """Raw documents as of the split's time; or, with `exact_from`, each of them in a state between
    that time and `exact_from` (only where before-images are missing)."""

    raw: list[bytes]
    exact_from: Timestamp | None = None


class _Void(Exception):
    """The split's incarnation of the collection is no longer there under its name."""


def read(
    open_member: Callable[[], Member],
    split: SnapshotSplit,
    retry_seconds: float,
    may_be_void: bool,
    version: Callable[[], Any] = lambda: None,
) -> Iterator[Documents]:
    """The documents of the split, each once, in batches of at most 16 MiB (64 MiB when rewinding).

    If the collection has been dropped or renamed since, the split is void: nothing (more) is
    yielded when `may_be_void`, because the DDL event that follows tells the rest; a reader that
    will not see that event gets UnsuitableSource instead of a part taken for the whole.

    `version` gives what a read of a shard carries for it to leave out what it did not own, else
    None. Such a read is not rewound: a shard tells nothing of chunks that come and go. It raises
    HistoryLost instead.
    """
    rest = _Rest(split, version)
    progress = Progress()
    attempted = f"Copying {split.namespace} at {split.at}"
    try:
        for attempt in retrying(progress, retry_seconds, attempted):
            with attempt:
                member = open_member()
                try:
                    for documents in _read_rest(member, rest, open_member):
                        yield documents
                        progress.made()
                finally:
                    member.end()
    except _Void as void:
        if not may_be_void:
            raise UnsuitableSource(
                f"{split.namespace} was dropped, renamed or replaced while it was being copied.",
                "Run the read again.",
            ) from void


class _Rest:
    """What is still to be read of a split: from `lower`, without `lower` itself once `begun`.

    `by_uuid`: the server was found not to know `collectionUUID`.
    """

    def __init__(self, split: SnapshotSplit, version: Callable[[], Any]) -> None:
        self.split, self.version = split, version
        self.lower = split.range.lower
        self.begun = False
        self.by_uuid = False

    def passed(self, documents: list[bytes]) -> None:
        self.lower, self.begun = key_of(documents[-1]), True

    @property
    def is_empty(self) -> bool:
        return self.begun and self.lower == MAX_KEY

    def without_lower(self, documents: list[bytes]) -> list[bytes]:
        """A resumed range begins with the last document already handed out, if it still exists."""
        if self.begun and documents and key_of(documents[0]) == self.lower:
            return documents[1:]
        return documents


def _read_rest(
    member: Member, rest: _Rest, open_member: Callable[[], Member]
) -> Iterator[Documents]:
    concern = {"level": "snapshot", "atClusterTime": rest.split.at}
    try:
        for documents, _ in _scan(member, rest, concern):
            rest.passed(documents)
            yield Documents(documents)
        return
    except pymongo.errors.OperationFailure as error:
        if error.code in INCARNATION_GONE:
            _confirm(member, rest.split, (error.details or {}).get("operationTime"))
            raise _Void from error
        if error.code not in TIME_UNREADABLE and not _never_at_a_time(member, rest.split, error):
            raise
        if rest.version() is not None:
            raise HistoryLost(
                f"Copying {rest.split.namespace}: its shards cannot be read as of"
                f" {timestamp.text(rest.split.at)} any more.",
                "Raise minSnapshotHistoryWindowInSeconds; start with a new checkpoint and tables.",
            ) from error
    while not rest.is_empty:
        yield from _rewound(member, rest, open_member)


def _never_at_a_time(
    member: Member, split: SnapshotSplit, error: pymongo.errors.OperationFailure
) -> bool:
    """Whether the server gives no reads at a cluster time at all (before 5.0).

    A member that lags refuses a time with the same code. None lags behind its own operation time,
    so a server that refuses that too refuses every time.
    """
    if error.code != SNAPSHOT_REFUSED:
        return False
    reached = member.command("admin", {"ping": 1})["operationTime"]
    probe = {"find": split.namespace.coll, "limit": 1, "singleBatch": True, "maxTimeMS": 10_000}
    concern = {"level": "snapshot", "atClusterTime": reached}
    try:
        member.command(split.namespace.db, {**probe, "readConcern": concern})
    except pymongo.errors.OperationFailure as refused:
        return refused.code == SNAPSHOT_REFUSED
    return False


def _confirm(member: Member, split: SnapshotSplit, seen: Timestamp | None) -> None:
    """Waits until the drop or rename behind a refused read, `seen` at that time, is
    majority-committed.

    One that is rolled back instead would never be told by an event, and the range would be lost:
    then this fails with an error after which the whole split is read again.
    """
    concern = {"level": "majority", **({"afterClusterTime": seen} if seen else {})}
    probe = {"find": split.namespace.coll, "limit": 1, "singleBatch": True, "maxTimeMS": 10_000}
    try:
        member.command(split.namespace.db, {**probe, "readConcern": concern})
    except pymongo.errors.ExecutionTimeout as late:
        raise TransientError(
            f"Copying {split.namespace}: its drop is not confirmed by a majority yet.",
            "Check that a majority of the replica set is up.",
        ) from late


# --- one pass over a range ----------------------------------------------------------------------


def _scan(
    member: Member, rest: _Rest, concern: dict[str, Any]
) -> Iterator[tuple[list[bytes], Timestamp]]:
    """Non-empty batches of raw documents in key order, each with its reply's operation time.

    The range is given as index bounds: comparison operators are bracketed by BSON type and would
    miss documents whose `_id` is of another type.
    """
    split = rest.split
    bounds: dict[str, Any] = {"min": RawBSONDocument(rest.lower), "hint": {"_id": 1}}
    if not split.range.is_last:
        bounds["max"] = RawBSONDocument(split.range.upper)
    if rest.lower != MAX_KEY:  # there is no range above it (51175)
        yield from _find(member, rest, {**bounds, "readConcern": concern})
    if split.range.is_last:
        # A range without `max` ends below a document whose _id is MaxKey itself.
        yield from _find(member, rest, {"filter": {"_id": MaxKey()}, "readConcern": concern})


def _find(
    member: Member, rest: _Rest, command: dict[str, Any]
) -> Iterator[tuple[list[bytes], Timestamp]]:
    split = rest.split
    reply = _opened(member, rest, {"batchSize": _BATCH, **command})
    cursor = int(reply["cursor"]["id"])
    try:
        batch = reply["cursor"]["firstBatch"]
        while True:
            documents = rest.without_lower([bytes(document.raw) for document in batch])
            if documents:
                yield documents, reply["operationTime"]
            if not cursor:
                return
            more = {"getMore": cursor, "collection": split.namespace.coll, "batchSize": _BATCH}
            reply = member.command(split.namespace.db, more)
            cursor, batch = int(reply["cursor"]["id"]), reply["cursor"]["nextBatch"]
    finally:
        if cursor:
            member.kill_cursor(str(split.namespace), cursor)


def _opened(member: Member, rest: _Rest, command: dict[str, Any]) -> RawBSONDocument:
    """The first reply of a find on the split's incarnation under the split's name, or _Void.

    By name alone, a read of a collection dropped since would answer with zero rows and ok.
    """
    split, uuid = rest.split, bson.Binary(rest.split.uuid, 4)
    db, coll = split.namespace
    if not rest.by_uuid:
        version = rest.version()
        versioned = {} if version is None else {"shardVersion": version}
        try:
            find = {"find": coll, "collectionUUID": uuid, **command, **versioned}
            return member.command(db, find)
        except pymongo.errors.OperationFailure as error:
            # By UUID, nothing is known to leave out what a shard does not own.
            if error.code not in FIELD_UNKNOWN or versioned:
                raise
            rest.by_uuid = True
    reply = member.command(db, {"find": uuid, **command})
    # A find by UUID follows a rename; one that has begun is killed by it (175).
    if reply["cursor"]["ns"] != str(split.namespace):
        _confirm(member, split, reply["operationTime"])
        raise _Void
    return reply


# --- rewind --------------------------------------------------------------------------------------


def _rewound(member: Member, rest: _Rest, open_member: Callable[[], Member]) -> Iterator[Documents]:
    """The next part of the range as of the split's time, at most `_REWIND_BYTES` of it at once."""
    scanned, upper, until = _newest_state(member, rest)
    part = _part_events(rest, upper, until)
    inexact: dict[str, bytes] = {}
    seen: set[str] = set()
    for events in stream.read(open_member, part, stream.IMAGES["when_available"], retry_seconds=60):
        for event in events:
            _undo(event, seen, scanned, inexact)
    if _is_refilled(rest.split, until, open_member):
        raise _Void
    rest.lower, rest.begun = (upper, True) if upper else (MAX_KEY, True)
    if scanned:
        yield Documents(list(scanned.values()))
    if inexact:
        yield Documents(list(inexact.values()), exact_from=until)


def _is_refilled(split: SnapshotSplit, until: Timestamp, open_member: Callable[[], Member]) -> bool:
    """Whether another collection was renamed onto the name after the split's time: it brought
    documents that no event of this name tells of, so they cannot be undone."""
    db, coll = split.namespace
    renamed = {"operationType": "rename", "to.db": db, "to.coll": coll}
    events = StreamSplit(split.at, until, db, pipeline.pipeline([renamed]))
    return any(stream.read(open_member, events, stream.IMAGES["off"], retry_seconds=60))


def _newest_state(member: Member, rest: _Rest) -> tuple[dict[str, bytes], bytes | None, Timestamp]:
    """By merge key: the documents of the next part, each at some time between the split's and the
    returned one; the last key of the part, or None if it reaches to the end of the split."""
    concern = {"level": "majority", "afterClusterTime": rest.split.at}
    scanned: dict[str, bytes] = {}
    size, until = 0, rest.split.at
    try:
        for documents, operation_time in _scan(member, rest, concern):
            for document in documents:
                scanned[merge_key(key_of(document))] = document
                size += len(document)
            until = max(until, operation_time)
            if size > _REWIND_BYTES:
                return scanned, key_of(documents[-1]), until
    except pymongo.errors.OperationFailure as error:
        if error.code in INCARNATION_GONE:
            _confirm(member, rest.split, (error.details or {}).get("operationTime"))
            raise _Void from error
        if error.code in TIME_UNREADABLE:  # the newest state is always there: a passing condition
            raise TransientError(f"Copying {rest.split.namespace}: the scan was killed.") from error
        raise
    # Deletes behind the last document found may have happened during the scan: nothing was read
    # after the reply that ended it, so its time is the end of the window.
    ping = member.command(rest.split.namespace.db, {"ping": 1})
    return scanned, None, max(until, ping["operationTime"])


def _part_events(rest: _Rest, upper: bytes | None, until: Timestamp) -> StreamSplit:
    split = rest.split
    above = "$gt" if rest.begun else "$gte"
    keys = [{above: ["$documentKey._id", literal(rest.lower)]}]
    if upper is not None:
        keys.append({"$lte": ["$documentKey._id", literal(upper)]})
    elif not split.range.is_last:
        keys.append({"$lt": ["$documentKey._id", literal(split.range.upper)]})
    match = {
        "operationType": {"$in": ["insert", "update", "replace", "delete"]},
        "ns.db": split.namespace.db,
        "ns.coll": split.namespace.coll,
        "$expr": {"$and": keys},
    }
    return StreamSplit(
        after=split.at,
        upto=until,
        database=split.namespace.db,
        pipeline=pipeline.pipeline([match]),
        collation=split.collation,
        only=split.namespace,
    )


def _undo(
    event: stream.Event, seen: set[str], scanned: dict[str, bytes], inexact: dict[str, bytes]
) -> None:
    """The first event of a key tells what was there before it; later ones tell nothing."""
    key = merge_key(key_of(bytes(event.raw["documentKey"].raw)))
    if key in seen:
        return
    seen.add(key)
    before = event.raw.get("fullDocumentBeforeChange")
    if event.raw["operationType"] == "insert":
        scanned.pop(key, None)
    elif before is not None:
        scanned[key] = bytes(before.raw)
    elif key in scanned:
        inexact[key] = scanned.pop(key)
