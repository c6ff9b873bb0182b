"""Consecutive events of a reply of which nothing is to be found out: they are told at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Self, overload

import numpy as np
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.kernel import event_columns as at
from cdc.kernel import reply
from cdc.kernel.event_columns import NONE, Events
from cdc.model.reply import Places
from cdc.model.split import StreamSplit
from cdc.mongo.batch import Batch
from cdc.mongo.images import WITH_AFTER, Event, Images

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Located:
    """Events by the places of their fields in a reply, see `cdc.kernel.event_columns`."""

    def __init__(self, data: bytes, events: Events) -> None:
        self.data, self.events = data, events

    @classmethod
    def of(cls, batch: Batch) -> Self | None:
        """None where it is not worth it, or where the server's reply is not as it should be."""
        found = reply.events(*batch.array)
        return None if found is None else cls(batch.array[0], found)

    def __len__(self) -> int:
        return len(self.events)

    def only(self, chosen: Mask | slice) -> Located:
        return Located(self.data, self.events[chosen])

    def raw(self, row: int) -> RawBSONDocument:
        return RawBSONDocument(self.field(row, at.START))

    def field(self, row: int, field: int) -> bytes:
        return self.data[self.events[row, field] : self.events[row, field + 1]]

    def places(self, field: int) -> Places:
        """Of a field of several bytes; it begins before 0 where there is none."""
        starts, stops = self.events[:, field].copy(), self.events[:, field + 1].copy()
        return Places(self.data, starts, np.where(starts < 0, starts, stops))

    def documents(self, field: int) -> list[bytes | None]:
        """The bytes of a field, None where there is none."""
        places = self.places(field)
        there = (places.starts >= 0).tolist()
        return [each if is_there else None for each, is_there in zip(places, there, strict=True)]

    def has(self, field: int) -> Mask:
        there: Mask = self.events[:, field] != NONE
        return there

    @property
    def times(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Cluster times, as numbers that compare as they do."""
        return self.events[:, at.TIME].view(np.uint64)

    @property
    def operations(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self.events[:, at.TYPE]

    def held(self, split: StreamSplit) -> Mask:
        """As `holds` of the split."""
        times = self.times
        inside = (times > _bits(split.after)) & (times <= _bits(split.upto))
        late = np.isin(times, [_bits(time) for time in split.late])
        told = np.isin(times, [_bits(time) for time in split.told])
        return (inside | (late & (times > _bits(split.after)))) & ~told

    def passes(self, time: Timestamp) -> bool:
        """Whether any is behind it."""
        return bool((self.times > _bits(time)).any())

    def behind(self, position: str) -> Mask:
        """Which are behind it; all of them if it is empty."""
        if not position:
            return np.ones(len(self), np.bool_)
        known = position.encode()
        return np.array([text > known for text in self.places(at.POSITION)], np.bool_)


class Run(Sequence[Event]):
    """Events of rows, each with its images where it lies; `exact` as of `Event`."""

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
            return Run(self.located.only(index), self.exact[index])
        has_after = self.located.events[index, at.AFTER] != NONE
        after = self.located.field(index, at.AFTER) if has_after else None
        return Event(self.located.raw(index), after, bool(self.exact[index]))


def run(located: Located, asked: Images) -> Run:
    """Of events that are `plain`."""
    exact = _is_whole(located)
    if asked.expects_before:
        exact &= located.has(at.BEFORE) | (located.operations == at.INSERT)
    return Run(located, exact)


def plain(located: Located, used: Images) -> Mask:
    """Which of them are row events for which `told` asks nobody and has no time to tell."""
    usual: Mask = located.events[:, at.UNUSUAL] == 0
    if used.look_up:
        usual &= _is_whole(located)
    if used.after == "updateLookup":
        usual &= located.operations != at.UPDATED
    return usual


def _is_whole(located: Located) -> Mask:
    """Where there is an `after`, or can be none."""
    with_after = [at.OPERATIONS.index(operation) for operation in WITH_AFTER]
    return located.has(at.AFTER) | ~np.isin(located.operations, with_after)


def stretches(chosen: Mask, least: int) -> Iterator[tuple[slice, bool]]:
    """What is chosen and what is not, in turns; chosen stretches of fewer are not."""
    edges = np.flatnonzero(np.diff(chosen)) + 1
    bounds = [0, *edges.tolist(), len(chosen)]
    begun = 0
    for start, stop in itertools.pairwise(bounds):
        if chosen[start:stop].any() and stop - start >= least:
            if begun < start:
                yield slice(begun, start), False
            yield slice(start, stop), True
            begun = stop
    if begun < len(chosen):
        yield slice(begun, len(chosen)), False


def _bits(time: Timestamp) -> np.uint64:
    return np.uint64(time.time << 32 | time.inc)
