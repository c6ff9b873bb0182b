"""Status of a run, from nothing but the offsets in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pymongo

from cdc.errors import ForeignOffset
from cdc.model import NEVER, CaptureFilter, Offset, Selection
from cdc.mongo.connection import Client
from cdc.mongo.inspect.copy_progress import (
    CopyProgress,
    collection_progress,
    count_documents,
    draw_sample,
    is_copied,
    percent,
)
from cdc.mongo.inspect.lag import Edge, lag_seconds
from cdc.mongo.inspect.metrics import Metrics, least_remaining
from cdc.mongo.inspect.ttl_cache import value_or_none
from cdc.mongo.plan import count_events
from cdc.mongo.topology import Source, windows

_PATIENCE_SECONDS = 1.0


class FinishedBatches(NamedTuple):
    """Finished batches: the offset before them, the offset after them, and their duration."""

    start: Offset
    end: Offset
    seconds: float


class Status(NamedTuple):
    """The status of a run: its metrics, and the progress of each selected collection."""

    metrics: Metrics
    collections: list[CopyProgress]


def read_status(
    source: Source,
    selection: Selection,
    capture: CaptureFilter,
    at: Offset | None,
    passed: FinishedBatches | None,
) -> Status:
    """Return the status of a run.

    A value is None if a run does not need it and the user may not read it.

    Args:
        source: the source of the run.
        selection: the configured selection.
        capture: the configured capture filter.
        at: the offset that the tables have reached; None before the first batch.
        passed: the last batches, for the rate; None if there are none.

    Raises SourceUnreachable, NotPermitted, UnsuitableSource, and ForeignOffset if the offset
    belongs to another source.
    """
    if at is not None:
        require_own(at, source)
    clients = source.clients
    edge = source.live_edge(NEVER if at is None else at.time)
    collections = collection_progress(
        count_documents(source, selection), at, capture, _copied_share(source, at)
    )
    rate = (
        None
        if passed is None
        else value_or_none(lambda: _event_rate(clients, passed), "the event rate")
    )
    left = None
    if at is not None:
        shards = [shard for shard in at.shards if shard in clients]
        known = value_or_none(lambda: windows(clients, shards), "oplog windows") or []
        left = least_remaining(known, at.time)
    time = None if at is None else at.time
    copied = percent(collections, is_copied(at, selection, capture))
    lag = lag_seconds(Edge(edge), time)
    return Status(Metrics(time, edge, lag, rate, left, copied), collections)


def require_own(offset: Offset, source: Source) -> None:
    """Raise ForeignOffset if an offset belongs to another source."""
    if offset.source != source.name:
        raise ForeignOffset(
            f"The checkpoint was written for '{offset.source}', but 'uri' names '{source.name}'.",
            "Correct 'uri', or start with a new checkpoint.",
        )


def _copied_share(source: Source, at: Offset | None) -> float | None:
    copying = None if at is None else at.copying
    if copying is None:
        return None
    return value_or_none(
        lambda: draw_sample(source, copying).share(copying.below), "the copied share"
    )


def _event_rate(clients: Mapping[str, Client], passed: FinishedBatches) -> float:
    # Batches of hours may have any number of changes, and the count reads the oplog for all of
    # them.
    with pymongo.timeout(_PATIENCE_SECONDS):
        count = count_events(clients, passed.start, passed.end)
    return count / max(1e-3, passed.seconds)
