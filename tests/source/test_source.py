"""The data source as a Spark user sees it, without the jobs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.database import Database
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

import cdc
from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.model import timestamp
from cdc.source.translation import Partition
from cdc.tasks import task
from tests.mongo.capture import filled


@pytest.fixture
def options(mongod: ReplicaSet, database: Database[dict[str, Any]]) -> dict[str, str]:
    return {"uri": mongod.uri, "collections": f"{database.name}.orders"}


def _majority_time(database: Database[dict[str, Any]]) -> str:
    hello = database.client.admin.command("hello")
    return timestamp.text(hello["lastWrite"]["majorityOpTime"]["ts"])


class Stream:
    """A stream into memory, batch by batch, with Trigger.AvailableNow."""

    def __init__(self, spark: SparkSession, options: dict[str, str], checkpoint: Path) -> None:
        cdc.register(spark)
        self._spark, self._options, self._checkpoint = spark, options, checkpoint
        self.rows: list[Any] = []
        self.batches = 0

    def _keep(self, batch: DataFrame, batch_id: int) -> None:
        self.rows += batch.collect()
        self.batches += 1

    def run(self) -> StreamingQuery:
        """Everything that is there now."""
        frame = self._spark.readStream.format("mongodb-cdc").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(self._keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        query.awaitTermination(120)
        return query

    def ops(self) -> list[tuple[str, str]]:
        return [(row["op"], row["key"]) for row in self.rows]


def test_the_source_is_found_without_registering_it(
    spark: SparkSession, options: dict[str, str], database: Database[dict[str, Any]]
) -> None:
    database.orders.insert_one({"_id": 1})
    unregistered = spark.newSession()
    assert unregistered.read.format("mongodb-cdc").options(**options).load().count() == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"document.format": "json"}, '{"_id":1,"n":1.5,"l":7}'),
        (
            {"document.format": "json", "document.json": "canonical"},
            '{"_id":{"$numberInt":"1"},"n":{"$numberDouble":"1.5"},"l":{"$numberLong":"7"}}',
        ),
        (
            {"document.format": "bson"},
            bytearray(bson.encode({"_id": 1, "n": 1.5, "l": bson.Int64(7)})),
        ),
        ({}, {"_id": 1, "n": 1.5, "l": 7}),
    ],
    ids=["json", "canonical", "bson", "variant"],
)
def test_a_document_arrives_in_the_format_asked_for(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    settings: dict[str, str],
    expected: Any,
) -> None:
    cdc.register(spark)
    database.orders.insert_one({"_id": 1, "n": 1.5, "l": bson.Int64(7)})
    row = spark.read.format("mongodb-cdc").options(**options, **settings).load().collect()[0]
    after = row["after"].toPython() if not settings else row["after"]
    assert after == expected
    assert (row["op"], row["db"], row["coll"], row["key"]) == ("read", database.name, "orders", "1")
    assert row["before"] is None
    assert row["exact"] is True


def test_a_batch_read_is_of_one_cluster_time_in_all_its_splits_and_collections(
    spark: SparkSession, options: dict[str, str], database: Database[dict[str, Any]]
) -> None:
    cdc.register(spark)
    for name in ("orders", "orders-b", "orders.c", "other"):
        database[name].insert_many({"_id": i, "x": "x" * 2000} for i in range(1200))
    options["collections"] = rf"{database.name}\.orders.*"
    options["split.size.mb"] = "1"
    frame = spark.read.format("mongodb-cdc").options(**options).load()
    assert frame.rdd.getNumPartitions() >= 6
    counts = {row["coll"]: row["count"] for row in frame.groupBy("coll").count().collect()}
    assert counts == {"orders": 1200, "orders-b": 1200, "orders.c": 1200}
    assert frame.select("position").distinct().count() == 1


def test_a_batch_read_at_a_time_gone_by_gives_what_was_there_then(
    spark: SparkSession, options: dict[str, str], database: Database[dict[str, Any]]
) -> None:
    cdc.register(spark)
    database.orders.insert_many([{"_id": 1}, {"_id": 2}])
    options["snapshot.at"] = _majority_time(database)
    database.orders.delete_one({"_id": 1})
    database.orders.insert_one({"_id": 3})
    rows = spark.read.format("mongodb-cdc").options(**options).load().collect()
    assert sorted(row["key"] for row in rows) == ["1", "2"]


def test_available_now_copies_everything_catches_up_and_ends(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    tmp_path: Path,
) -> None:
    images = {"enabled": True}
    database.create_collection("orders", changeStreamPreAndPostImages=images)
    database.orders.insert_many({"_id": i, "x": "x" * 1000} for i in range(3000))
    options |= {"split.size.mb": "1", "snapshot.splits.per.batch": "1"}
    stream = Stream(spark, options, tmp_path / "checkpoint")
    query = stream.run()
    assert query.exception() is None
    assert sorted(stream.ops()) == sorted(("read", str(i)) for i in range(3000))
    assert stream.batches >= 3
    stream.rows.clear()
    database.orders.update_one({"_id": 5}, {"$set": {"x": "y"}})
    database.orders.delete_one({"_id": 6})
    last = stream.run().lastProgress
    assert stream.ops() == [("update", "5"), ("delete", "6")]
    update = stream.rows[0]
    assert update["before"].toPython()["x"] == "x" * 1000
    assert update["after"].toPython() == {"_id": 5, "x": "y"}
    assert last is not None
    offset = json.loads(last.sources[0].endOffset)
    assert (offset["version"], offset["swept"], offset["copying"]) == (4, None, None)
    seconds, _, _ = offset["time"].partition(":")
    assert offset["readable"] == f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"
    edge = json.loads(last.sources[0].latestOffset)
    assert edge["time"] == edge["metrics"]["liveEdge"]
    assert edge["metrics"]["time"] == offset["time"]
    assert edge["metrics"]["snapshotPercent"] == 100


def test_latest_begins_with_the_first_change_after_the_start(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    tmp_path: Path,
) -> None:
    database.orders.insert_one({"_id": "before"})
    stream = Stream(spark, {**options, "mode": "latest"}, tmp_path / "checkpoint")
    stream.run()
    assert stream.ops() == []
    database.orders.insert_one({"_id": "after"})
    stream.run()
    assert stream.ops() == [("insert", '"after"')]


def test_timestamp_begins_with_the_event_at_that_very_time(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    tmp_path: Path,
) -> None:
    database.orders.insert_one({"_id": 1})
    database.orders.insert_one({"_id": 2})
    at = _majority_time(database)
    database.orders.insert_one({"_id": 3})
    stream = Stream(spark, {**options, "mode": "timestamp", "start": at}, tmp_path / "checkpoint")
    stream.run()
    assert stream.ops() == [("insert", "2"), ("insert", "3")]


def test_large_documents_leave_a_task_a_few_at_a_time(
    spark: SparkSession, options: dict[str, str], database: Database[dict[str, Any]]
) -> None:
    """Guards: a batch holds no more than a reply of the server does, 16 MiB."""
    for number in range(9):
        database.orders.insert_one({"_id": number, "pad": "x" * 8_000_000})
    options["split.size.mb"] = "1000"
    frame = spark.read.format("mongodb-cdc").options(**options).load()
    arrow = to_arrow_schema(frame.schema, timezone="UTC")
    parsed = declared.parse(options)
    [partition] = source.SnapshotReader(parsed, frame.schema).partitions()
    assert isinstance(partition, Partition)
    batches = task.record_batches(partition.splits[0], parsed, arrow, may_be_void=False)
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 2, 1]


def test_a_window_of_changes_is_a_batch_of_rows(
    spark: SparkSession, options: dict[str, str], database: Database[dict[str, Any]]
) -> None:
    database.orders.insert_one({"_id": "before"})
    times = []
    for number in (1, 2, 3):
        database.orders.insert_one({"_id": number})
        times.append(_majority_time(database))
    bounds = {"from": times[0], "to": times[2]}
    rows = spark.read.format("mongodb-cdc").options(**options, **bounds).load()
    assert [(row["op"], row["key"]) for row in rows.orderBy("position").collect()] == [
        ("insert", "1"),
        ("insert", "2"),
    ]


def test_a_watermark_row_comes_only_if_asked_for_and_reports_the_batchs_time(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    tmp_path: Path,
) -> None:
    database.orders.insert_one({"_id": 1})
    stream = Stream(spark, {**options, "emit.watermark": "true"}, tmp_path / "checkpoint")
    query = stream.run()
    marks = [row for row in stream.rows if row["op"] == "watermark"]
    assert len(marks) == stream.batches
    progress = [p for p in query.recentProgress if p.numInputRows]
    assert (
        json.loads(marks[-1]["description"])["time"]
        == (json.loads(progress[-1].sources[0].endOffset)["time"])
    )


class Crashing(Stream):
    """Ends after each batch the first time that it is written; a replay has to bring the same."""

    def __init__(self, spark: SparkSession, options: dict[str, str], checkpoint: Path) -> None:
        super().__init__(spark, options, checkpoint)
        self.by_batch: dict[int, list[str]] = {}

    def _keep(self, batch: DataFrame, batch_id: int) -> None:
        rows = sorted(map(str, batch.collect()))
        if batch_id in self.by_batch:
            assert rows == self.by_batch[batch_id]
            super()._keep(batch, batch_id)
        else:
            self.by_batch[batch_id] = rows
            raise OSError("written, and not reported")

    def run_to_the_end(self) -> None:
        while True:
            try:
                self.run()
                return
            except PySparkException as error:
                if "written, and not reported" not in str(error):
                    raise


def test_a_checkpoint_goes_on_with_other_collections_whatever_is_killed_when(
    spark: SparkSession, options: dict[str, str], database: Database[dict[str, Any]], tmp_path: Path
) -> None:
    for name in ("orders", "others"):
        # With images: what is looked up instead may be another state in a replay, and says so.
        filled(database, name, range(3))
    options["emit.watermark"] = "true"
    Stream(spark, options, tmp_path / "checkpoint").run()
    for name in ("orders", "others"):
        database[name].insert_one({"_id": 3})
    options["collections"] = f"{database.name}.others"
    stream = Crashing(spark, options, tmp_path / "checkpoint")
    stream.run_to_the_end()
    database.orders.insert_one({"_id": 4})
    database.others.update_one({"_id": 3}, {"$set": {"n": 1}})
    stream.run_to_the_end()
    reported = [
        (row["op"], row["coll"], row["key"]) for row in stream.rows if row["op"] != "watermark"
    ]
    assert reported == [
        ("insert", "orders", "3"),
        ("resync", "others", None),
        *(("read", "others", str(i)) for i in range(4)),
        ("update", "others", "3"),
    ]


def test_a_bad_option_is_an_error_that_says_so(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    tmp_path: Path,
) -> None:
    database.orders.insert_one({"_id": 1})
    Stream(spark, options, tmp_path / "checkpoint").run()
    for name, value, reported in (("mode", "newest", "mode"), ("imagse", "off", "images")):
        with pytest.raises(PySparkException, match=reported):
            Stream(spark, {**options, name: value}, tmp_path / "checkpoint").run()


def test_an_idle_stream_stops_at_once(
    spark: SparkSession,
    options: dict[str, str],
    database: Database[dict[str, Any]],
    tmp_path: Path,
) -> None:
    cdc.register(spark)
    database.orders.insert_one({"_id": 1})
    frame = spark.readStream.format("mongodb-cdc").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.start()
    while not query.recentProgress:
        time.sleep(0.1)
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 5
    assert query.exception() is None
