"""Whether a stretch of the oplog can tell of anything but changes of documents.

A change stream finds that out too, but it makes an event of each entry first: of 100,000 changes
that takes ten times as long as to look at the entries themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.mongo.client import Member
from cdc.mongo.privileges import OPLOG

# Beyond that, nothing is saved by it.
_PATIENCE_MS = 10_000
# Commands, transactions among them; and the no-ops that stand for what a cluster does: only they
# have an `o2`.
_LOUD = {"$nor": [{"op": {"$in": ["i", "u", "d"]}}, {"op": "n", "o2": {"$exists": False}}]}


def is_quiet(open_member: Callable[[], Member], after: Timestamp, upto: Timestamp) -> bool:
    """Whether it is sure that there is nothing else with after < time ≤ upto, and all of that time
    is there. False where the oplog may not be read: ask a change stream then."""
    try:
        member = open_member()
        try:
            return _holds_nothing_loud(member, after, upto) and _reaches_back(member, after)
        finally:
            member.end()
    except pymongo.errors.PyMongoError:
        return False


def _holds_nothing_loud(member: Member, after: Timestamp, upto: Timestamp) -> bool:
    entries = {"ts": {"$gt": after, "$lte": upto}, **_LOUD}
    return _first(member, entries, afterClusterTime=upto) is None


def _reaches_back(member: Member, to: Timestamp) -> bool:
    """To be asked behind a look at what follows: that was not thrown away during it then."""
    oldest = _first(member, {})
    return oldest is not None and oldest <= to


def _first(member: Member, query: dict[str, Any], **concern: Timestamp) -> Timestamp | None:
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
