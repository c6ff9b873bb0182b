"""How far an oplog reaches back: what was changed before that is lost to a change stream."""

from __future__ import annotations

from dataclasses import dataclass

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.mongo.client import Client, translated
from cdc.mongo.privileges import OPLOG


@dataclass(frozen=True, slots=True)
class Window:
    """How far the oplog of the member that answered reaches back, who told, and of which shard."""

    first: Timestamp
    last: Timestamp
    told_by: str
    shard: str = ""

    @property
    def seconds(self) -> int:
        return self.last.time - self.first.time


def oplog_window(client: Client, shard: str = "") -> Window | None:
    """From the oplog itself, or from serverStatus; None if the user may read neither."""
    for ask in (_by_oplog, _by_status):
        try:
            return Window(*ask(client), shard)
        except pymongo.errors.PyMongoError as error:
            problem = translated(error, "Asking for the oplog's window")
            if isinstance(problem, TransientError):
                raise problem from error
    return None


def _by_oplog(client: Client) -> tuple[Timestamp, Timestamp, str]:
    entries = client[OPLOG.db][OPLOG.coll]
    first, last = (
        next(entries.find({}, {"ts": 1}).sort("$natural", order).limit(1))["ts"]
        for order in (1, -1)
    )
    return first, last, str(OPLOG)


def _by_status(client: Client) -> tuple[Timestamp, Timestamp, str]:
    told = client.admin.command({"serverStatus": 1, "oplog": 1})["oplog"]
    return told["earliestOptime"], told["latestOptime"], "serverStatus"
