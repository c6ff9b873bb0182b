"""Splits: the part of a batch that one Spark task reads.

A split is a key range at one time, a time range of the change stream, or control rows. All splits
are frozen, picklable and free of credentials. A key is transported as BSON bytes of `{"_id": K}`:
it may be any BSON value, and Python objects do not distinguish all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import UnmappableValue
from cdc.model.bson import Element, elements, encode_document, encode_field
from cdc.model.capture_filter import CaptureFilter
from cdc.model.selection import Namespace, Selection

MIN_KEY = bson.encode({"_id": MinKey()})
MAX_KEY = bson.encode({"_id": MaxKey()})


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Half-open range of keys: lower ≤ key < upper in the server's order.

    With upper = MaxKey the range includes `MaxKey`. lower < upper must be true: the server refuses
    an empty range (51175).
    """

    lower: bytes
    upper: bytes

    @property
    def is_last(self) -> bool:
        return self.upper == MAX_KEY


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    """The documents of `range` exactly as of cluster time `at`.

    Attributes:
        namespace: the name of the collection at `at`.
        uuid: the incarnation; the name may belong to another one today.
        range: the keys to read.
        at: the cluster time that the read shows.
        collation: BSON of the collection's default collation, or None. The events of a range are
            selected by the key order of the collection's index.
        shard: the one shard of a cluster that contains the collection. It is empty for a replica
            set and for a collection that is distributed over shards.
        capture_text: the text of `capture`.
        has_whole_keys: earlier rows contain the shard keys, so this split must know them too.
    """

    namespace: Namespace
    uuid: bytes
    range: KeyRange
    at: Timestamp
    collation: bytes | None = None
    shard: str = ""
    capture_text: str = ""
    has_whole_keys: bool = False

    @property
    def capture(self) -> CaptureFilter:
        """The capture filter and the projection."""
        return CaptureFilter.parse(self.capture_text)


@dataclass(frozen=True, slots=True)
class StreamSplit:
    """The change events with after < clusterTime ≤ upto that pass `pipeline`.

    Attributes:
        after: the time before the first event.
        upto: the time of the last event, except for `late`.
        database: the scope of the stream; None is the whole deployment.
        pipeline: BSON of `{"pipeline": [stages]}`.
        collation: BSON of a collation, or None.
        only: the reader drops events of all other namespaces. Under a collation the server's own
            comparison of names is not exact.
        collections: the selection that the rows belong to.
        capture_text: the text of `capture`.
        shard: the shard that reports the changes; empty for a replica set.
        late: times after `upto` whose events belong to the split too, see `late` of the offset.
        emitted: times after `after` whose events are in an earlier batch; the split omits them.
        after_position: a position; the split contains only events after it.
        is_whole: `pipeline` passes all row events of `collections`, unchanged, and no others.
        has_whole_keys: earlier rows contain the shard keys, so this split must know them too.
    """

    after: Timestamp
    upto: Timestamp
    database: str | None
    pipeline: bytes
    collation: bytes | None = None
    only: Namespace | None = None
    collections: str = ""
    capture_text: str = ""
    shard: str = ""
    late: tuple[Timestamp, ...] = ()
    emitted: tuple[Timestamp, ...] = ()
    after_position: str = ""
    is_whole: bool = False
    has_whole_keys: bool = False

    @property
    def capture(self) -> CaptureFilter:
        """The capture filter and the projection."""
        return CaptureFilter.parse(self.capture_text)

    @property
    def selection(self) -> Selection:
        """The collections that the split may have row events of."""
        return Selection.parse(self.collections) if self.only is None else Selection.of([self.only])

    @property
    def last(self) -> Timestamp:
        """The time up to which the split must be read."""
        return max(self.upto, *self.late) if self.late else self.upto

    def contains(self, time: Timestamp) -> bool:
        """Whether events at that time belong to the split."""
        if time <= self.after or time in self.emitted:
            return False
        return time <= self.upto or time in self.late


@dataclass(frozen=True, slots=True)
class ControlSplit:
    """Control rows, which state the effect of a batch on the tables of a sink. It reads nothing.

    Attributes:
        at: the cluster time at the end of the batch.
        description: if set, the text of one `watermark` row: after the batch the tables are exact
            as of `at`.
        resync: one `resync` row for each collection; None stands for all collections. The content
            that a table has of it is void, and its content follows.
        withheld: one `resync` row for each collection; its content begins with this batch. The
            row states that its changes from that time (None: unknown) up to `at` are in no row.
        gap: if set, one `gap` row: the changes from that time up to `at` are lost.
    """

    at: Timestamp
    description: str | None = None
    resync: tuple[Namespace | None, ...] = ()
    withheld: tuple[tuple[Namespace, Timestamp | None], ...] = ()
    gap: Timestamp | None = None


Split = SnapshotSplit | StreamSplit | ControlSplit


def join_neighbours(splits: Iterable[Split], most: int) -> list[Split]:
    """Join up to `most` neighbouring snapshot splits to one with the same documents.

    With a `most` below 2, all splits stay as they are.
    """
    joined, count = list[Split](), 0
    for split in splits:
        whole = _join(joined[-1], split) if joined and count < most else None
        if whole is not None:
            joined[-1] = whole
            count += 1
        else:
            joined.append(split)
            count = 1
    return joined


def _join(split: Split, following: Split) -> SnapshotSplit | None:
    """The documents of both; None unless the two differ in their neighbouring ranges alone."""
    if not isinstance(split, SnapshotSplit) or not isinstance(following, SnapshotSplit):
        return None
    whole = replace(split, range=KeyRange(split.range.lower, following.range.upper))
    is_alike = replace(following, range=whole.range) == whole
    return whole if is_alike and split.range.upper == following.range.lower else None


def key_of(document: bytes) -> bytes:
    """Return BSON of `{"_id": K}` for a document's `_id`, which may not be its first field.

    Raises UnmappableValue if the bytes are not a document or contain no `_id`.
    """
    return _encode_single(b"_id", _find(b"_id", document), document)


def literal(key: bytes) -> RawBSONDocument:
    """Return `{"$literal": K}` for an aggregation; a plain `_id` of "$x" would be a field path."""
    return RawBSONDocument(_encode_single(b"$literal", elements(key, 0, len(key))[0], key))


def equal_to(name: str, key: bytes) -> RawBSONDocument:
    """Return `{"$eq": V}` for the value of a field of a document key.

    The value is not decoded: Python has none for some, such as dates after the year 9999. Raises
    UnmappableValue if the document key has no such field.
    """
    return RawBSONDocument(_encode_single(b"$eq", _find(name.encode(), key), key))


def _find(name: bytes, document: bytes) -> Element:
    for element in elements(document, 0, len(document)):
        if element.name == name:
            return element
    raise UnmappableValue(f"a document without {name.decode()}")


def _encode_single(name: bytes, element: Element, data: bytes) -> bytes:
    return encode_document([encode_field(element.kind, name, data[element.start : element.stop])])
