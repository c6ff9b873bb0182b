"""The ranges of a collection that is spread over shards: in one order, and fit for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from bson.raw_bson import RawBSONDocument

from cdc.model.key import merge_key
from cdc.model.offset import Copying
from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, KeyRange
from cdc.mongo.client import RAW
from cdc.mongo.topology import ReplicaSet

_ALL = 2**31 - 1
Parts = Mapping[str, ReplicaSet]


def ranges(parts: Parts, copying: Copying, most: int, split_bytes: int) -> list[KeyRange]:
    """At most `most` adjacent ranges, none of them larger than `split_bytes` on any shard."""
    found = [part.ranges(copying, most, split_bytes) for part in parts.values()]
    uppers = (key_range.upper for each in found for key_range in each)
    cuts = {merge_key(cut): cut for cut in uppers if cut != MAX_KEY}
    # A shard that was not cut to its end says nothing of what lies behind its last cut.
    ends = {merge_key(each[-1].upper) for each in found} & set(cuts)
    keys = _in_order(parts, copying.namespace, list(cuts.values()))
    stop = next((i for i, key in enumerate(keys, 1) if merge_key(key) in ends), None)
    keys = keys[: min(most, stop or most)]
    if stop is None and len(keys) < most:
        keys.append(MAX_KEY)
    return [KeyRange(low, high) for low, high in itertools.pairwise([copying.below, *keys])]


def lesser(parts: Parts, namespace: Namespace, one: bytes, other: bytes) -> bytes:
    """The lesser of two keys, or any of them if the collection is empty."""
    if MAX_KEY in (one, other) or one == other:
        return one if other == MAX_KEY else other
    return next(iter(_in_order(parts, namespace, [one, other])), other)


def _in_order(parts: Parts, namespace: Namespace, keys: list[bytes]) -> list[bytes]:
    """Keys in the order of an index: a server's, so that there is no second opinion on it."""
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
        if found := reply["cursor"]["firstBatch"]:
            return [bytes(document.raw) for document in found]
    return []  # emptied meanwhile: any cut is as good
