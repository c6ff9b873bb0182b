"""A batch ends at a time that no failover can take back, and never before it begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from bson import Timestamp
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.write_concern import WriteConcern

from cdc.demo import ReplicaSet
from cdc.mongo.collections import Listing
from cdc.mongo.topology.replica_set import ReplicaSet as ReplicaSetSource
from cdc.mongo.topology.replica_set import live_edge
from tests.mongo.capture import Capture, Client, Document, contents, filled, until

Begin = Callable[..., Capture]


def hello(seconds: int) -> Document:
    return {"lastWrite": {"majorityOpTime": {"ts": Timestamp(seconds, 1), "t": 1}}}


def test_the_live_edge_is_the_largest_majority_time_and_never_goes_back() -> None:
    """Guards: members without a majority time, behind, or back from an older state."""
    floor = Timestamp(10, 0)
    recovering: list[Document] = [{}, {"lastWrite": {}}, {"lastWrite": {"majorityOpTime": {}}}]
    assert live_edge([*recovering, hello(20), hello(15)], floor) == Timestamp(20, 1)
    assert live_edge([hello(20)], Timestamp(30, 0)) == Timestamp(30, 0)
    assert live_edge(recovering, floor) == floor
    assert live_edge([], floor) == floor


def test_where_no_time_has_passed_there_is_no_batch(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: T1 ≤ T0 is an empty batch, not a slice that waits."""
    filled(database, "a", [1])
    pipeline = capture("a", mode="latest")
    assert pipeline.planner.splits(pipeline.offset, pipeline.offset, control=True) == []
    ahead = replace(pipeline.offset, time=Timestamp(2**31, 1))
    assert pipeline.planner.next_offset(ahead) == ahead


@pytest.fixture(scope="module")
def three() -> Iterator[ReplicaSet]:
    with ReplicaSet(members=3, set_parameters={"enableTestCommands": True}) as replica_set:
        yield replica_set


def test_what_the_majority_does_not_have_is_neither_read_nor_copied(three: ReplicaSet) -> None:
    """Guards: the edge is the majority's; a listing that is newer postpones the scan."""
    with three.client() as client:
        database = client.get_database("test", write_concern=WriteConcern("majority"))
        coll = filled(database, "a", range(30))
        pipeline = Capture(three.uri, "test.a")
        start = pipeline.offset
        secondaries = [m for m in three.members if m is not three.primary()]
        try:
            for member in secondaries:
                fail_point(member, "rsSyncApplyStop", "alwaysOn")
            at_risk = coll.with_options(write_concern=WriteConcern(1))
            at_risk.update_many({}, {"$inc": {"n": 1}})
            # Every entry that was on its way has been applied; what follows is not.
            stuck = pipeline.plan_now()
            assert stuck.time < client.admin.command("ping")["operationTime"]
            assert not [
                split
                for split in pipeline.planner.splits(start, stuck, control=False)
                if hasattr(split, "range")
            ]
        finally:
            for member in secondaries:
                fail_point(member, "rsSyncApplyStop", "off")
        pipeline.run()
        assert pipeline.replayed(coll) == contents(coll)


@pytest.mark.parametrize("images", [True, False])
def test_what_is_gone_is_taken_for_gone_only_when_a_majority_has_the_drop(
    three: ReplicaSet, images: bool
) -> None:
    """Guards: a drop that is rolled back is reported by no event: lost would be the documents of a
    range that is being copied, or those that changes are to be completed with."""
    with three.client() as client:
        database = client.get_database("test", write_concern=WriteConcern("majority"))
        name = f"gone{images:d}"
        coll = filled(database, name, range(10), images=images)
        pipeline = Capture(three.uri, f"test.{name}", mode="initial" if images else "latest")
        coll.update_many({}, {"$inc": {"n": 1}})
        splits = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
        rows: list[Any] = []
        reading = threading.Thread(
            target=lambda: rows.extend(row for split in splits for row in pipeline.rows_of(split))
        )
        secondaries = [m for m in three.members if m is not three.primary()]
        for member in secondaries:
            fail_point(member, "stopReplProducer", "alwaysOn")
        try:
            client["test"].get_collection(name, write_concern=WriteConcern(1)).drop()
            reading.start()
            reading.join(1)
            assert reading.is_alive(), "it was not waited for"
        finally:
            for member in secondaries:
                fail_point(member, "stopReplProducer", "off")
        reading.join(20)
        assert [row.after for row in rows if row.op != "drop"] == ([] if images else [None] * 10)


def fail_point(member: Any, name: str, mode: str) -> None:
    with member.client() as client:
        client.admin.command({"configureFailPoint": name, "mode": mode})


def test_the_edge_does_not_wait_for_a_member_that_stands_still(three: ReplicaSet) -> None:
    """Guards: a member that does not answer is left out after a second or two."""
    with three.client() as client:
        coll = client["test"]["b"]
        coll.insert_one({"_id": 0})
        pipeline = Capture(three.uri, "test.b", mode="latest")
        edge = pipeline.source.live_edge(pipeline.offset.time)
        coll.with_options(write_concern=WriteConcern("majority")).insert_one({"_id": 1})
        still = next(m for m in three.members if m is not three.primary())
        still.freeze()
        try:
            began = time.monotonic()
            assert pipeline.source.live_edge(edge) > edge
            assert time.monotonic() - began < 3
            assert pipeline.batch().ids("insert") == [1]
        finally:
            still.thaw()


def test_what_a_deposed_primary_listed_is_not_copied(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: an incarnation that was rolled back is never there to be read, and no event says so.

    The new primary's time has passed the listing's when the edge is taken: times alone would do.
    """
    majority = WriteConcern("majority", wtimeout=30_000)
    with three.client() as client:
        database = client.get_database("test", write_concern=majority)
        filled(database, "c", range(30))
        pipeline = Capture(three.uri, "test.c")
        until(lambda: knows_the_primary(pipeline.source.client))
        deposed = three.primary()
        others = [m for m in three.members if m is not deposed]
        ask = ReplicaSetSource.confirm

        def fail_over(source: ReplicaSetSource, found: Listing, patience: float) -> Any:
            monkeypatch.setattr(ReplicaSetSource, "confirm", ask)
            deposed.kill()
            for member in others:
                fail_point(member, "stopReplProducer", "off")
            step_up(others[0])
            three.wait_writable()
            until(lambda: knows_the_primary(source.client))
            until(lambda: database["z"].insert_one({}) and pipeline.now() > found.time)
            return ask(source, found, patience)

        for member in others:
            fail_point(member, "stopReplProducer", "alwaysOn")
        at_risk = client.get_database("test", write_concern=WriteConcern(1))
        at_risk.drop_collection("c")
        at_risk["c"].insert_one({"_id": "never"})
        monkeypatch.setattr(ReplicaSetSource, "confirm", fail_over)
        planned = pipeline.plan_now()
        assert planned.time > pipeline.offset.time
        assert not planned.scans
        pipeline.read(planned)
        deposed.start()
        pipeline.run()
        assert pipeline.replayed(database["c"]) == contents(database["c"])
        assert len(contents(database["c"])) == 30


def knows_the_primary(client: Client) -> bool:
    """A server before 4.4 does not inform the driver of a new primary by itself; a failure does."""
    try:
        client.admin.command("listDatabases")
    except AutoReconnect:
        return False
    return True


def step_up(member: Any) -> None:
    def elected() -> bool:
        try:
            with member.client() as client:
                client.admin.command("replSetStepUp")
        except OperationFailure:
            return False
        return True

    until(elected)
