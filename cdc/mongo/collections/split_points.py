"""Split points: the keys at which a collection is cut into ranges.

There are two strategies:

* `splitVector`: the server walks its own `_id` index from the frontier, and stops after the split
  points of one batch. It needs a privilege of its own; mongos and many hosted services refuse it.
  Ranges have equal numbers of documents, but a million keys take the server 0.45 s, before each
  batch, while no task runs.
* `sampling`: the sorted keys of a random sample, which is drawn once, in 0.02 s, and used batch by
  batch.

Where a sample is quick and close enough, it is tried first, else the walk. A collection that fits
into one split has no split point, nor has one for which both are refused: `single`.

Split points only balance the work: any increasing keys cut a collection into ranges that together
contain each document once. So a refused strategy is replaced by the next. A transient failure is
raised, or it could make a single split of a terabyte.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pymongo.errors
from bson.raw_bson import RawBSONDocument

from cdc.model import MAX_KEY, MIN_KEY, Copying, Namespace, literal
from cdc.mongo.collections.collection_size import SPLIT_VECTOR, Size, estimate_size, refusal
from cdc.mongo.connection import LONGEST_MS, RAW, Client, translate_error

_log = logging.getLogger(__name__)
SAMPLING, SINGLE = "sampling", "single"
# Walking so many keys takes less than 0.05 s.
_WALKED_DOCUMENTS = 100_000
# With so many samples, the largest of eight ranges is about 1.1 times as large as the average.
_LEAST_SAMPLES = 2_000
_SAMPLES_PER_SPLIT = 20
# So many random reads take seconds on a cold disk. With more than 500 splits, each gets fewer
# samples; with more than 10,000, the splits become larger than `split_bytes`.
_MOST_SAMPLES = 10_000
# With more splits than that, the ranges of a sample are too uneven to be preferred.
_MOST_SAMPLED_SPLITS = 1_000
# For a twentieth of the documents or more, $sample reads the whole collection and sorts it.
_DOCUMENTS_PER_SAMPLE = 21
# Splits are read by all cores at once, whose number is unknown here: probably 2, 4 or 8.
_ROUND = 8
# Keys that were appended after a sample was drawn all come after its last split point.
_SAMPLE_SECONDS = 300.0


class Choice(NamedTuple):
    """A strategy, and why it was chosen."""

    strategy: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """The split points of a whole collection from a frontier on; the frontier is the first key."""

    incarnation: tuple[Namespace, bytes]
    split_bytes: int
    keys: list[bytes]
    reason: str
    drawn: float

    def serves(self, copying: Copying, split_bytes: int) -> bool:
        """Whether an earlier batch stopped at the frontier in this sample, within 5 minutes.

        Another incarnation of the collection may have another collation, and so another order.
        """
        is_new = time.monotonic() - self.drawn < _SAMPLE_SECONDS
        is_same = (self.incarnation, self.split_bytes) == (_incarnation(copying), split_bytes)
        return is_new and is_same and copying.below in self.keys

    def cut(self, lower: bytes, most: int) -> tuple[Choice, list[bytes]]:
        """Return at most `most` split points above `lower`."""
        begin = self.keys.index(lower) + 1
        return Choice(SAMPLING, self.reason), self.keys[begin : begin + most]


def _incarnation(copying: Copying) -> tuple[Namespace, bytes]:
    return copying.namespace, copying.uuid


# Collections are copied one after the other, so each client needs only its newest sample.
_samples: WeakKeyDictionary[Client, _Sample] = WeakKeyDictionary()


def cut_points(
    client: Client,
    copying: Copying,
    most: int,
    split_bytes: int,
    shard: str = "",
) -> list[bytes]:
    """Return at most `most` increasing keys above the frontier, about `split_bytes` apart.

    There are fewer than `most` if at most one split remains after the last key. The strategy and
    its reason are logged at INFO. Raises our errors for those of the server that are no refusals.

    Args:
        client: a client of the replica set or of one shard.
        copying: the collection and its frontier.
        most: the greatest number of keys.
        split_bytes: bytes of documents, uncompressed.
        shard: the name of the shard, for the log.
    """
    namespace = copying.namespace
    try:
        choice, cuts = _try_strategies(client, copying, most, split_bytes)
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, f"Cutting {namespace} into splits") from error
    what = f"{namespace} on {shard}" if shard else str(namespace)
    _log.info("%s: %d cut points by %s: %s", what, len(cuts), *choice)
    return cuts


def choose_strategy(client: Client, namespace: Namespace, size: Size, split_bytes: int) -> Choice:
    """Return the strategy of `cut_points` for a whole collection, without drawing a sample.

    Raises the driver's errors that are not refusals.
    """
    if size.bytes <= split_bytes:
        return Choice(SINGLE, _fits_reason(size.bytes, split_bytes))
    if _prefers_sample(size, split_bytes):
        return Choice(SAMPLING, _describe_sample(size, []))
    try:
        cuts = _split_vector(client, namespace, MIN_KEY, 1, split_bytes)
    except pymongo.errors.PyMongoError as error:
        return Choice(SAMPLING, _describe_sample(size, [refusal(SPLIT_VECTOR, error)]))
    return _describe_walk(cuts, split_bytes)


def count_splits(strategy: str, size: Size, split_bytes: int) -> int:
    """Return into how many splits a strategy cuts a whole collection.

    A sample can be cut anywhere. It gives a power of 2 up to 8 splits, else a multiple of 8, so
    that no core is idle while the last split is read.
    """
    if strategy == SINGLE:
        return 1
    least = math.ceil(size.bytes / split_bytes)
    if strategy != SAMPLING:
        return least
    part = min(_ROUND, 1 << (least - 1).bit_length())
    return math.ceil(least / part) * part


def _prefers_sample(size: Size, split_bytes: int) -> bool:
    return size.documents > _WALKED_DOCUMENTS and size.bytes <= _MOST_SAMPLED_SPLITS * split_bytes


def _try_strategies(
    client: Client, copying: Copying, most: int, split_bytes: int
) -> tuple[Choice, list[bytes]]:
    namespace, lower = copying.namespace, copying.below
    sample = _samples.get(client)
    if sample is not None and sample.serves(copying, split_bytes):
        return sample.cut(lower, most)
    refusals = list[str]()

    def walk() -> tuple[Choice, list[bytes]]:
        cuts = _split_vector(client, namespace, lower, most, split_bytes)
        return _describe_walk(cuts, split_bytes), cuts

    def draw() -> tuple[Choice, list[bytes]]:
        return _cut_by_sample(client, copying, most, split_bytes, size, refusals)

    strategies = [(SPLIT_VECTOR, walk)]
    try:
        size = estimate_size(client, namespace)
        strategies.insert(0 if _prefers_sample(size, split_bytes) else 1, (SAMPLING, draw))
    except pymongo.errors.PyMongoError as error:
        refusals.append(refusal(SAMPLING, error))
    for name, cut in strategies:
        try:
            return cut()
        except pymongo.errors.PyMongoError as error:
            refusals.append(refusal(name, error))
    return Choice(SINGLE, ", ".join(refusals)), []


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
            # The server cuts at half the size of a full chunk, and does not cut a collection that
            # would not fill one chunk.
            "maxChunkSizeBytes": 2 * split_bytes,
            "maxSplitPoints": most,
            "maxChunkObjects": 2**31 - 1,
            "maxTimeMS": LONGEST_MS,
        },
        codec_options=RAW,
    )
    return [bytes(key.raw) for key in reply["splitKeys"]]


def _describe_walk(cuts: list[bytes], split_bytes: int) -> Choice:
    if cuts:
        return Choice(SPLIT_VECTOR, "the server walks the _id index from the frontier")
    return Choice(SINGLE, f"splitVector finds fewer than two splits of {_mib(split_bytes)}")


# --- sampling ------------------------------------------------------------------------------------


def _cut_by_sample(
    client: Client,
    copying: Copying,
    most: int,
    split_bytes: int,
    size: Size,
    refusals: Sequence[str],
) -> tuple[Choice, list[bytes]]:
    if size.bytes <= split_bytes:
        return Choice(SINGLE, _fits_reason(size.bytes, split_bytes)), []
    lower = copying.below
    keys = [lower, *_draw_sample(client, copying.namespace, lower, size, split_bytes)]
    reason, incarnation = _describe_sample(size, refusals), _incarnation(copying)
    sample = _Sample(incarnation, split_bytes, keys, reason, time.monotonic())
    _samples[client] = sample
    return sample.cut(lower, most)


def _draw_sample(
    client: Client, namespace: Namespace, lower: bytes, size: Size, split_bytes: int
) -> list[bytes]:
    """Return all split points above `lower`: every n-th key of a sample.

    The sample is drawn from the *whole* collection, so that n does not depend on how much of it is
    above `lower`.
    """
    splits = count_splits(SAMPLING, size, split_bytes)
    if size.documents <= _MOST_SAMPLES:
        # A sample of a collection this small would have too few keys, so all keys are read.
        wanted, keys = size.documents, all_keys(client, namespace, lower)
    else:
        enough = min(max(_LEAST_SAMPLES, splits * _SAMPLES_PER_SPLIT), _MOST_SAMPLES)
        wanted = min(enough, size.documents // _DOCUMENTS_PER_SAMPLE)
        keys = random_keys(client, namespace, lower, wanted)
    every = max(1.0, wanted / splits)
    # What comes after the last point is a split too.
    places = [int(number * every) - 1 for number in range(1, math.ceil(len(keys) / every))]
    return [keys[place] for place in places if keys[place] != MAX_KEY]


def _describe_sample(size: Size, refusals: Sequence[str]) -> str:
    why = ", ".join(refusals) or f"quicker than to walk {size.documents:,} keys"
    return f"{why}, size by {size.origin}"


def _fits_reason(size: int, split_bytes: int) -> str:
    return f"about {_mib(size)} fit into a split of {_mib(split_bytes)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def random_keys(client: Client, namespace: Namespace, lower: bytes, wanted: int) -> list[bytes]:
    """Return the keys above `lower`, in order, of `wanted` documents drawn at random."""
    stages: list[dict[str, Any]] = [
        {"$sample": {"size": wanted}},
        {"$match": {"$expr": {"$gt": ["$_id", literal(lower)]}}},
        # $sample may draw a document twice, and both 1 and 1.0 while one replaces the other. The
        # server compares keys here as in its index, with the collation.
        {"$group": {"_id": "$_id"}},
        {"$sort": {"_id": 1}},
    ]
    coll = client[namespace.db][namespace.coll].with_options(codec_options=RAW)
    with coll.aggregate(stages, maxTimeMS=LONGEST_MS) as cursor:
        return [bytes(document.raw) for document in cursor]


def all_keys(client: Client, namespace: Namespace, lower: bytes, most: int = 0) -> list[bytes]:
    """Return the keys above `lower`, in order; 0 for `most` means no limit.

    At most `most` index entries from `lower` on are read, and no documents: an aggregation with a
    condition on `_id` would fetch them.
    """
    find = {
        "find": namespace.coll,
        "projection": {"_id": 1},
        "min": RawBSONDocument(lower),
        "hint": {"_id": 1},
        "sort": {"_id": 1},  # a router merges what several shards return
        "limit": most,
        "maxTimeMS": LONGEST_MS,
    }
    database = client[namespace.db].with_options(codec_options=RAW)
    with database.cursor_command(find, codec_options=RAW) as cursor:
        return [key for document in cursor if (key := bytes(document.raw)) != lower]
