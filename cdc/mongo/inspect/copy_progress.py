"""Progress of the initial copy: estimates at a cost that does not grow with the data.

The offset contains the frontier, which is a key. The share of a collection below that key is
estimated from a random sample of the collection's keys. The sample is drawn once; after that the
server only compares its keys with the frontier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bson.raw_bson import RawBSONDocument

from cdc.model import MIN_KEY, CaptureFilter, Copying, Namespace, Offset, Selection, literal
from cdc.mongo.collections import all_keys, estimate_documents, random_keys
from cdc.mongo.connection import Client
from cdc.mongo.inspect.preflight import shards_of
from cdc.mongo.topology import Source

WAITING, COPYING, STREAMING = "not begun", "copying", "streaming"
# With so many keys, the error of a share is about 3 percent of the collection.
_SAMPLE_KEYS = 300
# A key may have a megabyte, and a command at most 16.
_SAMPLE_BYTES = 2**20
# For a collection of at most this size all keys are read from the index. If all documents are on a
# few pages, $sample strongly prefers those of some pages.
_FEW_DOCUMENTS = 25_000
# An estimate never reaches 100 percent: only a complete copy does.
_MOST_PERCENT = 99.9


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How much of a collection has been copied.

    Attributes:
        namespace: the collection.
        documents: its approximate number of documents.
        phase: WAITING, COPYING or STREAMING.
        copied: the approximate share that has been copied, 0 to 1; None if it is unknown.
    """

    namespace: Namespace
    documents: int
    phase: str
    copied: float | None


def count_documents(source: Source, selection: Selection) -> dict[Namespace, int]:
    """Return the selected collections with their approximate numbers of documents.

    The numbers include orphans. Raises CdcError.
    """
    clients = source.clients
    return {
        c.namespace: sum(
            estimate_documents(clients[shard], c.namespace) for shard in shards_of(source, c)
        )
        for c in source.list_collections(selection).collections
    }


def collection_progress(
    documents: Mapping[Namespace, int],
    at: Offset | None,
    capture: CaptureFilter,
    share: float | None,
) -> list[CopyProgress]:
    """Return the progress of each collection according to an offset.

    Args:
        documents: the collections with their approximate numbers of documents.
        at: the offset; None if there is none yet.
        capture: the configured capture filter.
        share: the share below the frontier of the collection that is being copied, if known.
    """
    # After a change of the capture filter everything is copied again.
    selection = Selection.parse(at.selection) if at and at.capture_text == capture.text else None

    def extent(name: Namespace, count: int) -> CopyProgress:
        if at is None or selection is None or not selection.matches(name):
            return CopyProgress(name, count, WAITING, 0.0)
        if at.copying is not None and at.copying.namespace == name:
            return CopyProgress(name, count, COPYING, share)
        phase, copied = (STREAMING, 1.0) if at.passes_whole(name) else (WAITING, 0.0)
        return CopyProgress(name, count, phase, copied)

    return [extent(name, count) for name, count in documents.items()]


def is_copied(at: Offset | None, selection: Selection, capture: CaptureFilter) -> bool:
    """Whether the offset shows that nothing is left to copy.

    False if the offset has another selection or capture filter than these: they were changed since.
    This is so even for a run that began without a copy.
    """
    return at is not None and at.is_streaming and at.is_of(selection.text, capture.text)


def percent(collections: Iterable[CopyProgress], complete: bool) -> float | None:
    """Return the percentage of all documents that has been copied; None if it is unknown.

    It is 100 only if `complete`, which means that nothing is left to copy.
    """
    if complete:
        return 100.0
    total = copied = 0.0
    for extent in collections:
        if extent.copied is None:
            return None
        total += extent.documents
        copied += extent.documents * extent.copied
    return min(_MOST_PERCENT, 100 * copied / max(1.0, total))


# --- the collection that is being copied ---------------------------------------------------------


class _Part(NamedTuple):
    """A shard's approximate number of documents, and some of their keys in any order."""

    client: Client
    documents: int
    keys: list[bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """Keys of a collection, from each shard that has documents of it."""

    namespace: Namespace
    parts: list[_Part]

    def share(self, below: bytes) -> float | None:
        """Return the share of the documents with a smaller key; None if no key is known.

        Raises the driver's errors.
        """
        known = [part for part in self.parts if part.keys]
        total = sum(part.documents for part in known)
        if total == 0:
            return None
        return sum(part.documents * self._share_of(part, below) for part in known) / total

    def _share_of(self, part: _Part, below: bytes) -> float:
        """Let the server compare: only it knows the order of its index, perhaps of a collation."""
        keys = [RawBSONDocument(key) for key in part.keys]
        lesser = {"$lt": ["$$this._id", literal(below)]}
        count = {"$size": {"$filter": {"input": {"$literal": keys}, "cond": lesser}}}
        stages: list[dict[str, Any]] = [{"$limit": 1}, {"$project": {"_id": 0, "below": count}}]
        coll = part.client[self.namespace.db][self.namespace.coll]
        # There is no result if the collection has become empty: then all of it is done.
        reply = next(iter(coll.aggregate(stages)), {"below": len(keys)})
        return float(reply["below"]) / len(keys)


def draw_sample(source: Source, copying: Copying) -> Sample:
    """Draw a sample of the collection that has the name now.

    It is empty if the shard of the collection was removed. Raises CdcError or the driver's errors.
    """
    clients, namespace = source.clients, copying.namespace
    shards = (copying.shard,) if copying.shard else source.shards
    parts = [_draw_part(clients[shard], namespace) for shard in shards if shard in clients]
    return Sample(namespace, parts)


def _draw_part(client: Client, namespace: Namespace) -> _Part:
    documents = estimate_documents(client, namespace)
    if documents > _FEW_DOCUMENTS:
        keys = random_keys(client, namespace, MIN_KEY, _SAMPLE_KEYS)
        return _Part(client, documents, _thin_out(keys))
    keys = all_keys(client, namespace, MIN_KEY, 2 * _FEW_DOCUMENTS)
    if len(keys) == 2 * _FEW_DOCUMENTS:  # the count is wrong, as after an unclean shutdown
        return _Part(client, documents, [])
    return _Part(client, documents, _thin_out(keys))


def _thin_out(keys: list[bytes]) -> list[bytes]:
    """Return every n-th key, few and small enough to be sent with each query."""
    step = max(1, math.ceil(len(keys) / _SAMPLE_KEYS))
    while len(few := keys[step // 2 :: step]) > 1 and sum(map(len, few)) > _SAMPLE_BYTES:
        step *= 2
    return few
