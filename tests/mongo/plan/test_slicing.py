"""A backlog is read in batches of a limited size, each in adjacent slices: each change once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import StructType

from cdc import source
from cdc.model import Offset
from cdc.mongo.plan import Limits, oplog_scan, slicing
from tests.mongo.abilities import abilities
from tests.mongo.access import Guarded
from tests.mongo.capture import Batch, Capture, Document, contents, filled, id_of, until

Begin = Callable[..., Capture]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few events are worth a slice already."""
    monkeypatch.setattr(slicing, "LEAST_EVENTS", 10)


def updates(database: Database[Document], count: int) -> None:
    for number in range(count):
        database.a.update_one({"_id": number % 5}, {"$inc": {"n": 1}})


def in_a_transaction(database: Database[Document], count: int, pad: str = "") -> None:
    with database.client.start_session() as session, session.start_transaction():
        for number in range(count):
            change = {"$set": {"t": number, "pad": pad}}
            database.a.update_one({"_id": number % 5}, change, session=session)


def counts(batches: list[Batch]) -> list[int]:
    """Of changes of documents, by batch; servers do not report the same DDL."""
    found = (sum(row.key is not None for row in batch.rows) for batch in batches)
    return [count for count in found if count]


def test_a_backlog_is_read_in_slices_of_about_as_many_events(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(10**6, 2**30, 4))
    updates(database, 1000)
    batch = pipeline.batch()
    assert len(batch.stream_splits) == 4
    for split in batch.stream_splits:
        assert abs(len(pipeline.rows_of(split)) - 250) < 30
    edges = [(split.after, split.upto) for split in batch.stream_splits]
    assert (edges[0][0], edges[-1][1]) == (batch.start.time, batch.end.time)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
    assert len(batch.rows) == len({row.position for row in batch.rows}) == 1000


def test_few_changes_are_read_in_one_slice(capture: Begin, database: Database[Document]) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(10**6, 2**30, 4))
    updates(database, 19)
    assert len(pipeline.batch().stream_splits) == 1


def test_a_batch_holds_no_more_events_than_it_may(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(100, 2**30, 2))
    updates(database, 430)
    reported = counts(pipeline.run())
    assert sum(reported) == 430
    assert max(reported) <= 100
    assert len(reported) <= 6
    assert pipeline.replayed(database.a).keys() == {str(number) for number in range(5)}


def test_a_batch_holds_up_to_a_tenth_more_if_nothing_is_left_then(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a batch of its own for a few changes."""
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(100, 2**30, 2))
    updates(database, 210)
    assert counts(pipeline.run()) == [100, 110]
    updates(database, 211)
    assert counts(pipeline.run()) == [100, 100, 11]


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [
        (None, 10, 10),
        (ReadMaxRows(7), 7, 7),
        (ReadMaxRows(20), 20, 20),
        (ReadMaxBytes(1), 1, 1),
        (ReadMaxBytes(1000), 2, 9),
        (ReadMaxBytes(10**6), 10, 10),
        (ReadAllAvailable(), 40, 40),
    ],
    ids=str,
)
def test_a_batch_holds_what_spark_asks_for(
    capture: Begin,
    database: Database[Document],
    limit: ReadLimit | None,
    least: int,
    most: int,
) -> None:
    """Guards: Trigger.Once makes one batch; a limit in bytes is not taken for none, nor does it
    lift that of the options."""
    filled(database, "a", range(5))
    if not abilities(database.client).before_images:  # 4.2, which does not measure entries either
        least = most = 40
    pipeline = capture("a", mode="latest", max_events_per_batch="10")
    reader = source.ChangeReader(pipeline.options, StructType())
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    updates(database, 40)
    time = pipeline.now()
    asked = limit or reader.getDefaultReadLimit()
    end = Offset.from_json(reader.latestOffset(pipeline.offset.to_json(), asked))
    reader.stop()
    entries = database.client.local["oplog.rs"]
    passed = {"ns": f"{database.name}.a", "ts": {"$gt": pipeline.offset.time, "$lte": end.time}}
    assert least <= entries.count_documents(passed) <= most
    assert (end.time >= time) == (most == 40)


def test_a_transaction_that_is_larger_goes_alone_and_whole(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(50, 2**30, 2))
    for count in (20, 300, 20):
        updates(database, count) if count < 50 else in_a_transaction(database, count)
    reported = counts(pipeline.run())
    assert 300 in reported
    assert sorted(reported) == [20, 20, 300]


def test_a_batch_holds_no_more_bytes_than_it_may(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(10**6, 4_500_000, 1))
    database.a.insert_many({"_id": 10 + number, "pad": "x" * 1_000_000} for number in range(9))
    assert counts(pipeline.run()) == [4, 4, 1]


def test_foreign_changes_do_not_count(capture: Begin, database: Database[Document]) -> None:
    """Guards: batch after nearly empty batch."""
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(20, 2**30, 2))
    for number in range(5):
        database.a.update_one({"_id": number}, {"$inc": {"n": 1}})
        database.other.insert_many({} for _ in range(100))
    assert counts([pipeline.batch()]) == [5]


def test_what_an_expression_selects_counts(capture: Begin, database: Database[Document]) -> None:
    for name in ("a1", "a2", "b1"):
        filled(database, name, [])
    pipeline = capture("a.*", mode="latest", limits=Limits(20, 2**30, 1))
    for name in ("a1", "b1", "a2"):
        database[name].insert_many({} for _ in range(15))
    assert counts(pipeline.run()) == [20, 10]


def test_a_copy_waits_for_the_backlog_and_is_exact(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(60))
    pipeline = capture("a", limits=Limits(30, 2**30, 2))
    pipeline.batch()
    assert not pipeline.offset.is_streaming
    updates(database, 100)
    following = pipeline.batch()
    assert following.rows
    assert not following.snapshot_splits
    pipeline.run()
    assert pipeline.replayed(database.a) == contents(database.a)


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a backlog only the first few entries are all counted."""
    monkeypatch.setattr(oplog_scan, "_ALL_COUNTED", 20)
    monkeypatch.setattr(oplog_scan, "_SHARE", 4)


@pytest.mark.usefixtures("estimated")
def test_of_a_long_backlog_the_number_of_changes_is_estimated(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(1000, 2**30, 2))
    for _ in range(30):
        database.other.insert_many({} for _ in range(50))
        database.a.insert_many({} for _ in range(100))
    batches = pipeline.run()
    assert sum(counts(batches)) == 3000
    assert 600 < counts(batches)[0] < 1500
    for split in batches[0].stream_splits:
        assert abs(len(pipeline.rows_of(split)) - counts(batches)[0] / 2) < 250
    assert len({row.key for row in pipeline.rows}) == 3000


@pytest.mark.usefixtures("estimated")
def test_large_transactions_late_in_a_long_backlog_are_not_missed_and_go_alone(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(500, 2**30, 2))
    for number in range(4):
        updates(database, 50)
        in_a_transaction(database, 600, pad=str(number))
    assert counts(pipeline.run()) == [50, 600] * 4


def test_a_large_transaction_that_is_all_a_search_finds_does_not_take_the_rest_along(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oplog_scan, "_ALL_COUNTED", 1)
    monkeypatch.setattr(oplog_scan, "_SHARE", 4)
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(50, 2**30, 2))
    in_a_transaction(database, 300)
    updates(database, 40)
    first, *others = counts(pipeline.run())
    assert 300 <= first < 340
    assert first + sum(others) == 340


@pytest.mark.usefixtures("estimated")
def test_small_transactions_in_a_long_backlog_count_as_their_changes(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(500, 2**30, 2))
    for number in range(500):
        in_a_transaction(database, 3, pad=str(number))
    reported = counts(pipeline.run())
    assert sum(reported) == 1500
    assert 200 < reported[0] < 900


@pytest.mark.usefixtures("estimated")
def test_a_drop_late_in_a_long_backlog_ends_its_batch(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(10**6, 2**30, 3))
    updates(database, 150)
    database.a.drop()
    filled(database, "a", range(5))
    updates(database, 150)
    assert counts(pipeline.run()) == [150, 155]
    assert pipeline.replayed(database.a) == contents(database.a)


def test_an_array_of_a_document_is_not_taken_for_the_operations_of_a_transaction(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(10, 2**30, 1))
    database.a.insert_many({"applyOps": [{"op": "c"}] * 50} for _ in range(10))
    assert counts([pipeline.batch()]) == [10]


def test_a_drop_within_the_backlog_ends_its_batch(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(100, 2**30, 3))
    updates(database, 150)
    database.a.drop()
    filled(database, "a", range(5))
    updates(database, 150)
    reported = counts(pipeline.run())
    assert reported == [100, 50, 100, 55]
    assert pipeline.replayed(database.a) == contents(database.a)


def test_a_replay_by_another_process_reports_the_same(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a", mode="latest", limits=Limits(10**6, 2**30, 4))
    updates(database, 100)
    in_a_transaction(database, 20)
    batch = pipeline.batch()
    assert len(batch.stream_splits) == 4
    again = capture("a", mode="latest")
    again.offset = batch.start
    replayed = again.read(batch.end)
    assert len(replayed.stream_splits) == 1
    assert sorted(replayed.rows) == sorted(batch.rows)


def test_who_may_not_read_the_oplog_gets_slices_of_equal_time(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "_LEAST_SECONDS", 0)
    database = guarded.client["sliced"]
    filled(database, "a", range(5))
    user = guarded.user(roles=[{"role": "read", "db": "sliced"}, *guarded.by_uuid])
    pipeline = Capture(user, "sliced.a", mode="latest", limits=Limits(5, 1, 3))
    until(lambda: updates(database, 10) or len(pipeline.planner.splits(*ends(pipeline), False)) > 1)
    pipeline.run()
    written = sum(each["n"] for each in database.a.find())
    assert len(pipeline.rows) == written


def ends(pipeline: Capture) -> tuple[Offset, Offset]:
    return pipeline.offset, pipeline.plan()


@pytest.mark.parametrize("seed", range(2))
def test_whatever_the_limits_each_change_is_reported_once_and_in_order(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(slicing, "LEAST_EVENTS", 1)
    chance = random.Random(seed)
    coll = filled(database, "a", range(30))
    limits = Limits(chance.choice([3, 10, 40]), 2**30, chance.choice([1, 3, 7]))
    pipeline = capture("a", limits=limits, seed=seed)
    for _ in range(12):
        work(chance, database)
        pipeline.read(pipeline.plan(), meanwhile=lambda: work(chance, database))
    pipeline.run(most=400)
    assert pipeline.replayed(coll) == contents(coll)
    reported = [(row.position, row.key) for row in pipeline.rows]
    assert len(reported) == len(set(reported))
    for key, rows in itertools.groupby(
        sorted(pipeline.rows, key=lambda row: (row.key or "", row.position)), lambda row: row.key
    ):
        ops = [row.op for row in rows]
        assert ops[0] in ("read", "insert"), (key, ops)


def work(chance: random.Random, database: Database[Document]) -> None:
    for _ in range(chance.randrange(8)):
        key = chance.randrange(40)
        change: Any = {"$set": {"n": chance.random()}}
        kind = chance.randrange(5)
        if kind == 0:
            database.a.delete_one({"_id": key})
        elif kind == 1:
            in_a_transaction(database, chance.randrange(1, 9))
        else:
            database.a.update_one({"_id": key}, change, upsert=True)


def test_ids_distinguish_rows(capture: Begin, database: Database[Document]) -> None:
    filled(database, "a", [])
    pipeline = capture("a", mode="latest", limits=Limits(7, 2**30, 7))
    database.a.insert_many({"_id": number} for number in range(50))
    pipeline.run()
    assert [id_of(row) for row in sorted(pipeline.rows, key=lambda r: r.position)] == [*range(50)]
