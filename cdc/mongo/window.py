"""The changes of a window of time as splits, without an offset of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from bson.timestamp import Timestamp

from cdc.model.excerpt import Excerpt
from cdc.model.offset import Offset, streaming
from cdc.model.selection import Selection
from cdc.model.split import StreamSplit
from cdc.mongo import pipeline, stream
from cdc.mongo.cluster import Source
from cdc.mongo.images import IMAGES
from cdc.mongo.slices import Limits, Slicer
from cdc.mongo.splits import span, stream_splits
from cdc.mongo.tellers import SLIM, Told, told_once


def window_splits(
    source: Source,
    selection: Selection,
    excerpt: Excerpt,
    after: Timestamp,
    until: Timestamp,
    limits: Limits,
    retry_seconds: float,
) -> list[StreamSplit]:
    """All changes of the selected collections after one time and up to another, which has to be
    behind no live edge, in slices. Windows that adjoin hold each change once."""
    if until <= after:
        return []
    begun = streaming(after, source.name, selection.text, excerpt.text)
    start = replace(begun, late=source.late(after), shards=source.shards)
    end = replace(start, time=until, late=source.late(until))
    slicer = Slicer()
    slicer.reach(source.clients, start, until, limits.lifted)
    reported = list(_ddl(source, selection, start, end, retry_seconds))
    splits = list[StreamSplit]()
    while start.time < until:  # as many parts as it takes for each shard to tell all DDL or none
        part = told_once(source, start, end, [told for told in reported if _is_behind(start, told)])
        if part.time < until:
            part = replace(part, late=source.late(part.time), shards=source.shards)
        for split in stream_splits(start, part):
            splits += slicer.sliced(split)
        start = part
    return splits


def _ddl(
    source: Source, selection: Selection, start: Offset, end: Offset, retry_seconds: float
) -> Iterator[Told]:
    if len(source.shards) == 1:
        return
    stages = pipeline.pipeline([pipeline.not_rows(selection)], SLIM)
    for shard in source.shards:
        split = span(start, end, shard, selection, stages)
        opener = partial(source.open, shard)
        for events in stream.read(opener, split, IMAGES["off"], retry_seconds):
            yield from ((shard, event.raw) for event in events)


def _is_behind(start: Offset, told: Told) -> bool:
    return bool(told[1]["clusterTime"] > start.time)
