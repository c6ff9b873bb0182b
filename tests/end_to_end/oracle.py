"""What must be true of the tables, decided without the code under test.

The source's story is read from the oplog itself; the frontier from the offsets in the checkpoint;
the tables as plain Delta. Collections here have integer `_id`s and `document.format = bson`, so
documents are compared byte by byte.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import bson
from bson import Timestamp
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from delta import DeltaTable
from pymongo import MongoClient
from pyspark.sql import Row, SparkSession

from cdc.model.selection import Namespace
from jobs.config import Config

RAW = CodecOptions(document_class=RawBSONDocument)
# From a key's state (present or not) to the state after each op; what is missing is forbidden.
TRANSITIONS = {
    (False, "read"): True,
    (False, "insert"): True,
    (True, "update"): True,
    (True, "replace"): True,
    (True, "delete"): False,
}


class Story(NamedTuple):
    """One write as the oplog tells it."""

    time: Timestamp
    op: str
    key: int


@dataclass(frozen=True)
class Frontier:
    """A checkpointed offset: the keys below `below` are done as of `time`; None: all are."""

    time: Timestamp
    below: int | float | None


class Checkpoint:
    """The offsets of a pipeline's batches, remembered after Spark has removed their files."""

    def __init__(self, config: Config) -> None:
        self._folder = Path(config.checkpoint)
        self._planned: dict[int, Frontier] = {}

    def planned(self) -> list[Frontier]:
        """One per batch, in order, the last of them perhaps not written to the tables yet."""
        for path in self._folder.glob("offsets/[0-9]*"):
            if int(path.name) not in self._planned:
                lines = path.read_text().splitlines()
                self._planned[int(path.name)] = _frontier(json.loads(lines[-1]))
        assert sorted(self._planned) == list(range(len(self._planned))), "an offset was missed"
        return [frontier for _, frontier in sorted(self._planned.items())]

    def committed(self) -> int:
        """The number of the last batch that is in all tables for certain; -1 before the first."""
        return max((int(path.name) for path in self._folder.glob("commits/[0-9]*")), default=-1)


def _frontier(offset: dict[str, Any]) -> Frontier:
    seconds, increment = map(int, offset["time"].split(":"))
    if offset["copying"]:
        key = bson.decode(base64.b64decode(offset["copying"]["below"]))["_id"]
        below = key if isinstance(key, int) else float("-inf")
    else:
        # One collection: the sweep has either passed its name or not begun.
        below = float("-inf") if offset["swept"] == "" else None
    return Frontier(Timestamp(seconds, increment), below)


def story(client: MongoClient[Any], namespace: Namespace, upto: Timestamp) -> list[Story]:
    """Every write to the collection up to a time, transactions at the time of their commit."""
    told, open_transactions = [], defaultdict(list)
    concerned = {"$or": [{"ns": str(namespace)}, {"o.applyOps": {"$exists": True}}]}
    oplog = client.local["oplog.rs"].find({"ts": {"$lte": upto}, **concerned})
    for entry in oplog.sort("$natural", 1):
        if entry["op"] in "iud":
            told += _writes([entry], namespace, entry["ts"])
        elif entry["op"] == "c" and "applyOps" in entry["o"]:
            transaction = (bytes(entry["lsid"]["id"]), entry["txnNumber"])
            open_transactions[transaction] += entry["o"]["applyOps"]
            if not entry["o"].get("partialTxn"):
                told += _writes(open_transactions.pop(transaction), namespace, entry["ts"])
    return told


def _writes(entries: list[Any], namespace: Namespace, time: Timestamp) -> list[Story]:
    names = {"i": "insert", "d": "delete"}
    return [
        Story(
            time,
            names.get(entry["op"]) or ("replace" if "_id" in entry["o"] else "update"),
            entry["o2"]["_id"] if entry["op"] == "u" else entry["o"]["_id"],
        )
        for entry in entries
        if entry["ns"] == str(namespace)
    ]


def violations(
    spark: SparkSession,
    client: MongoClient[Any],
    config: Config,
    checkpoint: Checkpoint,
    namespace: Namespace,
) -> list[str]:
    """Everything that is wrong with the tables of a collection after the last committed batch, in
    words; empty if nothing is. A batch written in part since is none of the tables' fault."""
    assert config.changelog is not None
    assert config.mirror is not None
    batch = checkpoint.committed()
    frontier = checkpoint.planned()[: batch + 1]
    if not frontier:
        return []
    changelog = _rows(spark, config.changelog.path(namespace), batch)
    mirrored = _rows(spark, config.mirror.path(namespace), batch)
    return [
        *_doubled(changelog),
        *_broken_paths(changelog),
        *_missing_or_invented(changelog, story(client, namespace, frontier[-1].time), frontier),
        *_wrong_mirror(mirrored, client, namespace, frontier[-1]),
    ]


def _rows(spark: SparkSession, path: str, batch: int) -> list[Row]:
    """A table's rows as of the last commit of a batch up to `batch`."""
    history = DeltaTable.forPath(spark, path).history().select("version", "userMetadata").collect()
    versions = [
        row["version"]
        for row in history
        if row["userMetadata"] and json.loads(row["userMetadata"])["batch"] <= batch
    ]
    table = spark.read.format("delta").option("versionAsOf", max(versions, default=0)).load(path)
    return table.collect()


def _doubled(rows: list[Row]) -> list[str]:
    counts = Counter((row["position"], row["key"]) for row in rows)
    return [f"{key} stands {count} times at one position" for (_, key), count in counts.items()
            if count > 1]  # fmt: skip


def _broken_paths(rows: list[Row]) -> list[str]:
    """Each key's rows form a path of the table, and each before-image is the after before it."""
    found = []
    documents: dict[str, bytes | None] = {}
    for row in sorted(rows, key=lambda row: row["position"]):
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


def _missing_or_invented(rows: list[Row], told: list[Story], frontier: list[Frontier]) -> list[str]:
    """The changelog's events are the oplog's behind the time at which each key was copied."""
    expected = Counter(
        (event.time, event.op, str(event.key))
        for event in told
        if event.time > _copied_at(event.key, frontier)
    )
    given = Counter(
        (Timestamp(int(row["cluster_time"].timestamp()), row["cluster_inc"]), row["op"], row["key"])
        for row in rows
        if row["op"] != "read"
    )
    return [
        *(f"{op} of {key} at {time} is missing" for time, op, key in (expected - given)),
        *(f"{op} of {key} at {time} never happened" for time, op, key in (given - expected)),
    ]


def _copied_at(key: int, frontier: list[Frontier]) -> Timestamp:
    for offset in frontier:
        if offset.below is None or key < offset.below:
            return offset.time
    return Timestamp(2**32 - 1, 0)


def _wrong_mirror(
    table: list[Row], client: MongoClient[Any], namespace: Namespace, frontier: Frontier
) -> list[str]:
    reply = client.get_database(namespace.db, codec_options=RAW).cursor_command(
        {
            "find": namespace.coll,
            "readConcern": {"level": "snapshot", "atClusterTime": frontier.time},
        },
        codec_options=RAW,
    )
    below = frontier.below
    source = {str(d["_id"]): d.raw for d in reply if below is None or d["_id"] < below}
    there = {row["key"]: bytes(row["document"]) for row in table}
    found = [] if len(there) == len(table) else ["the mirror holds a key twice"]
    found += [f"{key} is missing from the mirror" for key in source.keys() - there.keys()]
    found += [f"{key} is in the mirror only" for key in there.keys() - source.keys()]
    both = source.keys() & there.keys()
    return found + [f"{key} differs" for key in both if source[key] != there[key]]
