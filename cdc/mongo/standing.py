"""Where a run stands, for one who knows no more of it than the offsets of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pymongo

from cdc.errors import ForeignOffset
from cdc.model.excerpt import Excerpt
from cdc.model.offset import NEVER, Offset
from cdc.model.selection import Selection
from cdc.mongo.client import Client
from cdc.mongo.cluster import Source
from cdc.mongo.copies import Extent, counted, drawn, extents, is_copied, percent
from cdc.mongo.kept import tried
from cdc.mongo.metrics import Metrics, left_of
from cdc.mongo.oplog import windows
from cdc.mongo.slices import events_between

_PATIENCE_SECONDS = 1.0


class Passed(NamedTuple):
    """Batches from one offset to another, and how long they took."""

    start: Offset
    end: Offset
    seconds: float


class Standing(NamedTuple):
    """The metrics, and what each selected collection is at."""

    metrics: Metrics
    collections: list[Extent]


def standing(
    source: Source,
    selection: Selection,
    excerpt: Excerpt,
    at: Offset | None,
    passed: Passed | None,
) -> Standing:
    """Of a run that is to capture `selection` and `excerpt`, and whose tables are at an offset,
    None before its first batch.

    Raises SourceUnreachable, NotPermitted, UnsuitableSource; what a run can do without, and the
    user may not know, is None.
    """
    if at is not None:
        require_own(at, source)
    clients = source.clients
    edge = source.live_edge(NEVER if at is None else at.time)
    found = extents(counted(source, selection), at, excerpt, _share(source, at))
    rate = None if passed is None else tried(lambda: _rate(clients, passed), "what has passed")
    left = None
    if at is not None:
        shards = [shard for shard in at.shards if shard in clients]
        known = tried(lambda: windows(clients, shards), "oplogs") or []
        left = left_of(known, at.time)
    time = None if at is None else at.time
    copied = percent(found, is_copied(at, selection, excerpt))
    return Standing(Metrics(time, edge, rate, left, copied), found)


def require_own(offset: Offset, source: Source) -> None:
    """Raises ForeignOffset if an offset is of another source."""
    if offset.source != source.name:
        raise ForeignOffset(
            f"The checkpoint was written for '{offset.source}', and 'uri' leads to"
            f" '{source.name}'.",
            "Correct 'uri', or start with a new checkpoint.",
        )


def _share(source: Source, at: Offset | None) -> float | None:
    copying = None if at is None else at.copying
    if copying is None:
        return None
    return tried(lambda: drawn(source, copying).share(copying.below), "a share")


def _rate(clients: Mapping[str, Client], passed: Passed) -> float:
    # Batches that took hours may hold any number of changes, and the oplog is read for them all.
    with pymongo.timeout(_PATIENCE_SECONDS):
        found = events_between(clients, passed.start, passed.end)
    return found / max(1e-3, passed.seconds)
