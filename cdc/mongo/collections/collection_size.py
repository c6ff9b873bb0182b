"""The size of a collection, and what to do if the server refuses to report it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pymongo.errors

from cdc.model import Namespace
from cdc.mongo.connection import LONGEST_MS, RAW, TOOK_TOO_LONG, Client, may_pass

SPLIT_VECTOR = "splitVector"
_AVERAGE_OF = 100
_NO_SUCH_OPERATOR = 168  # before 4.4: $bsonSize
# InvalidOptions: splitVector takes 1 MiB to 1 GiB. MaxTimeMSExpired: an index that is too large to
# be walked in time remains too large. For other commands both codes are transient.
_NOT_SPLIT = frozenset({72, TOOK_TOO_LONG})


class Size(NamedTuple):
    """The approximate size of a collection, uncompressed, and where the numbers come from."""

    documents: int
    bytes: int
    origin: str


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
        refused = refusal("collStats", error)
    documents = int(database[namespace.coll].estimated_document_count())
    origin = f"count and average of a sample, because {refused}"
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


def refusal(command: str, error: pymongo.errors.PyMongoError) -> str:
    """Return the text of a refusal; raise the error if it is not a refusal."""
    is_refused = isinstance(error, pymongo.errors.OperationFailure) and (
        not may_pass(error) or (command == SPLIT_VECTOR and error.code in _NOT_SPLIT)
    )
    if not is_refused:
        raise error
    return f"{command} is refused (code {getattr(error, 'code', None)})"
