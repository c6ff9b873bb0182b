"""Reads of a split of any source: a key range as of T, or a slice of the change stream.

Where a part of the source has all documents of its collections, it alone is read. Where documents
move between shards, a shard returns the documents that it owned at a time, and its own events. Then
a range is read from all its owners, a rewind reads the events of all shards, and a lookup may have
to query all shards. Through a router, a range is made to fit the events that the router reports.

`Source.ownership` and `Source.reads_match_events` say which of them it is. The choice is here,
because a source is below the readers and cannot call them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from cdc.model import (
    Copying,
    KeyRange,
    SnapshotSplit,
    StreamSplit,
    key_of,
    literal,
    merge_key,
)
from cdc.model.oplog import ReadMethod
from cdc.mongo.collections import TimeUnreadable, UnreadRange, Void
from cdc.mongo.connection import Member, retry_call
from cdc.mongo.read import change_stream, oplog, snapshot
from cdc.mongo.read.event_run import Run
from cdc.mongo.read.images import BEFORE_IMAGES, Event, Images
from cdc.mongo.read.range_scan import Documents, scan
from cdc.mongo.read.rewind import (
    BYTES,
    RETRY_SECONDS,
    Undoing,
    collect,
    events_of,
    is_refilled,
    reading_newest,
)
from cdc.mongo.read.shards import stream_order
from cdc.mongo.read.shards.cross_shard_lookup import Lookup
from cdc.mongo.topology import Ownership, Source


def read_range(
    source: Source, split: SnapshotSplit, retry_seconds: float, may_be_void: bool
) -> Iterator[Documents]:
    """Yield the documents of a range exactly as of its time, each once; see `snapshot.read`."""
    if not source.reads_match_events:
        return stream_order.read(source, split, retry_seconds, may_be_void)
    if source.ownership is None:
        opener = partial(source.open, split.shard)
        return snapshot.read(opener, split, retry_seconds, may_be_void)
    return _read_owners(source, source.ownership, split, retry_seconds, may_be_void)


def read_slice(
    source: Source,
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    method: ReadMethod,
    note: oplog.Note,
) -> Iterator[Sequence[Event]]:
    """Yield the events of a slice in order, each once; see `oplog.read`."""
    opener = partial(source.open, split.shard)
    events = oplog.read(opener, split, images, retry_seconds, method, note)
    if source.ownership is None:
        return events
    return _look_up_missing(source, source.ownership, split, images, retry_seconds, events)


# --- documents that move between shards ----------------------------------------------------------


def _look_up_missing(
    source: Source,
    ownership: Ownership,
    split: StreamSplit,
    images: Images,
    retry_seconds: float,
    read: Iterator[Sequence[Event]],
) -> Iterator[Sequence[Event]]:
    """Yield the events of one shard, after a lookup of missing documents on all shards.

    A document that is to be looked up may have left the shard of its event.
    """
    for events in read:
        if isinstance(events, Run):  # a run needs no lookup
            yield events
            continue
        with Lookup(source, ownership, retry_seconds, split.capture) as lookup:
            complete = [lookup.look_up(e) if e.is_missing(images) else e for e in events]
        yield complete


def _read_owners(
    source: Source,
    ownership: Ownership,
    split: SnapshotSplit,
    retry_seconds: float,
    may_be_void: bool,
) -> Iterator[Documents]:
    """Read a split like `snapshot.read`, from all shards that owned a part of it at its time."""
    emitted_keys: list[bytes] = []
    try:
        try:
            find_owners = partial(ownership.owners, split)
            what = f"Reading the owners of {split.namespace}"
            for shard in retry_call(find_owners, retry_seconds, what):
                rest = UnreadRange(split, partial(ownership.version, split, shard))
                opener = partial(source.open, shard)
                attempt = partial(_read_at_time, ownership)
                for documents in snapshot.retry_read(opener, rest, retry_seconds, attempt):
                    emitted_keys += map(key_of, documents.raw)
                    yield documents
        except TimeUnreadable:
            yield from _rewind(source, ownership, split, retry_seconds, emitted_keys)
    except Void as void:
        yield snapshot.void_documents(split, may_be_void, void)


def _read_at_time(
    ownership: Ownership, member: Member, rest: UnreadRange, open_member: Callable[[], Member]
) -> Iterator[Documents]:
    with ownership.void_if_gone(rest.split):
        yield from snapshot.read_at_time(member, rest, open_member)


def _rewind(
    source: Source,
    ownership: Ownership,
    split: SnapshotSplit,
    retry_seconds: float,
    emitted_keys: list[bytes],
) -> Iterator[Documents]:
    """Yield the documents of the split as of its time, without those already emitted."""
    emitted = {merge_key(key) for key in emitted_keys}
    what = f"Rewinding {split.namespace} to {split.at}"
    left = split.range
    while True:
        rest = replace(split, range=left)
        part = retry_call(partial(_next_part, source, ownership, rest), retry_seconds, what)
        results = retry_call(partial(_rewind_part, source, ownership, part), retry_seconds, what)
        for documents in results:
            new = [d for d in documents.raw if merge_key(key_of(d)) not in emitted]
            yield documents._replace(raw=new)
        if part.range.upper == left.upper:
            return
        left = KeyRange(part.range.upper, left.upper)


def _next_part(source: Source, ownership: Ownership, split: SnapshotSplit) -> SnapshotSplit:
    """Return the first part of the split, at most about 64 MiB on each shard."""
    left = split.range
    copying = Copying(split.namespace, split.uuid, split.collation, left.lower, split.shard)
    cut = source.ranges(copying, 1, BYTES)[0].upper
    upper = ownership.lesser_key(split.namespace, cut, left.upper)
    return replace(split, range=KeyRange(left.lower, upper))


def _rewind_part(source: Source, ownership: Ownership, split: SnapshotSplit) -> list[Documents]:
    """Return the documents of a part as of its time.

    All shards are read at one newer time, at which each omits documents that it does not own. Then
    the events of all shards since the part's time are undone in order: a document may have moved to
    another shard. Raises Void like `rewind.next_part`.
    """
    now = max(split.at, source.present())
    newer = replace(split, at=now)
    scanned: dict[str, bytes] = {}
    with reading_newest(newer):
        holders = ownership.owners(newer)
    for shard in holders:
        _scan_shard(source, ownership, newer, shard, scanned)
    undoing = Undoing(scanned)
    # A transaction committed by the part's time may have later events; its state includes them.
    earlier, late = dict(source.late_times(split.at)), dict(source.late_times(now))
    keys = [{"$gte": ["$documentKey._id", literal(split.range.lower)]}]
    if not split.range.is_last:
        keys.append({"$lt": ["$documentKey._id", literal(split.range.upper)]})
    whole = events_of(split, keys, now)

    def events(shard: str) -> Iterator[tuple[str, Event]]:
        own = replace(whole, shard=shard, emitted=earlier.get(shard, ()), late=late.get(shard, ()))
        opener = partial(source.open, shard)
        for batch in change_stream.read(opener, own, BEFORE_IMAGES, RETRY_SECONDS):
            for event in batch:
                yield shard, event

    for shard, event in heapq.merge(*map(events, source.shards), key=lambda e: e[1].position):
        undoing.undo(event, shard)
    for shard in source.shards:
        if is_refilled(split, now, partial(source.open, shard), shard):
            raise Void
    return list(undoing.documents(now))


def _scan_shard(
    source: Source,
    ownership: Ownership,
    split: SnapshotSplit,
    shard: str,
    scanned: dict[str, bytes],
) -> None:
    member = source.open(shard)
    rest = UnreadRange(split, partial(ownership.version, split, shard))
    concern = {"level": "snapshot", "atClusterTime": split.at}
    try:
        with reading_newest(split), ownership.void_if_gone(split):
            for documents, _ in scan(member, rest, concern):
                collect(documents, scanned)
    finally:
        member.end()
