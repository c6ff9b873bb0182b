"""Splits for the changes of a time window, without the offset of a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bson.timestamp import Timestamp

from cdc.model import (
    CaptureFilter,
    Offset,
    Selection,
    StreamSplit,
    advance,
    mark_read,
    streaming,
)
from cdc.mongo.plan.ddl_survey import EVENT_FIELDS, ReportedDdl, assign_reporters
from cdc.mongo.plan.oplog_scan import Limits
from cdc.mongo.plan.slicing import Slicer
from cdc.mongo.plan.splits import span, stream_splits
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, change_stream
from cdc.mongo.topology import Source


def window_splits(
    source: Source,
    selection: Selection,
    capture: CaptureFilter,
    after: Timestamp,
    until: Timestamp,
    limits: Limits,
    retry_seconds: float,
) -> list[StreamSplit]:
    """Return splits with the changes after `after` and up to `until`, cut into slices.

    Adjacent windows together contain each change once.

    Args:
        source: the source to read.
        selection: the collections.
        capture: the capture filter.
        after: the time before the first change.
        until: the time of the last change; it must be at or before the live edge.
        limits: only `slices` applies.
        retry_seconds: how long a failed read is repeated.
    """
    if until <= after:
        return []
    first = streaming(after, source.name, selection.text, capture.text)
    start = _mark_read(source, first)
    end = _mark_read(source, advance(start, until))
    slicer = Slicer()
    slicer.find_end(source.open, source.shards, start, until, limits.unlimited)
    reported = list(_read_ddl(source, selection, start, end, retry_seconds))
    splits = list[StreamSplit]()
    # In each part a shard reports all of its DDL or none. There are as many parts as that takes.
    while start.time < until:
        part = assign_reporters(
            source, start, end, [ddl for ddl in reported if _is_after(start, ddl)]
        )
        if part.time < until:
            part = _mark_read(source, part)
        for split in stream_splits(start, part):
            splits += slicer.slice_split(split)
        start = part
    return splits


def _mark_read(source: Source, offset: Offset) -> Offset:
    late = source.late_times(offset.time)
    return mark_read(offset, source.shards, source.topology_time, late)


def _read_ddl(
    source: Source, selection: Selection, start: Offset, end: Offset, retry_seconds: float
) -> Iterator[ReportedDdl]:
    """Read the DDL of each shard; none for a single shard, which reports all of it."""
    if len(source.shards) == 1:
        return
    stages = event_filter.pipeline([event_filter.not_rows(selection)], EVENT_FIELDS)
    for shard in source.shards:
        split = span(start, end, shard, selection, stages)
        opener = partial(source.open, shard)
        for events in change_stream.read(opener, split, IMAGES["off"], retry_seconds):
            yield from ((shard, event.raw) for event in events)


def _is_after(start: Offset, ddl: ReportedDdl) -> bool:
    return bool(ddl[1]["clusterTime"] > start.time)
