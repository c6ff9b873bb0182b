"""From offsets to splits: what each task of a batch is to read.

Nothing here asks a server, but for the cut points of a batch read: a batch replayed days later has
to read the same rows.
"""

from __future__ import annotations

from dataclasses import replace

from bson.timestamp import Timestamp

from cdc.model import (
    MAX_KEY,
    ControlSplit,
    Excerpt,
    KeyRange,
    Namespace,
    Offset,
    Scan,
    Selection,
    SnapshotSplit,
    StreamSplit,
    Watermark,
    begun_again,
    withheld,
)
from cdc.mongo.collections import Listing
from cdc.mongo.query import event_filter, projection
from cdc.mongo.topology import Source

_ALL = 2**31 - 1


def stream_splits(start: Offset, end: Offset) -> list[StreamSplit]:
    """The changes of the batch: whole collections, and the copied part of the one being copied."""
    if end.time <= start.time or end.gap is not None:
        return []
    return [split for shard in end.shards for split in _of_shard(start, end, shard)]


def span(
    start: Offset, end: Offset, shard: str, selection: Selection, stages: bytes
) -> StreamSplit:
    """What passes `stages` of what a shard tells of the time between two offsets."""
    told = start.late_of(shard)
    return StreamSplit(
        start.time,
        end.time,
        selection.database,
        stages,
        collections=selection.text,
        excerpt=start.excerpt,
        shard=shard,
        late=tuple(time for time in end.late_of(shard) if time not in told),
        told=told,
        behind=start.position,
    )


def _of_shard(start: Offset, end: Offset, shard: str) -> list[StreamSplit]:
    selection, copying = Selection.parse(start.selection), start.copying
    conditions = [event_filter.rows(selection, start)]
    if shard not in end.silent:
        conditions.append(event_filter.not_rows(selection))
    below = event_filter.rows_below(copying) if copying else None
    collation = copying.collation if copying else None
    if below is not None and collation is None:
        conditions.append(below)
    told = projection.stages(Excerpt.parse(start.excerpt))
    whole = span(start, end, shard, selection, event_filter.pipeline(conditions, then=told))
    if below is None or copying is None or collation is None:
        return [whole]
    stages = event_filter.pipeline([below], then=told)
    return [whole, replace(whole, pipeline=stages, collation=collation, only=copying.namespace)]


def scan_splits(
    scan: Scan, at: Timestamp, cut: list[KeyRange] | None, excerpt: str
) -> list[SnapshotSplit]:
    """The splits of a scan: as it was cut when it was planned, or one if nobody remembers."""
    c = scan.copying
    return [
        SnapshotSplit(c.namespace, c.uuid, key_range, at, c.collation, c.shard, excerpt)
        for key_range in cut or [KeyRange(c.below, scan.upper)]
    ]


def control_split(start: Offset, end: Offset) -> ControlSplit:
    """What a sink has to know of the batch."""
    resync: list[Namespace | None] = [*begun_again(start, end)]
    if end.gap is not None and resync:  # what else there was may be gone meanwhile
        resync = [None]
    described = Watermark.of(start, end).text()
    return ControlSplit(end.time, described, tuple(resync), tuple(withheld(start, end)))


def snapshot_splits(
    source: Source, found: Listing, split_bytes: int, at: Timestamp, excerpt: Excerpt
) -> list[SnapshotSplit]:
    """Splits of all of the listed collections at one time, for a batch read."""
    return [
        split
        for c in found.collections
        for split in scan_splits(
            Scan(c.begun, MAX_KEY), at, source.ranges(c.begun, _ALL, split_bytes), excerpt.text
        )
    ]


def range_splits(
    found: Listing, keys: KeyRange, at: Timestamp, excerpt: Excerpt
) -> list[SnapshotSplit]:
    """What lies in a range, in one split: for checking a copy that is under way, and for reading a
    part again. No split where the range is empty by its ends."""
    return [
        split
        for c in found.collections
        if keys.lower != keys.upper
        for split in scan_splits(
            Scan(replace(c.begun, below=keys.lower), keys.upper), at, None, excerpt.text
        )
    ]
