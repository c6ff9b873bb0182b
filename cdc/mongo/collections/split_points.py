"""Split points: the keys at which a collection is cut into ranges.

The strategies are tried in this order:

1. `splitVector`: the server walks its own `_id` index from the frontier, and stops after the split
   points of one batch. It needs a privilege of its own; mongos and many hosted services refuse it.
2. `sampling`: the sorted keys of a random sample, which is drawn once and used batch by batch.
3. `single`: no split point, for a collection that fits into one split or cannot be sampled.

Split points only balance the work: any increasing keys cut a collection into ranges that together
contain each document once. So a refused strategy is replaced by the next. A transient failure is
raised, or it could make a single split of a terabyte.
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

from cdc.model import MAX_KEY, MIN_KEY, Namespace, literal
from cdc.mongo.connection import LONGEST_MS, RAW, TOOK_TOO_LONG, Client, may_pass, translate_error

_log = logging.getLogger(__name__)
SPLIT_VECTOR, SAMPLING, SINGLE = "splitVector", "sampling", "single"
_SAMPLES_PER_SPLIT = 20
# So many random reads take seconds on a cold disk. With more than 500 splits, each gets fewer
# samples; with more than 10,000, the splits become larger than `split_bytes`.
_MOST_SAMPLES = 10_000
# For a twentieth of the documents or more, $sample reads the whole collection and sorts it.
_DOCUMENTS_PER_SAMPLE = 21
_AVERAGE_OF = 100
# Keys that were appended after a sample was drawn all come after its last split point.
_SAMPLE_SECONDS = 300.0
_NO_SUCH_OPERATOR = 168  # before 4.4: $bsonSize
# InvalidOptions: splitVector takes 1 MiB to 1 GiB. MaxTimeMSExpired: an index that is too large to
# be walked in time remains too large. For other commands both codes are transient.
_NOT_SPLIT = frozenset({72, TOOK_TOO_LONG})


class Size(NamedTuple):
    """The approximate size of a collection, uncompressed, and where the numbers come from."""

    documents: int
    bytes: int
    origin: str


class Choice(NamedTuple):
    """A strategy, and why it was chosen."""

    strategy: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Sample:
    """The split points of a whole collection from a frontier on; the frontier is the first key."""

    namespace: Namespace
    split_bytes: int
    keys: list[bytes]
    reason: str
    drawn: float

    def serves(self, namespace: Namespace, lower: bytes, split_bytes: int) -> bool:
        """Whether an earlier batch stopped at `lower` in this sample, less than 5 minutes ago."""
        is_same = (self.namespace, self.split_bytes) == (namespace, split_bytes)
        return is_same and time.monotonic() - self.drawn < _SAMPLE_SECONDS and lower in self.keys


# Collections are copied one after the other, so each client needs only its newest sample.
_samples: WeakKeyDictionary[Client, _Sample] = WeakKeyDictionary()


def cut_points(
    client: Client,
    namespace: Namespace,
    lower: bytes,
    most: int,
    split_bytes: int,
    shard: str = "",
) -> list[bytes]:
    """Return at most `most` increasing keys above `lower`, about `split_bytes` apart.

    There are fewer than `most` if at most one split remains after the last key. The strategy and
    its reason are logged at INFO. Raises our errors for those of the server that are no refusals.

    Args:
        client: a client of the replica set or of one shard.
        namespace: the collection.
        lower: the frontier.
        most: the greatest number of keys.
        split_bytes: bytes of documents, uncompressed.
        shard: the name of the shard, for the log.
    """
    try:
        choice, cuts = _try_strategies(client, namespace, lower, most, split_bytes)
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
    try:
        cuts = _split_vector(client, namespace, MIN_KEY, 1, split_bytes)
    except pymongo.errors.PyMongoError as error:
        return Choice(SAMPLING, _sampling_reason(_refusal(SPLIT_VECTOR, error), size))
    return _describe_walk(cuts, split_bytes)


def estimate_size(client: Client, namespace: Namespace) -> Size:
    """Return the size from the collection's metadata.

    That is quick, and wrong for a while after an unclean shutdown. If collStats is refused, the
    bytes are the metadata's count times the average size of 100 random documents.

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
    """The average size of 100 random documents; 0 if there is none."""
    coll = client[namespace.db][namespace.coll]
    sample: dict[str, Any] = {"$sample": {"size": _AVERAGE_OF}}
    average = {"_id": None, "bytes": {"$avg": {"$bsonSize": "$$ROOT"}}}
    try:
        group = next(iter(coll.aggregate([sample, {"$group": average}])), {"bytes": 0})
    except pymongo.errors.OperationFailure as error:
        if error.code != _NO_SUCH_OPERATOR:
            raise
        documents = list(coll.with_options(codec_options=RAW).aggregate([sample]))
        return sum(len(each.raw) for each in documents) / max(1, len(documents))
    return float(group["bytes"])


def _refusal(command: str, error: pymongo.errors.PyMongoError) -> str:
    """Return the text of a refusal; raise the error if it is not a refusal."""
    is_refused = isinstance(error, pymongo.errors.OperationFailure) and (
        not may_pass(error) or (command == SPLIT_VECTOR and error.code in _NOT_SPLIT)
    )
    if not is_refused:
        raise error
    return f"{command} is refused (code {getattr(error, 'code', None)})"


def _try_strategies(
    client: Client, namespace: Namespace, lower: bytes, most: int, split_bytes: int
) -> tuple[Choice, list[bytes]]:
    try:
        cuts = _split_vector(client, namespace, lower, most, split_bytes)
    except pymongo.errors.PyMongoError as error:
        refusal = _refusal(SPLIT_VECTOR, error)
    else:
        return _describe_walk(cuts, split_bytes), cuts
    try:
        return _cut_by_sample(client, namespace, lower, most, split_bytes, refusal)
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
    client: Client, namespace: Namespace, lower: bytes, most: int, split_bytes: int, refusal: str
) -> tuple[Choice, list[bytes]]:
    sample = _samples.get(client)
    if sample is None or not sample.serves(namespace, lower, split_bytes):
        size = estimate_size(client, namespace)
        if size.bytes <= split_bytes:
            return Choice(SINGLE, _fits_reason(size.bytes, split_bytes)), []
        keys = [lower, *_draw_sample(client, namespace, lower, size, split_bytes)]
        sample = _Sample(
            namespace, split_bytes, keys, _sampling_reason(refusal, size), time.monotonic()
        )
        _samples[client] = sample
    begin = sample.keys.index(lower) + 1
    return Choice(SAMPLING, sample.reason), sample.keys[begin : begin + most]


def _draw_sample(
    client: Client, namespace: Namespace, lower: bytes, size: Size, split_bytes: int
) -> list[bytes]:
    """Return all split points above `lower`: every n-th key of a sample.

    The sample is drawn from the *whole* collection, so that n does not depend on how much of it is
    above `lower`.
    """
    splits = size.bytes / split_bytes
    if size.documents <= _MOST_SAMPLES:
        # A sample of a collection this small would have too few keys, so all keys are read.
        wanted, keys = size.documents, all_keys(client, namespace, lower)
    else:
        enough = min(math.ceil(splits * _SAMPLES_PER_SPLIT), _MOST_SAMPLES)
        wanted = min(enough, size.documents // _DOCUMENTS_PER_SAMPLE)
        keys = random_keys(client, namespace, lower, wanted)
    every = max(1.0, wanted / splits)
    places = (int(number * every) - 1 for number in range(1, int(len(keys) / every) + 1))
    return [keys[place] for place in places if keys[place] != MAX_KEY]


def _sampling_reason(refusal: str, size: Size) -> str:
    return f"{refusal}, size by {size.origin}"


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
        "limit": most,
        "maxTimeMS": LONGEST_MS,
    }
    database = client[namespace.db].with_options(codec_options=RAW)
    with database.cursor_command(find, codec_options=RAW) as cursor:
        return [key for document in cursor if (key := bytes(document.raw)) != lower]
