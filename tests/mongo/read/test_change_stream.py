"""A slice of the change stream is read whole, once and in order, and ends when it is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.write_concern import WriteConcern

from cdc.demo import ReplicaSet
from cdc.errors import CdcError, TransientError
from cdc.model import Selection, StreamSplit, timestamp
from cdc.mongo.connection import Member, member
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, change_stream
from tests.mongo.capture import (
    TIMEOUT_MS,
    Capture,
    Client,
    Document,
    Watched,
    failing,
    filled,
    last_write,
    open_cursors,
    until,
)

Begin = Callable[..., Capture]


def slice_of(coll: Any, after: Timestamp, upto: Timestamp, match: Document | None = None) -> Any:
    selection = Selection.parse(f"{coll.database.name}.{coll.name}")
    condition = {**selection.condition("ns"), **(match or {})}
    return StreamSplit(after, upto, coll.database.name, event_filter.pipeline([condition]))


def ids(split: StreamSplit, open_member: Callable[[], Member], retry: float = 20) -> list[Any]:
    read = change_stream.read(open_member, split, IMAGES["off"], retry)
    return [bson.decode(e.raw["documentKey"].raw)["_id"] for events in read for e in events]


@pytest.fixture
def opener(mongod: ReplicaSet) -> Callable[[], Member]:
    return partial(member, mongod.uri, TIMEOUT_MS)


def written(coll: Any, documents: list[Document]) -> list[Timestamp]:
    """One insert each; their cluster times."""
    times = []
    for document in documents:
        coll.insert_one(document)
        times.append(last_write(coll.database.client))
    return times


def test_an_event_at_the_lower_time_is_out_and_one_at_the_upper_time_is_in(
    capture: Begin, database: Database[Document], opener: Any
) -> None:
    """Guards: T0 < clusterTime ≤ T1."""
    coll = filled(database, "a", [])
    times = written(coll, [{"_id": i} for i in range(5)])
    capture("a").now()
    assert ids(slice_of(coll, times[1], times[3]), opener) == [2, 3]
    assert ids(slice_of(coll, times[1], times[1]), opener) == []


def test_a_late_event_is_in_whatever_lies_between_and_one_reported_before_is_out(
    capture: Begin, database: Database[Document], opener: Any
) -> None:
    """Guards: the slice is complete after the last of them, replies later, not after T1."""
    coll = filled(database, "a", [])
    times = written(coll, [{"_id": i} for i in range(4)])
    coll.insert_many([{"_id": n} for n in range(100, 1400)])
    late = written(coll, [{"_id": "late"}, {"_id": "not ours"}])[0]
    capture("a").now()
    split = replace(slice_of(coll, times[0], times[2]), late=(late,), emitted=(times[1],))
    assert ids(split, opener) == [2, "late"]


def test_the_last_event_before_a_boundary_arrives_on_an_idle_server(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: an empty getMore at T1 completes the slice: nothing has to be written after it."""
    coll = filled(database, "a", [])
    pipeline = capture("a", mode="latest")
    for number in range(5):
        coll.insert_one({"_id": number})
        began = time.monotonic()
        assert pipeline.batch().ops == [("insert", number)]
        assert time.monotonic() - began < 2


def test_a_slice_of_one_increment_on_a_lagging_secondary_waits_for_its_event(
    lagging: Lagging,
) -> None:
    """Guards: opened at T0 and not at T0 + 1, where the opening point would look like progress."""
    coll = lagging.coll
    with lagging.stopped() as open_member, ThreadPoolExecutor() as pool:
        lower = last_write(lagging.client)
        coll.insert_one({"_id": "last"})
        upper = last_write(lagging.client)
        if timestamp.before(upper) != lower:  # another write came between: the time just below it
            lower = timestamp.before(upper)
        assert lagging.set_edge() >= upper
        reading = pool.submit(lambda: list(ids(slice_of(coll, lower, upper), open_member)))
        with pytest.raises(TimeoutError):  # not complete before the member has the event
            reading.result(0.7)
        lagging.release()
        assert reading.result(60) == ["last"]


def test_a_slice_is_complete_only_by_what_its_own_cursor_delivered(lagging: Lagging) -> None:
    """Guards: never by `$clusterTime`, which a lagging member hears of before it has the events."""
    coll = lagging.coll
    with lagging.stopped() as open_member, ThreadPoolExecutor() as pool:
        lower = last_write(lagging.client)
        coll.insert_many([{"_id": n} for n in range(20)])
        split = slice_of(coll, lower, lagging.set_edge())
        reading = pool.submit(lambda: list(ids(split, open_member)))
        with pytest.raises(TimeoutError):
            reading.result(0.5)
        lagging.release()
        assert reading.result(60) == list(range(20))


FAULTS: dict[str, Document] = {
    "the cursor is killed": {"errorCode": 237},
    "the stream asks to be resumed": {
        "errorCode": 280,
        "errorLabels": ["ResumableChangeStreamError"],
    },
    "the server takes too long": {"errorCode": 262},
    "the connection is closed": {"closeConnection": True},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_in_mid_slice_neither_loses_nor_doubles_an_event(
    capture: Begin,
    database: Database[Document],
    mongo: Client,
    opener: Any,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """Guards: a failed cursor is thrown away, the slice opened again and what was given skipped.

    A server without that label (4.2) is not asked again for a code that is not on the list."""
    monkeypatch.setattr(change_stream, "_BATCH", 7)
    coll = filled(database, "a", [])
    lower = capture("a").now()
    coll.insert_many([{"_id": n} for n in range(40)])
    split = slice_of(coll, lower, capture("a").now())
    opened: list[Mapping[str, Any]] = []

    def watch(command: Mapping[str, Any]) -> None:
        if "aggregate" in command:
            opened.append(command["pipeline"][0]["$changeStream"])

    found = []

    def read() -> None:
        reader = change_stream.read(lambda: Watched(opener(), watch), split, IMAGES["off"], 20)
        for number, events in enumerate(reader):
            found.extend(event.raw["documentKey"]["_id"] for event in events)
            if number in (1, 3):
                data = {"failCommands": ["getMore"], "appName": "mongodb-cdc", **FAULTS[fault]}
                mongo.admin.command(
                    {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
                )

    if not labels(mongo, capture("a").source.client, fault):
        with pytest.raises(CdcError, match="code 280"):
            read()
        return
    read()
    assert found == list(range(40))
    assert [stage["startAtOperationTime"] for stage in opened] == [lower] * 3
    assert not any("resumeAfter" in stage or "startAfter" in stage for stage in opened)


def labels(mongo: Client, client: Client, fault: str) -> bool:
    """Whether the server gives its failure the labels of the fault."""
    wanted = FAULTS[fault].get("errorLabels", [])
    if not wanted:
        return True
    with (
        failing(mongo, {"times": 1}, failCommands=["ping"], **FAULTS[fault]),
        pytest.raises(OperationFailure) as raised,
    ):
        client.admin.command("ping")
    return all(map(raised.value.has_error_label, wanted))


def test_a_failure_that_lasts_ends_the_read_with_an_error_of_ours(
    capture: Begin, database: Database[Document], mongo: Client, opener: Any
) -> None:
    """Guards: patience without progress ends."""
    coll = filled(database, "a", [])
    lower = capture("a").now()
    coll.insert_one({"_id": 1})
    split = slice_of(coll, lower, capture("a").now())
    with (
        failing(mongo, "alwaysOn", failCommands=["getMore"], errorCode=262),
        pytest.raises(TransientError, match="Reading changes"),
    ):
        ids(split, opener, retry=0.3)


def test_a_transaction_filtered_down_to_its_last_operation_delivers_it(
    capture: Begin,
    database: Database[Document],
    mongo: Client,
    opener: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: an empty reply inside a large transaction is not taken for its end."""
    monkeypatch.setattr(change_stream, "_BATCH", 1)
    coll = filled(database, "a", [])
    lower = capture("a").now()
    with mongo.start_session() as session, session.start_transaction():
        for start in range(0, 20_000, 5000):
            many = [{"_id": n} for n in range(start, start + 5000)]
            coll.insert_many(many, session=session)
    upper = last_write(mongo)
    capture("a").now()
    split = slice_of(coll, lower, upper, {"documentKey._id": 19_999})
    assert ids(split, opener) == [19_999]


def test_a_transaction_is_never_split_over_two_batches(
    capture: Begin, database: Database[Document], mongo: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: batches end at whole cluster times."""
    monkeypatch.setattr(change_stream, "_BATCH", 100)
    coll = filled(database, "a", [])
    pipeline = capture("a", mode="latest")
    for round_ in range(3):
        with mongo.start_session() as session, session.start_transaction():
            coll.insert_many([{"_id": f"{round_}-{n}"} for n in range(1000)], session=session)
        # Nothing after it: the batch ends at the transaction's own time.
        pipeline.batch()
        coll.insert_one({"_id": f"{round_}-between"})
    pipeline.run()
    homes: dict[Any, set[int]] = {}
    for number, batch in enumerate(pipeline.batches):
        for row in batch.rows:
            if row.txn is not None:
                homes.setdefault(tuple(sorted(row.txn.items())), set()).add(number)
    assert len(homes) == 3
    assert all(len(numbers) == 1 for numbers in homes.values())
    assert len(pipeline.rows) == 3003
    assert len({row.position for row in pipeline.rows}) == 3003


def test_a_read_that_is_given_up_leaves_no_cursor_on_the_server(
    capture: Begin, database: Database[Document], mongo: Client, opener: Any
) -> None:
    """Guards: the planner's survey stops at the first event; its cursor is closed."""
    coll = filled(database, "a", [])
    lower = capture("a").now()
    coll.insert_many([{"_id": n} for n in range(10)])
    split = slice_of(coll, lower, capture("a").now())
    before = open_cursors(mongo)
    for _ in range(5):
        for _events in change_stream.read(opener, split, IMAGES["off"], 20):
            break
    until(lambda: open_cursors(mongo) <= before, 5)


class Lagging:
    """Three members of which one can be kept from applying what the other two have."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        self.client = replica_set.client()
        until(self._is_unchained)
        primary = replica_set.wait_writable()
        self._late = next(m for m in replica_set.members if m is not primary)
        self._pipeline = Capture(replica_set.uri, "test.a", mode="latest")
        database = self.client.get_database("test", write_concern=WriteConcern("majority"))
        self.coll = database.create_collection("a")

    def _is_unchained(self) -> bool:
        """The third member must not follow the late one: without it there is no majority. It is
        tried again where an election comes in between, as on a busy machine."""
        with suppress(AutoReconnect):
            config = self.client.admin.command("replSetGetConfig")["config"]
            settings = {**config["settings"], "chainingAllowed": False}
            changed = {**config, "version": config["version"] + 1, "settings": settings}
            self.client.admin.command("replSetReconfig", changed)
            return True
        return False

    def set_edge(self) -> Timestamp:
        return self._pipeline.now()

    @contextmanager
    def stopped(self) -> Iterator[Callable[[], Member]]:
        """Opens the late member; it has applied everything up to now and applies nothing more."""
        self.coll.delete_many({})
        edge = self.set_edge()
        with self._late.client() as late:
            until(lambda: late.admin.command("ping")["operationTime"] >= edge)
            point = {"configureFailPoint": "rsSyncApplyStop", "mode": "alwaysOn"}
            entered = late.admin.command(point)["count"] + 1
            wait = {"waitForFailPoint": "rsSyncApplyStop", "timesEntered": entered}
            late.admin.command({**wait, "maxTimeMS": 60_000})
        try:
            uri = f"mongodb://{self._late.host}/?directConnection=true&readPreference=nearest"
            yield partial(member, uri, TIMEOUT_MS)
        finally:
            self.release()

    def release(self) -> None:
        with self._late.client() as late:
            late.admin.command({"configureFailPoint": "rsSyncApplyStop", "mode": "off"})


@pytest.fixture(scope="module")
def lagging() -> Any:
    with ReplicaSet(members=3, set_parameters={"enableTestCommands": True}) as replica_set:
        yield Lagging(replica_set)
