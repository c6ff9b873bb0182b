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
* DDL is left to the change stream. The pipeline of the split is applied by the server, see
  `cdc.mongo.query.literal_documents`, unless it passes everything. See `StreamSplit.is_whole`.
* A part of a slice that is to be verified is yielded only after the change stream has given the
  same rows. So all rows before a difference are those of the change stream, and it can go on there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

import pymongo.errors
from bson.errors import BSONError
from bson.timestamp import Timestamp

from cdc.errors import CdcError, OplogDiffers, OplogUnsuitable, TransientError, UnmappableValue
from cdc.model import Change, Namespace, Selection, StreamSplit, event_row
from cdc.model.oplog import Comparison, Differs, FindEntry, NeedsChangeStream, ReadMethod
from cdc.mongo.connection import (
    LONGEST_MS,
    OPLOG,
    PRE_IMAGES,
    CursorBatch,
    Member,
    Progress,
    may_pass,
    retry_attempts,
    translate_error,
)
from cdc.mongo.read import change_stream
from cdc.mongo.read.event_run import Run
from cdc.mongo.read.images import Event, Images
from cdc.mongo.read.oplog_events import captured_operations, select_passing
from cdc.mongo.read.oplog_reading import PreImages, entries, find_entry
from cdc.mongo.topology import has_committed

_log = logging.getLogger(__name__)
# The wire version of MongoDB 6.0. Older servers have no pre-images of this form; positions of newer
# ones have another form.
_WIRE_VERSION: Final = 17
_OTHER_VERSION: Final = "the server is not MongoDB 6.0"
_ROUTER: Final = "the source is a router"
_NO_IMAGES: Final = "'images' asks for none that are recorded"
_BATCH: Final = 10_000
_AUTO: Final = ReadMethod()

# Called with the reason why a change stream reads a slice, or the rest of it.
Note = Callable[[str], None]


class _Lags(NeedsChangeStream):
    """The member has not reached the end of the slice yet."""


def read(
    open_member: Callable[[], Member],
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    method: ReadMethod = _AUTO,
    note: Note = lambda reason: None,
) -> Iterator[Sequence[Event]]:
    """Yield the split's events like `change_stream.read` with `at_once`.

    The oplog is read while it contains nothing but what is understood. A change stream reads the
    rest, after the last event. An error of the server also ends the reading of the oplog, because
    the change stream repeats failed attempts. `note` is called with the reason.

    If the method is `oplog`, no change stream goes on. Attempts that failed are repeated as in a
    change stream. OplogUnsuitable states the reason why they cannot succeed.

    A slice that the method verifies is compared with a change stream. At a difference, the method
    decides: OplogDiffers is raised, or the change stream goes on.
    """
    exclusion = find_exclusion(split, images)
    if method.requires_oplog:
        if exclusion is not None:
            raise _unsuitable(split, exclusion)
        yield from _read_repeatedly(open_member, split, images, retry_seconds, method)
        return
    rest = split
    if method.reads_oplog:
        try:
            if exclusion is not None:
                raise NeedsChangeStream(exclusion)
            for events in _read_verified(open_member, split, images, retry_seconds, method):
                rest = replace(rest, after_position=events[-1].position)
                yield events
            return
        except OplogDiffers:
            raise
        except (NeedsChangeStream, CdcError, BSONError, pymongo.errors.PyMongoError) as error:
            reason = _describe(error)
            is_different = isinstance(error, Differs)
            _log.log(
                logging.WARNING if is_different else logging.INFO,
                "changes after %s are read by a change stream: %s",
                split.after,
                error if is_different else reason,
            )
            note(reason)
    yield from change_stream.read(open_member, rest, images, retry_seconds, at_once=True)


def find_exclusion(split: StreamSplit, images: Images) -> str | None:
    """Return why the oplog cannot have all that the rows of a split need; None if it can."""
    if not images.are_recorded:
        return _NO_IMAGES
    return "a transaction across shards" if split.late or split.emitted else None


def find_obstacle(member: Member, images: Images) -> str | None:
    """Return why no slice can be read from the oplog; None if there is no such reason.

    Raises TransientError.
    """
    if not images.are_recorded:
        return _NO_IMAGES
    if member.is_router:
        return _ROUTER
    if member.hello()["maxWireVersion"] != _WIRE_VERSION:
        return _OTHER_VERSION
    lacking = [str(each) for each in (OPLOG, PRE_IMAGES) if not _may_find(member, each)]
    return f"the user lacks find on {' and '.join(lacking)}" if lacking else None


def _may_find(member: Member, namespace: Namespace) -> bool:
    try:
        member.command(namespace.db, {"find": namespace.coll, "limit": 1, "singleBatch": True})
    except pymongo.errors.PyMongoError as error:
        problem = translate_error(error, f"Reading {namespace}")
        if may_pass(problem):
            raise problem from error
        return False
    return True


def _describe(error: Exception) -> str:
    """Return the reason without values of documents, which a message of the server may quote."""
    if isinstance(error, NeedsChangeStream):
        return error.reason
    return f"{type(error).__name__} {getattr(error, 'code', None) or ''}".rstrip()


def _read_repeatedly(
    open_member: Callable[[], Member],
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    method: ReadMethod,
) -> Iterator[Sequence[Event]]:
    """Yield the events of a split from the oplog, which is read again after transient errors.

    Raises OplogUnsuitable, OplogDiffers, HistoryLost, NotPermitted, and TransientError after
    `retry_seconds`.
    """
    progress, rest = Progress(), split
    attempted = (
        f"Reading the oplog after {split.after} up to {split.upto}{split.capture.error_suffix}"
    )
    for attempt in retry_attempts(progress, retry_seconds, attempted):
        with attempt:
            try:
                for events in _read_verified(open_member, rest, images, retry_seconds, method):
                    rest = replace(rest, after_position=events[-1].position)
                    yield events
                    progress.record_progress()
            except _Lags as error:
                raise TransientError(f"{attempted}: {error.reason}.") from error
            except (NeedsChangeStream, BSONError, UnmappableValue) as error:
                raise _unsuitable(split, _describe(error)) from error


def _unsuitable(split: StreamSplit, reason: str) -> OplogUnsuitable:
    return OplogUnsuitable(
        f"Changes after {split.after} up to {split.upto} cannot be read from the oplog: {reason}.",
        "Set read.by to auto, at least until these changes are read, or remove the reason.",
    )


def _read_verified(
    open_member: Callable[[], Member],
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    method: ReadMethod,
) -> Iterator[Sequence[Event]]:
    """Yield the events of a split in parts, each after it was compared if the method says so.

    Raises OplogDiffers, or Differs if a change stream is to go on, and like `_read_oplog` and
    `change_stream.read`.
    """
    if not method.verifies(split):
        yield from _read_oplog(open_member, split)
        return
    parts = _read_oplog(open_member, split)
    # An event that is too large for a change stream is none for the oplog, and must not fail.
    lenient = replace(images, on_oversize="lookup")
    stream = change_stream.read(open_member, split, lenient, retry_seconds, at_once=True)
    # A cursor that garbage collection closes, within the driver, waits for the driver for ever.
    with closing(stream), closing(parts):
        comparison = Comparison(_rows(stream, split))
        try:
            for events in parts:
                comparison.require_same(_rows([events], split))
                yield events
            comparison.require_end()
        except Differs as error:
            if method.on_difference == "change_stream":
                raise
            raise OplogDiffers(
                f"Verifying changes after {split.after} up to {split.upto}: {error}.",
                "Keep the oplog and report this. Set read.by to change_stream to go on.",
            ) from error


def _rows(parts: Iterable[Sequence[Event]], split: StreamSplit) -> Iterator[Change]:
    """Yield the rows of events, with images in BSON."""
    selection = Selection.parse(split.collections)
    for events in parts:
        for event in events:
            yield event_row(*event, split.shard, selection, split.capture, bytes)


def _read_oplog(
    open_member: Callable[[], Member], split: StreamSplit
) -> Generator[Sequence[Event]]:
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
        with closing(entries(member, split, reading)) as replies:
            for batch in replies:
                for events in _events(batch, split, images, partial(find_entry, member)):
                    yield from select_passing(member, split, events)
    finally:
        member.end()


def _require_reached(member: Member, time: Timestamp) -> None:
    if member.is_router:
        raise NeedsChangeStream(_ROUTER)
    hello = member.hello()
    if hello["maxWireVersion"] != _WIRE_VERSION:
        raise NeedsChangeStream(_OTHER_VERSION)
    if not has_committed(hello, time):
        raise _Lags("a member that lags")


def _events(
    batch: CursorBatch, split: StreamSplit, images: PreImages, find_entry: FindEntry
) -> Iterator[Sequence[Event]]:
    """Yield the events of the entries in a reply, in parts whose pre-images fit in memory."""
    operations = captured_operations(batch, split.selection, find_entry)
    first = 0
    while first < len(operations):
        part = operations[first : first + images.count]
        found = images.find(part.ranges())
        if found is None:
            continue
        new = [_select_after(part.events(found), split.after_position)]
        first += len(part)
        del part, found
        if len(new[0]):
            yield new.pop()


def _select_after(events: Sequence[Event], position: str) -> Sequence[Event]:
    """Return the events after a position; all events if it is empty."""
    if isinstance(events, Run):
        return events.select_after(position)
    return [event for event in events if event.position > position]
