"""The offset, and `advance`: the hand-over rule, in one place.

An offset is a cluster time T and a frontier. After the batch that ends there, every document below
the frontier has been emitted exactly as of T, with every change up to T; nothing else has been.

The frontier is a key of (namespace, _id) over all selected collections, taken in the order of their
full names, so the offset does not grow with the number of documents or collections:

* namespaces up to and including `swept` are done: their events pass unfiltered;
* `copying` is the one collection between: done below its key, not yet from there on;
* namespaces behind `swept` have not been touched, and none of their events are emitted;
* `again` lists collections to be copied though the sweep has passed their names: their content was
  replaced without row events, or they were not selected before. Until their turn comes (before the
  sweep goes on) none of their events are emitted.

`shards` are those whose changes have been read up to T, as the cluster was since `topology_time`; a
replica set is one without a name. `late` holds, by shard, the times behind T of events that belong
before it and have been emitted: a transaction across shards is seen from its commit timestamp on,
but each shard tells of it at a time of its own, a little later. So a batch holds such a transaction
whole, as a read at T does.
`position` is set where a run begins behind an event: of those after T, the ones up to there are not
told. With `gap`, the batch that ended here has read nothing: what happened since that time is lost.
`silent` lists the shards that do not tell of the DDL in the batch, because another does.
`scans` is what the batch that ended here read, at most one entry for each of its splits: a replay
reads the same incarnations, whatever stands under their names by then.

A collection that appears behind the sweep's back, at a name already passed, is complete from birth.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bson.timestamp import Timestamp

from cdc.errors import CdcError, ForeignOffset
from cdc.model import timestamp
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY, MIN_KEY

VERSION = 1
NEVER = Timestamp(0, 0)

Times = tuple[tuple[str, tuple[Timestamp, ...]], ...]  # by shard, none for those without any


@dataclass(frozen=True, slots=True)
class Copying:
    """A collection that is done below `below` (BSON of `{"_id": K}`), and not yet from there on.

    `uuid` names the incarnation; `collation` is BSON of its default collation, or None; `shard` is
    the one shard that holds it, if it is not spread over a cluster. All are kept because a replayed
    batch must read what was planned, after the collection is gone too.
    """

    namespace: Namespace
    uuid: bytes
    collation: bytes | None
    below: bytes = MIN_KEY
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Scan:
    """One collection's part of a batch's scan: its documents in [copying.below, upper)."""

    copying: Copying
    upper: bytes


@dataclass(frozen=True, slots=True)
class Offset:
    """See the module. `source` tells a foreign checkpoint from our own; `selection` is which
    collections are captured up to here, `excerpt` what of them."""

    time: Timestamp
    source: str
    selection: str
    excerpt: str = ""
    swept: str | None = None  # None: every name there can be
    copying: Copying | None = None
    again: tuple[Namespace, ...] = ()
    scans: tuple[Scan, ...] = ()
    silent: tuple[str, ...] = ()
    shards: tuple[str, ...] = ("",)
    topology_time: Timestamp = NEVER
    late: Times = ()
    position: str = ""
    gap: Timestamp | None = None

    def late_of(self, shard: str) -> tuple[Timestamp, ...]:
        return dict(self.late).get(shard, ())

    def is_of(self, selection: str, excerpt: str) -> bool:
        """Whether that is what is captured."""
        return (self.selection, self.excerpt) == (selection, excerpt)

    @property
    def is_streaming(self) -> bool:
        """Whether the initial copy and every copy made necessary since are complete."""
        return self.swept is None and self.copying is None and not self.again

    def passes_whole(self, namespace: Namespace) -> bool:
        """Whether all of a namespace's events are emitted after this offset."""
        if namespace in self.again or (self.copying and self.copying.namespace == namespace):
            return False
        return _reached(self, namespace)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "time": timestamp.text(self.time),
            "source": self.source,
            "collections": self.selection,
            "excerpt": self.excerpt,
            "swept": self.swept,
            "copying": _copying_to_json(self.copying) if self.copying else None,
            "again": [str(namespace) for namespace in self.again],
            "scans": [_scan_to_json(scan) for scan in self.scans],
            "silent": list(self.silent),
            "shards": list(self.shards),
            "topology_time": timestamp.text(self.topology_time),
            "late": {shard: [timestamp.text(at) for at in times] for shard, times in self.late},
            "position": self.position,
            "gap": None if self.gap is None else timestamp.text(self.gap),
        }

    @classmethod
    def from_json(cls, data: Any) -> Offset:
        """Strict: reads what `to_json` writes and nothing else. Raises ForeignOffset."""
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise ForeignOffset(
                f"The checkpoint holds an offset of version {version!r}; this release reads"
                f" version {VERSION}.",
                "Run the release that wrote the checkpoint, or start with a new checkpoint.",
            )
        try:
            offset = cls(
                time=timestamp.parse(data["time"]),
                source=_text(data["source"]),
                selection=_text(data["collections"]),
                excerpt=_text(data["excerpt"]),
                swept=None if data["swept"] is None else _text(data["swept"]),
                copying=_copying_from_json(data["copying"]) if data["copying"] else None,
                again=tuple(Namespace.parse(name) for name in data["again"]),
                scans=tuple(_scan_from_json(scan) for scan in data["scans"]),
                silent=tuple(_text(shard) for shard in data["silent"]),
                shards=tuple(_text(shard) for shard in data["shards"]),
                topology_time=timestamp.parse(data["topology_time"]),
                late=tuple(
                    (shard, tuple(timestamp.parse(at) for at in times))
                    for shard, times in data["late"].items()
                ),
                position=_text(data["position"]),
                gap=None if data["gap"] is None else timestamp.parse(data["gap"]),
            )
            if offset.to_json() != data:  # more fields than ours, or another spelling of them
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError, CdcError) as error:
            raise ForeignOffset(
                "The checkpoint holds an offset that is not one of this source.",
                "Use the checkpoint folder that belongs to this pipeline, or a new one.",
            ) from error
        return offset


def beginning(
    time: Timestamp, source: str, selection: str, excerpt: str = "", position: str = ""
) -> Offset:
    """Where a run with an initial snapshot starts: nothing emitted, nothing passed."""
    return Offset(time, source, selection, excerpt, swept="", position=position)


def streaming(
    time: Timestamp, source: str, selection: str, excerpt: str = "", position: str = ""
) -> Offset:
    """Where a run without a snapshot starts: every change after `time`, behind `position`."""
    return Offset(time, source, selection, excerpt, position=position)


# --- advancing -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replaced:
    """What the DDL events at one cluster time did to selected collections.

    `emptied`: dropped or renamed away. `refilled`: another collection was renamed onto it.
    """

    emptied: frozenset[Namespace] = frozenset()
    refilled: frozenset[Namespace] = frozenset()


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
    again = tuple(name for name in start.again if name not in absent)
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
    excerpt: str,
    added: Iterable[Namespace],
) -> Offset:
    """The offset after a batch from `start` to `time` that is the last of its selection and of its
    excerpt.

    `added`: the collections at `time` that only the new selection names, or all of them if the
    excerpt is another one. They are copied while the others go on; one that is no longer selected
    stops here, copied or not.
    """
    again = tuple(name for name in start.again if selection.matches(name))
    copying = start.copying
    if copying and not selection.matches(copying.namespace):
        copying = None
    captured = replace(_at(start, time), selection=selection.text, excerpt=excerpt)
    return begin_again(replace(captured, copying=copying, again=again), added)


def begin_again(offset: Offset, names: Iterable[Namespace]) -> Offset:
    """The offset with these collections to be copied; the sweep finds those behind it by itself."""
    names = frozenset(names)
    again = {*offset.again, *(name for name in names if _reached(offset, name))}
    is_begun = offset.copying is not None and offset.copying.namespace in names
    copying = None if is_begun else offset.copying
    return replace(offset, again=tuple(sorted(again, key=str)), copying=copying)


def begun_again(start: Offset, end: Offset) -> list[Namespace]:
    """The collections whose content is told anew after the batch between two offsets."""
    return [name for name in end.again if name not in start.again]


def _at(start: Offset, time: Timestamp) -> Offset:
    """The end of a batch that did nothing but let time pass; it keeps nothing of the one before."""
    if time == start.time:
        return replace(start, scans=(), silent=(), gap=None)
    return replace(start, time=time, scans=(), silent=(), late=(), position="", gap=None)


def _scanned(offset: Offset, scan: Scan) -> Offset:
    namespace = scan.copying.namespace
    again = tuple(name for name in offset.again if name != namespace)
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
    reached = {name for name in replaced.refilled if _reached(offset, name)}
    again = [name for name in offset.again if name not in touched] + sorted(reached)
    copying = offset.copying
    if copying and copying.namespace in touched:
        copying = None
    return replace(offset, copying=copying, again=tuple(again))


def _reached(offset: Offset, namespace: Namespace) -> bool:
    return offset.swept is None or str(namespace) <= offset.swept


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def encode_key(key: bytes) -> str:
    """A frontier key as text; Extended JSON would lose the type of some keys."""
    return base64.b64encode(key).decode()


def decode_key(text: str) -> bytes:
    """The inverse of `encode_key`. Raises ValueError."""
    return base64.b64decode(text, validate=True)


def _copying_to_json(copying: Copying) -> dict[str, Any]:
    return {
        "namespace": str(copying.namespace),
        "uuid": copying.uuid.hex(),
        "collation": base64.b64encode(copying.collation).decode() if copying.collation else None,
        "below": encode_key(copying.below),
        "shard": copying.shard,
    }


def _copying_from_json(data: dict[str, Any]) -> Copying:
    collation = data["collation"]
    return Copying(
        namespace=Namespace.parse(data["namespace"]),
        uuid=bytes.fromhex(data["uuid"]),
        collation=base64.b64decode(collation) if collation else None,
        below=decode_key(data["below"]),
        shard=_text(data["shard"]),
    )


def _scan_to_json(scan: Scan) -> dict[str, Any]:
    return {**_copying_to_json(scan.copying), "upper": encode_key(scan.upper)}


def _scan_from_json(data: dict[str, Any]) -> Scan:
    return Scan(_copying_from_json(data), decode_key(data["upper"]))
