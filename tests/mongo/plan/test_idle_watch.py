"""A change makes a batch at once; what is not captured makes none, but for a heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from cdc import source
from cdc.errors import TransientError
from cdc.model import Offset
from tests.mongo.abilities import abilities
from tests.mongo.capture import Capture, Client, Document, failing, filled, until
from tests.slow import slow_but

Begin = Callable[..., Capture]


class Reader:
    """The source's own reader, asked for batches one after the other."""

    def __init__(self, pipeline: Capture) -> None:
        self._reader = source.ChangeReader(pipeline.options, StructType())
        self.offset = pipeline.offset

    def asks(self) -> bool:
        """Whether there is a batch; if so, it is taken for done."""
        end = self._reader.latestOffset(self.offset.to_json(), ReadAllAvailable())
        began, self.offset = self.offset, Offset.from_json(end)
        return self.offset != began

    def stop(self) -> None:
        self._reader.stop()


@pytest.fixture
def reader(capture: Begin, database: Database[Document]) -> Iterator[Callable[..., Reader]]:
    """`reader(**options)`: of the collection `a`, which is captured from now on."""
    filled(database, "a", range(3))
    begun: list[Reader] = []

    def begin(**options: Any) -> Reader:
        begun.append(Reader(capture("a", mode="latest", **options)))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an insert": lambda coll: coll.insert_one({"_id": 9}),
    "a delete": lambda coll: coll.delete_one({"_id": 1}),
    "a drop": lambda coll: coll.drop(),
    "a rename": lambda coll: coll.rename("b"),
    "a rename onto it": lambda coll: coll.database.other.rename(coll.name, dropTarget=True),
    "a dropped database": lambda coll: coll.database.client.drop_database(coll.database.name),
}


# One of each kind that the stream reports in a way of its own.
OFTEN = ["an insert", "a rename", "a dropped database"]


@pytest.mark.parametrize("change", slow_but(OFTEN, CHANGES, soak=CHANGES))
def test_a_change_makes_a_batch_at_once(
    reader: Callable[..., Reader], database: Database[Document], change: str
) -> None:
    database.other.insert_one({})
    changes = reader(heartbeat_interval="1000")
    assert not changes.asks()
    CHANGES[change](database.a)
    assert changes.asks()
    for _ in range(10):  # of a dropped database each collection reports too
        if not changes.asks():
            return
    raise AssertionError("an emitted row is emitted again")


def test_ddl_makes_a_batch_where_the_server_reports_it_and_that_of_a_view_makes_none(
    reader: Callable[..., Reader], database: Database[Document]
) -> None:
    changes = reader(heartbeat_interval="1000")
    assert not changes.asks()
    database.create_collection("v", viewOn="a", pipeline=[])
    database.v.drop()
    assert not changes.asks()
    database.a.create_index("n")
    assert changes.asks() == abilities(database.client).reports_all_ddl


def test_what_came_while_a_batch_was_written_makes_the_next_one(
    reader: Callable[..., Reader], database: Database[Document]
) -> None:
    """Guards: cursors before and after the offset."""
    changes = reader(heartbeat_interval="1000")
    for rounds in (1, 5):
        for _ in range(rounds):
            database.a.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert changes.asks()
        database.a.update_one({"_id": 2}, {"$inc": {"n": 1}})
        assert changes.asks()
        assert not changes.asks()


def test_foreign_writes_make_no_batch_but_a_heartbeat(
    reader: Callable[..., Reader], database: Database[Document]
) -> None:
    """Guards: without the heartbeat, the offset would fall out of the oplog."""
    began = time.monotonic()
    changes = reader(heartbeat_interval="2")
    batches = 0
    while (took := time.monotonic() - began) < 5:
        database.other.insert_one({})
        batches += changes.asks()
    assert 1 <= batches <= 1 + took / 2  # positions count in seconds: the first may come early


def test_a_heartbeat_of_no_time_lets_every_write_make_a_batch(
    reader: Callable[..., Reader], database: Database[Document]
) -> None:
    changes = reader(heartbeat_interval="0")
    database.other.insert_one({})
    until(changes.asks)


@pytest.mark.parametrize("fault", [{"errorCode": 43}, {"closeConnection": True}])
def test_a_cursor_that_is_lost_misses_nothing(
    reader: Callable[..., Reader], database: Database[Document], mongo: Client, fault: Document
) -> None:
    changes = reader(heartbeat_interval="1000")
    assert not changes.asks()
    database.a.delete_one({"_id": 1})
    with failing(mongo, {"times": 1}, failCommands=["getMore"], **fault):
        assert changes.asks()
    database.a.delete_one({"_id": 2})
    assert changes.asks()


def test_a_reader_that_stops_leaves_no_cursor(
    reader: Callable[..., Reader], database: Database[Document], mongo: Client
) -> None:
    changes = reader(heartbeat_interval="1000")
    before = cursors(mongo)
    assert not changes.asks()
    assert cursors(mongo) == before + 1
    changes.stop()
    assert cursors(mongo) == before


def cursors(mongo: Client) -> int:
    found = mongo.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    return sum(each.get("type") == "idleCursor" for each in found)


@pytest.mark.slow
def test_a_planner_that_cannot_ask_only_means_that_there_is_nothing_new_yet(
    reader: Callable[..., Reader], database: Database[Document], mongo: Client
) -> None:
    """Guards: patience begins with the failure: the batch before may have taken longer; how far the
    oplog reaches is a matter of a warning."""
    changes = reader(heartbeat_interval="1000", retry_seconds="4")
    refused = ["find", "serverStatus", "aggregate"]
    with failing(mongo, "alwaysOn", failCommands=refused, errorCode=262):
        assert not changes.asks()
    assert not changes.asks()
    time.sleep(4.2)
    database.a.delete_one({"_id": 1})
    with failing(mongo, "alwaysOn", failCommands=["aggregate"], errorCode=262):
        assert not changes.asks()
    assert changes.asks()
    database.a.delete_one({"_id": 2})
    with (
        failing(mongo, "alwaysOn", failCommands=["aggregate"], errorCode=262),
        pytest.raises(TransientError),
    ):
        until(changes.asks)
