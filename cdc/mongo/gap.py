"""What becomes of a run whose next changes are not to be had any more: the option on.history.lost.

A gap is a batch of its own, which reads nothing: it lets time pass, and a `gap` row says so. With
`resync`, all collections are begun again by the ordinary rule, and another row makes their mirrors
empty first, those of collections included that were dropped meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdc.errors import HistoryLost, LoginRefused, NotPermitted
from cdc.model import timestamp
from cdc.model.hand_over import begin_again
from cdc.model.offset import Offset
from cdc.model.selection import Selection
from cdc.model.timestamp import Timestamp
from cdc.mongo.cluster import Source
from cdc.mongo.oplog import oldest

_REMEDY = (
    "Set on.history.lost to resync (all is copied again) or to skip, or start with a new"
    " checkpoint; enlarge the oplog."
)


def explained(source: Source, start: Offset, lost: HistoryLost) -> HistoryLost:
    """The error, with what is known of how far the oplog reaches back."""
    first = _oldest(source, [shard for shard in start.shards if shard in source.clients])
    if first is None or first <= start.time:  # a shard is gone, which the error tells
        return HistoryLost(lost.message, _REMEDY)
    return HistoryLost(
        f"The changes behind {timestamp.text(start.time)} are not in the oplog any more, which"
        f" reaches back to {timestamp.text(first)}.",
        _REMEDY,
    )


def resynced(source: Source, start: Offset, patience: float) -> Offset:
    """The offset behind the gap from which everything is copied again; `start` itself if that
    cannot be had yet."""
    selection = Selection.parse(start.selection)
    listed = source.listing(selection)
    edge = source.confirmed(listed, patience)
    if edge is None or edge <= start.time:
        return start
    names = {collection.namespace for collection in listed.collections}
    end = replace(_behind(start, edge), copying=None, late=source.late(edge))
    return begin_again(end, names | set(selection.names))


def skipped(source: Source, start: Offset) -> Offset:
    """The offset behind the gap from which the changes go on that there are."""
    first = _first_readable(source)
    if first is None or first <= start.time:  # a shard that is gone, or nobody may say
        first = source.live_edge(start.time)
    return _behind(start, first) if first > start.time else start


def is_past(source: Source, end: Offset) -> bool:
    """Whether not even what follows `end` can be read: then the next batch will be a gap too."""
    first = _first_readable(source)
    return first is not None and first > end.time


def _behind(start: Offset, time: Timestamp) -> Offset:
    return replace(start, time=time, gap=start.time, scans=(), silent=(), late=(), position="")


def _first_readable(source: Source) -> Timestamp | None:
    """A shard that joined has nothing older to tell; of one that is gone, nobody knows."""
    first = _oldest(source, source.shards)
    return None if first is None else max(first, source.topology_time)


def _oldest(source: Source, shards: Iterable[str]) -> Timestamp | None:
    try:
        return oldest(source.clients, shards)
    except LoginRefused:
        raise
    except NotPermitted:
        return None
