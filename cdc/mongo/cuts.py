"""Where to cut one collection into ranges: the strategies, probed in this order.

1. `splitVector`: the server walks its own `_id` index from the frontier and stops after the cuts of
   one batch. It needs a privilege of its own, and mongos and many hosted services refuse it.
2. `sampling`: the sorted keys of a random sample, drawn once and used up batch by batch.
3. `single`: no cut at all, for what is no larger than a split, or cannot even be sampled.

Cut points are only a matter of balance: any increasing keys cut a collection into ranges that hold
each document once. So a strategy that is refused gives way to the next; a passing failure does not,
or one split of a terabyte would come of it.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pymongo.errors
from bson.raw_bson import RawBSONDocument

from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, MIN_KEY, literal
from cdc.mongo.client import LONGEST_MS, RAW, Client
from cdc.mongo.codes import TOOK_TOO_LONG, may_pass, translated

_log = logging.getLogger(__name__)
SPLIT_VECTOR, SAMPLING, SINGLE = "splitVector", "sampling", "single"
_SAMPLES_PER_SPLIT = 20
# As many random reads are a matter of seconds on a cold disk. Beyond 500 splits there are fewer
# samples for each, and beyond 10,000 the splits become larger than asked for.
_MOST_SAMPLES = 10_000
# From a twentieth of the documents on, $sample reads the whole collection and sorts it.
_DOCUMENTS_PER_SAMPLE = 21
_AVERAGE_OF = 100
# Keys that were appended since a sample was drawn all lie behind its last cut.
_SAMPLE_SECONDS = 300.0
_NO_SUCH_OPERATOR = 168  # before 4.4: $bsonSize
# InvalidOptions: splitVector takes 1 MiB to 1 GiB. And what an index is too large to be walked in
# time for, it is later, too. Elsewhere both are transient.
_NOT_SPLIT = frozenset({72, TOOK_TOO_LONG})


class Size(NamedTuple):
    """About how large a collection is, uncompressed, and how that is known."""

    documents: int
    bytes: int
    origin: str


class Choice(NamedTuple):
    """A strategy, and why it was taken."""

    strategy: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """Cut points for a whole collection from a frontier on, which is the first of `keys`."""

    namespace: Namespace
    split_bytes: int
    keys: list[bytes]
    reason: str
    drawn: float

    def serves(self, namespace: Namespace, lower: bytes, split_bytes: int) -> bool:
        """Whether `lower` is where an earlier batch stopped in this sample, not long ago."""
        is_same = (self.namespace, self.split_bytes) == (namespace, split_bytes)
        return is_same and time.monotonic() - self.drawn < _SAMPLE_SECONDS and lower in self.keys


# The newest sample of each client is enough: collections are copied one after the other.
_samples: WeakKeyDictionary[Client, _Sample] = WeakKeyDictionary()


def cut_points(
    client: Client,
    namespace: Namespace,
    lower: bytes,
    most: int,
    split_bytes: int,
    shard: str = "",
) -> list[bytes]:
    """At most `most` increasing keys above `lower`, about `split_bytes` apart.

    Fewer than `most` if no more than a split is left behind the last one. Which strategy gave them
    and why is logged at INFO, with the name of the `shard`. Raises the transient errors of the
    server as ours.
    """
    try:
        choice, cuts = _by_the_first_possible(client, namespace, lower, most, split_bytes)
    except pymongo.errors.PyMongoError as error:
        raise translated(error, f"Cutting {namespace} into splits") from error
    what = f"{namespace} on {shard}" if shard else str(namespace)
    _log.info("%s: %d cut points by %s: %s", what, len(cuts), *choice)
    return cuts


def chosen(client: Client, namespace: Namespace, size: Size, split_bytes: int) -> Choice:
    """What `cut_points` would do for the whole of a collection. Draws no sample.

    Raises the driver's errors that are not refusals.
    """
    if size.bytes <= split_bytes:
        return Choice(SINGLE, _small(size.bytes, split_bytes))
    try:
        cuts = _split_vector(client, namespace, MIN_KEY, 1, split_bytes)
    except pymongo.errors.PyMongoError as error:
        return Choice(SAMPLING, _sized(_refusal(SPLIT_VECTOR, error), size))
    return _walked(cuts, split_bytes)


def size_of(client: Client, namespace: Namespace) -> Size:
    """From the collection's metadata: quick, and wrong for a while after an unclean shutdown.

    Where collStats is refused: the metadata's count times the average of a few random documents.
    Raises the driver's errors.
    """
    database = client[namespace.db]
    try:
        stats = database.command({"collStats": namespace.coll, "maxTimeMS": LONGEST_MS})
        return Size(int(stats["count"]), int(stats["size"]), "collStats")
    except pymongo.errors.PyMongoError as error:
        refusal = _refusal("collStats", error)
    documents = int(database[namespace.coll].estimated_document_count())
    origin = f"count and average of a sample, because {refusal}"
    return Size(documents, int(documents * _average_bytes(client, namespace)), origin)


def _average_bytes(client: Client, namespace: Namespace) -> float:
    """Of a few random documents; 0 if there is none."""
    coll = client[namespace.db][namespace.coll]
    sample: dict[str, Any] = {"$sample": {"size": _AVERAGE_OF}}
    average = {"_id": None, "bytes": {"$avg": {"$bsonSize": "$$ROOT"}}}
    try:
        found = next(iter(coll.aggregate([sample, {"$group": average}])), {"bytes": 0})
    except pymongo.errors.OperationFailure as error:
        if error.code != _NO_SUCH_OPERATOR:
            raise
        documents = list(coll.with_options(codec_options=RAW).aggregate([sample]))
        return sum(len(each.raw) for each in documents) / max(1, len(documents))
    return float(found["bytes"])


def _refusal(asked: str, error: pymongo.errors.PyMongoError) -> str:
    """Says that the server will not do it; raises an error that says nothing of the kind."""
    is_refused = isinstance(error, pymongo.errors.OperationFailure) and (
        not may_pass(error) or (asked == SPLIT_VECTOR and error.code in _NOT_SPLIT)
    )
    if not is_refused:
        raise error
    return f"{asked} is refused (code {getattr(error, 'code', None)})"


def _by_the_first_possible(
    client: Client, namespace: Namespace, lower: bytes, most: int, split_bytes: int
) -> tuple[Choice, list[bytes]]:
    try:
        cuts = _split_vector(client, namespace, lower, most, split_bytes)
    except pymongo.errors.PyMongoError as error:
        refusal = _refusal(SPLIT_VECTOR, error)
    else:
        return _walked(cuts, split_bytes), cuts
    try:
        return _sampled(client, namespace, lower, most, split_bytes, refusal)
    except pymongo.errors.PyMongoError as error:
        return Choice(SINGLE, f"{refusal}, {_refusal(SAMPLING, error)}"), []


# --- splitVector ---------------------------------------------------------------------------------


def _split_vector(
    client: Client, namespace: Namespace, lower: bytes, most: int, split_bytes: int
) -> list[bytes]:
    reply = client.get_database(namespace.db, codec_options=RAW).command(
        {
            "splitVector": str(namespace),
            "keyPattern": {"_id": 1},
            "min": RawBSONDocument(lower),
            "max": RawBSONDocument(MAX_KEY),
            # The server cuts at half of what it takes for the size of a full chunk, and leaves a
            # collection alone that would not fill one.
            "maxChunkSizeBytes": 2 * split_bytes,
            "maxSplitPoints": most,
            "maxChunkObjects": 2**31 - 1,
            "maxTimeMS": LONGEST_MS,
        },
        codec_options=RAW,
    )
    return [bytes(key.raw) for key in reply["splitKeys"]]


def _walked(cuts: list[bytes], split_bytes: int) -> Choice:
    if cuts:
        return Choice(SPLIT_VECTOR, "the server walks the _id index from the frontier")
    return Choice(SINGLE, f"splitVector finds less than two splits of {_mib(split_bytes)}")


# --- sampling ------------------------------------------------------------------------------------


def _sampled(
    client: Client, namespace: Namespace, lower: bytes, most: int, split_bytes: int, refusal: str
) -> tuple[Choice, list[bytes]]:
    sample = _samples.get(client)
    if sample is None or not sample.serves(namespace, lower, split_bytes):
        size = size_of(client, namespace)
        if size.bytes <= split_bytes:
            return Choice(SINGLE, _small(size.bytes, split_bytes)), []
        keys = [lower, *_drawn(client, namespace, lower, size, split_bytes)]
        sample = _Sample(namespace, split_bytes, keys, _sized(refusal, size), time.monotonic())
        _samples[client] = sample
    begin = sample.keys.index(lower) + 1
    return Choice(SAMPLING, sample.reason), sample.keys[begin : begin + most]


def _drawn(
    client: Client, namespace: Namespace, lower: bytes, size: Size, split_bytes: int
) -> list[bytes]:
    """All cut points above `lower`: every n-th key of a sample of the *whole* collection, so that
    n does not depend on how much of it lies above."""
    splits = size.bytes / split_bytes
    if size.documents <= _MOST_SAMPLES:
        # A sample of so few documents would be too small.
        wanted, keys = size.documents, all_keys(client, namespace, lower)
    else:
        enough = min(math.ceil(splits * _SAMPLES_PER_SPLIT), _MOST_SAMPLES)
        wanted = min(enough, size.documents // _DOCUMENTS_PER_SAMPLE)
        keys = random_keys(client, namespace, lower, wanted)
    every = max(1.0, wanted / splits)
    places = (int(number * every) - 1 for number in range(1, int(len(keys) / every) + 1))
    return [keys[place] for place in places if keys[place] != MAX_KEY]


def _sized(refusal: str, size: Size) -> str:
    return f"{refusal}, size by {size.origin}"


def _small(size: int, split_bytes: int) -> str:
    return f"about {_mib(size)} are no more than a split of {_mib(split_bytes)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def random_keys(client: Client, namespace: Namespace, lower: bytes, wanted: int) -> list[bytes]:
    """At most that many keys above `lower`, in order: of `wanted` documents drawn by chance."""
    stages: list[dict[str, Any]] = [
        {"$sample": {"size": wanted}},
        {"$match": {"$expr": {"$gt": ["$_id", literal(lower)]}}},
        # $sample may draw a document twice, and 1 beside 1.0 while one replaces the other. The
        # server tells keys apart and orders them as its index does, collation included.
        {"$group": {"_id": "$_id"}},
        {"$sort": {"_id": 1}},
    ]
    coll = client[namespace.db][namespace.coll].with_options(codec_options=RAW)
    with coll.aggregate(stages, maxTimeMS=LONGEST_MS) as cursor:
        return [bytes(document.raw) for document in cursor]


def all_keys(client: Client, namespace: Namespace, lower: bytes, most: int = 0) -> list[bytes]:
    """The keys above `lower`, in order; of the first `most` documents, unless that is 0.

    From the index alone: a condition on `_id` in an aggregation would fetch the documents.
    """
    find = {
        "find": namespace.coll,
        "projection": {"_id": 1},
        "min": RawBSONDocument(lower),
        "hint": {"_id": 1},
        "limit": most,
        "maxTimeMS": LONGEST_MS,
    }
    database = client[namespace.db].with_options(codec_options=RAW)
    with database.cursor_command(find, codec_options=RAW) as cursor:
        return [key for document in cursor if (key := bytes(document.raw)) != lower]
