"""Key ranges of a sharded collection that suit all of its shards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from bson.raw_bson import RawBSONDocument

from cdc.model import MAX_KEY, Copying, KeyRange, Namespace, merge_key
from cdc.mongo.connection import RAW
from cdc.mongo.topology.replica_set import ReplicaSet

_ALL = 2**31 - 1
Parts = Mapping[str, ReplicaSet]


def ranges(parts: Parts, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
    """Return at most `most` adjacent ranges, each of about `split_bytes` or less on any shard."""
    of_shards = [part.ranges(copying, most, split_bytes) for part in parts.values()]
    uppers = (key_range.upper for each in of_shards for key_range in each)
    cuts = {merge_key(cut): cut for cut in uppers if cut != MAX_KEY}
    # Of a shard that was not cut to its end, nothing is known after its last cut.
    ends = {merge_key(each[-1].upper) for each in of_shards} & set(cuts)
    keys = _sort(parts, copying.namespace, list(cuts.values()))
    stop = next((i for i, key in enumerate(keys, 1) if merge_key(key) in ends), None)
    keys = keys[: min(most, stop or most)]
    if stop is None and len(keys) < most:
        keys.append(MAX_KEY)
    return [KeyRange(low, high) for low, high in itertools.pairwise([copying.below, *keys])]


def lesser_key(parts: Parts, namespace: Namespace, one: bytes, other: bytes) -> bytes:
    """Return the lesser of two keys, or any of them if the collection is empty."""
    if MAX_KEY in (one, other) or one == other:
        return one if other == MAX_KEY else other
    return next(iter(_sort(parts, namespace, [one, other])), other)


def _sort(parts: Parts, namespace: Namespace, keys: list[bytes]) -> list[bytes]:
    """Let a server sort the keys as its index does, so that there is only one such order.

    Returns none if all shards of the collection are empty.
    """
    if len(keys) < 2:
        return keys
    stages: list[dict[str, Any]] = [
        {"$limit": 1},
        {"$project": {"key": {"$literal": [RawBSONDocument(key) for key in keys]}}},
        {"$unwind": "$key"},
        {"$sort": {"key._id": 1}},
        {"$replaceRoot": {"newRoot": "$key"}},
    ]
    for part in parts.values():
        database = part.client.get_database(namespace.db, codec_options=RAW)
        command = {
            "aggregate": namespace.coll,
            "pipeline": stages,
            "cursor": {"batchSize": _ALL},
        }
        reply = database.command(command, codec_options=RAW)
        if documents := reply["cursor"]["firstBatch"]:
            return [bytes(document.raw) for document in documents]
    return []  # The collection was emptied meanwhile: any cut will do.
