"""What a run leaves on the server when it stops, is cancelled or is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql import DataFrame, SparkSession

import cdc
from cdc.demo import ReplicaSet
from cdc.pipeline import Config, Replication
from tests.end_to_end.job import Job
from tests.mongo.capture import until

Client = MongoClient[dict[str, Any]]
# A cursor is to be open for seconds: a reply holds no more documents than this.
_REPLY = 10_000


# By which a copy of several replies takes some seconds.
_SLOWLY = {"max.mb.per.second": "1", "max.cursors": "1", "split.size.mb": "64"}


@pytest.fixture
def slow(mongod: ReplicaSet, database: Database[dict[str, Any]]) -> dict[str, str]:
    several_replies(database)
    return {"uri": mongod.uri, "collections": f"{database.name}.a", **_SLOWLY}


def several_replies(database: Database[dict[str, Any]]) -> None:
    for _ in range(6):
        database["a"].insert_many([{"pad": "x" * 40} for _ in range(_REPLY)])


def left(database: Database[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the connector on that database: cursors, and commands that run."""
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {
            "$match": {
                "ns": {"$regex": f"^{database.name}\\."},
                "$or": [
                    {"type": "idleCursor"},
                    {"appName": "mongodb-cdc", "command.hello": None, "active": True},
                ],
            }
        },
    ]
    return list(database.client.admin.aggregate(stages))


def cursors_of(database: Database[dict[str, Any]], coll: str) -> list[Any]:
    ops = left(database)
    return [o for o in ops if o.get("ns") == f"{database.name}.{coll}" and "cursor" in o]


def open_cursors(client: Client) -> dict[str, int]:
    reported: dict[str, int] = client.admin.command("serverStatus")["metrics"]["cursor"]["open"]
    return reported


def test_a_replication_that_is_stopped_while_it_waits_leaves_nothing_on_the_server(
    spark: SparkSession, database: Database[dict[str, Any]], pipeline: Callable[..., Config]
) -> None:
    """Guards: Spark kills the planner before it can close what it has open. And the cursors of a
    run that was killed are ended by the next one on its checkpoint, those of others are not."""
    database["a"].insert_one({"_id": 1})
    config = pipeline(f"{database.name}.a", "mode=latest")
    seen = list[Any]()
    replication = Replication(spark, config)
    until(lambda: replication.query.lastProgress is not None, 60)
    until(lambda: seen.extend(cursors_of(database, "$cmd.aggregate")) or seen, 60)
    [mark] = {each["cursor"]["originatingCommand"]["comment"] for each in seen}
    replication.stop()
    until(lambda: not left(database), 5)
    for comment in (mark, "another"):
        command = {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {"batchSize": 0}}
        database.command({**command, "comment": comment})
    replication = Replication(spark, config)
    until(lambda: replication.query.lastProgress is not None, 60)
    replication.stop()
    until(lambda: len(left(database)) == 1, 5)
    [other] = left(database)
    assert other["cursor"]["originatingCommand"]["comment"] == "another"
    database.command({"killCursors": "$cmd.aggregate", "cursors": [other["cursor"]["cursorId"]]})


def test_a_job_that_is_cancelled_in_mid_split_leaves_nothing_on_the_server(
    spark: SparkSession, database: Database[dict[str, Any]], slow: dict[str, str]
) -> None:
    cdc.register(spark)
    frame = spark.read.format("mongodb-cdc").options(**slow).load()
    with reading(spark, frame):
        until(lambda: cursors_of(database, "a"), 60)
    until(lambda: not left(database), 20)


class reading:
    """A job that reads, until the block ends: then it is cancelled."""

    def __init__(self, spark: SparkSession, frame: DataFrame) -> None:
        self._spark, self._frame = spark, frame
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        self._spark.sparkContext.setJobGroup("reading", "reading", interruptOnCancel=True)
        with suppress(Exception):
            self._frame.write.format("noop").mode("overwrite").save()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._spark.sparkContext.cancelJobGroup("reading")
        self._thread.join()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_a_job_that_is_killed_the_server_ends_all_when_it_ends_its_sessions(
    pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """After SIGTERM there is nothing left; after `kill -9`, and no longer than the server keeps a
    session that nobody uses, idle cursors. Here that is a minute, by default half an hour."""
    quickly = {
        "localLogicalSessionTimeoutMinutes": 1,
        "logicalSessionRefreshMillis": 1000,
        "ttlMonitorSleepSecs": 1,
    }
    with ReplicaSet(set_parameters=quickly) as server, server.client() as client:
        database = client["test"]
        several_replies(database)
        limits = [f"{name}={value}" for name, value in _SLOWLY.items()]
        config = pipeline("test.a", f"uri={server.uri}", *limits)
        stopped = started(config, database, tmp_path)
        stopped.process.send_signal(signal.SIGTERM)
        assert stopped.ended()[0] == 0
        until(lambda: not left(database), 5)
        elsewhere = pipeline("test.a", f"uri={server.uri}", f"sink.path={tmp_path / 'b'}", *limits)
        killed = started(elsewhere, database, tmp_path)
        killed.kill()
        until(lambda: all(each["type"] == "idleCursor" for each in left(database)), 20)
        assert len(left(database)) == 1
        assert open_cursors(client)["noTimeout"] == 0
        until(lambda: not left(database), 150)


def started(config: Config, database: Database[dict[str, Any]], folder: Path) -> Job:
    """A job that is in the midst of a split."""
    job = Job(config, folder)
    until(lambda: cursors_of(database, "a"), 120)
    return job
