"""From offsets to splits: what each task of a batch is to read.

Nothing here asks a server, but for the cut points of a batch read: a batch replayed days later has
to read the same rows.
"""

from __future__ import annotations

import json
from dataclasses import replace

from bson.timestamp import Timestamp

from cdc.model.offset import Offset, Scan, begun_again
from cdc.model.selection import Selection
from cdc.model.split import MIN_KEY, ControlSplit, KeyRange, SnapshotSplit, StreamSplit
from cdc.mongo import pipeline
from cdc.mongo.enumerator import Listing, ranges
from cdc.mongo.topology import ReplicaSet

_ALL = 2**31 - 1


def stream_splits(start: Offset, end: Offset) -> list[StreamSplit]:
    """The changes of the batch: whole collections, and the copied part of the one being copied."""
    if end.time <= start.time:
        return []
    selection = Selection.parse(start.selection)
    conditions = [pipeline.not_rows(selection), pipeline.rows(selection, start)]
    below = pipeline.rows_below(start.copying) if start.copying else None
    collation = start.copying.collation if start.copying else None
    if below is not None and collation is None:
        conditions.append(below)
    whole = StreamSplit(
        start.time,
        end.time,
        selection.database,
        pipeline.pipeline(conditions),
        collections=start.selection,
    )
    if below is None or start.copying is None or collation is None:
        return [whole]
    copied = replace(
        whole,
        pipeline=pipeline.pipeline([below]),
        collation=collation,
        only=start.copying.namespace,
    )
    return [whole, copied]


def scan_splits(scan: Scan, at: Timestamp, cut: list[KeyRange] | None) -> list[SnapshotSplit]:
    """The splits of a scan: as it was cut when it was planned, or one if nobody remembers."""
    c = scan.copying
    return [
        SnapshotSplit(c.namespace, c.uuid, key_range, at, c.collation)
        for key_range in cut or [KeyRange(c.below, scan.upper)]
    ]


def control_split(start: Offset, end: Offset) -> ControlSplit:
    """What a sink has to know of the batch."""
    resync = tuple(begun_again(start, end))
    return ControlSplit(end.time, json.dumps(end.described()), resync)


def snapshot_splits(
    source: ReplicaSet, found: Listing, split_bytes: int, at: Timestamp
) -> list[SnapshotSplit]:
    """Splits of all of the listed collections at one time, for a batch read."""
    return [
        SnapshotSplit(c.namespace, c.uuid, key_range, at, c.collation)
        for c in found.collections
        for key_range in ranges(source.client, c.namespace, MIN_KEY, _ALL, split_bytes)
    ]


def below_splits(found: Listing, below: bytes, at: Timestamp) -> list[SnapshotSplit]:
    """What lies below a frontier key, in one split: for checking a copy that is under way."""
    return [
        SnapshotSplit(c.namespace, c.uuid, KeyRange(MIN_KEY, below), at, c.collation)
        for c in found.collections
        if below != MIN_KEY
    ]
