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
from cdc.mongo.connection import OPLOG, Client
from cdc.mongo.topology import Source, oldest_common_time, oplog_window

_REMEDY = (
    "Set on.history.lost to resync (copy everything again) or to skip, or start with a new"
    " checkpoint; enlarge the oplog."
)


def require_lost(source: Source, start: Offset, is_certain: bool = True) -> None:
    """Raise TransientError unless all members of a replica set or shard lack what follows `start`.

    A member that was synchronized anew, or that has a smaller oplog, lacks what others have. A
    member that does not answer cannot be read either, and does not count.

    Args:
        source: the source whose server has refused to read the changes.
        start: the end of the last batch.
        is_certain: also raise if the user may not read how far the oplogs of other members reach.
    """
    if not source.has_oplog:
        return
    asked = [(shard, *_reach(client, start.time)) for shard, client in source.each_member()]
    for shard in start.shards:
        answers = {reach for part, _, reach in asked if part == shard} - {None}
        if answers == {False}:
            return
    at = timestamp.text(start.time)
    short, others = (
        ", ".join(name for _, name, reach in asked if reach is which) for which in (False, True)
    )
    if others:
        raise TransientError(
            f"The changes after {at} are no longer in the oplog of {short or 'one member'},"
            f" but still in that of {others}.",
            "Let readPreference and readPreferenceTags in 'uri' select a member that has them.",
        )
    if is_certain and len(asked) > 1:
        raise TransientError(
            f"The changes after {at} are no longer in the oplog of one member. Whether others have"
            " them is unknown.",
            f"Grant find on {OPLOG}, or the role clusterMonitor.",
        )


def _reach(client: Client, time: Timestamp) -> tuple[str, bool | None]:
    """Return the name of a member, and whether its oplog has the changes after `time`.

    None if the user may not read that, or the member does not answer.
    """
    with suppress(CdcError):
        if (window := oplog_window(client)) is not None:
            return ":".join(map(str, client.address or ())), window.first <= time
    return "", None


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
    """Whether the oplog has lost even the changes after `end`: the next batch is a gap too.

    Raises TransientError if only some members have lost them, see `require_lost`.
    """
    first = _first_readable(source)
    if first is None or first <= end.time:
        return False
    if end.time >= source.topology_time:  # else a shard has joined or left
        require_lost(source, end)
    return True


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
