"""Reads of a StreamSplit from the oplog and the recorded pre-images, instead of a change stream.

The server makes each event of a change stream by itself and looks up its pre-image. Here both
collections are read in bulk, at a small part of the server's time, and `cdc.model.oplog` makes the
events. The rows are the same. What it does not understand is left to a change stream.

Each of these rules prevents a lost or an invented event:

* The member must have reached the upper time by its majority commit point, and entries are read
  with read concern majority. So no entry is missing, and none can be rolled back.
* The oldest entry must be at or before the lower time, and this is checked after the first reply.
  Before it, entries at the beginning of the split could be removed unnoticed. After it, the server
  refuses to continue a cursor whose place was removed (CappedPositionLost).
* Pre-images come from the same member, and none may be missing.
* Everything that the filter of a change stream could decide on is left to the change stream, and so
  is DDL. See `StreamSplit.is_whole`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pymongo.errors
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import CdcError
from cdc.model import NEVER, Selection, StreamSplit
from cdc.model.oplog import FindEntry, NeedsChangeStream
from cdc.mongo.connection import (
    LONGEST_MS,
    OPLOG,
    PRE_IMAGES,
    Batch,
    Member,
    may_pass,
    translate_error,
)
from cdc.mongo.read import change_stream
from cdc.mongo.read.event_run import Run
from cdc.mongo.read.images import Event, Images
from cdc.mongo.read.oplog_events import captured_operations
from cdc.mongo.read.pre_images import PreImages
from cdc.mongo.topology import reaches_back

_log = logging.getLogger(__name__)
# The wire version of MongoDB 6.0. Older servers have no pre-images of this form; positions of newer
# ones have another form.
_WIRE_VERSION: Final = 17
_OTHER_VERSION: Final = "the server is not MongoDB 6.0"
_BATCH: Final = 10_000

# Called with the reason why a change stream reads a slice that the oplog could have.
Note = Callable[[str], None]


def read(
    open_member: Callable[[], Member],
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    by_oplog: bool = True,
    note: Note = lambda reason: None,
) -> Iterator[Sequence[Event]]:
    """Yield the split's events like `change_stream.read` with `at_once`.

    With `by_oplog`, the oplog is read while it contains nothing but what is understood. A change
    stream reads the rest, after the last event. An error of the server also ends the reading of the
    oplog, because the change stream repeats failed attempts. `note` is called with the reason.
    """
    rest = split
    if by_oplog and is_suitable(split, images):
        try:
            for events in _read_oplog(open_member, split):
                rest = replace(rest, after_position=events[-1].position)
                yield events
            return
        except (NeedsChangeStream, CdcError, BSONError, pymongo.errors.PyMongoError) as error:
            reason = _describe(error)
            _log.info("changes after %s are read by a change stream: %s", split.after, reason)
            note(reason)
    yield from change_stream.read(open_member, rest, images, retry_seconds, at_once=True)


def is_suitable(split: StreamSplit, images: Images) -> bool:
    """Whether the oplog can have all that the rows of a split need."""
    is_cut = bool(split.late or split.emitted)  # between transactions across shards
    return split.is_whole and not is_cut and images.are_recorded


def find_obstacle(member: Member, images: Images) -> str | None:
    """Return why no slice can be read from the oplog; None if there is no such reason.

    Raises TransientError.
    """
    if not images.are_recorded:
        return "'images' asks for none that are recorded"
    if member.hello()["maxWireVersion"] != _WIRE_VERSION:
        return _OTHER_VERSION
    for namespace in (OPLOG, PRE_IMAGES):
        try:
            member.command(namespace.db, {"find": namespace.coll, "limit": 1, "singleBatch": True})
        except pymongo.errors.PyMongoError as error:
            problem = translate_error(error, f"Reading {namespace}")
            if may_pass(problem):
                raise problem from error
            return f"the user lacks find on {namespace}"
    return None


def _describe(error: Exception) -> str:
    """Return the reason without values of documents, which a message of the server may quote."""
    if isinstance(error, NeedsChangeStream):
        return error.reason
    return f"{type(error).__name__} {getattr(error, 'code', None) or ''}".rstrip()


def _read_oplog(open_member: Callable[[], Member], split: StreamSplit) -> Iterator[Sequence[Event]]:
    """Yield the events of a split in order, in parts that are not empty.

    Raises NeedsChangeStream, UnmappableValue and the driver's errors. The events of the part that
    would be next are not yielded then.
    """
    member = open_member()
    try:
        _require_reached(member, split.upto)
        reading = {
            "readConcern": {"level": "majority", "afterClusterTime": split.upto},
            "batchSize": _BATCH,
            "maxTimeMS": LONGEST_MS,
        }
        images = PreImages(member, reading)
        for batch in _entries(member, split, reading):
            yield from _events(batch, split, images, partial(_find_entry, member))
    finally:
        member.end()


def _require_reached(member: Member, time: Timestamp) -> None:
    hello = member.hello()
    if hello["maxWireVersion"] != _WIRE_VERSION:
        raise NeedsChangeStream(_OTHER_VERSION)
    if hello.get("lastWrite", {}).get("majorityOpTime", {}).get("ts", NEVER) < time:
        raise NeedsChangeStream("a member that lags")


def _entries(member: Member, split: StreamSplit, reading: dict[str, Any]) -> Iterator[Batch]:
    """Yield the replies with the entries of the split's time, in order."""
    is_checked = False
    for batch in member.find(OPLOG, {"filter": _condition(split), **reading}):
        if not is_checked:
            if not reaches_back(member, split.after):
                raise NeedsChangeStream("an oplog that begins after the split")
            is_checked = True
        yield batch


def _condition(split: StreamSplit) -> dict[str, Any]:
    """Return the condition for entries in the split's time that concern its collections.

    These are all operations on them, all transactions, because any of them may change a captured
    document, and the DDL of their databases. A rename is always passed: its target may be in
    another database.
    """
    selection = Selection.parse(split.collections)
    databases = {"$in": sorted({"admin.$cmd", *(f"{name.db}.$cmd" for name in selection.names)})}
    return {
        "ts": {"$gt": split.after, "$lte": split.upto},
        "$or": [
            selection.full_condition("ns"),
            {"op": "c", "ns": {"$regex": r"\.\$cmd$"} if selection.patterns else databases},
            {"op": "c", "o.renameCollection": {"$exists": True}},
        ],
    }


def _find_entry(member: Member, time: Timestamp) -> RawBSONDocument | None:
    """Return the entry of that time; None if the oplog does not have it."""
    found = member.command(
        OPLOG.db, {"find": OPLOG.coll, "filter": {"ts": time}, "limit": 1, "singleBatch": True}
    )
    return next(iter(found["cursor"]["firstBatch"]), None)


def _events(
    batch: Batch, split: StreamSplit, images: PreImages, find_entry: FindEntry
) -> Iterator[Sequence[Event]]:
    """Yield the events of the entries in a reply, in parts whose pre-images fit in memory."""
    operations = captured_operations(batch, Selection.parse(split.collections), find_entry)
    first = 0
    while first < len(operations):
        part = operations[first : first + images.count]
        found = images.find(part.ranges())
        if found is None:
            continue
        made = part.events(found)
        first += len(part)
        new = _select_after(made, split.after_position)
        if len(new):
            yield new


def _select_after(events: Sequence[Event], position: str) -> Sequence[Event]:
    """Return the events after a position; all events if it is empty."""
    if isinstance(events, Run):
        return events.select_after(position)
    return [event for event in events if event.position > position]
