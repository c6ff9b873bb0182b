"""What a batch is to copy: whose turn it is, and the key ranges up to the next frontier."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cdc.model import Again, Copying, Excerpt, KeyRange, Namespace, Offset, Scan, advance
from cdc.mongo.collections import Listing
from cdc.mongo.query import projection
from cdc.mongo.topology import Source


class Sweep(NamedTuple):
    """What a batch would copy: whole ranges, and names found to need no copying."""

    scans: tuple[Scan, ...] = ()
    swept_all: bool = False
    absent: frozenset[Namespace] = frozenset()

    def of(self, again: Iterable[Again]) -> Sweep:
        """Only the part that copies these collections."""
        names = {each.namespace for each in again}
        return Sweep(
            tuple(s for s in self.scans if s.copying.namespace in names), False, self.absent
        )


@dataclass(slots=True)
class Sweeper:
    """Cuts what is to be copied into ranges. What it remembers only saves asking twice."""

    split_bytes: int
    splits_per_batch: int
    _cut: dict[tuple[Namespace, bytes, bytes], list[KeyRange]] = field(default_factory=dict)

    def next(self, source: Source, start: Offset, listed: Listing) -> Sweep:
        """As many ranges as a batch may hold, over as many collections as they span."""
        present = {collection.namespace for collection in listed.collections}
        absent = frozenset(each.namespace for each in start.again) - present
        scans: list[Scan] = []
        offset = advance(start, start.time, absent=absent)
        budget = self.splits_per_batch
        while budget > 0:
            copying = _turn(offset, listed)
            if copying is None:
                return Sweep(tuple(scans), offset.swept is not None, absent)
            if projection.is_ambiguous(Excerpt.parse(start.excerpt), copying.collation):
                raise projection.ambiguous(copying.namespace)
            cut = self._ranges(source, copying, budget)
            budget -= len(cut)
            scans.append(Scan(copying, cut[-1].upper))
            offset = advance(offset, offset.time, (scans[-1],))
        return Sweep(tuple(scans), False, absent)

    def ranges(self, scan: Scan) -> list[KeyRange] | None:
        """A scan as it was cut when it was planned, None if that is forgotten."""
        return self._cut.get((scan.copying.namespace, scan.copying.below, scan.upper))

    def _ranges(self, source: Source, copying: Copying, most: int) -> list[KeyRange]:
        """Adjacent ranges from the frontier on."""
        cut = source.ranges(copying, most, self.split_bytes)
        if len(self._cut) > 4 * self.splits_per_batch:
            self._cut.clear()
        self._cut[copying.namespace, copying.below, cut[-1].upper] = cut
        return cut


def _turn(offset: Offset, listed: Listing) -> Copying | None:
    """Whose turn it is: the one begun, then those to be copied again, then the sweep."""
    if offset.copying is not None:
        return offset.copying
    for again in offset.again:
        found = listed.find(again.namespace)
        if found is not None:
            return found.begun
    if offset.swept is None:
        return None
    behind = (c for c in listed.collections if str(c.namespace) > offset.swept)
    return next((collection.begun for collection in behind), None)
