"""The keys of a collection in the order of its index: of all documents, or of some by chance."""

from __future__ import annotations

from typing import Any

from bson.raw_bson import RawBSONDocument

from cdc.model.selection import Namespace
from cdc.model.split import literal
from cdc.mongo.client import LONGEST_MS, RAW, Client


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
