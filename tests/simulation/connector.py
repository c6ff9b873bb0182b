"""The connector, simulated around the real rule of `cdc.model.hand_over`.

Planner and reader ask the simulated deployment what `cdc.mongo` asks a real one, in the same order,
and decide by the real functions. What a mutant may get wrong is a method of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cdc.model import (
    MAX_KEY,
    MIN_KEY,
    Copying,
    Namespace,
    Offset,
    Replaced,
    Scan,
    advance,
    beginning,
    resume_token,
)
from tests.simulation.deployment import (
    EMPTYING_OPS,
    ROW_OPS,
    SELECTED,
    Catalog,
    Deployment,
    Event,
    encoded,
    moment,
    number_of,
    rank,
)

_RANGES_PER_BATCH = 2
_DOCUMENTS_PER_RANGE = 1
_STILL = 8


class Row(NamedTuple):
    op: str
    time: int
    position: str
    namespace: Namespace
    key: int | None = None
    before: int | None = None
    after: int | None = None
    to: Namespace | None = None


class Sweep(NamedTuple):
    scans: tuple[Scan, ...] = ()
    swept_all: bool = False
    absent: frozenset[Namespace] = frozenset()

    def end(self, start: Offset, time: int) -> Offset:
        return advance(start, moment(time), self.scans, self.swept_all, absent=self.absent)

    def of(self, names: frozenset[Namespace]) -> Sweep:
        scans = tuple(scan for scan in self.scans if scan.copying.namespace in names)
        return Sweep(scans, False, self.absent)


NO_SWEEP = Sweep()


class Listed(NamedTuple):
    """The answer to a listing, and what would be copied by it."""

    time: int
    term: int
    sweep: Sweep


class Batch(NamedTuple):
    """A batch as the checkpoint holds it."""

    start: Offset
    end: Offset


class Connector:
    """One query. Its whole memory between two calls of the machine is `stored`, as JSON."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.stored = json.dumps(beginning(moment(deployment.committed), "rs", "shop").to_json())
        self.listed: Listed | None = None

    @property
    def start(self) -> Offset:
        return Offset.from_json(json.loads(self.stored))

    # --- planning: the listing first, everything else later ---

    def list(self) -> None:
        catalog = self.deployment.catalogs[-1]
        sweep = self._sweep(self.start, catalog)
        self.listed = Listed(self.deployment.head, self.deployment.term, sweep)

    def plan(self) -> Batch | None:
        """The next batch, persisted before anything of it is read; None if there is nothing new."""
        start, listed, self.listed = self.start, self.listed, None
        edge = max(self.deployment.committed, number_of(start.time))
        sweep = NO_SWEEP
        if not start.is_streaming and listed and self.believes(listed, start, edge):
            sweep = listed.sweep
            if self.may_stand_still(start, edge):
                again = frozenset(each.namespace for each in start.again)
                sweep, edge = sweep.of(again), number_of(start.time)
        end = self._end(start, edge, sweep)
        if end == start:
            return None
        stored = Offset.from_json(json.loads(json.dumps(end.to_json())))
        return Batch(start, stored)

    def believes(self, listed: Listed, start: Offset, edge: int) -> bool:
        """Whether what was listed cannot be rolled back any more, and is not older than `start`."""
        return number_of(start.time) <= listed.time <= edge and listed.term == self.deployment.term

    def may_stand_still(self, start: Offset, edge: int) -> bool:
        """Whether what is to be copied again can be copied as of `start`."""
        if not start.again or start.copying is not None or start.scans:
            return False
        is_recent = edge - number_of(start.time) <= _STILL
        return is_recent and not self.is_replaced(start, edge)

    def is_replaced(self, start: Offset, edge: int) -> bool:
        """Whether what is to be copied again was replaced once more up to that time."""
        again = {each.namespace for each in start.again}
        events = self.deployment.between(number_of(start.time), edge)
        return any(self.cuts(e) and not again.isdisjoint((e.namespace, e.to)) for e in events)

    def _end(self, start: Offset, edge: int, sweep: Sweep) -> Offset:
        if edge > number_of(start.time):
            found = self._survey(start, edge, sweep)
            if found is not None and found.op in ROW_OPS:
                sweep = NO_SWEEP
                found = self._survey(start, edge, sweep)
            if found is not None:
                return advance(start, moment(found.time), replaced=_replaced(found))
        return sweep.end(start, edge)

    def _survey(self, start: Offset, edge: int, sweep: Sweep) -> Event | None:
        for event in self.deployment.between(number_of(start.time), edge):
            if self.cuts(event) or self.is_stranger(event, start, sweep):
                return event
        return None

    def cuts(self, event: Event) -> bool:
        touched = {event.namespace, event.to}
        return event.op in EMPTYING_OPS and not touched.isdisjoint(SELECTED)

    def is_stranger(self, event: Event, start: Offset, sweep: Sweep) -> bool:
        """Whether the sweep passes the event's collection without having seen it."""
        name = event.namespace
        return (
            event.op in ROW_OPS
            and name in SELECTED
            and not start.passes_whole(name)
            and name not in {scan.copying.namespace for scan in sweep.scans}
            and sweep.end(start, event.time).passes_whole(name)
        )

    def _sweep(self, start: Offset, catalog: Catalog) -> Sweep:
        absent = frozenset(e.namespace for e in start.again if e.namespace not in catalog)
        offset = advance(start, start.time, absent=absent)
        scans: list[Scan] = []
        budget = _RANGES_PER_BATCH
        while budget > 0:
            copying = _turn(offset, catalog)
            if copying is None:
                return Sweep(tuple(scans), offset.swept is not None, absent)
            cuts = self.cut(catalog, copying, budget)
            budget -= len(cuts)
            scans.append(Scan(copying, cuts[-1]))
            offset = advance(offset, offset.time, (scans[-1],))
        return Sweep(tuple(scans), False, absent)

    def cut(self, catalog: Catalog, copying: Copying, most: int) -> list[bytes]:
        """Upper ends of adjacent ranges from the frontier on."""
        found = catalog.get(copying.namespace)
        keys = sorted(key for key in found.documents if key > rank(copying.below)) if found else []
        cuts = [encoded(key) for key in keys[_DOCUMENTS_PER_RANGE::_DOCUMENTS_PER_RANGE]]
        cuts = [cut for cut in cuts if cut != MAX_KEY][:most]
        return cuts if len(cuts) == most else [*cuts, MAX_KEY]

    # --- reading, as often as the sink wants ---

    def read(self, batch: Batch, member: int) -> list[Row]:
        """The rows of a batch as a member gives them now."""
        rows = [Row(*event) for event in self.events(batch, member) if self.passes(batch, event)]
        for scan in batch.end.scans:
            rows += self.scan(batch, scan, member)
        return rows

    def present(self, batch: Batch, member: int) -> Catalog:
        """What the member has now, as far as it cannot be taken back; it waits for the batch."""
        known = min(self.deployment.applied[member], self.deployment.committed)
        return self.deployment.catalogs[max(known, number_of(batch.end.time))]

    def events(self, batch: Batch, member: int) -> Iterator[Event]:
        after, upto = number_of(batch.start.time), number_of(batch.end.time)
        return self.deployment.between(after, upto)

    def passes(self, batch: Batch, event: Event) -> bool:
        name = event.namespace
        if event.op not in ROW_OPS:
            return name in SELECTED or event.to in SELECTED
        copying = batch.start.copying
        if copying is not None and copying.namespace == name:
            return self.is_below(event, copying.below)
        return name in SELECTED and self.passes_done(event, batch.start)

    def passes_done(self, event: Event, start: Offset) -> bool:
        return start.passes_whole(event.namespace)

    def is_below(self, event: Event, frontier: bytes) -> bool:
        assert event.key is not None
        return event.key < rank(frontier)

    def scan(self, batch: Batch, scan: Scan, member: int) -> list[Row]:
        """The range as of the batch's end; nothing if the incarnation is not (any more) there."""
        at, name = number_of(batch.end.time), scan.copying.namespace
        now = self.present(batch, member).get(name)
        if now is None or _uuid(now.uuid) != scan.copying.uuid:
            return []
        lower, upper = self.bounds(batch, scan)
        return [
            Row("read", at, self.position(batch), name, key, after=value)
            for key, value in self.documents(batch, scan.copying, member).items()
            if lower <= key and (key < upper or upper == rank(MAX_KEY))
        ]

    def documents(self, batch: Batch, copying: Copying, member: int) -> Mapping[int, int]:
        """What the incarnation held at the batch's end, under whatever name."""
        there = self.deployment.catalogs[self.read_time(batch, member)].values()
        found = (each.documents for each in there if _uuid(each.uuid) == copying.uuid)
        return next(found, {})

    def read_time(self, batch: Batch, member: int) -> int:
        return number_of(batch.end.time)

    def position(self, batch: Batch) -> str:
        return resume_token.position_after(batch.end.time)

    def bounds(self, batch: Batch, scan: Scan) -> tuple[float, float]:
        return rank(scan.copying.below), rank(scan.upper)


def _turn(offset: Offset, catalog: Catalog) -> Copying | None:
    if offset.copying is not None:
        found = catalog.get(offset.copying.namespace)
        if found is not None and _uuid(found.uuid) != offset.copying.uuid:
            return _begun(offset.copying.namespace, catalog)
        return offset.copying
    remaining = sorted(
        name
        for name in catalog
        if name in SELECTED and offset.swept is not None and str(name) > offset.swept
    )
    again = (each.namespace for each in offset.again)
    waiting = [*(name for name in again if name in catalog), *remaining]
    return _begun(waiting[0], catalog) if waiting else None


def _begun(name: Namespace, catalog: Catalog) -> Copying:
    return Copying(name, _uuid(catalog[name].uuid), None, MIN_KEY)


def _uuid(number: int) -> bytes:
    return number.to_bytes(16)


def _replaced(event: Event) -> Replaced:
    emptied, refilled = (
        frozenset({name} if name in SELECTED else ()) for name in (event.namespace, event.to)
    )
    return Replaced(emptied - refilled, refilled)
