"""How far oplogs reach back: what was changed before that is lost to a change stream."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, NotPermitted
from cdc.model import timestamp
from cdc.mongo.client import Client
from cdc.mongo.codes import may_pass, translated
from cdc.mongo.privileges import OPLOG, on
from cdc.mongo.retry import uncut

_log = logging.getLogger(__name__)
_LOOKOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """How far the oplog of the member that answered reaches back, who told, and of which shard.

    `is_whole`: it is known to hold everything since the replica set was begun.
    """

    first: Timestamp
    last: Timestamp
    told_by: str
    shard: str = ""
    is_whole: bool = False

    @property
    def seconds(self) -> int:
        return self.last.time - self.first.time

    def left(self, at: Timestamp) -> Left:
        """What is left of it for one who is to read on behind `at`."""
        seconds = max(0, at.time - self.first.time)
        share = 100.0 if self.is_whole else min(100.0, 100 * seconds / max(1, self.seconds))
        return Left(seconds / 3600, share, self.shard)


class Left(NamedTuple):
    """Of an oplog, before the next changes to be read leave it: in hours, and in percent of all its
    time. One that has thrown nothing away yet is whole."""

    hours: float
    percent: float
    shard: str


@dataclass(slots=True)
class Lookout:
    """Warns, at most once a minute, when less than `percent` of an oplog is left before what is to
    be read next leaves it. One that has thrown nothing away yet is no danger."""

    percent: int
    _next: float = 0.0

    def look(self, windows: Iterable[Window], at: Timestamp) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOKOUT_SECONDS
        for window in windows:
            left = window.left(at)
            if left.percent < self.percent:
                _log.warning(
                    "of the oplog%s %.1f hours (%.0f %%) are left before changes are lost:"
                    " the run is %.1f hours behind; enlarge the oplog, or make the run faster",
                    on([window.shard]),
                    left.hours,
                    left.percent,
                    (window.last.time - at.time) / 3600,
                )


def windows(clients: Mapping[str, Client], shards: Iterable[str]) -> list[Window]:
    """One for each of the shards. Raises NotPermitted if the user may not know one of them."""
    found = [oplog_window(clients[shard], shard) for shard in shards]
    known = [window for window in found if window is not None]
    if len(known) < len(found):
        raise NotPermitted(
            "The user may not ask how far the oplog reaches back.",
            f"Grant find on {OPLOG}, or the role clusterMonitor.",
        )
    return known


def oplog_window(client: Client, shard: str = "") -> Window | None:
    """From the oplog itself, or from serverStatus; None if the user may read neither."""
    for ask in (_by_oplog, _by_status):
        try:
            return replace(ask(client), shard=shard)
        except pymongo.errors.PyMongoError as error:
            problem = translated(error, "Asking for the oplog's window")
            if may_pass(problem):
                raise problem from error
    return None


def oldest(clients: Mapping[str, Client], shards: Iterable[str]) -> Timestamp:
    """The first time after which all of these oplogs hold every change. Raises NotPermitted."""
    return max(window.first for window in windows(clients, shards))


def lost(client: Client, shard: str, option: str) -> HistoryLost:
    """What to say where no change stream can be opened at the time that an option gave."""
    window = oplog_window(client, shard)
    to = "" if window is None else f", but to {timestamp.text(window.first)} only"
    return HistoryLost(
        f"The oplog{on([shard])} does not reach back to what option '{option}' asks for{to}.",
        "Set it to a later time, or copy with mode initial; enlarge the oplog.",
    )


def _by_oplog(client: Client) -> Window:
    entries = client[OPLOG.db][OPLOG.coll]

    def end(order: int) -> Mapping[str, Any]:
        return next(entries.find({}, {"ts": 1, "o.msg": 1}).sort("$natural", order).limit(1))

    first, last = (uncut(partial(end, order)) for order in (1, -1))
    is_whole = first.get("o", {}).get("msg") == "initiating set"
    return Window(first["ts"], last["ts"], str(OPLOG), is_whole=is_whole)


def _by_status(client: Client) -> Window:
    told = client.admin.command({"serverStatus": 1, "oplog": 1})["oplog"]
    return Window(told["earliestOptime"], told["latestOptime"], "serverStatus")
