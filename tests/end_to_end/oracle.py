"""What must be true of the tables, decided without the code under test.

The source's story is read from the oplog itself (from each shard's, if there are several); the
frontier from the offsets in the checkpoint; the tables as plain Delta. Collections have integer
`_id`s, which no two documents of a cluster share, and `document.format = bson`, so documents are
compared byte by byte.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import bson
from bson import Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pyarrow.dataset import dataset
from pymongo import MongoClient
from pyspark.sql import SparkSession

from cdc.delta.tables import Table
from cdc.model import Namespace
from cdc.pipeline import Config
from tests.mongo.cluster import Cluster

RAW = CodecOptions(document_class=RawBSONDocument)
Row = Mapping[str, Any]
_EVER = Timestamp(0, 0)
_OF_CHANGES = (
    *("position", "key", "op", "before", "after", "exact"),
    *("txn", "unix_seconds(cluster_time) AS cluster_second", "cluster_inc"),
)
# From a key's state (present or not) to the state after each op; what is missing is forbidden.
TRANSITIONS = {
    (False, "read"): True,
    (False, "insert"): True,
    (True, "update"): True,
    (True, "replace"): True,
    (True, "delete"): False,
}


class Story(NamedTuple):
    """One write as the oplog reports it. A read sees it from `seen` on: the commit timestamp of a
    transaction across shards, of which each shard reports a little later, at its own `time`."""

    time: Timestamp
    op: str
    key: int
    seen: Timestamp


@dataclass(frozen=True)
class Frontier:
    """A checkpointed offset. `swept` is the last name that was copied or is being copied, None if
    all are; `copying` the one being copied, and the key below which it is."""

    time: Timestamp
    swept: str | None
    copying: tuple[str, int | float] | None
    late: int = 0

    def below(self, namespace: Namespace) -> int | float | None:
        """The keys below that are done as of `time`; None: all are."""
        if self.copying is not None and self.copying[0] == str(namespace):
            return self.copying[1]
        is_reached = self.swept is None or str(namespace) <= self.swept
        return None if is_reached else float("-inf")

    @property
    def is_streaming(self) -> bool:
        return self.swept is None and self.copying is None


class Checkpoint:
    """The offsets of a pipeline's batches, remembered after Spark has removed their files. The last
    ones may be damaged, and others when they are repaired."""

    def __init__(self, config: Config) -> None:
        self._folder = Path(config.checkpoint)
        self._planned: dict[int, Frontier] = {}
        self._last = set[int]()

    def planned(self) -> list[Frontier]:
        """One per batch, in order, the last of them perhaps not written to the tables yet."""
        found = sorted((int(path.name), path) for path in self._folder.glob("offsets/[0-9]*"))
        for batch, path in found:
            if batch not in self._planned or batch in self._last:
                self._planned.pop(batch, None)
                with suppress(FileNotFoundError, ValueError, IndexError):
                    lines = path.read_text().splitlines()
                    self._planned[batch] = _frontier(json.loads(lines[-1]))
        self._last = {batch for batch, _ in found[-2:]}
        for batch in [each for each in self._planned if found and each > found[-1][0]]:
            del self._planned[batch]
        assert sorted(self._planned) == list(range(len(self._planned))), "an offset was missed"
        return [frontier for _, frontier in sorted(self._planned.items())]

    def committed(self) -> int:
        """The number of the last batch that is in all tables for certain; -1 before the first."""
        return max((int(path.name) for path in self._folder.glob("commits/[0-9]*")), default=-1)


def _frontier(offset: dict[str, Any]) -> Frontier:
    assert not offset["again"], "a collection was replaced"
    seconds, increment = map(int, offset["time"].split(":"))
    copying = None
    if offset["copying"]:
        key = bson.decode(base64.b64decode(offset["copying"]["below"]))["_id"]
        below = key if isinstance(key, int) else float("-inf")
        copying = offset["copying"]["namespace"], below
    late = sum(map(len, offset["late"].values()))
    return Frontier(Timestamp(seconds, increment), offset["swept"], copying, late)


# --- the source ----------------------------------------------------------------------------------


class Truth(Protocol):
    """What happened to a collection, and what is in it."""

    def story(self, namespace: Namespace) -> list[Story]:
        """Every write to it."""

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]: ...


class OfReplicaSet:
    """`since`: a time before all that is asked for."""

    def __init__(self, client: MongoClient[Any], since: Timestamp = _EVER) -> None:
        self._client, self._since = client, since

    def story(self, namespace: Namespace) -> list[Story]:
        return _story(self._client, namespace, self._since)

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        find = {"find": namespace.coll, "readConcern": {"level": "snapshot", "atClusterTime": at}}
        database = self._client.get_database(namespace.db, codec_options=RAW)
        return [document.raw for document in database.cursor_command(find, codec_options=RAW)]


class OfCluster:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def story(self, namespace: Namespace) -> list[Story]:
        shards = self._cluster.shards
        return [
            reported
            for name in shards
            for reported in _story(self._cluster.clients[name], namespace)
        ]

    def documents(self, namespace: Namespace, at: Timestamp) -> list[bytes]:
        return self._cluster.contents(namespace.db, namespace.coll, at)


def _story(client: MongoClient[Any], namespace: Namespace, since: Timestamp = _EVER) -> list[Story]:
    """What one server has written for its clients; a chunk on the move is written for nobody."""
    reported: list[Story] = []
    open_transactions: dict[Any, list[Any]] = defaultdict(list)
    commands = [{f"o.{name}": {"$exists": True}} for name in ("applyOps", "commitTransaction")]
    concerned = {
        "ts": {"$gte": since},
        "$or": [{"ns": str(namespace)}, *commands],
        "fromMigrate": {"$ne": True},
    }
    for entry in client.local["oplog.rs"].find(concerned).sort("$natural", 1):
        time, written = entry["ts"], entry["o"]
        if entry["op"] in "iud":
            reported += _writes([entry], namespace, time, time)
        elif "lsid" not in entry:  # an applyOps command of a client or of the server itself
            reported += _writes(written.get("applyOps", []), namespace, time, time)
        elif entry["op"] == "c":
            transaction = (bytes(entry["lsid"]["id"]), entry["txnNumber"])
            open_transactions[transaction] += written.get("applyOps", [])
            if not (written.get("partialTxn") or written.get("prepare")):
                seen = written.get("commitTimestamp", time)
                reported += _writes(open_transactions.pop(transaction), namespace, time, seen)
    return reported


def _writes(
    entries: list[Any], namespace: Namespace, time: Timestamp, seen: Timestamp
) -> list[Story]:
    names = {"i": "insert", "d": "delete"}
    return [
        Story(
            time,
            names.get(entry["op"]) or ("replace" if "_id" in entry["o"] else "update"),
            entry["o2"]["_id"] if entry["op"] == "u" else entry["o"]["_id"],
            seen,
        )
        for entry in entries
        if entry["ns"] == str(namespace)
    ]


# --- the tables ----------------------------------------------------------------------------------


def violations(
    spark: SparkSession,
    truth: Truth,
    config: Config,
    checkpoint: Checkpoint,
    namespace: Namespace,
) -> list[str]:
    """Everything that is wrong with the tables of a collection, in words; empty if nothing is: with
    its changelog after the last committed batch (one written in part since is not its fault), and
    with its mirror after the last batch that it contains.

    A mirror that lags after a run that was not killed is wrong too: see `lag`.
    """
    batch = checkpoint.committed()
    planned = checkpoint.planned()
    frontier = planned[: batch + 1]
    if not frontier:
        return []
    changelog, _ = _rows(spark, config.table("changelog", namespace), batch, _OF_CHANGES)
    of_documents = [row for row in changelog if row["key"] is not None]
    columns = ("key", "document")
    mirrored, applied = _rows(spark, config.table("mirror", namespace), None, columns)
    return [
        *_doubled(changelog),
        *_broken_paths(of_documents),
        *_missing_or_invented(of_documents, truth.story(namespace), namespace, frontier),
        *(() if applied < 0 else _wrong_mirror(mirrored, truth, namespace, planned[applied])),
    ]


def lag(spark: SparkSession, config: Config, namespace: Namespace) -> int:
    """How many batches the mirror lacks of those that the changelog contains."""
    newest = [
        _newest(spark, config.table(kind, namespace), None)[1] for kind in ("changelog", "mirror")
    ]
    return newest[0] - newest[1]


def _rows(
    spark: SparkSession, table: Table | None, batch: int | None, columns: Sequence[str]
) -> tuple[list[Row], int]:
    """A table's rows as of the last commit of a batch up to `batch`, and that batch; none and -1
    if there is no such commit."""
    version, last = _newest(spark, table, batch)
    if table is None or last < 0:
        return [], -1
    rows = table.target.read(spark, version).selectExpr(*columns)
    # Not by `collect`: the JVM of the tests cannot hold hundreds of thousands.
    with tempfile.TemporaryDirectory() as folder:
        rows.write.mode("overwrite").parquet(folder)
        found = [row for part in dataset(folder).to_batches() for row in part.to_pylist()]
    return found, last


def _newest(spark: SparkSession, table: Table | None, batch: int | None) -> tuple[int, int]:
    """The version and the batch of a table's last commit of a batch up to `batch`; -1 and -1
    without one."""
    assert table is not None
    if not table.target.exists(spark):
        return -1, -1
    history = table.target.delta(spark).history().select("version", "userMetadata").collect()
    stated = [
        (row["version"], json.loads(row["userMetadata"])["batch"])
        for row in history
        if row["userMetadata"]
    ]
    return max((each for each in stated if batch is None or each[1] <= batch), default=(-1, -1))


def _doubled(rows: list[Row]) -> list[str]:
    counts = Counter((row["position"], row["key"]) for row in rows)
    return [f"{key} stands {count} times at one position" for (_, key), count in counts.items()
            if count > 1]  # fmt: skip


def _broken_paths(rows: list[Row]) -> list[str]:
    """Each key's rows form a path of the table, and each before-image is the after before it."""
    found = []
    documents: dict[str, bytes | None] = {}
    for row in _in_order(rows):
        key, op = row["key"], row["op"]
        present = documents.get(key) is not None
        if (present, op) not in TRANSITIONS:
            found.append(f"{key}: {op} of a key that is {'there' if present else 'absent'}")
        elif op not in ("read", "insert") and row["before"] != documents[key]:
            found.append(f"{key}: before-image of {op} is not the document before it")
        documents[key] = row["after"]
        if op != "delete" and row["after"] is None:
            found.append(f"{key}: {op} without a document")
        if not row["exact"]:
            found.append(f"{key}: {op} is not exact")
    return found


def _in_order(rows: list[Row]) -> list[Row]:
    """By position. But a document that a transaction moves to another shard is deleted on the one
    before it is inserted on the other, whichever reports it first."""
    arrivals = {_in_transaction(row): row for row in rows if row["op"] == "insert" and row["txn"]}

    def place(row: Row) -> tuple[str, bool]:
        arrival = arrivals.get(_in_transaction(row)) if row["op"] == "delete" else None
        if arrival is None or arrival["txn"]["shard"] == row["txn"]["shard"]:
            return row["position"], True
        return min((row["position"], True), (arrival["position"], False))

    return sorted(rows, key=place)


def _in_transaction(row: Row) -> Any:
    return row["key"], *((row["txn"]["lsid"], row["txn"]["number"]) if row["txn"] else ())


def _missing_or_invented(
    rows: list[Row], reported: list[Story], namespace: Namespace, frontier: list[Frontier]
) -> list[str]:
    """The changelog's events are the oplogs' after the time at which each key was copied."""
    expected = Counter(
        (event.time, event.op, str(event.key))
        for event in reported
        if _copied_at(event.key, namespace, frontier) < event.seen <= frontier[-1].time
    )
    given = Counter(
        (Timestamp(row["cluster_second"], row["cluster_inc"]), row["op"], row["key"])
        for row in rows
        if row["op"] != "read"
    )
    return [
        *(f"{op} of {key} at {time} is missing" for time, op, key in (expected - given)),
        *(f"{op} of {key} at {time} never happened" for time, op, key in (given - expected)),
    ]


def _copied_at(key: int, namespace: Namespace, frontier: list[Frontier]) -> Timestamp:
    for offset in frontier:
        below = offset.below(namespace)
        if below is None or key < below:
            return offset.time
    return Timestamp(2**32 - 1, 0)


def _wrong_mirror(
    table: list[Row], truth: Truth, namespace: Namespace, frontier: Frontier
) -> list[str]:
    below = frontier.below(namespace)
    documents = truth.documents(namespace, frontier.time)
    numbered = [(bson.decode(raw)["_id"], raw) for raw in documents]
    source = {str(number): raw for number, raw in numbered if below is None or number < below}
    there = {row["key"]: row["document"] for row in table}
    found = [] if len(there) == len(table) else ["the mirror holds a key twice"]
    found += [] if len(dict(numbered)) == len(numbered) else ["two shards own a document"]
    found += [f"{key} is missing from the mirror" for key in source.keys() - there.keys()]
    found += [f"{key} is in the mirror only" for key in there.keys() - source.keys()]
    both = source.keys() & there.keys()
    return found + [f"{key} differs" for key in both if source[key] != there[key]]
