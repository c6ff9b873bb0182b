"""Start position of a run without a checkpoint: from mode to first offset."""

from __future__ import annotations

import time as clock
from typing import NamedTuple

from cdc.errors import TransientError, UnsuitableSource
from cdc.model import (
    NEVER,
    CaptureFilter,
    Offset,
    Selection,
    Timestamp,
    beginning,
    mark_read,
    resume_token,
    streaming,
    timestamp,
)
from cdc.mongo.collections import Listing
from cdc.mongo.plan.key_changes import record_first
from cdc.mongo.topology import Source, oldest_common_time, oplog_window

_START_SECONDS = 10.0
# On an idle server the time advances only every 10 s, the first time after up to 20 s.
_IDLE_SECONDS = 25.0
_POLL_SECONDS = 0.1


class Start(NamedTuple):
    """Where a run starts.

    Attributes:
        copies: the run first copies the existing documents. Otherwise it starts with changes.
        after: the run emits changes after this time; None means the live edge.
        position: if set, the run emits only changes after this position.
        option: the name of the option that gave the time.
    """

    copies: bool = True
    after: Timestamp | None = None
    position: str = ""
    option: str = "start"


def start_of(source: Source, mode: str, given: str | None) -> Start:
    """Return the start for `mode` and the option `start`.

    Raises BadToken, and what `oldest_common_time` raises for the mode `earliest`.
    """
    if mode == "timestamp":
        return Start(False, timestamp.before(timestamp.parse(given or "")))
    if mode == "token":
        # The events of a transaction have one time; some may come before the token, some after it.
        position = resume_token.parse(given or "")
        return Start(False, timestamp.before(resume_token.time_of(position)), position)
    if mode == "earliest":
        return Start(
            False, max(oldest_common_time(source.clients, source.shards), source.topology_time)
        )
    return Start(copies=mode in ("initial", "snapshot"))


def first_offset(
    source: Source, selection: Selection, start: Start, found: Listing, capture: CaptureFilter
) -> Offset:
    """Return the offset before the first batch of a run.

    Args:
        source: the source of the run.
        selection: the configured selection.
        start: where the run starts.
        found: the collections that exist.
        capture: the configured capture filter.

    Raises what `confirm_edge` raises.
    """
    edge = confirm_edge(source, found)
    begin = beginning if start.copies else streaming
    time = edge if start.after is None else _not_before_history(source, start)
    # A run that starts now does not emit the transactions that a read at this time includes.
    late = source.late_times(edge) if start.after is None else ()
    first = begin(time, source.name, selection.text, capture.text, start.position)
    first = mark_read(first, source.shards, source.topology_time, late)
    return record_first(source, first)


def _not_before_history(source: Source, start: Start) -> Timestamp:
    """Return the start, or the time before the first entry of all oplogs if it is earlier.

    There is no change in between if each oplog contains everything since its replica set was
    initiated. Without this, a run that starts in 2020 would report a lag of years.
    """
    assert start.after is not None, "the start is given"
    if start.position:
        return start.after
    found = [oplog_window(source.clients[shard], shard) for shard in source.shards]
    whole = [timestamp.before(each.first) for each in found if each is not None and each.is_whole]
    return max(start.after, min(whole)) if len(whole) == len(found) else start.after


def find_present(source: Source) -> Timestamp:
    """Return the time at which a bounded run that starts now ends, see `Source.present`.

    Raises TransientError if it is unknown. A run up to NEVER would end at once, and succeed without
    its changes.
    """
    present = source.present()
    if present == NEVER:
        raise TransientError("No member of the source knows its live edge.")
    return present


def wait_until(source: Source, time: Timestamp) -> bool:
    """Wait until the live edge is at or after that time; return whether it is.

    False if it is not within 25 s, or if it lags that time by more than 50 s. A live edge that is
    unknown (NEVER) does not lag.
    """
    deadline = clock.monotonic() + _IDLE_SECONDS
    while (edge := source.live_edge(NEVER)) < time:
        lags = edge != NEVER and time.time - edge.time > 2 * _IDLE_SECONDS
        if lags or clock.monotonic() > deadline:
            return False
        clock.sleep(_POLL_SECONDS)
    return True


def confirm_edge(source: Source, found: Listing) -> Timestamp:
    """Return a live edge at or after the time of the listing.

    Raises TransientError if the primary changed: the caller must list the collections again. Raises
    UnsuitableSource if the source does not confirm the listing in time.
    """
    began = clock.monotonic()
    edge = source.confirm(found, _START_SECONDS)
    if edge is not None:
        return edge
    if found.term is None and source.names_one_member:
        raise UnsuitableSource(
            "Listing collections: the member that answered is not, or did not remain, the primary."
            " Only the primary knows all collections.",
            "Remove directConnection from 'uri'; choose the members to read with readPreference.",
        )
    if clock.monotonic() - began < _START_SECONDS:
        raise TransientError("The primary changed while the collections were listed.")
    raise UnsuitableSource(*source.unconfirmed_error)
