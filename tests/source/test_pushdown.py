"""Filters of a query reduce what a batch read reads, and lose no row."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pymongo.database import Database
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from cdc import options as declared
from cdc.demo import ReplicaSet
from cdc.model import merge_key, point_range, timestamp
from cdc.source import row_schema
from cdc.source.batch_readers import FilteredSnapshotReader, FilteredWindowReader
from cdc.source.pushdown import RowFilter
from cdc.source.translation import Partition

Document = dict[str, Any]
Row = dict[str, Any]
_IDS: tuple[Any, ...] = (
    *(0, 1, -1, 1.5, -0.0 + 2, Int64(2**62), Int64(2**63 - 1), Decimal128("3.0"), 2.0**70),
    *("", "a", "a\0", "a\0b", "b", "7", 'quo"te', "ä", "null"),
    *(ObjectId("0" * 24), ObjectId("0" * 23 + "1"), ObjectId("f" * 24)),
    *(b"", b"\0", b"\xff", b"\0\xff", b"\1\0", Binary(b"\0" * 16, 4), Binary(b"\1", 2)),
    *(datetime.datetime(2026, 1, 31, 12), datetime.datetime(1960, 1, 1)),
    *(True, False, None, {"a": 1}, {"b": "x"}),
)


def key_of(_id: Any) -> str:
    return merge_key(bson.encode({"_id": _id}))


def read(options: dict[str, str], filters: Iterable[Filter] = ()) -> list[Row]:
    """The rows that a batch read gives to Spark, with these filters."""
    kind = FilteredWindowReader if "from" in options else FilteredSnapshotReader
    reader = kind(declared.parse(options), row_schema("json"))
    given = list(filters)
    assert list(reader.pushFilters(given)) == given
    partitions: list[Any] = list(reader.partitions())
    assert all(isinstance(each, Partition) for each in partitions)
    batches: Iterator[pa.RecordBatch] = itertools.chain(*map(reader.read, partitions))
    return [row for batch in batches for row in batch.to_pylist()]


def passing(rows: Iterable[Row], filters: Iterable[Filter]) -> list[Row]:
    """What Spark leaves of them, in the order of positions."""
    passed = [row for row in rows if all(_passes(row, each) for each in filters)]
    return sorted(passed, key=lambda row: (row["position"], row["coll"], row["key"] or ""))


_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: lambda cell, value: bool(cell == value),
    In: lambda cell, value: cell in value,
    GreaterThan: lambda cell, value: bool(cell > value),
    GreaterThanOrEqual: lambda cell, value: bool(cell >= value),
    LessThan: lambda cell, value: bool(cell < value),
    LessThanOrEqual: lambda cell, value: bool(cell <= value),
}


def _passes(row: Row, each: Any) -> bool:
    if isinstance(each, Not):
        return not _passes(row, each.child)
    cell = row[each.attribute[0]]
    if isinstance(each, IsNotNull) or cell is None:
        return cell is not None
    return _COMPARED[type(each)](cell, each.value)


def _majority_time(database: Database[Document]) -> Any:
    return database.client.admin.command("hello")["lastWrite"]["majorityOpTime"]["ts"]


@pytest.fixture
def options(mongod: ReplicaSet, database: Database[Document]) -> dict[str, str]:
    names = f"{database.name}.orders, {database.name}.words"
    return {"uri": mongod.uri, "collections": names, "document.format": "json"}


@pytest.fixture
def copied(database: Database[Document], options: dict[str, str]) -> dict[str, str]:
    """A collection with an `_id` of each type, and one whose order is not that of the bytes."""
    database.orders.insert_many({"_id": _id} for _id in _IDS)
    collation = {"locale": "en", "strength": 2}
    database.create_collection("words", collation=collation)
    database.words.insert_many([{"_id": "A"}, {"_id": "b"}, {"_id": 1}])
    return options | {"snapshot.at": timestamp.text(_majority_time(database))}


@pytest.fixture
def changed(database: Database[Document], options: dict[str, str]) -> dict[str, str]:
    """The options of a window with changes of each kind, DDL, and a time before and after it."""
    images = {"enabled": True}
    orders = database.create_collection("orders", changeStreamPreAndPostImages=images)
    database.create_collection("words", changeStreamPreAndPostImages=images)
    orders.insert_one({"_id": "early"})
    began = _majority_time(database)
    with database.client.start_session() as session:
        for number in (1, 2, "a"):
            orders.insert_one({"_id": number, "n": 0})
            orders.update_one({"_id": number}, {"$set": {"n": 1}})
            with session.start_transaction():
                orders.replace_one({"_id": number}, {"n": 2}, session=session)
                database.words.insert_one({"_id": number}, session=session)
        orders.delete_one({"_id": 1.0})
        database.words.drop()
    return options | {"from": timestamp.text(timestamp.after(began))}


def test_a_key_is_read_by_a_range_of_its_own_in_each_type(copied: dict[str, str]) -> None:
    everything = read(copied)
    assert len(everything) == len(_IDS) + 3
    in_ranges = 0
    for _id in _IDS:
        filters = [IsNotNull(("key",)), EqualTo(("key",), key_of(_id))]
        rows = read(copied, filters)
        assert passing(rows, filters) == passing(everything, filters) != []
        in_ranges += len(rows) < 6
    assert in_ranges == len(_IDS) - 12  # the others have no simple next value


def test_ranges_of_keys_do_not_overlap(copied: dict[str, str]) -> None:
    keys = tuple(key_of(_id) for _id in _IDS if point_range(key_of(_id)) is not None)
    filters = [In(("key",), (*keys, None))]
    assert passing(read(copied, filters), filters) == passing(read(copied), filters)


@pytest.mark.parametrize(
    "text",
    ["", "a", "1.0", "01", "1e3", "[]", "{}", '{"$oid":"x"}', '{"$oid":1}', '{"$date":{}}', "NaN",
     '{"$binary":{"base64":"AA","subType":"00"}}', '"\\ud800"', '"\\u0061"', "9" * 5000, "[" * 9999,
     '{"$binary":{"base64":"AAAAAQE=","subType":"02"}}', str(2**63), str(2**63 - 1)],
)  # fmt: skip
def test_a_text_that_is_no_key_or_has_no_next_one_is_left_to_spark(text: str) -> None:
    assert point_range(text) is None
    assert RowFilter.of([EqualTo(("key",), text)]).keys is None


def test_a_snapshot_has_no_rows_of_changes(copied: dict[str, str]) -> None:
    assert read(copied, [EqualTo(("op",), "insert")]) == []
    assert len(read(copied, [In(("op",), ("insert", "read"))])) == len(_IDS) + 3
    time = read(copied)[0]["cluster_time"]
    second = datetime.timedelta(seconds=1)
    for each in (
        [LessThan(("cluster_time",), time - second)],
        [GreaterThan(("cluster_time",), time + 600 * second)],
    ):
        assert read(copied, each) == []
    assert read(copied, [GreaterThanOrEqual(("cluster_time",), time)]) != []


def test_the_position_of_a_snapshot_is_left_to_spark(copied: dict[str, str]) -> None:
    """Guards: it is a time after that of the snapshot."""
    [position] = {row["position"] for row in read(copied)}
    assert len(read(copied, [EqualTo(("position",), position)])) == len(_IDS) + 3


def test_the_server_selects_the_events_of_keys_and_rare_operations(
    changed: dict[str, str],
) -> None:
    everything = read(changed)
    assert {row["op"] for row in everything} >= {"insert", "update", "replace", "delete", "drop"}
    for filters, most in (
        ([EqualTo(("op",), "delete")], 1),
        ([In(("op",), ("insert", "drop"))], 7),
        ([EqualTo(("key",), "1")], 5),
        ([EqualTo(("key",), "1"), EqualTo(("op",), "delete")], 1),
        ([EqualTo(("op",), "update")], len(everything)),
        ([EqualTo(("op",), "read")], 0),
    ):
        rows = read(changed, filters)
        assert len(rows) <= most, filters
        assert passing(rows, filters) == passing(everything, filters), filters


def test_a_read_of_the_oplog_stays_one(changed: dict[str, str]) -> None:
    """Guards: a part of the events cannot be read from it, and `oplog` would end the run."""
    for read_by, is_whole in (("oplog", True), ("auto", False)):
        parsed = declared.parse(changed | {"read.by": read_by})
        reader = FilteredWindowReader(parsed, row_schema("json"))
        reader.pushFilters([EqualTo(("op",), "delete")])
        partitions: list[Any] = list(reader.partitions())
        splits = [split for each in partitions for split in each.splits]
        assert splits
        assert all(split.is_whole == is_whole for split in splits)


def test_a_crossed_filter_is_no_reason_to_miss_a_row(
    changed: dict[str, str],
) -> None:
    """Guards: an update that leaves the capture filter is a delete."""
    captured = changed | {"filter": '{"n": {"$in": [0, null]}}'}
    everything = read(captured)
    filters = [EqualTo(("op",), "delete")]
    assert len(passing(everything, filters)) >= 3
    assert passing(read(captured, filters), filters) == passing(everything, filters)


def test_random_filters_on_time_and_position_lose_no_row(changed: dict[str, str]) -> None:
    everything = read(changed)
    choice = random.Random(7)
    kinds = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    times = [row["cluster_time"] for row in everything]
    times += [time + datetime.timedelta(milliseconds=ms) for time in times for ms in (-500, 500)]
    positions = [row["position"] for row in everything]
    positions += [text[:length] for text in positions for length in (2, 17, 18, 30)]
    shorter = 0
    for _ in range(20):
        filters = [
            choice.choice(kinds)(("cluster_time",), choice.choice(times)),
            choice.choice(kinds)(("position",), choice.choice(positions)),
        ]
        rows = read(changed, filters)
        shorter += len(rows) < len(everything)
        assert passing(rows, filters) == passing(everything, filters), filters
    assert shorter > 10


def test_spark_gives_its_filters_to_the_source_and_applies_them_again(
    spark: SparkSession, options: dict[str, str], database: Database[Document]
) -> None:
    database.orders.insert_many({"_id": number} for number in range(50))
    options = options | {"collections": f"{database.name}.orders"}
    setting = "spark.sql.python.filterPushdown.enabled"
    session = spark.newSession()
    for is_on, scanned in ((True, 2), (False, 50)):
        session.conf.set(setting, str(is_on).lower())
        frame = session.read.format("mongodb-cdc").options(**options).load()
        found = frame.where("key in ('7', '9') and op = 'read' and document_key is not null")
        assert sorted(row["key"] for row in found.collect()) == ["7", "9"]
        plan: Any = found._jdf.queryExecution().executedPlan()
        leaves = plan.collectLeaves()
        assert leaves.head().metrics().apply("numOutputRows").value() == scanned
