"""What happened to a collection, by the oplog itself, and what is in it at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import bson
from bson import Timestamp
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from cdc.model import Namespace

RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS
)
_EVER = Timestamp(0, 0)
# A server does not know what a collection was at an earlier time: SnapshotTooOld,
# SnapshotUnavailable of one that was started again since, and StaleChunkHistory of a shard that no
# longer knows which chunks it had then.
_FORGOTTEN = (239, 246, 250)
_NAMES = {"i": "insert", "d": "delete"}


class Write(NamedTuple):
    """One write as the oplog reports it.

    Attributes:
        time: when the shard reports it: the time of the entry that commits it.
        op: its name in a changelog.
        key: the `_id`.
        seen: a read sees it from this time on. Of a transaction across shards it is the commit
            timestamp; each shard reports the transaction a little later.
        change: BSON of the entry's `o`: the document, the diff, or the key of a deleted document.
        identity: BSON of the document key; of an insert it may be missing.
        txn: session and number of the transaction, None for any other write.
        wall: milliseconds of the committing entry's wall clock.
    """

    time: Timestamp
    op: str
    key: int
    seen: Timestamp
    change: bytes
    identity: bytes | None
    txn: tuple[str, int] | None
    wall: int


class Truth(Protocol):
    """What happened to a collection, and what is in it."""

    def story(self, namespace: Namespace) -> list[Write]:
        """Every write to it."""

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]: ...


class OfReplicaSet:
    """`since`: a time before all that is asked for."""

    def __init__(self, client: MongoClient[Any], since: Timestamp = _EVER) -> None:
        self._client, self._since = client, since

    def story(self, namespace: Namespace) -> list[Write]:
        return _story(self._client, namespace, self._since)

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        find = {"find": namespace.coll, "readConcern": {"level": "snapshot", "atClusterTime": at}}
        database = self._client.get_database(namespace.db, codec_options=RAW)
        try:
            return [document.raw for document in database.cursor_command(find, codec_options=RAW)]
        except OperationFailure as error:
            if error.code not in _FORGOTTEN:
                raise
            return self.replay(namespace, at)

    def replay(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        """The documents by the oplog alone, in which nothing of the collection is missing."""
        return _replayed(self.story(namespace), at)


class Shards(Protocol):
    """Two or more shards, and what they own of a collection at a time."""

    clients: dict[str, MongoClient[dict[str, Any]]]

    @property
    def shards(self) -> Mapping[str, Any]: ...

    def contents(self, db: str, coll: str, at: Timestamp | None = None) -> list[bytes]: ...


class OfCluster:
    def __init__(self, cluster: Shards) -> None:
        self._cluster = cluster

    def story(self, namespace: Namespace) -> list[Write]:
        shards = self._cluster.shards
        return [
            reported
            for name in shards
            for reported in _story(self._cluster.clients[name], namespace)
        ]

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        try:
            found = self._cluster.contents(namespace.db, namespace.coll, at)
        except OperationFailure as error:
            if error.code not in _FORGOTTEN:
                raise
            found = self.replay(namespace, at)
        assert len({bson.decode(raw)["_id"] for raw in found}) == len(found), "two shards own one"
        return found

    def replay(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        """The documents by the oplogs alone. A shard writes to a document that another one gave it
        at a later time than that one did."""
        return _replayed(sorted(self.story(namespace), key=lambda write: write.time), at)


class ThroughRouters(OfCluster):
    """As routers report it: of a transaction across shards each part at its shard's own time."""

    def story(self, namespace: Namespace) -> list[Write]:
        reported = [write._replace(seen=write.time) for write in super().story(namespace)]
        return sorted(reported, key=lambda write: write.time)

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        return self.replay(namespace, at)


def _replayed(story: Iterable[Write], at: Timestamp) -> list[bytes]:
    # By their document keys: of a document that moves, one shard may report the insert before the
    # other reports the delete.
    there = dict[str, bytes]()
    for write in story:
        if write.seen <= at:
            identity = bson.decode(write.identity) if write.identity else {"_id": write.key}
            key = repr(sorted(identity.items()))
            after = document_after(write, there.pop(key, None))
            there.update({} if after is None else {key: after})
    return [*there.values()]


def _story(client: MongoClient[Any], namespace: Namespace, since: Timestamp = _EVER) -> list[Write]:
    """What one server has written for its clients; a chunk on the move is written for nobody."""
    reported: list[Write] = []
    open_transactions: dict[Any, list[Any]] = defaultdict(list)
    commands = [{f"o.{name}": {"$exists": True}} for name in ("applyOps", "commitTransaction")]
    concerned = {
        "ts": {"$gte": since},
        "$or": [{"ns": str(namespace)}, *commands],
        "fromMigrate": {"$ne": True},
    }
    oplog = client.get_database("local", codec_options=RAW)["oplog.rs"]
    for entry in oplog.find(concerned).sort("$natural", 1):
        written, seen = entry["o"], entry["ts"]
        if entry["op"] in "iud":
            reported += _writes([entry], namespace, entry, seen, None)
        elif "lsid" not in entry:  # an applyOps command of a client or of the server itself
            reported += _writes(written.get("applyOps", []), namespace, entry, seen, None)
        elif entry["op"] == "c":
            transaction = bytes(entry["lsid"]["id"]).hex(), int(entry["txnNumber"])
            open_transactions[transaction] += written.get("applyOps", [])
            if not (written.get("partialTxn") or written.get("prepare")):
                seen = written.get("commitTimestamp", seen)
                operations = open_transactions.pop(transaction)
                reported += _writes(operations, namespace, entry, seen, transaction)
    return reported


def _writes(
    operations: Iterable[Any],
    namespace: Namespace,
    entry: Any,
    seen: Timestamp,
    txn: tuple[str, int] | None,
) -> list[Write]:
    found = []
    for each in operations:
        if each["ns"] != str(namespace):
            continue
        change, identity = each["o"], each.get("o2")
        name = _NAMES.get(each["op"]) or ("replace" if "_id" in change else "update")
        if name == "delete":
            identity = change
        key = identity["_id"] if name == "update" else change["_id"]
        own = None if identity is None else identity.raw
        wall = int(entry["wall"])
        found.append(Write(entry["ts"], name, key, seen, change.raw, own, txn, wall))
    return found


def document_after(write: Write, before: bytes | None) -> bytes | None:
    """The document after a write, from that before it; None after a delete."""
    if write.op == "delete":
        return None
    if write.op != "update":
        return write.change
    assert before is not None
    return bson.encode(_changed(bson.decode(before), bson.decode(write.change)["diff"]))


def _changed(value: Any, diff: Mapping[str, Any]) -> Any:
    if "a" in diff:
        return _changed_array(value, diff)
    new, gone = diff.get("i", {}), {*diff.get("d", {}), *diff.get("i", {})}
    changed = {name: each for name, each in value.items() if name not in gone} | diff.get("u", {})
    for name, inner in diff.items():
        if name.startswith("s"):
            changed[name[1:]] = _changed(changed[name[1:]], inner)
    return changed | new


def _changed_array(values: list[Any], diff: Mapping[str, Any]) -> list[Any]:
    changed = values[: diff.get("l", len(values))]
    for name, inner in diff.items():
        if name[1:].isdigit():
            index = int(name[1:])
            changed += [None] * (index + 1 - len(changed))
            changed[index] = inner if name[0] == "u" else _changed(changed[index], inner)
    return changed


def description_of(write: Write) -> tuple[dict[str, Any], list[str], int]:
    """Of an update the new values by their paths, the paths of what was removed, in order, and how
    many arrays were truncated."""
    updated, removed, truncated = dict[str, Any](), list[str](), [0]

    def describe(diff: Mapping[str, Any], path: str) -> None:
        truncated[0] += "l" in diff and "a" in diff
        for name, inner in diff.items():
            if "a" in diff and name[1:].isdigit():
                if name[0] == "u":
                    updated[f"{path}{name[1:]}"] = inner
                else:
                    describe(inner, f"{path}{name[1:]}.")
            elif "a" not in diff and name in ("u", "i"):
                updated.update({f"{path}{own}": value for own, value in inner.items()})
            elif "a" not in diff and name == "d":
                removed.extend(f"{path}{own}" for own in inner)
            elif "a" not in diff:
                describe(inner, f"{path}{name[1:]}.")

    describe(bson.decode(write.change)["diff"], "")
    return updated, sorted(removed), truncated[0]
