"""How far oplogs reach back: what was changed before that is lost to a change stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, NotPermitted, TransientError
from cdc.model import timestamp
from cdc.mongo.client import Client, translated
from cdc.mongo.privileges import OPLOG, on


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


def oldest(clients: Mapping[str, Client], shards: Iterable[str]) -> Timestamp:
    """The first time after which all of these oplogs hold every change. Raises NotPermitted."""
    found = [oplog_window(clients[shard], shard) for shard in shards]
    known = [window.first for window in found if window is not None]
    if len(known) < len(found):
        raise NotPermitted(
            "The user may not ask how far the oplog reaches back.",
            f"Grant find on {OPLOG}, or the role clusterMonitor.",
        )
    return max(known)


def lost(client: Client, shard: str, option: str) -> HistoryLost:
    """What to say where no change stream can be opened at the time that an option gave."""
    window = oplog_window(client, shard)
    to = "" if window is None else f", but to {timestamp.text(window.first)} only"
    return HistoryLost(
        f"The oplog{on([shard])} does not reach back to what option '{option}' asks for{to}.",
        "Set it to a later time, or copy with mode initial; enlarge the oplog.",
    )


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
