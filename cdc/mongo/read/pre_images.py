"""Recorded pre-images of a part of the oplog, read in bulk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from cdc.kernel.oplog_reply import Range
from cdc.mongo.connection import PRE_IMAGES, Batch, Member

# At most this many operations, and about this many bytes of pre-images, become events at once.
_MOST: Final = 10_000
_MOST_BYTES: Final = 8 * 2**20


class Found(NamedTuple):
    """The replies with the pre-images of a range."""

    range: Range
    batches: Sequence[Batch]


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
        found, size = list[Found](), 0
        for each in ranges:
            batches = list[Batch]()
            keys = {"$gte": _key(each.uuid, each.first), "$lte": _key(each.uuid, each.last)}
            command = {"filter": {"_id": keys}, **self._reading}
            for batch in self._member.find(PRE_IMAGES, command):
                batches.append(batch)
                size += batch.size
                if size > _MOST_BYTES and self.count > 1:
                    self.count = max(1, self.count // 4)
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
