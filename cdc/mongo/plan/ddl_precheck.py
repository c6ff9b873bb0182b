"""DDL pre-check: does a part of the oplog contain only changes of documents?

A change stream can find DDL too, but it first makes an event of each entry. For 100,000 changes,
that takes ten times as long as reading the entries themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.mongo.connection import OPLOG, Member

# A check that takes longer than this saves nothing.
_PATIENCE_MS = 10_000
# Commands, which include transactions that create a collection, and the no-ops that record
# operations of a cluster. Other no-ops have no `o2`.
_OTHER_ENTRIES = {
    "$nor": [
        {"op": {"$in": ["i", "u", "d"]}},
        {"op": "n", "o2": {"$exists": False}},
        {"op": "c", "o.applyOps.op": {"$exists": True, "$nin": ["c"]}},
    ]
}


def has_only_row_changes(
    open_member: Callable[[], Member], after: Timestamp, upto: Timestamp
) -> bool:
    """Whether all entries with after < time ≤ upto exist and certainly are changes of documents.

    False also means unknown, for example if the user may not read the oplog. Then a change stream
    has to be read.
    """
    try:
        member = open_member()
        try:
            return _has_only_changes(member, after, upto) and _reaches_back(member, after)
        finally:
            member.end()
    except pymongo.errors.PyMongoError:
        return False


def _has_only_changes(member: Member, after: Timestamp, upto: Timestamp) -> bool:
    entries = {"ts": {"$gt": after, "$lte": upto}, **_OTHER_ENTRIES}
    return _first_time(member, entries, afterClusterTime=upto) is None


def _reaches_back(member: Member, to: Timestamp) -> bool:
    """Whether the oplog still begins at or before `to`.

    Call it after reading the entries after `to`: then none of them were removed before the read.
    """
    oldest = _first_time(member, {})
    return oldest is not None and oldest <= to


def _first_time(member: Member, query: dict[str, Any], **concern: Timestamp) -> Timestamp | None:
    command = {
        "find": OPLOG.coll,
        "filter": query,
        "projection": {"ts": 1},
        "limit": 1,
        "singleBatch": True,
        "maxTimeMS": _PATIENCE_MS,
        "readConcern": {"level": "majority", **concern},
    }
    for entry in member.command(OPLOG.db, command)["cursor"]["firstBatch"]:
        time: Timestamp = entry["ts"]
        return time
    return None
