"""`advance`: the hand-over rule, in one place. From one offset to the next.

A collection that appears at a name which the sweep has passed is complete from birth, because the
stream has all of its inserts. One whose content was replaced has none for the new content, and is
copied again; its changes before that copy are withheld.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bson.timestamp import Timestamp

from cdc.model.capture_filter import Excerpt
from cdc.model.offset import Again, Offset, Scan
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY


@dataclass(frozen=True, slots=True)
class Replaced:
    """What the DDL events at one cluster time did to selected collections.

    `emptied`: dropped or renamed away. `refilled`: another collection was renamed onto it.
    """

    emptied: frozenset[Namespace] = frozenset()
    refilled: frozenset[Namespace] = frozenset()

    def going_on(self, names: Iterable[Namespace]) -> Replaced:
        """The same where these collections are not copied: their changes go on to be emitted."""
        return Replaced(self.emptied, self.refilled - frozenset(names))


def advance(
    start: Offset,
    time: Timestamp,
    scans: tuple[Scan, ...] = (),
    swept_all: bool = False,
    replaced: Replaced | None = None,
    absent: frozenset[Namespace] = frozenset(),
) -> Offset:
    """The offset after a batch from `start` to `time`.

    `absent`: collections that were to be copied again and do not exist: complete, being empty.

    A batch either scans (`scans` in frontier order, all but the last of them to their end;
    `swept_all`: no collection is left behind them) or ends at the time of a DDL event (`replaced`),
    never both: the events of a replaced collection belong before the cut, its new content after it.
    """
    if replaced is not None:
        if scans or swept_all:
            raise ValueError("a batch that ends at a DDL event scans nothing")
        return _replace(_at(start, time), replaced)
    again = tuple(each for each in start.again if each.namespace not in absent)
    offset = replace(_at(start, time), again=again, scans=scans)
    for scan in scans:
        offset = _scanned(offset, scan)
    if swept_all:
        offset = replace(offset, swept=None)
    return start if offset == _at(start, start.time) else offset


def reselect(
    start: Offset,
    time: Timestamp,
    selection: Selection,
    excerpt: Excerpt,
    added: Iterable[Namespace],
) -> Offset:
    """The offset after a batch from `start` to `time` that is the last of its selection and of its
    excerpt.

    `added`: the collections at `time` that only the new selection names, or all of them if the
    excerpt is another one. They are copied while the others go on; one that is no longer selected
    stops here, copied or not.
    """
    again = tuple(each for each in start.again if selection.matches(each.namespace))
    copying = start.copying
    if copying and not selection.matches(copying.namespace):
        copying = None
    captured = replace(_at(start, time), selection=selection.text, excerpt=excerpt.text)
    return begin_again(replace(captured, copying=copying, again=again), added)


def begin_again(offset: Offset, names: Iterable[Namespace]) -> Offset:
    """The offset with these collections to be copied; the sweep finds those behind it by itself."""
    names = frozenset(names)
    again = {each.namespace: each for each in offset.again}
    for name in names - again.keys():
        if offset.has_reached(name):
            again[name] = Again(name, offset.time)
    is_begun = offset.copying is not None and offset.copying.namespace in names
    copying = None if is_begun else offset.copying
    ordered = tuple(again[name] for name in sorted(again, key=str))
    return replace(offset, again=ordered, copying=copying)


def begun_again(start: Offset, end: Offset) -> list[Namespace]:
    """The collections whose content is told anew after the batch between two offsets."""
    before = {each.namespace for each in start.again}
    return [each.namespace for each in end.again if each.namespace not in before]


def withheld(start: Offset, end: Offset) -> list[Again]:
    """The collections whose copy begins in the batch between two offsets, and as of a later time
    than the last of which their changes were emitted."""
    begun = {scan.copying.namespace for scan in end.scans}
    return [each for each in start.again if each.namespace in begun and each.since != end.time]


def _at(start: Offset, time: Timestamp) -> Offset:
    """The end of a batch that did nothing but let time pass; it keeps nothing of the one before."""
    if time == start.time:
        return replace(start, scans=(), silent=(), gap=None)
    return replace(start, time=time, scans=(), silent=(), late=(), position="", gap=None)


def _scanned(offset: Offset, scan: Scan) -> Offset:
    namespace = scan.copying.namespace
    again = tuple(each for each in offset.again if each.namespace != namespace)
    swept = offset.swept
    if swept is not None and str(namespace) > swept:
        swept = str(namespace)
    copying = None if scan.upper == MAX_KEY else replace(scan.copying, below=scan.upper)
    return replace(offset, copying=copying, again=again, swept=swept)


def _replace(offset: Offset, replaced: Replaced) -> Offset:
    """A collection that was emptied is complete: it holds nothing. One refilled is copied again.

    Those behind the sweep need no entry: the sweep finds what is there when it comes by.
    """
    touched = replaced.emptied | replaced.refilled
    reached = sorted(name for name in replaced.refilled if offset.has_reached(name))
    since = {each.namespace: each.since for each in offset.again}
    again = [each for each in offset.again if each.namespace not in touched]
    again += [Again(name, since.get(name, offset.time)) for name in reached]
    copying = offset.copying
    if copying and copying.namespace in touched:
        copying = None
    return replace(offset, copying=copying, again=tuple(again))
