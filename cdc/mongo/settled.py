"""How far the shards of a cluster have come for good, and the transactions across them.

A transaction across shards is prepared on each of them, gets one commit timestamp, and is committed
on each by an oplog entry of that shard's own, a little later. A read at a time sees the transaction
if its commit timestamp is not later; a change stream tells of it at the time of the entry. So a
batch that ends at T holds, besides the events up to T, those of the transactions between the two
(`late`); and T stays before every transaction that is prepared and not decided (`edge`).
"""

from __future__ import annotations

import logging
import time as clock
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model import timestamp
from cdc.model.offset import NEVER, Times
from cdc.mongo.client import LONGEST_MS, Member, time_told
from cdc.mongo.codes import translated
from cdc.mongo.retry import uncut
from cdc.mongo.topology import ReplicaSet, majority

_log = logging.getLogger(__name__)
_AWAITED_MS = 300
_PATIENCE_SECONDS = 30.0
_TELLING_SECONDS = 10.0
_warned: dict[tuple[str, str], float] = {}

Parts = Mapping[str, ReplicaSet]


def edge(
    parts: Parts,
    at_least: Timestamp = NEVER,
    together: bool = False,
    floor: Timestamp = NEVER,
) -> Timestamp:
    """The newest time that a majority of every shard has reached, before any undecided transaction;
    any time up to `floor` if it is not behind that.

    Shards that are behind are asked to come along if there is something to be had by it: a write on
    another shard, or `at_least`; always, if all are to be brought `together`.
    """
    with _primaries(parts) as members:
        hellos = {shard: member.hello() for shard, member in members.items()}
        edges = {shard: found.time for shard, h in hellos.items() if (found := majority(h))}
        if len(edges) < len(members):
            return NEVER
        lowest, newest = min(edges.values()), max(at_least, *edges.values())
        ahead = [members[shard] for shard, reached in edges.items() if reached > lowest]
        if together or at_least > lowest or any(_wrote(member, lowest) for member in ahead):
            known = _newest(hellos.values())
            for shard, reached in edges.items():
                if reached < newest:
                    edges[shard] = _awaited(members[shard], newest, known) or reached
                _warn(shard, newest.time - edges[shard].time, "is behind the others")
        if min(edges.values()) <= floor:
            # Spared an idle stream, which asks all the time: there is no index for what follows,
            # and a busy cluster has a hundred thousand sessions.
            return floor
        return min(_decided(shard, members[shard], each) for shard, each in edges.items())


def _wrote(member: Member, since: Timestamp) -> bool:
    """Whether there is more than no-ops after that time: else shards that come along would go on
    making each other late, for ever."""
    entries = {"ts": {"$gt": since}, "op": {"$ne": "n"}}
    return bool(_find(member, "local", "oplog.rs", entries, {"ts": 1}, limit=1))


def late(parts: Parts, time: Timestamp) -> Times:
    """By shard, the times behind `time` at which it tells of transactions that committed by then.

    `time` must not lie behind an edge. Raises TransientError if a shard's primary does not know the
    outcome of one of them within 30 s.
    """
    with _primaries(parts) as members:
        known = _newest(member.hello() for member in members.values())
        found = {shard: _late_on(shard, m, time, known) for shard, m in members.items()}
    return tuple((shard, times) for shard, times in sorted(found.items()) if times)


def _late_on(
    shard: str, member: Member, time: Timestamp, known: Mapping[str, Any]
) -> tuple[Timestamp, ...]:
    deadline = clock.monotonic() + _PATIENCE_SECONDS
    while _awaited(member, time, known) is None or _decided(shard, member, time) < time:
        clock.sleep(0.005)
        if clock.monotonic() > deadline:
            raise TransientError(
                f"Shard '{shard}' has not decided the transactions up to {timestamp.text(time)}.",
                "Check that a majority of its members is up.",
            )
    # By `o` alone, a document that was inserted could pass for a commit: it stands at that place.
    entries = {
        "ts": {"$gt": time},
        "op": "c",
        "o.commitTransaction": 1,
        "o.commitTimestamp": {"$lte": time},
    }
    found = _find(member, "local", "oplog.rs", entries, {"ts": 1})
    return tuple(sorted(entry["ts"] for entry in found))


@contextmanager
def _primaries(parts: Parts) -> Iterator[dict[str, Member]]:
    """One connection to each shard's primary: what one server tells later holds what it told
    before."""
    with ExitStack() as stack:
        members = {}
        try:
            for shard, part in parts.items():
                members[shard] = part.primary()
                stack.callback(members[shard].end)
            yield members
        except pymongo.errors.PyMongoError as error:
            raise translated(error, "Asking the shards for their time") from error


def _awaited(member: Member, time: Timestamp, known: Mapping[str, Any]) -> Timestamp | None:
    """`time`, once the majority has reached it; None if that takes too long.

    A shard that has nothing to write lets time pass every 10 s only. A read that asks for a later
    time makes it do so at once: that is how a router's reads come along.
    """
    member.advance(known)
    concern = {"level": "majority", "afterClusterTime": time}
    how = {"readConcern": concern, "limit": 1, "maxTimeMS": _AWAITED_MS}
    try:
        _find(member, "local", "oplog.rs", {}, {"ts": 1}, **how)
    except pymongo.errors.ExecutionTimeout:
        return None
    return time


def _decided(shard: str, member: Member, time: Timestamp) -> Timestamp:
    """`time`, or the last one before the first transaction that is prepared and not decided."""
    found = _find(member, "config", "transactions", {"state": "prepared"}, {"lastWriteOpTime": 1})
    prepared = [entry["lastWriteOpTime"]["ts"] for entry in found]
    first = min(prepared, default=None)
    if first is None or first > time:
        return time
    _warn(shard, time.time - first.time, "has not decided a transaction across shards")
    return timestamp.before(first)


def _find(
    member: Member,
    db: str,
    coll: str,
    query: Mapping[str, Any],
    fields: Mapping[str, Any],
    **more: Any,
) -> list[Any]:
    command = {
        "find": coll,
        "filter": query,
        "projection": fields,
        "singleBatch": True,
        "batchSize": 10**6,
        "readConcern": {"level": "majority"},
        "maxTimeMS": LONGEST_MS,
        **more,
    }
    return uncut(lambda: list(member.command(db, command)["cursor"]["firstBatch"]))


def _newest(hellos: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The newest `$clusterTime` of these replies. Raises TransientError if one tells none yet."""
    return max((time_told(hello, "$clusterTime") for hello in hellos), key=_time_of)


def _time_of(cluster_time: Mapping[str, Any]) -> Timestamp:
    moment: Timestamp = cluster_time["clusterTime"]
    return moment


def _warn(shard: str, seconds: int, what: str) -> None:
    """At most every 10 s: what it is that changes wait for."""
    now = clock.monotonic()
    if seconds >= _TELLING_SECONDS and now - _warned.get((shard, what), 0.0) >= _TELLING_SECONDS:
        _warned[shard, what] = now
        _log.warning("shard '%s' %s for %d s: all changes wait for it", shard, what, seconds)
