"""Ranges through a router: the documents as the events up to a time have left them.

A read at T shows a transaction across shards if its commit timestamp is at or before T. Each shard
reports the transaction by events at a later time of its own, and a router does not report these
times in advance. So a copy as a read at T shows it could contain changes that come again after T.

This module copies the state of the change stream instead: all events up to T have happened, and
none after it. A part of the range is read at T. Then the events after T are read, up to a time
after the read. If the first event of a document after T belongs to a transaction, the read may show
it already, and the document is replaced by the before-image of that event.

* That is enough. A transaction that a read at T shows was prepared by T and held the document until
  its event. So no other event of the document is between T and that one.
* No such event is after the last time that is read. A read waits for transactions that were
  prepared before its time, if they changed a document of the range. When it has ended, each shard
  has written their events, and the router knows a time at or after them.
* If T is too old to be read, the range is read at a newer time, and all events after T are undone.

Before-images that are missing make a row inexact, as in `cdc.mongo.read.rewind`.

It does not cover a primary that fails between committing its part of a transaction and replicating
the entry for it: the new primary writes that entry at another time, which may be after the last one
that was read. Then a copied row contains a change that is also reported as an event.

`_id` is unique on each shard only. So the merged results are sorted by `_id`, a part ends between
two different ones, and nothing of it is handed out before it is complete: an attempt that fails
leaves nothing to be recognised again. Documents with one `_id` are distinguished by the document
keys of the events, which contain the shard key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from bson.timestamp import Timestamp

from cdc.errors import BadOption, UnsuitableSource
from cdc.model import (
    KeyRange,
    SnapshotSplit,
    filter_marks,
    find_field,
    key_of,
    literal,
    merge_key,
    value_key,
)
from cdc.model.bson import elements
from cdc.mongo.collections import TimeUnreadable, UnreadRange, Void
from cdc.mongo.connection import Member, RouterMember, retry_call
from cdc.mongo.read import change_stream, snapshot
from cdc.mongo.read.images import BEFORE_IMAGES, Event
from cdc.mongo.read.range_scan import Documents, scan
from cdc.mongo.read.rewind import (
    BYTES,
    RETRY_SECONDS,
    events_of,
    is_refilled,
    reading_newest,
)
from cdc.mongo.topology import Source

# Merge keys of the values of a document key, by the names of its fields.
Key = dict[bytes, str]


def read(
    source: Source, split: SnapshotSplit, retry_seconds: float, may_be_void: bool
) -> Iterator[Documents]:
    """Yield the documents of a range, each once; see `snapshot.read`.

    Raises BadOption if the option `fields` is set: without its shard key, a document cannot be
    distinguished from another one with its `_id`.
    """
    if split.capture.fields:
        raise fields_error()
    left, what = split.range, f"Copying {split.namespace} at {split.at}{split.capture.error_suffix}"
    try:
        while True:
            attempt = partial(_read_part, source, replace(split, range=left))
            results, upper = retry_call(attempt, retry_seconds, what)
            while results:  # not all of them in memory while one is encoded
                yield results.pop(0)
            if upper is None:
                return
            left = KeyRange(upper, left.upper)
    except Void as void:
        yield snapshot.void_documents(split, may_be_void, void)


def fields_error() -> BadOption:
    """Return the error for the option `fields` where document keys have to be known."""
    return BadOption(
        "Option 'fields' cannot be used through a router for a copy, or for a collection that is"
        " sharded by other fields than its _id: a document without its shard key cannot be"
        " distinguished from another one with its _id.",
        "Remove it, or set shards.direct.",
    )


def _read_part(source: Source, split: SnapshotSplit) -> tuple[list[Documents], bytes | None]:
    """Return the documents of the first part of a range, about 64 MiB, and the key after it.

    None instead of that key means that the part reaches the end of the range.
    """
    member = source.open(split.shard)
    assert isinstance(member, RouterMember), "this source is read through a router"
    try:
        at = split.at
        try:
            scanned, upper = _scan(member, split)
        except TimeUnreadable:
            at = source.live_edge(split.at)
            with reading_newest(split):
                scanned, upper = _scan(member, replace(split, at=at))
        until = member.newest_known()
        member.advance_shards(split.namespace.db)
    finally:
        member.end()
    keys = [{"$gte": ["$documentKey._id", literal(split.range.lower)]}]
    end = split.range.upper if upper is None else upper
    if upper is not None or not split.range.is_last:
        keys.append({"$lt": ["$documentKey._id", literal(end)]})
    undoing = Undoing(scanned, transactions_only=at == split.at)
    opener = partial(source.open, split.shard)
    part = events_of(split, keys, until, of_incarnation=True)
    for events in change_stream.read(opener, part, BEFORE_IMAGES, RETRY_SECONDS):
        for event in events:
            undoing.undo(event)
    if at != split.at and is_refilled(split, until, opener):
        raise Void
    return list(undoing.documents(until)), upper


def _scan(member: Member, split: SnapshotSplit) -> tuple[list[bytes], bytes | None]:
    """Read the first part of a range at its time; return it, and the key after it or None.

    Under a collation the server takes different keys for equal. So the part is the whole range
    then: between two keys there could be a document that both sides read.
    """
    concern = {"level": "snapshot", "atClusterTime": split.at}
    scanned, size = list[bytes](), 0
    with snapshot.naming_unreadable(member, split.namespace):
        for documents, _ in scan(member, UnreadRange(split), concern):
            scanned += documents
            size += sum(map(len, documents))
            if size > BYTES and split.collation is None:
                last = key_of(scanned[-1])
                whole = [each for each in scanned if merge_key(key_of(each)) != merge_key(last)]
                if whole:
                    return whole, last
    return scanned, None


class Undoing:
    """Documents from which the events since a time are undone, in the order of the stream.

    The first event of each document counts. An update may change the shard key, and so the document
    key: before it, the document had the key of its before-image.

    Args:
        scanned: the documents as they were read.
        transactions_only: they were read at the time itself. Then only transactions across shards
            can be in them, of all the events after it.
    """

    def __init__(self, scanned: Iterable[bytes], transactions_only: bool) -> None:
        self._transactions_only = transactions_only
        self._scanned: dict[str, list[bytes]] = defaultdict(list)
        for document in scanned:
            self._scanned[merge_key(key_of(document))].append(document)
        self._seen: dict[str, list[Key]] = defaultdict(list)
        self._restored, self._inexact = list[bytes](), list[bytes]()

    def undo(self, event: Event) -> None:
        """Undo an event. Raises UnsuitableSource if it may have changed either of two documents."""
        document_key = bytes(event.raw["documentKey"].raw)
        image = event.raw.get("fullDocumentBeforeChange")
        before = None if image is None else bytes(image.raw)
        id_text = merge_key(key_of(document_key))
        new = key_values(document_key)
        old = new if before is None else key_values_of(before, new)
        is_known, is_new_known = self._is_seen(id_text, old), self._is_seen(id_text, new)
        self._seen[id_text] += [old, new]
        is_counted = "txnNumber" in event.raw or not self._transactions_only
        if is_known:
            if not is_new_known:
                self._take(id_text, new)
            return
        if not is_counted:
            return
        newer = None if is_new_known else self._take(id_text, new)
        newer = self._take(id_text, old) or newer
        if event.raw["operationType"] == "insert":
            return
        if before is not None:
            self._restored.append(before)
        elif newer is not None and filter_marks(event.raw).before is not False:
            self._inexact.append(newer)

    def _is_seen(self, id_text: str, key: Key) -> bool:
        return any(
            all(key[name] == each[name] for name in key.keys() & each.keys())
            for each in self._seen[id_text]
        )

    def _take(self, id_text: str, key: Key) -> bytes | None:
        """Remove the document with this key, and return it; None if there is none."""
        found = self._scanned[id_text]
        own = [each for each in found if key_values_of(each, key) == key]
        if len(own) > 1:
            raise UnsuitableSource(
                "Two documents with one _id are on different shards, and one of them lacks the"
                " shard key: their changes cannot be distinguished.",
                "Give each document an _id of its own, or set shards.direct.",
            )
        for each in own:
            found.remove(each)
            return each
        return None

    def documents(self, until: Timestamp) -> Iterator[Documents]:
        """Yield the documents, to be called after the last event; see `rewind.Undoing`."""
        exact = [document for documents in self._scanned.values() for document in documents]
        exact += self._restored
        if exact:
            yield Documents(exact)
        if self._inexact:
            yield Documents(self._inexact, exact_from=until)


def key_values(document_key: bytes) -> Key:
    """Return the merge key of each field of a document key."""
    fields = elements(document_key, 0, len(document_key))
    return {each.name: value_key(document_key, each) for each in fields}


def key_values_of(document: bytes, like: Key) -> Key:
    """Return the fields of a document that a document key has, without those that are missing."""
    found = ((name, find_field(document, name.split(b"."))) for name in like)
    return {name: value_key(document, each) for name, each in found if each is not None}
