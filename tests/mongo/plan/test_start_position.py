"""Where a run begins: nothing before that is reported, and everything after it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.database import Database
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cdc import options as declared
from cdc import source
from cdc.demo import ReplicaSet
from cdc.errors import BadOption, UnsuitableSource
from cdc.model import Change, Offset, resume_token, timestamp
from cdc.source import inquiry
from cdc.source.batch_readers import SnapshotReader
from tests.mongo.capture import Capture, Document, contents, filled, id_of
from tests.mongo.forgetful import oldest

Begin = Callable[..., Capture]


@pytest.fixture(scope="module")
def mongod() -> Iterator[ReplicaSet]:
    """A server of this file: mode `earliest` reads all that was ever written to its server."""
    with ReplicaSet() as replica_set:
        yield replica_set


@pytest.fixture(scope="module")
def mongo(mongod: ReplicaSet) -> Iterator[MongoClient[Document]]:
    with mongod.client() as client:
        yield client


def ids(rows: list[Change]) -> list[Any]:
    return [id_of(row) for row in rows if row.document_key]


def ops(rows: list[Change]) -> list[str]:
    """Of changes of documents: servers do not report the same DDL."""
    return [row.op for row in rows if row.key is not None]


def test_earliest_begins_with_the_oldest_change_of_the_oplog(
    capture: Begin, database: Database[Document]
) -> None:
    coll = filled(database, "a", ["old"])
    coll.update_one({"_id": "old"}, {"$set": {"n": 1}})
    before = oldest(database.client)
    pipeline = capture("a", mode="earliest")
    assert before <= pipeline.offset.time <= oldest(database.client)
    coll.delete_one({"_id": "old"})
    pipeline.run()
    assert ops(pipeline.rows) == ["insert", "update", "delete"]


def in_a_transaction(database: Database[Document], numbers: range) -> None:
    with database.client.start_session() as session, session.start_transaction():
        for number in numbers:
            database.a.insert_one({"_id": number}, session=session)


@pytest.fixture
def reported(capture: Begin, database: Database[Document]) -> list[Change]:
    """A single change, five at one cluster time, a single one."""
    filled(database, "a", [])
    pipeline = capture("a", mode="latest")
    database.a.insert_one({"_id": 0})
    in_a_transaction(database, range(1, 6))
    database.a.insert_one({"_id": 6})
    pipeline.run()
    rows = sorted(pipeline.rows, key=lambda row: row.position)
    assert ids(rows) == list(range(7))
    return rows


@pytest.mark.parametrize("number", range(7))
def test_a_token_begins_after_its_event_also_within_a_transaction(
    capture: Begin, database: Database[Document], reported: list[Change], number: int
) -> None:
    """Guards: all events of a transaction have one time."""
    pipeline = capture("a", mode="token", start=reported[number].position)
    first = pipeline.batch()
    assert ids(first.rows) == list(range(number + 1, 7))
    again = capture("a", mode="token", start=reported[0].position)
    again.offset = Offset.from_json(json.loads(json.dumps(first.start.to_json())))
    assert again.read(first.end).rows == first.rows, "a replay emits the same"
    database.a.delete_one({"_id": 3})
    assert [row.op for batch in pipeline.run() for row in batch.rows] == ["delete"]


def test_a_token_may_be_written_as_a_change_stream_gives_it(
    capture: Begin, reported: list[Change]
) -> None:
    position = reported[3].position
    for start in (position.lower(), f" {position}\n", json.dumps({"_data": position})):
        assert ids(capture("a", mode="token", start=start).batch().rows) == [4, 5, 6]


def test_the_position_of_a_copied_document_is_a_place_to_begin_too(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(3))
    copying = capture("a")
    copying.run()
    in_a_transaction(database, range(3, 6))
    position = next(row.position for row in copying.rows if row.op == "read")
    pipeline = capture("a", mode="token", start=position)
    pipeline.run()
    assert sorted(ids(pipeline.rows)) == [3, 4, 5]


def test_a_drop_before_the_token_is_not_reported_again(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", [1])
    pipeline = capture("a", mode="latest")
    database.a.drop()
    filled(database, "a", [2])
    pipeline.run()
    drop = next(row for row in pipeline.rows if row.op == "drop")
    again = capture("a", mode="token", start=drop.position)
    again.run()
    assert ops(again.rows) == ["insert"]
    assert not again.resyncs
    assert "drop" not in [row.op for row in again.rows]


def test_a_token_of_another_version_than_the_servers_is_refused(
    capture: Begin, reported: list[Change]
) -> None:
    """Guards: in a transaction it sorts after all events of the server's own, or before them."""
    version = resume_token.decode(reported[3].position).version
    other = resume_token.high_water_mark(resume_token.time_of(reported[3].position))
    assert (version, resume_token.decode(other).version) == (1, 1)
    other = other.replace("2B0229296E04", "2B0429296E1404")
    pipeline = capture("a", mode="token", start=other)
    with pytest.raises(
        UnsuitableSource, match="of version 2, but the server writes version 1"
    ) as caught:
        reader(pipeline).initialOffset()
    at = timestamp.text(resume_token.time_of(other))
    assert f"start to {at}" in (caught.value.remedy or "")


@pytest.mark.parametrize("mode", ["timestamp", "token"])
def test_a_start_in_the_future_is_refused(
    capture: Begin, database: Database[Document], mode: str
) -> None:
    filled(database, "a", [1])
    start = "4000000000:1" if mode == "timestamp" else "82EE6B2800000000012B0229296E04"
    with pytest.raises(BadOption, match="later than the server's time"):
        reader(capture("a", mode=mode, start=start)).initialOffset()


def reader(pipeline: Capture) -> source.ChangeReader:
    return source.ChangeReader(pipeline.options, StructType())


def test_a_snapshot_ends_as_of_one_time_after_its_start(
    capture: Begin, database: Database[Document]
) -> None:
    coll = filled(database, "a", range(30))
    pipeline = capture("a", mode="snapshot", split_size_mb="1")
    bounded = reader(pipeline)
    pipeline.offset = Offset.from_json(bounded.initialOffset())
    coll.update_one({"_id": 3}, {"$set": {"n": 1}})
    while (end := latest(bounded, pipeline.offset)) != pipeline.offset:
        pipeline.read(end)
        there = contents(coll, end.time)
        coll.delete_one({"_id": 4})
        coll.insert_one({"_id": len(pipeline.batches) + 100})
    assert pipeline.offset.is_streaming
    assert pipeline.replayed(coll) == there
    following = capture("a")
    following.offset, following.batches = pipeline.offset, pipeline.batches
    following.run()
    assert following.replayed(coll) == contents(coll), "mode initial goes on from there"


@pytest.mark.parametrize("mode", ["latest", "earliest"])
def test_where_a_run_that_copies_nothing_begins_is_kept_before_anything_is_reported(
    capture: Begin, database: Database[Document], mode: str
) -> None:
    """Guards: Spark asks for the start of the first batch again when it reads it, and when it reads
    it again; "now" is later by then, and the oldest change may be another one."""
    coll = filled(database, "a", [])
    following = reader(capture("a", mode=mode))
    first = following.initialOffset()
    coll.insert_one({"_id": 1})
    assert following.initialOffset() == first
    assert latest(following, Offset.from_json(first)).to_json() == first
    assert latest(following, Offset.from_json(first)).to_json() != first


def latest(bounded: source.ChangeReader, start: Offset) -> Offset:
    return Offset.from_json(bounded.latestOffset(start.to_json(), ReadAllAvailable()))


def test_the_first_moment_of_a_timestamp_is_reported(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", [])
    in_a_transaction(database, range(3))
    at = database.client.local["oplog.rs"].find({"op": "c"}).sort("$natural", -1).limit(1)[0]["ts"]
    for time, count in ((at, 3), (Timestamp(at.time, at.inc + 1), 0)):
        pipeline = capture("a", mode="timestamp", start=timestamp.text(time))
        pipeline.run()
        assert len(pipeline.rows) == count


def test_a_start_before_the_replica_set_is_its_initiation_and_no_change_is_lost(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: `lag=217587889s` of a run with `start` in 2020, on a server that is an hour old."""
    filled(database, "a", range(3))
    pipeline = capture("a", mode="timestamp", start="2020-01-01T00:00:00Z")
    first = Offset.from_json(reader(pipeline).initialOffset())
    assert first.time == timestamp.before(oldest(database.client))
    pipeline.offset = first
    pipeline.run()
    assert ids(pipeline.rows) == [0, 1, 2]


# --- before there is a collection ----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["initial", "latest", "timestamp"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_what_there_is_not_yet_is_captured_from_birth_be_it_born_before_or_after_the_first_batch(
    capture: Begin, database: Database[Document], mode: str, is_late: bool
) -> None:
    """Guards: a job that is started before its application, which makes the database too."""
    now = database.client.admin.command("ping")["operationTime"]
    start = {"start": timestamp.text(now)} if mode == "timestamp" else {}
    pipeline = capture("a", "b.*", mode=mode, missing_collections="wait", **start)
    pipeline.offset = Offset.from_json(reader(pipeline).initialOffset())
    if is_late:
        pipeline.run()
    for name in ("a", "b1"):
        coll = filled(database, name, range(5))
        coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
        coll.delete_one({"_id": 2})
    pipeline.run()
    for name in ("a", "b1"):
        assert pipeline.replayed(database[name]) == contents(database[name])
    if is_late or mode != "initial":
        assert pipeline.namespaces_copied == []
        assert ops(pipeline.rows) == 2 * [*5 * ["insert"], "update", "delete"]


@pytest.mark.parametrize("mode", ["initial", "latest", "earliest"])
def test_without_the_option_to_wait_a_new_run_ends_where_a_name_or_an_expression_matches_nothing(
    capture: Begin, database: Database[Document], mode: str
) -> None:
    filled(database, "orders", [1])
    for missing in ("ordres", r"ordesr_\d+"):
        begun = reader(capture("orders", missing, mode=mode))
        with pytest.raises(UnsuitableSource) as caught:
            begun.initialOffset()
        assert missing in caught.value.message
        assert f"(nearest: {database.name}.orders)" in caught.value.message
        assert "missing.collections = wait" in (caught.value.remedy or "")


def test_a_batch_read_of_what_there_is_not_ends_or_is_empty(
    capture: Begin, database: Database[Document]
) -> None:
    for waits in ("fail", "wait"):
        batch = SnapshotReader(capture("a", missing_collections=waits).options, StructType())
        if waits == "wait":
            assert [list(each.splits) for each in batch.partitions()] == [[]]
        else:
            with pytest.raises(UnsuitableSource, match=f"no collection {database.name}.a"):
                batch.partitions()


def test_a_run_goes_on_though_what_it_captures_was_dropped_meanwhile(
    capture: Begin, database: Database[Document]
) -> None:
    coll = filled(database, "a", range(5))
    pipeline = capture("a", "a.*")
    pipeline.offset = Offset.from_json(reader(pipeline).initialOffset())
    pipeline.run()
    database.client.drop_database(database.name)
    given = {"uri": pipeline.options.uri, "collections": pipeline.options.collections}
    assert inquiry.preflight(declared.parse(given), is_new=False) == []
    pipeline.run()
    assert pipeline.replayed(coll) == {}
    filled(database, "a", range(7))
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)
