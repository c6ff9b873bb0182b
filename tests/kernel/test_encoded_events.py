"""Rows of changes that are reported at once are the rows that they are one by one."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp
from pymongo.database import Database

from cdc import options as declared
from cdc.demo import ReplicaSet
from cdc.errors import TransientError
from cdc.kernel import loading, reply
from cdc.kernel.event_columns import COUNT, STOP
from cdc.model import CaptureFilter, Selection, StreamSplit, event_row
from cdc.model.bson import elements
from cdc.model.encoding import encoder
from cdc.model.encoding.document import FORMATS
from cdc.mongo.connection import Member, member
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, Event, Located, Run, change_stream, images
from cdc.mongo.read.event_run import make_run, select_plain, split_mask
from cdc.tasks import arrow_batches, task
from tests.kernel.arrow import options, schema
from tests.mongo.capture import Watched, last_write

AT = Timestamp(1_700_000_000, 1)
SPLIT = StreamSplit(AT, Timestamp(1_800_000_000, 1), "db", b"", collections="db.c", shard="s0")
SESSION = {"id": Binary(bytes(range(16)), 4), "uid": b"u"}


def change(**fields: Any) -> dict[str, Any]:
    """An update as the server reports it, but for those fields; one that is None is left out."""
    event = {
        "_id": {"_data": "82" + "AB" * 20},
        "operationType": "update",
        "clusterTime": Timestamp(1_700_000_000, 2),
        "collectionUUID": Binary(bytes(16), 4),
        "wallTime": bson.datetime_ms.DatetimeMS(1_700_000_000_123),
        "ns": {"db": "db", "coll": "c"},
        "documentKey": {"_id": 1},
        "updateDescription": {"updatedFields": {"a": 1.5, "s": 'x"\n'}, "removedFields": ["b"]},
        "fullDocument": {"_id": 1, "a": 1.5},
        "fullDocumentBeforeChange": {"_id": 1, "a": 1, "b": bson.Regex("x")},
    }
    return {name: value for name, value in {**event, **fields}.items() if value is not None}


USUAL = {
    "an update": change(),
    "an insert": change(
        operationType="insert", updateDescription=None, fullDocumentBeforeChange=None
    ),
    "a replace": change(operationType="replace", updateDescription=None),
    "a delete": change(operationType="delete", updateDescription=None, fullDocument=None),
    "no before": change(fullDocumentBeforeChange=None),
    "a before that is null": {**change(), "fullDocumentBeforeChange": None},
    "no time of a clock": change(wallTime=None),
    "a time before 1970": change(wallTime=bson.datetime_ms.DatetimeMS(-1)),
    "of a transaction": change(lsid=SESSION, txnNumber=Int64(7)),
    "of a router's transaction": change(
        lsid={**SESSION, "txnUUID": Binary(bytes(16), 4)}, txnNumber=Int64(2**40)
    ),
    "of a session without transaction": change(lsid=SESSION),
    "a string for a key": change(documentKey={"_id": "ä"}),
    "another key": change(documentKey={"_id": {"a": Decimal128("1.0")}}),
    "a shard key": change(documentKey={"s": 1, "_id": ObjectId(b"\1" * 12)}),
    "a name that is no ASCII": change(ns={"db": "db", "coll": "ü"}),
    "a field that nobody knows": change(nsType="collection"),
    "fields twice in its document": change(
        updateDescription={"disambiguatedPaths": {"a.b": ["a"]}}
    ),
}
UNUSUAL = {
    "a drop": change(operationType="drop", documentKey=None),
    "a fragment": change(splitEvent={"fragment": 1, "of": 2}),
    "one that was cut down": change(oversize=True),
    "one that is marked": change(passes={"before": True, "after": True}),
    "one inside of another": change(whole={}),
    "a rename": change(to={"db": "db", "coll": "d"}),
    "one without a time": change(clusterTime=None),
    "a time that is null": {**change(clusterTime=None), "clusterTime": None},
    "a time of a clock that is null": {**change(wallTime=None), "wallTime": None},
    "a position in an array": change(_id=["82"]),
    "one without a position": change(_id={"data": "8"}),
    "one without a namespace": change(ns={"db": "db"}),
    "a number for a document": change(fullDocument=7),
}


def of(events: Sequence[dict[str, Any]]) -> Located:
    data = bson.encode({"nextBatch": list(events)})
    [array] = elements(data, 0, len(data))
    table = np.empty((len(events), COUNT), np.int64)
    locate = loading.columns().change_events.locate
    assert locate(np.frombuffer(data, np.uint8), array.start, array.stop, table) == len(events)
    return Located(data, table)


def one_by_one(events: Sequence[Event], split: StreamSplit, format: str) -> pa.Table:
    selection, capture = Selection.parse(split.collections), split.capture
    rows = [event_row(*event, split.shard, selection, capture, encoder(format)) for event in events]
    return pa.Table.from_batches(arrow_batches.encode_rows(iter(rows), schema(format)))


def at_once(found: Run, split: StreamSplit, format: str) -> pa.Table:
    return pa.Table.from_batches(
        [arrow_batches.encode_events(found, split, options(format), schema(format))]
    )


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema == expected.schema
    for name in expected.schema.names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name


@pytest.mark.parametrize("asked", ["auto", "when_available", "off"])
def test_what_is_reported_of_each_is_what_it_is_reported_alone(asked: str) -> None:
    located, asking = of(list(USUAL.values())), IMAGES[asked]
    found = make_run(located, asking)
    nobody = object()
    alone = [
        images.complete_event(nobody, located.raw(row), asking, asking, AT, CaptureFilter())  # type: ignore[arg-type]
        for row, is_plain in enumerate(select_plain(located, asking))
        if is_plain
    ]
    assert len(alone) == len(USUAL)
    assert [(e.after, e.exact, e.exact_from) for e in found] == [
        (e.after, e.exact, e.exact_from) for e in alone
    ]
    assert [e.position for e in found] == [e.position for e in alone]
    for format in FORMATS:
        assert_same(at_once(found, SPLIT, format), one_by_one(alone, SPLIT, format))


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_the_time_of_a_clock_is_the_servers_wherever_it_is_read() -> None:
    found = make_run(of([change()]), IMAGES["auto"])
    for rows in (at_once(found, SPLIT, "bson"), one_by_one(list(found), SPLIT, "bson")):
        [reported] = rows["wall_time"].cast(pa.int64()).to_pylist()
        assert reported == 1_700_000_000_123_000


def test_with_fields_alone_the_update_reports_those_alone() -> None:
    reported = replace(SPLIT, capture_text=CaptureFilter.from_options(None, "a").text)
    found = make_run(of(list(USUAL.values())), IMAGES["auto"])
    assert_same(at_once(found, reported, "bson"), one_by_one(list(found), reported, "bson"))


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_event_that_needs_another_look_is_not_reported_at_once(name: str) -> None:
    chosen = select_plain(of([change(), UNUSUAL[name], change()]), IMAGES["when_available"])
    assert chosen.tolist() == [True, False, True]


@pytest.mark.parametrize(("asked", "field"), [("auto", "fullDocument"), ("update_lookup", "_")])
def test_what_has_to_be_looked_up_is_not_reported_at_once(asked: str, field: str) -> None:
    events = [change(**{field: None}), change(operationType="delete", fullDocument=None)]
    assert select_plain(of(events), IMAGES[asked]).tolist() == [False, True]


def test_a_reply_that_holds_no_documents_is_read_one_by_one() -> None:
    data = bson.encode({"nextBatch": ["x" * reply.WORTH]})
    [array] = elements(data, 0, len(data))
    assert reply.events(data, array.start, array.stop) is None


def test_a_reply_of_which_any_byte_is_wrong_is_located_or_refused() -> None:
    data = bson.encode({"nextBatch": [change(lsid=SESSION, txnNumber=Int64(7)), change()]})
    [array] = elements(data, 0, len(data))
    locate, table = loading.columns().change_events.locate, np.empty((2, COUNT), np.int64)
    for index in range(array.start, array.stop):
        for other in (0, 0x7F, 0xFF, data[index] ^ 0x10):
            damaged = np.frombuffer(data, np.uint8).copy()
            damaged[index] = other
            damaged.flags.writeable = False
            count = locate(damaged, array.start, array.stop, table)
            assert count <= 2
            places = table[: max(count, 0)]
            assert (places[:, : STOP + 1] <= array.stop).all()


def test_events_of_a_split_are_those_that_it_holds() -> None:
    times = [Timestamp(1_700_000_000, n) for n in range(12)]
    split = replace(SPLIT, after=times[2], upto=times[7], emitted=(times[4],), late=(times[9],))
    located = of([change(clusterTime=time) for time in times])
    assert located.select_split(split).tolist() == [split.contains(time) for time in times]
    assert located.has_after(times[10])
    assert not located.has_after(times[11])


def test_a_position_that_was_reported_is_not_after_itself() -> None:
    located = of([change(_id={"_data": f"82{n}"}) for n in range(4)])
    assert located.select_after("821").tolist() == [False, False, True, True]
    assert located.select_after("").all()


def test_stretches_cover_everything_once_and_in_order() -> None:
    draw = random.Random(3)
    for _ in range(300):
        chosen = np.array([draw.random() < 0.7 for _ in range(draw.randrange(1, 20))])
        found = list(split_mask(chosen, 3))
        rows = [row for part, _ in found for row in range(len(chosen))[part]]
        assert rows == list(range(len(chosen)))
        assert all(chosen[part].all() and part.stop - part.start >= 3 for part, at in found if at)
        kinds = [at for _, at in found]
        assert all(one or other for one, other in itertools.pairwise(kinds))


# --- a real change stream ------------------------------------------------------------------------


@pytest.fixture
def changed(mongod: ReplicaSet, database: Database[dict[str, Any]]) -> StreamSplit:
    """Changes of many kinds: inserts, transactions, a collection that is made and dropped."""
    recording = {"changeStreamPreAndPostImages": {"enabled": True}}
    database.create_collection("earlier", **recording).insert_one({"_id": 0})
    after = last_write(database.client)
    coll = database.create_collection("c", **recording)
    coll.insert_many({"_id": n, "pad": "x" * 600} for n in range(500))
    for n in range(200):
        coll.update_one({"_id": n}, {"$set": {"a": n / 4, "s": [n]}, "$unset": {"pad": 1}})
    with database.client.start_session() as session, session.start_transaction():
        for n in range(200, 300):
            coll.update_one({"_id": n}, {"$inc": {"n": 1}}, session=session)
    database.drop_collection("other")
    database.other.insert_one({"_id": 1})
    database.other.drop()
    coll.delete_many({"_id": {"$lt": 400}})
    coll.replace_one({"_id": 450}, {"a": 1})
    selection = Selection.parse(database.name + r"\..*")
    stages = event_filter.pipeline([selection.condition("ns")])
    upto = last_write(database.client)
    coll.insert_many({"_id": n, "pad": "x" * 600} for n in range(1000, 1300))
    return StreamSplit(after, upto, database.name, stages, collections=selection.text)


def member_of(mongod: ReplicaSet) -> Member:
    return member(mongod.uri, 5000)


@pytest.mark.parametrize("asked", ["auto", "when_available", "update_lookup", "off"])
def test_a_slice_is_the_same_at_once_and_one_by_one(
    mongod: ReplicaSet, changed: StreamSplit, asked: str
) -> None:
    found = list(
        change_stream.read(lambda: member_of(mongod), changed, IMAGES[asked], 20, at_once=True)
    )
    single = list(change_stream.read(lambda: member_of(mongod), changed, IMAGES[asked], 20))
    assert sum(len(part) for part in found if isinstance(part, Run)) > 500
    assert all(changed.contains(e.raw["clusterTime"]) for part in found for e in part)
    assert [(bytes(e.raw.raw), e.after, e.exact) for part in found for e in part] == [
        (bytes(e.raw.raw), e.after, e.exact) for part in single for e in part
    ]


def test_a_few_large_events_stay_in_their_reply(
    mongod: ReplicaSet, database: Database[dict[str, Any]]
) -> None:
    """Guards: large images that are copied one by one, many times each."""
    coll = database.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
    coll.insert_one({"_id": 1, "pad": "x" * 400_000})
    after = last_write(database.client)
    for _ in range(3):
        coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    stages = event_filter.pipeline([Selection.parse(str(coll.full_name)).condition("ns")])
    split = StreamSplit(after, last_write(database.client), database.name, stages)
    found = change_stream.read(lambda: member_of(mongod), split, IMAGES["auto"], 20, at_once=True)
    assert [len(part) for part in found if isinstance(part, Run)] == [3]


def test_record_batches_of_a_slice_are_its_rows(mongod: ReplicaSet, changed: StreamSplit) -> None:
    given = {"uri": mongod.uri, "collections": changed.collections, "document.format": "bson"}
    parsed, arrow = declared.parse(given), schema("bson")
    found = pa.Table.from_batches(task.record_batches(changed, parsed, arrow, may_be_void=True))
    rows = task.read_split(changed, parsed, may_be_void=True)
    assert_same(found, pa.Table.from_batches(arrow_batches.encode_rows(rows, arrow)))
    assert {"create", "drop", "insert", "update", "replace", "delete"} <= set(
        found["op"].to_pylist()
    )


def test_a_slice_that_is_opened_again_shows_nothing_twice_at_once(
    mongod: ReplicaSet, changed: StreamSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(
        change_stream.read(lambda: member_of(mongod), changed, IMAGES["auto"], 20, at_once=True)
    )
    monkeypatch.setattr(change_stream, "_BATCH", 300)
    failures = [1, 2]

    def failing() -> Callable[[Any], None]:
        left = failures.pop(0) if failures else 1000

        def before(command: Any) -> None:
            nonlocal left
            left -= "getMore" in command
            if left < 0:
                raise TransientError("a member that fails")

        return before

    opened = lambda: Watched(member_of(mongod), failing())  # noqa: E731
    parts = list(change_stream.read(opened, changed, IMAGES["auto"], 20, at_once=True))
    assert not failures
    assert sum(isinstance(part, Run) for part in parts) > 2
    assert [e.position for part in parts for e in part] == [e.position for p in whole for e in p]
