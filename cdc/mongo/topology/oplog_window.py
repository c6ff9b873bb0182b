"""Oplog windows: how far oplogs reach back.

A change stream cannot report changes from before the window.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import HistoryLost, NotPermitted, UnsuitableSource
from cdc.model import timestamp
from cdc.mongo.connection import (
    OPLOG,
    Client,
    Member,
    is_router,
    may_pass,
    on_shards,
    retry_if_truncated,
    translate_error,
)

_log = logging.getLogger(__name__)
_LOOKOUT_SECONDS = 60.0
# Callers have another way to read: a search that takes longer saves nothing.
_PATIENCE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Window:
    """The times that the oplog of the member that answered covers.

    Attributes:
        first: the time of the oldest entry.
        last: the time of the newest entry.
        origin: where the times come from: `local.oplog.rs` or `serverStatus`.
        shard: the shard, empty for a replica set.
        is_whole: the oplog is known to contain everything since the replica set was initiated.
    """

    first: Timestamp
    last: Timestamp
    origin: str
    shard: str = ""
    is_whole: bool = False

    @property
    def seconds(self) -> int:
        return self.last.time - self.first.time

    def remaining(self, at: Timestamp) -> Remaining:
        """Return how much of the window is left for a run that has read up to `at`."""
        seconds = max(0, at.time - self.first.time)
        share = 100.0 if self.is_whole else min(100.0, 100 * seconds / max(1, self.seconds))
        return Remaining(seconds / 3600, share, self.shard)


class Remaining(NamedTuple):
    """How much of an oplog is left before the next changes to read are removed from it.

    In hours, and in percent of its window. 100 percent are left of an oplog that has removed no
    entry yet.
    """

    hours: float
    percent: float
    shard: str


@dataclass(slots=True)
class OplogWatch:
    """Warns, at most once a minute, when less than `percent` of an oplog remains (`Remaining`)."""

    percent: int
    _next: float = 0.0

    def warn_if_short(self, windows: Iterable[Window], at: Timestamp) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOKOUT_SECONDS
        for window in windows:
            left = window.remaining(at)
            if left.percent < self.percent:
                _log.warning(
                    "oplog%s: %.1f hours (%.0f %%) are left before changes are lost;"
                    " the run lags %.1f hours; enlarge the oplog, or make the run faster",
                    on_shards([window.shard]),
                    left.hours,
                    left.percent,
                    (window.last.time - at.time) / 3600,
                )


def windows(clients: Mapping[str, Client], shards: Iterable[str]) -> list[Window]:
    """Return the window of each shard.

    Raises NotPermitted if the user may not read one, and UnsuitableSource if it is unknown because
    the source is a router.
    """
    if any(is_router(client) for client in clients.values()):
        raise UnsuitableSource(
            "A router does not report how far back the oplogs of the shards reach.",
            "Use another mode, or set shards.direct.",
        )
    of_shards = [oplog_window(clients[shard], shard) for shard in shards]
    known = [window for window in of_shards if window is not None]
    if len(known) < len(of_shards):
        raise NotPermitted(
            "The user may not read how far the oplog reaches back.",
            f"Grant find on {OPLOG}, or the role clusterMonitor.",
        )
    return known


def oplog_window(client: Client, shard: str = "") -> Window | None:
    """Read the window from the oplog, or from serverStatus; None if the user may read neither.

    None also for a router, which has none. Raises our error for a failure that may pass.
    """
    if is_router(client):
        return None
    for read in (_read_oplog, _read_status):
        try:
            return replace(read(client), shard=shard)
        except pymongo.errors.PyMongoError as error:
            problem = translate_error(error, "Reading the oplog window")
            if may_pass(problem):
                raise problem from error
    return None


def oldest_common_time(clients: Mapping[str, Client], shards: Iterable[str]) -> Timestamp:
    """Return the first time from which all of these oplogs are complete. Raises NotPermitted."""
    return max(window.first for window in windows(clients, shards))


def history_lost_error(client: Client, shard: str, option: str) -> HistoryLost:
    """Return the error for a change stream that cannot be opened at the time in `option`."""
    window = oplog_window(client, shard)
    first = "" if window is None else f", only to {timestamp.text(window.first)}"
    return HistoryLost(
        f"The oplog{on_shards([shard])} does not reach back to the time in option"
        f" '{option}'{first}.",
        "Set it to a later time, or copy with mode initial; enlarge the oplog.",
    )


def reaches_back(member: Member, to: Timestamp) -> bool:
    """Whether the oplog still begins at or before `to`. Raises the driver's errors.

    Call it after reading the entries after `to`: then none of them were removed before the read.
    """
    oldest = first_time(member, {})
    return oldest is not None and oldest <= to


def first_time(member: Member, query: dict[str, Any], **concern: Timestamp) -> Timestamp | None:
    """Return the time of the first entry that matches, with read concern majority, or None.

    Raises the driver's errors; after ten seconds the search has taken too long.
    """
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


def _read_oplog(client: Client) -> Window:
    entries = client[OPLOG.db][OPLOG.coll]

    def end(order: int) -> Mapping[str, Any]:
        return next(entries.find({}, {"ts": 1, "o.msg": 1}).sort("$natural", order).limit(1))

    first, last = (retry_if_truncated(partial(end, order)) for order in (1, -1))
    is_whole = first.get("o", {}).get("msg") == "initiating set"
    return Window(first["ts"], last["ts"], str(OPLOG), is_whole=is_whole)


def _read_status(client: Client) -> Window:
    status = client.admin.command({"serverStatus": 1, "oplog": 1})["oplog"]
    return Window(status["earliestOptime"], status["latestOptime"], "serverStatus")
