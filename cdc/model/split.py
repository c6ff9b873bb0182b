"""What one Spark task reads: a key range at a time, or a time range of the change stream.

All splits are frozen, picklable and free of credentials. Keys travel as BSON bytes of `{"_id": K}`:
a key is any BSON value, and Python objects do not tell all of them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import UnmappableValue
from cdc.model.bson import Element, elements
from cdc.model.selection import Namespace

MIN_KEY = bson.encode({"_id": MinKey()})
MAX_KEY = bson.encode({"_id": MaxKey()})


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Half open: lower ≤ key < upper in the server's order; with upper = MaxKey also `MaxKey`.

    lower < upper must hold: the server refuses an empty range (51175).
    """

    lower: bytes
    upper: bytes

    @property
    def is_last(self) -> bool:
        return self.upper == MAX_KEY


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    """The documents of `range` exactly as of cluster time `at`.

    `uuid` is the collection's incarnation: what lies under the name today may be another one.
    `collation` is BSON of the collection's default collation, or None: events of a range compare
    keys as its index does. `shard`: the one shard of a cluster that holds the collection; empty for
    a replica set, and for a collection that is spread over shards. `excerpt`: what is told of it.
    """

    namespace: Namespace
    uuid: bytes
    range: KeyRange
    at: Timestamp
    collation: bytes | None = None
    shard: str = ""
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class StreamSplit:
    """The change events with after < clusterTime ≤ upto that pass `pipeline`.

    But for those at a time in `told`, which an earlier batch has told, and with those at a time in
    `late`, behind `upto`: see `late` of the offset. Only those behind the position `behind`.

    `pipeline` is BSON of `{"pipeline": [stages]}`, `collation` BSON of a collation or None.
    `database` is the scope of the stream, None for the whole deployment. With `only`, events of
    other namespaces are dropped by the reader: under a collation the server's own comparison of
    names is not exact. `collections` is the selection that the rows are for, `excerpt` what they
    tell, `shard` the shard whose changes these are, empty for a replica set.
    """

    after: Timestamp
    upto: Timestamp
    database: str | None
    pipeline: bytes
    collation: bytes | None = None
    only: Namespace | None = None
    collections: str = ""
    excerpt: str = ""
    shard: str = ""
    late: tuple[Timestamp, ...] = ()
    told: tuple[Timestamp, ...] = ()
    behind: str = ""

    @property
    def last(self) -> Timestamp:
        """The time that the reader of the split has to pass."""
        return max(self.upto, *self.late) if self.late else self.upto

    def holds(self, time: Timestamp) -> bool:
        """Whether events at that time belong to the split."""
        if time <= self.after or time in self.told:
            return False
        return time <= self.upto or time in self.late


@dataclass(frozen=True, slots=True)
class ControlSplit:
    """No read at all: the rows by which a sink learns what the batch makes of its tables.

    With `description`, one `watermark` row: after the batch they are exact as of `at`; and one
    `resync` row for each of `resync` (None: for all that there are): what they hold of it is void,
    and its content follows. The same for each of `withheld`, whose content begins with this batch:
    the row says that its changes from that time (None: unknown) up to `at` are in no row.
    With `gap`, one row: what happened from that time up to `at` is lost.
    """

    at: Timestamp
    description: str | None = None
    resync: tuple[Namespace | None, ...] = ()
    withheld: tuple[tuple[Namespace, Timestamp | None], ...] = ()
    gap: Timestamp | None = None


Split = SnapshotSplit | StreamSplit | ControlSplit


def key_of(document: bytes) -> bytes:
    """BSON of `{"_id": K}` for a document's own `_id`, which need not be its first field.

    Raises UnmappableValue for bytes that are no document or hold no `_id`.
    """
    for element in elements(document, 0, len(document)):
        if element.name == b"_id":
            return _single(b"_id", element, document)
    raise UnmappableValue("a document without _id")


def literal(key: bytes) -> RawBSONDocument:
    """`{"$literal": K}` for an aggregation: an `_id` of "$x" alone would be taken for a path."""
    return RawBSONDocument(_single(b"$literal", elements(key, 0, len(key))[0], key))


def _single(name: bytes, element: Element, data: bytes) -> bytes:
    body = bytes([element.kind]) + name + b"\0" + data[element.start : element.stop] + b"\0"
    return (len(body) + 4).to_bytes(4, "little") + body
