"""How far the initial copy is: about, and with an effort that does not grow with the collections.

An offset tells the frontier, a key. Which share of a collection lies below it is told by a random
sample of its keys, which is drawn once and then only compared with the frontier, by the server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bson.raw_bson import RawBSONDocument

from cdc.model.excerpt import Excerpt
from cdc.model.offset import Copying, Offset
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MIN_KEY, literal
from cdc.mongo.client import Client
from cdc.mongo.cluster import Source
from cdc.mongo.cuts import all_keys, random_keys
from cdc.mongo.enumerator import estimated_documents
from cdc.mongo.preflight import shards_of

WAITING, COPYING, STREAMING = "not begun", "copying", "streaming"
# The share below a key is right to some 3 percent of the collection.
_KEYS = 300
# Keys of a megabyte each are possible, and a command holds no more than 16.
_KEY_BYTES = 2**20
# Of so few documents all keys are read from the index: where all are on a handful of pages, $sample
# prefers those of some of them by far.
_FEW = 25_000
# What is complete is not a matter of estimates.
_MOST = 99.9


@dataclass(frozen=True, slots=True)
class Extent:
    """A collection, about how many documents it holds, what it is at, and about which share of it
    has been copied (0 to 1); None if that is not known."""

    namespace: Namespace
    documents: int
    phase: str
    copied: float | None


def counted(source: Source, selection: Selection) -> dict[Namespace, int]:
    """The selected collections, and about how many documents each holds, orphans included. Raises
    CdcError."""
    clients = source.clients
    return {
        c.namespace: sum(
            estimated_documents(clients[shard], c.namespace) for shard in shards_of(source, c)
        )
        for c in source.listing(selection).collections
    }


def extents(
    documents: Mapping[Namespace, int], at: Offset | None, excerpt: Excerpt, share: float | None
) -> list[Extent]:
    """What an offset says of these collections, of which that excerpt is to be captured; None if
    there is none yet. `share` of the one that is being copied lies below its frontier."""
    # Of another excerpt all is copied again.
    selection = Selection.parse(at.selection) if at and at.excerpt == excerpt.text else None

    def extent(name: Namespace, count: int) -> Extent:
        if at is None or selection is None or not selection.matches(name):
            return Extent(name, count, WAITING, 0.0)
        if at.copying is not None and at.copying.namespace == name:
            return Extent(name, count, COPYING, share)
        phase, copied = (STREAMING, 1.0) if at.passes_whole(name) else (WAITING, 0.0)
        return Extent(name, count, phase, copied)

    return [extent(name, count) for name, count in documents.items()]


def is_copied(at: Offset | None, selection: Selection, excerpt: Excerpt) -> bool:
    """Whether nothing is left to copy of what is to be captured, and an offset says so: it does not
    where that has been changed since, though the run may have begun without a copy."""
    return at is not None and at.is_streaming and at.is_of(selection.text, excerpt.text)


def percent(found: Iterable[Extent], complete: bool) -> float | None:
    """Of all documents, how many have been copied: 100 exactly where nothing is left to copy
    (`complete`); None if it is not known."""
    if complete:
        return 100.0
    total = copied = 0.0
    for extent in found:
        if extent.copied is None:
            return None
        total += extent.documents
        copied += extent.documents * extent.copied
    return min(_MOST, 100 * copied / max(1.0, total))


# --- the one that is being copied ----------------------------------------------------------------


class _Part(NamedTuple):
    """About how many documents a shard holds of it, and some of their keys, in order or not."""

    client: Client
    documents: int
    keys: list[bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """Keys of a collection, from each shard that holds some of it."""

    namespace: Namespace
    parts: list[_Part]

    def share(self, below: bytes) -> float | None:
        """Which share of the documents has a smaller key; None if too little is known of them.
        Raises the driver's errors."""
        known = [part for part in self.parts if part.keys]
        total = sum(part.documents for part in known)
        if total == 0:
            return None
        return sum(part.documents * self._share(part, below) for part in known) / total

    def _share(self, part: _Part, below: bytes) -> float:
        """The server compares: its index is in its own order, that of a collation perhaps."""
        keys = [RawBSONDocument(key) for key in part.keys]
        lesser = {"$lt": ["$$this._id", literal(below)]}
        count = {"$size": {"$filter": {"input": {"$literal": keys}, "cond": lesser}}}
        stages: list[dict[str, Any]] = [{"$limit": 1}, {"$project": {"_id": 0, "below": count}}]
        coll = part.client[self.namespace.db][self.namespace.coll]
        found = next(iter(coll.aggregate(stages)), {"below": len(keys)})  # emptied meanwhile
        return float(found["below"]) / len(keys)


def drawn(source: Source, copying: Copying) -> Sample:
    """A sample of what bears the name now, an empty one where the shard that held it was removed.
    Raises CdcError or the driver's errors."""
    clients, namespace = source.clients, copying.namespace
    shards = (copying.shard,) if copying.shard else source.shards
    parts = [_part(clients[shard], namespace) for shard in shards if shard in clients]
    return Sample(namespace, parts)


def _part(client: Client, namespace: Namespace) -> _Part:
    documents = estimated_documents(client, namespace)
    if documents > _FEW:
        return _Part(client, documents, _few(random_keys(client, namespace, MIN_KEY, _KEYS)))
    keys = all_keys(client, namespace, MIN_KEY, 2 * _FEW)
    if len(keys) == 2 * _FEW:  # the count is wrong, as after an unclean shutdown
        return _Part(client, documents, [])
    return _Part(client, documents, _few(keys))


def _few(keys: list[bytes]) -> list[bytes]:
    """Every n-th of them, so many and so large as may be sent with each question."""
    step = max(1, math.ceil(len(keys) / _KEYS))
    while len(few := keys[step // 2 :: step]) > 1 and sum(map(len, few)) > _KEY_BYTES:
        step *= 2
    return few
