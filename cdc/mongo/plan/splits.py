"""Splits of a batch, derived from its two offsets.

Nothing here queries a server, because a batch that is replayed days later must read the same rows.
Only the cut points of a batch read come from a server.
"""

from __future__ import annotations

from dataclasses import replace

from bson.timestamp import Timestamp

from cdc.model import (
    MAX_KEY,
    CaptureFilter,
    ControlSplit,
    KeyRange,
    Namespace,
    Offset,
    Scan,
    Selection,
    SnapshotSplit,
    StreamSplit,
    Watermark,
    list_recopied,
    list_withheld,
)
from cdc.mongo.collections import Listing
from cdc.mongo.query import event_filter, projection
from cdc.mongo.topology import Source

_ALL = 2**31 - 1


def stream_splits(start: Offset, end: Offset) -> list[StreamSplit]:
    """Return the splits for the changes of a batch.

    They contain the changes of all collections that are done, and those of the copied part of the
    collection that is being copied. They also contain the other events, such as DDL.
    """
    if end.time <= start.time or end.gap is not None:
        return []
    return [split for shard in end.shards for split in _split_shard(start, end, shard)]


def span(
    start: Offset, end: Offset, shard: str, selection: Selection, stages: bytes
) -> StreamSplit:
    """Return the split with the events of one shard between two offsets that pass `stages`."""
    emitted = start.late_of(shard)
    return StreamSplit(
        start.time,
        end.time,
        selection.database,
        stages,
        collections=selection.text,
        capture_text=start.capture_text,
        shard=shard,
        late=tuple(time for time in end.late_of(shard) if time not in emitted),
        emitted=emitted,
        after_position=start.position,
        has_whole_keys=bool(start.shard_keys),
    )


def _split_shard(start: Offset, end: Offset, shard: str) -> list[StreamSplit]:
    selection, copying = Selection.parse(start.selection), start.copying
    conditions = [event_filter.rows(selection, start)]
    if shard not in end.silent:
        conditions.append(event_filter.not_rows(selection))
    below = event_filter.rows_below(copying) if copying else None
    collation = copying.collation if copying else None
    if below is not None and collation is None:
        conditions.append(below)
    projected = projection.filter_stages(CaptureFilter.parse(start.capture_text))
    whole = span(start, end, shard, selection, event_filter.pipeline(conditions, then=projected))
    if below is None or copying is None or collation is None:
        return [replace(whole, is_whole=_passes_all_rows(start))]
    stages = event_filter.pipeline([below], then=projected)
    return [whole, replace(whole, pipeline=stages, collation=collation, only=copying.namespace)]


def _passes_all_rows(start: Offset) -> bool:
    """Whether all row events of the selected collections belong to a batch, unchanged."""
    return not (start.copying or start.swept is not None or start.apart or start.capture_text)


def scan_splits(
    scan: Scan,
    at: Timestamp,
    cut: list[KeyRange] | None,
    capture_text: str,
    has_whole_keys: bool = False,
) -> list[SnapshotSplit]:
    """Return the splits of a scan: one for each range of `cut`, or one if `cut` is None.

    `cut` are the ranges into which the scan was cut when it was planned.
    """
    c = scan.copying
    about = at, c.collation, c.shard, capture_text, has_whole_keys
    return [
        SnapshotSplit(c.namespace, c.uuid, key_range, *about)
        for key_range in cut or [KeyRange(c.below, scan.upper)]
    ]


def control_split(start: Offset, end: Offset) -> ControlSplit:
    """Return the split with the rows that state the effect of a batch on the tables of a sink."""
    resync: list[Namespace | None] = [*list_recopied(start, end)]
    if end.empties:  # also the mirrors of collections that were dropped in the gap
        resync = [None]
    described = Watermark.of(start, end).text()
    return ControlSplit(end.time, described, tuple(resync), tuple(list_withheld(start, end)))


def snapshot_splits(
    source: Source, found: Listing, split_bytes: int, at: Timestamp, capture: CaptureFilter
) -> list[SnapshotSplit]:
    """Return the splits of all listed collections at one time, for a batch read."""
    return [
        split
        for c in found.collections
        for split in scan_splits(
            Scan(c.start_of_copy, MAX_KEY),
            at,
            source.ranges(c.start_of_copy, _ALL, split_bytes),
            capture.text,
        )
    ]


def range_splits(
    found: Listing, keys: KeyRange, at: Timestamp, capture: CaptureFilter
) -> list[SnapshotSplit]:
    """Return one split for each listed collection with its documents in `keys`.

    It serves to check an unfinished copy, and to read a part again. If both ends of the range are
    equal, there is no split.
    """
    return [
        split
        for c in found.collections
        if keys.lower != keys.upper
        for split in scan_splits(
            Scan(replace(c.start_of_copy, below=keys.lower), keys.upper), at, None, capture.text
        )
    ]
