"""Rewind: the documents of a range as of a time that no server can read any more.

The range is read in a newer state. Then the changes since the time are undone: each key gets the
before-image of its first change event. This works for every time that the oplog still covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import bson
import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model import (
    MAX_KEY,
    ROW_EVENTS,
    SnapshotSplit,
    StreamSplit,
    filter_marks,
    key_of,
    literal,
    merge_key,
)
from cdc.mongo.collections import TimeUnreadable, UnreadRange, Void
from cdc.mongo.connection import TIME_UNREADABLE, Member, reply_time
from cdc.mongo.query import event_filter, projection
from cdc.mongo.read import change_stream
from cdc.mongo.read.images import BEFORE_IMAGES, IMAGES, Event
from cdc.mongo.read.range_scan import Documents, scan

BYTES = 64 * 2**20
# Other fields of events are not read: with after-images, some events would exceed 16 MiB and come
# without any image.
_UNDO_FIELDS = (
    *("operationType", "ns", "clusterTime", "documentKey", "lsid", "txnNumber"),
    "fullDocumentBeforeChange",
)
RETRY_SECONDS = 60


class Undoing:
    """Documents by merge key, from which the events since a time are undone.

    Only the first event of a key counts, except for a document that moved between shards.
    """

    def __init__(self, scanned: dict[str, bytes]) -> None:
        self._documents, self._inexact = scanned, dict[str, bytes]()
        self._seen: set[str] = set()
        self._inserted: dict[str, tuple[Any, str, bytes | None]] = {}

    def undo(self, event: Event, shard: str = "") -> None:
        """Undo an event. The events of all shards must be passed in order of their positions."""
        key = merge_key(key_of(bytes(event.raw["documentKey"].raw)))
        if key not in self._seen:
            self._seen.add(key)
            if event.raw["operationType"] == "insert":
                self._inserted[key] = (_txn(event), shard, self._documents.pop(key, None))
            else:
                self._put_back(key, event, self._documents.pop(key, None))
        elif event.raw["operationType"] == "delete" and key in self._inserted:
            # If both events are of one transaction but of different shards, the document was not
            # inserted: it moved from the shard of the delete.
            txn, where, document = self._inserted[key]
            if txn == _txn(event) is not None and where != shard:
                del self._inserted[key]
                self._put_back(key, event, document)

    def _put_back(self, key: str, event: Event, newer: bytes | None) -> None:
        before = event.raw.get("fullDocumentBeforeChange")
        if before is not None:
            self._documents[key] = bytes(before.raw)
        elif newer is not None and filter_marks(event.raw).before is not False:
            self._inexact[key] = newer

    def leave_out(self, keys: set[str]) -> None:
        """Leave out the documents of these merge keys, which were yielded before."""
        for key in keys:
            self._documents.pop(key, None)
            self._inexact.pop(key, None)

    def keys(self) -> frozenset[str]:
        """Return the merge keys of the documents."""
        return frozenset(self._documents.keys() | self._inexact.keys())

    def documents(self, until: Timestamp) -> Iterator[Documents]:
        """Yield the documents, to be called after the last event.

        A document whose before-image is missing is yielded in the newer state, marked as inexact.
        `until` is the time of the newer state.
        """
        if self._documents:
            yield Documents(list(self._documents.values()))
        if self._inexact:
            yield Documents(list(self._inexact.values()), exact_from=until)


def _txn(event: Event) -> Any:
    lsid = event.raw.get("lsid")
    return None if lsid is None else (bytes(lsid.raw), event.raw.get("txnNumber"))


# --- a replica set -------------------------------------------------------------------------------


def next_part(
    member: Member, rest: UnreadRange, open_member: Callable[[], Member]
) -> Iterator[Documents]:
    """Yield the next part of the range as of the split's time, about 64 MiB of it.

    Raises Void if the name now has another incarnation, or if its content was replaced by a rename.
    """
    scanned, upper, until = _newest_state(member, rest)
    undoing = Undoing(scanned)
    part = _part_events(rest, upper, until)
    for events in change_stream.read(open_member, part, BEFORE_IMAGES, RETRY_SECONDS):
        for event in events:
            undoing.undo(event)
    if rest.is_begun:
        undoing.leave_out({merge_key(rest.lower), *rest.rewound})
    rest.rewound = undoing.keys() if rest.split.collation is not None else frozenset()
    if is_refilled(rest.split, until, open_member):
        raise Void
    rest.lower, rest.is_begun = (upper, True) if upper else (MAX_KEY, True)
    yield from undoing.documents(until)


def _newest_state(
    member: Member, rest: UnreadRange
) -> tuple[dict[str, bytes], bytes | None, Timestamp]:
    """Read the documents of the next part in a newer state.

    Returns the documents by merge key; the last key of the part, or None if the part reaches the
    end of the split; and a time. Each document is as of some time from the split's to that one.
    """
    concern = {"level": "majority", "afterClusterTime": rest.split.at}
    scanned: dict[str, bytes] = {}
    size, until = 0, rest.split.at
    with reading_newest(rest.split):
        for documents, operation_time in scan(member, rest, concern):
            size += collect(documents, scanned)
            until = max(until, operation_time)
            if size > BYTES:
                return scanned, key_of(documents[-1]), until
    # Documents after the last one of the scan may have been deleted during the scan. The last reply
    # came before this ping, so the time of the ping is the end of the window.
    ping = member.command(rest.split.namespace.db, {"ping": 1})
    return scanned, None, max(until, reply_time(ping))


def _part_events(rest: UnreadRange, upper: bytes | None, until: Timestamp) -> StreamSplit:
    # Also the events of the last key that was read: under a collation, the first document of this
    # part may have an equal key, `A` in place of `a`, that was inserted since.
    keys = [{"$gte": ["$documentKey._id", literal(rest.lower)]}]
    if upper is not None:
        keys.append({"$lte": ["$documentKey._id", literal(upper)]})
    elif not rest.split.range.is_last:
        keys.append({"$lt": ["$documentKey._id", literal(rest.split.range.upper)]})
    return events_of(rest.split, keys, until)


# --- a replica set and a cluster -----------------------------------------------------------------


@contextmanager
def reading_newest(split: SnapshotSplit) -> Iterator[None]:
    """Raise TransientError if a read of the newest state fails because its time is unreadable.

    The newest state always exists, so a repeated read can succeed.
    """
    try:
        yield
    except TimeUnreadable as error:
        raise TransientError(f"Copying {split.namespace}: its chunks are moving.") from error
    except pymongo.errors.OperationFailure as error:
        if error.code in TIME_UNREADABLE:
            raise TransientError(f"Copying {split.namespace}: the scan was killed.") from error
        raise


def collect(documents: Sequence[bytes], scanned: dict[str, bytes]) -> int:
    """Add documents to `scanned` by merge key; return their bytes."""
    scanned.update((merge_key(key_of(document)), document) for document in documents)
    return sum(map(len, documents))


def events_of(
    split: SnapshotSplit,
    keys: list[dict[str, Any]],
    until: Timestamp,
    of_incarnation: bool = False,
) -> StreamSplit:
    """Return the split of the row events since the split's time whose keys match `keys`.

    With `of_incarnation`, events of another collection that got the name meanwhile are left out, if
    the server reports their UUIDs.
    """
    match: dict[str, Any] = {
        "operationType": {"$in": ROW_EVENTS},
        "ns.db": split.namespace.db,
        "ns.coll": split.namespace.coll,
        "$expr": {"$and": keys},
    }
    if of_incarnation:
        match["collectionUUID"] = {"$in": [bson.Binary(split.uuid, 4), None]}
    last_stages = projection.filter_stages(split.capture)
    return StreamSplit(
        after=split.at,
        upto=until,
        database=split.namespace.db,
        pipeline=event_filter.pipeline([match], dict.fromkeys(_UNDO_FIELDS, 1), last_stages),
        collation=split.collation,
        only=split.namespace,
    )


def is_refilled(
    split: SnapshotSplit, until: Timestamp, open_member: Callable[[], Member], shard: str = ""
) -> bool:
    """Whether another collection was renamed to this name after the split's time.

    It brought documents that no event of this name reports, so they cannot be undone.
    """
    db, coll = split.namespace
    renamed = {"operationType": "rename", "to.db": db, "to.coll": coll}
    events = StreamSplit(split.at, until, db, event_filter.pipeline([renamed]), shard=shard)
    return any(change_stream.read(open_member, events, IMAGES["off"], RETRY_SECONDS))
