"""Where a run without a checkpoint begins: a mode of the source becomes a first offset."""

from __future__ import annotations

import time as clock
from typing import NamedTuple

from cdc.errors import TransientError, UnsuitableSource
from cdc.model import timestamp, token
from cdc.model.excerpt import Excerpt
from cdc.model.offset import NEVER, Offset, beginning, streaming
from cdc.model.selection import Selection
from cdc.model.timestamp import Timestamp
from cdc.mongo.cluster import Source
from cdc.mongo.enumerator import Listing
from cdc.mongo.oplog import oldest
from cdc.mongo.planner import read_of

_START_SECONDS = 10.0
# A server that nobody writes to lets time pass every 10 s only, the first time after up to 20 s.
_IDLE_SECONDS = 25.0
_POLL_SECONDS = 0.1


class Start(NamedTuple):
    """What is told first: with `copies` what there is, else changes after the time `after` (None:
    after the live edge), and of those only what lies behind `position`. `option` gave the time."""

    copies: bool = True
    after: Timestamp | None = None
    position: str = ""
    option: str = "start"


def start_of(source: Source, mode: str, given: str | None) -> Start:
    """The start that `mode` and its option `start` ask for. Raises BadToken, UnsuitableSource."""
    if mode == "timestamp":
        return Start(False, timestamp.before(timestamp.parse(given or "")))
    if mode == "token":
        # The events of one time, those of a transaction, may lie on both sides of a token.
        position = token.parse(given or "")
        return Start(False, timestamp.before(token.time_of(position)), position)
    if mode == "earliest":
        return Start(False, max(oldest(source.clients, source.shards), source.topology_time))
    return Start(copies=mode in ("initial", "snapshot"))


def first_offset(
    source: Source, selection: Selection, start: Start, found: Listing, excerpt: Excerpt
) -> Offset:
    """The offset before the first batch of a run that found these collections."""
    edge = confirmed_edge(source, found)
    begin = beginning if start.copies else streaming
    time = edge if start.after is None else start.after
    # What begins now does so behind the transactions that a read would see now.
    late = source.late(edge) if start.after is None else ()
    first = begin(time, source.name, selection.text, excerpt.text, start.position)
    return read_of(source, first, late)


def reached(source: Source, time: Timestamp) -> bool:
    """Whether the source has reached that time for good, or does so within a few seconds."""
    deadline = clock.monotonic() + _IDLE_SECONDS
    while (edge := source.live_edge(NEVER)) < time:
        if clock.monotonic() > deadline or time.time - edge.time > 2 * _IDLE_SECONDS:
            return False
        clock.sleep(_POLL_SECONDS)
    return True


def confirmed_edge(source: Source, found: Listing) -> Timestamp:
    """A live edge at or after the time of the listing. Raises UnsuitableSource; TransientError if
    the primary changes: collections are to be listed anew then."""
    began = clock.monotonic()
    edge = source.confirmed(found, _START_SECONDS)
    if edge is not None:
        return edge
    if found.term is None and source.shards == ("",) and _is_alone(source):
        raise UnsuitableSource(
            "The member that answered is not, or did not stay, the primary, which alone knows what"
            " collections there are.",
            "Leave out directConnection; say with readPreference which members are to be read.",
        )
    if clock.monotonic() - began < _START_SECONDS:
        raise TransientError("The primary changed while the collections were listed.")
    raise UnsuitableSource(*source.unconfirmed)


def _is_alone(source: Source) -> bool:
    return bool(source.clients[""].topology_description.topology_type_name == "Single")
