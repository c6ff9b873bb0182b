"""Lost history: the oplog no longer contains the next changes. The option `on.history.lost`.

A gap is a batch of its own that reads nothing: its end has a later time, and a `gap` row records
it. With `resync`, all collections are copied again by the ordinary rule. Another row empties their
mirrors first, also the mirrors of collections that were dropped in the gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from cdc.errors import (
    CdcError,
    HistoryLost,
    LoginRefused,
    NotPermitted,
    TransientError,
    UnsuitableSource,
)
from cdc.model import Offset, Selection, Timestamp, mark_read, pass_gap, timestamp
from cdc.mongo.topology import Source, oldest_common_time, oplog_window

_REMEDY = (
    "Set on.history.lost to resync (copy everything again) or to skip, or start with a new"
    " checkpoint; enlarge the oplog."
)


def require_lost(source: Source, start: Offset) -> None:
    """Raise TransientError if only some members of a replica set lost the changes after `start`.

    A member that was synchronized anew, or that has a smaller oplog, lacks what others have.
    """
    if not source.has_oplog or len(source.clients) > 1:  # of a cluster, a shard may be gone
        return
    reaches = dict[str, bool]()
    for client in source.each_member():
        with suppress(CdcError):  # a member that does not answer cannot be read either
            if (window := oplog_window(client)) is not None:
                reaches[":".join(map(str, client.address or ()))] = window.first <= start.time
    if set(reaches.values()) == {True, False}:
        short, others = (
            ", ".join(name for name, reach in reaches.items() if reach is which)
            for which in (False, True)
        )
        raise TransientError(
            f"The changes after {timestamp.text(start.time)} are no longer in the oplog of {short},"
            f" but still in that of {others}.",
            "Let readPreference and readPreferenceTags in 'uri' select a member that has them.",
        )


def explain_loss(source: Source, start: Offset, lost: HistoryLost) -> HistoryLost:
    """Return the error with the time to which the oplog reaches back, if that is known."""
    first = _oldest_time(source, [shard for shard in start.shards if shard in source.clients])
    if first is None or first <= start.time:  # A shard is gone: the error's own message says so.
        return HistoryLost(lost.message, _REMEDY)
    return HistoryLost(
        f"The changes after {timestamp.text(start.time)} are no longer in the oplog, which reaches"
        f" back to {timestamp.text(first)}.",
        _REMEDY,
    )


def resync(source: Source, start: Offset, patience: float) -> Offset:
    """Return the offset after the gap, from which everything is copied again.

    It returns `start` itself if the source does not confirm the listing within `patience` seconds.
    """
    selection = Selection.parse(start.selection)
    # Before the listing: the events of a collection that is created after it are after the gap.
    edge = source.live_edge(start.time)
    listed = source.list_collections(selection)
    is_later = edge > start.time and listed.since >= edge
    if not is_later or source.confirm(listed, patience) is None:
        return start
    names = {collection.namespace for collection in listed.collections}
    end = pass_gap(start, edge, names | set(selection.names))
    return mark_read(end, source.shards, source.topology_time, source.late_times(edge))


def skip(source: Source, start: Offset) -> Offset:
    """Return the offset after the gap, from which the readable changes continue."""
    first = _first_readable(source)
    # A shard is gone, or the user may not read the time.
    if first is None or first <= start.time:
        first = source.live_edge(start.time)
    if first <= start.time:
        return start
    return mark_read(pass_gap(start, first), source.shards, source.topology_time, late=())


def is_past(source: Source, end: Offset) -> bool:
    """Whether the oplog has lost even the changes after `end`: the next batch is a gap too."""
    first = _first_readable(source)
    return first is not None and first > end.time


def _first_readable(source: Source) -> Timestamp | None:
    """Return the first time from which all shards can be read; None if the user may not read it.

    Shards that joined or left count too, by `topology_time`. A shard that joined has no older
    changes. The changes of a shard that left cannot be read.
    """
    first = _oldest_time(source, source.shards)
    return None if first is None else max(first, source.topology_time)


def _oldest_time(source: Source, shards: Iterable[str]) -> Timestamp | None:
    try:
        return oldest_common_time(source.clients, shards)
    except LoginRefused:
        raise
    except (NotPermitted, UnsuitableSource):
        return None
