"""The commit point of all shards, and the transactions across them.

A transaction across shards is prepared on each shard and gets one commit timestamp. A little later,
each shard commits it by an oplog entry of its own. A read at a time sees the transaction if its
commit timestamp is not later, but a change stream reports it at the time of the entry. So a batch
that ends at T contains the events up to T, and also the events of the transactions in between
(`late`). T stays before each transaction that is prepared and not decided (`edge`).
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
from cdc.model import NEVER, Times, timestamp
from cdc.mongo.connection import LONGEST_MS, Member, reply_time, retry_if_truncated, translate_error
from cdc.mongo.topology.replica_set import ReplicaSet, majority

_log = logging.getLogger(__name__)
_AWAIT_MS = 300
_PATIENCE_SECONDS = 30.0
_WARNING_SECONDS = 10.0
_warned: dict[tuple[str, str], float] = {}

Parts = Mapping[str, ReplicaSet]


def edge(
    parts: Parts,
    at_least: Timestamp = NEVER,
    together: bool = False,
    floor: Timestamp = NEVER,
) -> Timestamp:
    """Return the newest time that a majority of every shard has reached.

    It is before each undecided transaction. If it is not after `floor`, any time up to `floor` may
    be returned instead. If a shard does not know its majority time, NEVER is returned.

    A lagging shard is made to advance only if that helps: another shard has a write, or `at_least`
    is later than the result would be. With `together`, all lagging shards are made to advance.
    """
    with _open_primaries(parts) as members:
        hellos = {shard: member.hello() for shard, member in members.items()}
        edges = {shard: point.time for shard, h in hellos.items() if (point := majority(h))}
        if len(edges) < len(members):
            return NEVER
        lowest, newest = min(edges.values()), max(at_least, *edges.values())
        later = [members[shard] for shard, reached in edges.items() if reached > lowest]
        if together or at_least > lowest or any(_has_written(member, lowest) for member in later):
            known = _newest_time(hellos.values())
            for shard, reached in edges.items():
                if reached < newest:
                    edges[shard] = _await_majority(members[shard], newest, known) or reached
                _warn(shard, newest.time - edges[shard].time, "lags the others")
        if min(edges.values()) <= floor:
            # An idle stream comes here all the time and must not run the next query: that has no
            # index, and a busy cluster has a hundred thousand sessions.
            return floor
        return min(_before_undecided(shard, members[shard], each) for shard, each in edges.items())


def _has_written(member: Member, since: Timestamp) -> bool:
    """Whether the oplog has more than no-ops after `since`.

    Without this, each shard that advances would make the others lag, for ever.
    """
    entries = {"ts": {"$gt": since}, "op": {"$ne": "n"}}
    return bool(_find(member, "local", "oplog.rs", entries, {"ts": 1}, limit=1))


def late_times(parts: Parts, time: Timestamp) -> Times:
    """Return, by shard, the times after `time` of the events of transactions committed by `time`.

    `time` must be at or before a live edge. Raises TransientError if a shard's primary does not
    know the outcome of such a transaction within 30 s.
    """
    with _open_primaries(parts) as members:
        known = _newest_time(member.hello() for member in members.values())
        late_times = {shard: _late_of(shard, m, time, known) for shard, m in members.items()}
    return tuple((shard, times) for shard, times in sorted(late_times.items()) if times)


def _late_of(
    shard: str, member: Member, time: Timestamp, known: Mapping[str, Any]
) -> tuple[Timestamp, ...]:
    deadline = clock.monotonic() + _PATIENCE_SECONDS
    while (
        _await_majority(member, time, known) is None
        or _before_undecided(shard, member, time) < time
    ):
        clock.sleep(0.005)
        if clock.monotonic() > deadline:
            raise TransientError(
                f"Shard '{shard}' has not decided the transactions up to {timestamp.text(time)}.",
                "Check that a majority of its members is up.",
            )
    # `op` is compared too: an inserted document is also in `o`, and could look like a commit.
    entries = {
        "ts": {"$gt": time},
        "op": "c",
        "o.commitTransaction": 1,
        "o.commitTimestamp": {"$lte": time},
    }
    commits = _find(member, "local", "oplog.rs", entries, {"ts": 1})
    return tuple(sorted(entry["ts"] for entry in commits))


@contextmanager
def _open_primaries(parts: Parts) -> Iterator[dict[str, Member]]:
    """Connect once to each shard's primary.

    Later replies of one server include the state that its earlier replies showed.
    """
    with ExitStack() as stack:
        members = {}
        try:
            for shard, part in parts.items():
                members[shard] = part.primary()
                stack.callback(members[shard].end)
            yield members
        except pymongo.errors.PyMongoError as error:
            raise translate_error(error, "Reading the time of the shards") from error


def _await_majority(member: Member, time: Timestamp, known: Mapping[str, Any]) -> Timestamp | None:
    """Return `time` once the majority has reached it; None if that takes longer than 300 ms.

    A shard without writes advances its time only every 10 s. A read that requires a later time
    makes it advance at once. A router's reads advance shards in the same way.
    """
    member.advance(known)
    concern = {"level": "majority", "afterClusterTime": time}
    options = {"readConcern": concern, "limit": 1, "maxTimeMS": _AWAIT_MS}
    try:
        _find(member, "local", "oplog.rs", {}, {"ts": 1}, **options)
    except pymongo.errors.ExecutionTimeout:
        return None
    return time


def _before_undecided(shard: str, member: Member, time: Timestamp) -> Timestamp:
    """Return `time`, or the last time before the first transaction prepared and not decided."""
    entries = _find(member, "config", "transactions", {"state": "prepared"}, {"lastWriteOpTime": 1})
    first = min((entry["lastWriteOpTime"]["ts"] for entry in entries), default=None)
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
    return retry_if_truncated(lambda: list(member.command(db, command)["cursor"]["firstBatch"]))


def _newest_time(hellos: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the newest `$clusterTime` of the replies. Raises TransientError if one has none."""
    return max((reply_time(hello, "$clusterTime") for hello in hellos), key=_time_of)


def _time_of(cluster_time: Mapping[str, Any]) -> Timestamp:
    moment: Timestamp = cluster_time["clusterTime"]
    return moment


def _warn(shard: str, seconds: int, what: str) -> None:
    """Log, at most every 10 s, which shard delays all changes, and why (`what`)."""
    now = clock.monotonic()
    if seconds >= _WARNING_SECONDS and now - _warned.get((shard, what), 0.0) >= _WARNING_SECONDS:
        _warned[shard, what] = now
        _log.warning("shard '%s' %s for %d s: all changes wait for it", shard, what, seconds)
