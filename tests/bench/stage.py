"""What is measured on: a server with orders and changes of them, and one session of Spark."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pymongo
from bson.timestamp import Timestamp
from pymongo import ReplaceOne, UpdateOne
from pyspark.sql import DataFrame, SparkSession

import cdc
from cdc import options as declared
from cdc.demo import ReplicaSet, load_orders, make_order
from cdc.kernel import loading
from cdc.model import Namespace, timestamp
from cdc.pipeline import session
from cdc.source import SnapshotReader, WindowReader
from tests.bench.peers import SETTINGS, TASKS, Peers, peers

Reader: TypeAlias = SnapshotReader | WindowReader
ORDERS, CHANGED = Namespace("bench", "orders"), Namespace("bench", "changed")
# What is warmed up with.
TENTH = Namespace("bench", "tenth")
# Of the keys, the hot hundredth gets half of the changes.
_HOT = 100
_BULK = 2_000


@dataclass(frozen=True, slots=True)
class Window:
    """Changes: `count` of them, after `after` and up to `upto`."""

    count: int
    after: Timestamp
    upto: Timestamp

    @property
    def options(self) -> dict[str, str]:
        """Those of a batch read of just these."""
        return {"from": self.start, "to": self.end}

    @property
    def start(self) -> str:
        """The first time to read changes of."""
        return timestamp.text(Timestamp(self.after.time, self.after.inc + 1))

    @property
    def end(self) -> str:
        """The first time not to read changes of any more."""
        return timestamp.text(Timestamp(self.upto.time, self.upto.inc + 1))


@dataclass(frozen=True, slots=True)
class Stage:
    """`documents` lie in `orders`, and `window` are the changes that were made in `CHANGED`, of
    which `backlog` is the last third."""

    server: ReplicaSet
    spark: SparkSession
    folder: Path
    orders: Namespace
    documents: int
    window: Window
    backlog: Window
    peers: Peers

    @property
    def part(self) -> Stage:
        """A tenth of the documents, and the backlog."""
        documents = self.documents // 10
        return replace(self, orders=TENTH, documents=documents, window=self.backlog)

    def options(self, namespace: Namespace, **more: str) -> dict[str, str]:
        named = {"uri": self.server.uri, "collections": str(namespace)}
        return named | {name.replace("_", "."): value for name, value in more.items()}

    def ours(self, namespace: Namespace, **more: str) -> DataFrame:
        """Our batch read, in its own columns."""
        options = self.options(namespace, **more)
        return self.spark.read.format("mongodb-cdc").options(**options).load()

    def splits(self, reader: type[Reader], namespace: Namespace, **more: str) -> list[Any]:
        """Those of one of our readers."""
        given = declared.parse(self.options(namespace, **more))
        partitions = reader(given, self.ours(namespace).schema).partitions()
        return [split for partition in partitions for split in partition.splits]  # type: ignore[attr-defined]

    def fresh(self, name: str) -> Path:
        """A folder that is not there."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path


@contextmanager
def stage(folder: Path, documents: int, changes: int) -> Iterator[Stage]:
    # The oplog holds all that is loaded and changed; the cache holds the orders; splits that are
    # planned once are read for longer than the five minutes for which a server keeps their time.
    with (
        ReplicaSet(
            oplog_megabytes=8192,
            cache_gigabytes=2.0,
            set_parameters={"minSnapshotHistoryWindowInSeconds": 3600},
        ) as server,
        peers() as others,
    ):
        load_orders(server.uri, ORDERS, documents, must_be_new=True)
        copied(server, TENTH, documents // 10)
        window, backlog = _change(server, changes)
        spark = session("bench", f"local[{TASKS}]", SETTINGS)
        cdc.register(spark)
        # Compiled and kept here, once: a task that had to do it would take time and memory for it.
        loading.columns()
        loading.typed()
        try:
            yield Stage(server, spark, folder, ORDERS, documents, window, backlog, others)
        finally:
            spark.stop()


def now(client: pymongo.MongoClient[dict[str, Any]]) -> Timestamp:
    """The time of the last write that a majority has."""
    found: Timestamp = client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]
    return found


def copied(server: ReplicaSet, to: Namespace, first: int, times: int = 1) -> None:
    """That many of the orders, and so many copies of each, made by the server."""
    with server.client() as client:
        stages: list[dict[str, Any]] = [
            {"$match": {"_id": {"$lt": first}}},
            {"$set": {"time": {"$range": [0, times]}}},
            {"$unwind": "$time"},
            {"$set": {"_id": {"$add": ["$_id", {"$multiply": ["$time", first]}]}}},
            {"$unset": "time"},
            {"$out": to.coll},
        ]
        client[ORDERS.db][ORDERS.coll].aggregate(stages, allowDiskUse=True)


def _change(server: ReplicaSet, changes: int) -> tuple[Window, Window]:
    """Updates and replaces of a tenth as many documents, each with both images: all of them, and
    the last third."""
    keys, chance = max(changes // 10, 100), random.Random(2)
    load_orders(server.uri, CHANGED, keys, must_be_new=True)
    with server.client(w="majority") as client:
        collection = client[CHANGED.db][CHANGED.coll]
        edges, begun = (0, changes * 2 // 3, changes), list[Timestamp]()
        for begin, end in itertools.pairwise(edges):
            begun.append(now(client))
            time.sleep(1.1)  # mongo-spark starts at the beginning of a second
            for first in range(begin, end, _BULK):
                numbers = range(first, min(first + _BULK, end))
                collection.bulk_write([_changed(n, keys, chance) for n in numbers])
        last = now(client)
    return Window(changes, begun[0], last), Window(changes - edges[1], begun[1], last)


def _changed(number: int, keys: int, chance: random.Random) -> Any:
    key = chance.randrange(keys // _HOT if number % 2 else keys)
    if number % 10 == 0:
        return ReplaceOne({"_id": key}, make_order(key, chance))
    return UpdateOne({"_id": key}, {"$set": {"status": f"state {number}"}, "$inc": {"seen": 1}})
