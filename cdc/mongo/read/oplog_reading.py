"""Entries of the oplog and recorded pre-images, read in bulk."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.kernel.oplog_reply import Range
from cdc.model import StreamSplit
from cdc.model.oplog import NeedsChangeStream
from cdc.mongo.connection import OPLOG, PRE_IMAGES, CursorBatch, Member
from cdc.mongo.topology import reaches_back

# At most this many operations, and about this many bytes of pre-images, become events at once.
_MOST: Final = 10_000
_MOST_BYTES: Final = 8 * 2**20


def entries(
    member: Member, split: StreamSplit, reading: Mapping[str, Any]
) -> Generator[CursorBatch]:
    """Yield the replies with the entries of the split's time, in order.

    Raises NeedsChangeStream if the oplog of this member begins too late, and the driver's errors.
    """
    is_checked = False
    with closing(member.find(OPLOG, {"filter": _condition(split), **reading})) as batches:
        for batch in batches:
            if not is_checked:
                if not reaches_back(member, split.after):
                    raise NeedsChangeStream("an oplog that begins after the split")
                is_checked = True
            yield batch


def _condition(split: StreamSplit) -> dict[str, Any]:
    """Return the condition for entries in the split's time that concern its collections.

    These are all operations on them, all transactions, because any of them may change a captured
    document, and the DDL of their databases. A rename is always passed: its target may be in
    another database. The server's own removal of old pre-images is left out: no change stream
    reports it, and once the oplog is full there is some every few seconds.
    """
    removal = {"lsid": {"$exists": False}, "o.applyOps.0.ns": str(PRE_IMAGES)}
    selection = split.selection
    databases = selection.databases
    commands = sorted({"admin.$cmd", *(f"{database}.$cmd" for database in databases or ())})
    return {
        "ts": {"$gt": split.after, "$lte": split.upto},
        "$or": [
            selection.full_condition("ns"),
            {"op": "c", "ns": {"$regex": r"\.\$cmd$"} if databases is None else {"$in": commands}},
            {"op": "c", "o.renameCollection": {"$exists": True}},
        ],
        "$nor": [removal],
    }


def find_entry(member: Member, time: Timestamp) -> RawBSONDocument | None:
    """Return the entry of that time; None if the oplog does not have it."""
    found = member.command(
        OPLOG.db, {"find": OPLOG.coll, "filter": {"ts": time}, "limit": 1, "singleBatch": True}
    )
    return next(iter(found["cursor"]["firstBatch"]), None)


class Found(NamedTuple):
    """The replies with the pre-images of a range."""

    range: Range
    batches: Sequence[CursorBatch]


class PreImages:
    """Reads the pre-images of ranges, of a bounded number of bytes.

    Attributes:
        count: how many operations the next ranges should contain at most.
    """

    def __init__(self, member: Member, reading: Mapping[str, Any]) -> None:
        self._member, self._reading = member, reading
        self.count = _MOST

    def find(self, ranges: Sequence[Range]) -> list[Found] | None:
        """Return the pre-images of these ranges; None if there are too many bytes.

        After None, `count` is less. Pre-images of a single operation are never too many. Raises the
        driver's errors.
        """
        found, replies, size = list[Found](), list[CursorBatch](), 0
        for each in ranges:
            batches = list[CursorBatch]()
            keys = {"$gte": _key(each.uuid, each.first), "$lte": _key(each.uuid, each.last)}
            command = {"filter": {"_id": keys}, **self._reading}
            for batch in self._member.find(PRE_IMAGES, command):
                batches.append(batch)
                replies.append(batch)
                size += batch.size
                if size > _MOST_BYTES and self.count > 1:
                    images = sum(len(each.documents) for each in replies)
                    self.count = max(1, min(self.count // 4, images * _MOST_BYTES // size))
                    return None
            found.append(Found(each, batches))
        if size < _MOST_BYTES // 4:
            self.count = min(_MOST, 2 * self.count)
        return found


def _key(uuid: bytes, place: tuple[int, int]) -> dict[str, Any]:
    time = Timestamp(place[0] >> 32 & 0xFFFFFFFF, place[0] & 0xFFFFFFFF)
    return {
        "nsUUID": Binary(uuid, UUID_SUBTYPE),
        "ts": time,
        "applyOpsIndex": Int64(place[1]),
    }
