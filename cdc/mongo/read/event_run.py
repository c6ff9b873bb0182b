"""Consecutive events that need no lookup and are encoded as columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Self, overload

import numpy as np
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.kernel import NONE, Events, Places, reply
from cdc.kernel import event_columns as at
from cdc.model import StreamSplit
from cdc.model.bson import elements
from cdc.mongo.connection import CursorBatch
from cdc.mongo.read.images import WITH_AFTER, Event, Images

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Located:
    """Events in a reply, by the places of their fields: see `cdc.kernel.event_columns`."""

    def __init__(self, data: bytes, events: Events) -> None:
        self.data, self.events = data, events

    @classmethod
    def of(cls, batch: CursorBatch) -> Self | None:
        """Locate the events of a reply; None if it is small or not in the expected form."""
        events = reply.events(*batch.array)
        return None if events is None else cls(batch.array[0], events)

    def __len__(self) -> int:
        return len(self.events)

    def select(self, chosen: Mask | slice) -> Located:
        """Select events of the reply; its bytes are shared."""
        return Located(self.data, self.events[chosen])

    def raw(self, row: int) -> RawBSONDocument:
        """Return one event as a document."""
        return RawBSONDocument(self.field(row, at.START))

    def field(self, row: int, field: int) -> bytes:
        """Return the bytes of a field of variable size, which the event must have."""
        return self.data[self.events[row, field] : self.events[row, field + 1]]

    def places(self, field: int) -> Places:
        """Return the places of a field of variable size; a start below 0 means a missing field."""
        starts, stops = self.events[:, field].copy(), self.events[:, field + 1].copy()
        return Places(self.data, starts, np.where(starts < 0, starts, stops))

    def documents(self, field: int) -> list[bytes | None]:
        """Return the bytes of a field in each event; None if it is missing."""
        places = self.places(field)
        present = (places.starts >= 0).tolist()
        return [each if exists else None for each, exists in zip(places, present, strict=True)]

    def has(self, field: int) -> Mask:
        present: Mask = self.events[:, field] != NONE
        return present

    @property
    def times(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The cluster times as numbers, which compare in the same order."""
        return self.events[:, at.TIME].view(np.uint64)

    @property
    def operations(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.events[:, at.TYPE]

    def select_split(self, split: StreamSplit) -> Mask:
        """Select the events that belong to the split: `StreamSplit.contains` as a mask."""
        times = self.times
        inside = (times > _to_bits(split.after)) & (times <= _to_bits(split.upto))
        late = np.isin(times, [_to_bits(time) for time in split.late])
        earlier = np.isin(times, [_to_bits(time) for time in split.emitted])
        return (inside | (late & (times > _to_bits(split.after)))) & ~earlier

    def has_after(self, time: Timestamp) -> bool:
        """Whether any event is after `time`."""
        return bool((self.times > _to_bits(time)).any())

    def select_after(self, position: str) -> Mask:
        """Select the events after a position; all events if it is empty."""
        if not position:
            return np.ones(len(self), np.bool_)
        last = position.encode()
        return np.array([text > last for text in self.places(at.POSITION)], np.bool_)


class Run(Sequence[Event]):
    """A sequence of row events that stay in the bytes of their reply; `exact` as in `Event`."""

    def __init__(self, located: Located, exact: Mask) -> None:
        self.located, self.exact = located, exact

    def __len__(self) -> int:
        return len(self.located)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Run: ...
    def __getitem__(self, index: int | slice) -> Event | Run:
        if isinstance(index, slice):
            return Run(self.located.select(index), self.exact[index])
        has_after = self.located.events[index, at.AFTER] != NONE
        after = self.located.field(index, at.AFTER) if has_after else None
        return Event(self.located.raw(index), after, bool(self.exact[index]))

    @property
    def has_ids_alone(self) -> bool:
        """Whether the document key of each event is its `_id`."""
        keys = self.located.places(at.KEY)
        return all(len(elements(key, 0, len(key))) == 1 for key in keys)

    def select_after(self, position: str) -> Run:
        """Select the events after a position; all events if it is empty."""
        chosen = self.located.select_after(position)
        return Run(self.located.select(chosen), self.exact[chosen])


def make_run(located: Located, expected: Images) -> Run:
    """Make a run of events that `select_plain` selects. `expected` are the configured images."""
    exact = _has_expected_after(located)
    if expected.expects_before:
        exact &= located.has(at.BEFORE) | (located.operations == at.INSERT)
    return Run(located, exact)


def select_plain(located: Located, used: Images) -> Mask:
    """Select the row events for which `complete_event` needs neither a lookup nor an `exact_from`.

    `used` is the images that the change stream was opened with.
    """
    usual: Mask = located.events[:, at.UNUSUAL] == 0
    if used.look_up:
        usual &= _has_expected_after(located)
    if used.after == "updateLookup":
        usual &= located.operations != at.UPDATED
    return usual


def _has_expected_after(located: Located) -> Mask:
    """Select the events that have an after-image, or whose operation never has one."""
    with_after = [at.OPERATIONS.index(operation) for operation in WITH_AFTER]
    return located.has(at.AFTER) | ~np.isin(located.operations, with_after)


def split_mask(chosen: Mask, least: int) -> Iterator[tuple[slice, bool]]:
    """Divide a mask into adjacent slices, each with a flag whether the whole slice is chosen.

    Fewer than `least` consecutive chosen elements count as not chosen.
    """
    edges = np.flatnonzero(np.diff(chosen)) + 1
    bounds = [0, *edges.tolist(), len(chosen)]
    done = 0
    for start, stop in itertools.pairwise(bounds):
        if chosen[start:stop].any() and stop - start >= least:
            if done < start:
                yield slice(done, start), False
            yield slice(start, stop), True
            done = stop
    if done < len(chosen):
        yield slice(done, len(chosen)), False


def _to_bits(time: Timestamp) -> np.uint64:
    return np.uint64(time.time << 32 | time.inc)
