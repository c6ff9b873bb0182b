"""Changes that are read from the oplog have the rows that a change stream gives."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.kernel import oplog_reply
from cdc.model import Change, Namespace, Selection, StreamSplit
from cdc.model.oplog import NeedsChangeStream, without_repeated_fields
from cdc.mongo.connection import OPLOG, PRE_IMAGES, CursorBatch, Need, member
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, change_stream, oplog, oplog_reading
from cdc.mongo.read.oplog_events import captured_operations
from cdc.mongo.read.oplog_reading import Found
from tests.mongo.access import Guarded
from tests.mongo.capture import (
    RAW,
    TIMEOUT_MS,
    Capture,
    Client,
    Document,
    document,
    filled,
    id_of,
    last_write,
)

Begin = Callable[..., Capture]
_numbers = itertools.count(1)
RECORDING = {"changeStreamPreAndPostImages": {"enabled": True}}


@pytest.mark.parametrize("read_by", ["oplog", "change_stream"])
def test_the_databases_of_the_server_are_never_read(
    mongod: ReplicaSet, mongo: Client, database: Database[Document], read_by: str
) -> None:
    """Guards: rows of `admin`, and of what a shard notes in `config`. A change stream of the whole
    deployment has none, but the oplog has."""
    written = [mongo.admin.cdc_test, mongo.config.cdc_test, database.orders]
    for coll in written:
        coll.insert_one({"_id": f"{database.name} {read_by}"})
    pipeline = Capture(mongod.uri, ".*", mode="latest", read_by=read_by)
    for coll in written:
        coll.insert_one({"_id": f"{database.name} {read_by} again"})
    pipeline.run()
    assert {row.db for row in pipeline.rows if row.op == "insert"} == {database.name}


@pytest.fixture(params=["plain Python", "compiled"])
def encoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How events are made: the size of a reply decides, which is small in most tests."""
    is_compiled = request.param == "compiled"
    monkeypatch.setattr(oplog_reply, "WORTH", 0 if is_compiled else 2**62)
    return str(request.param)


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each split is read with events made by plain Python and by compiled code: the same rows."""
    read = oplog._read_oplog

    def find_rows(worth: int, split: StreamSplit, open_member: Any) -> list[Any]:
        monkeypatch.setattr(oplog_reply, "WORTH", worth)
        rows: list[Any] = []
        try:
            rows.extend(oplog._rows(read(open_member, split), split))
        except NeedsChangeStream as reason:
            rows.append(str(reason))
        return rows

    def read_by_both(open_member: Any, split: StreamSplit) -> Any:
        plain, compiled = (find_rows(worth, split, open_member) for worth in (2**62, 0))
        assert plain == compiled
        return read(open_member, split)

    monkeypatch.setattr(oplog, "_read_oplog", read_by_both)


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reads of each split, in order: `oplog`, and `change stream` if that had to go on.

    A test that fails shows the reasons in its log.
    """
    caplog.set_level(logging.INFO, oplog.__name__)
    read = list[str]()
    by_oplog, by_stream = oplog._read_oplog, change_stream.read

    def note_oplog(*arguments: Any) -> Any:
        read.append("oplog")
        return by_oplog(*arguments)

    def note_stream(*arguments: Any, **more: Any) -> Any:
        if more.get("at_once"):  # not the planner's search for DDL
            read.append("change stream")
        return by_stream(*arguments, **more)

    monkeypatch.setattr(oplog, "_read_oplog", note_oplog)
    monkeypatch.setattr(change_stream, "read", note_stream)
    return read


def both(capture: Begin, *names: str, **settings: Any) -> tuple[Capture, Capture]:
    """The same pipeline by the oplog and by a change stream, where it has nothing to copy."""
    settings = {"mode": "latest", **settings}
    return capture(*names, **settings), capture(*names, read_by="change_stream", **settings)


def require_same(by_oplog: Capture, by_stream: Capture) -> list[Change]:
    """Read both to the end, compare their rows, and return them in order."""
    for each in (by_oplog, by_stream):
        each.run()
    rows, others = (
        sorted(each.rows, key=lambda row: row.position) for each in (by_oplog, by_stream)
    )
    require_equal(rows, others)
    return rows


def require_equal(rows: list[Change], others: list[Change]) -> None:
    """Compare the rows of the oplog with those of a change stream, both in order."""
    assert len(rows) == len(others)
    for own, other in zip(rows, others, strict=True):
        assert own == other or own == _as_stored(other)


def _as_stored(row: Change) -> Change:
    """The row of a change stream without what its server adds: see `without_repeated_fields`."""
    if row.op != "update" or row.after is None:
        return row
    return row._replace(after=without_repeated_fields(bytes(row.after)))  # type: ignore[arg-type]


def test_retryable_writes_and_transactions_have_their_session_only_in_transactions(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    coll = filled(database, "a", range(3))
    filled(database, "other", [1])
    by_oplog, by_stream = both(capture, "a")
    coll.update_one({"_id": 0}, {"$set": {"n": 1}})
    with database.client.start_session() as session, session.start_transaction():
        database["other"].update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
        coll.update_one({"_id": 1}, {"$set": {"n": 1}}, session=session)
        coll.delete_one({"_id": 2}, session=session)
        coll.insert_one({"_id": 2, "n": 5}, session=session)
    single, *transaction = require_same(by_oplog, by_stream)
    assert single.txn is None
    assert [row.op for row in transaction] == ["update", "delete", "insert"]
    assert len({row.txn["number"] for row in transaction if row.txn}) == 1
    assert methods == ["oplog", "change stream"]


def test_a_transaction_of_several_entries_is_read_whole_at_its_commit(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    """Its entries are written when it commits, and other changes may be among them."""
    coll = filled(database, "a", range(20))
    by_oplog, by_stream = both(capture, "a")
    client: Client = database.client
    with client.start_session() as session, session.start_transaction():
        for number in range(20):
            change = {"$set": {"n": 1, "large": "x" * 2**20}}
            coll.update_one({"_id": number}, change, session=session)
    [last] = client.local["oplog.rs"].find().sort("$natural", -1).limit(1)
    assert last["o"]["count"] == 20, "the server wrote one entry"
    rows = require_same(by_oplog, by_stream)
    assert [row.op for row in rows] == ["update"] * 20
    assert len({row.cluster_inc for row in rows}) == 1
    assert methods == ["oplog", "change stream"]


def test_a_slice_that_begins_inside_a_transaction_has_the_changes_before_its_commit_too(
    database: Database[Document], mongod: ReplicaSet, encoders: None
) -> None:
    coll = filled(database, "a", range(20))
    with database.client.start_session() as session, session.start_transaction():
        for number in range(20):
            change = {"$set": {"large": "x" * 2**20}}
            coll.update_one({"_id": number}, change, session=session)
    entries = list(database.client.local["oplog.rs"].find({"o.applyOps": {"$exists": True}}))
    *_, before, commit = [entry["ts"] for entry in entries]
    whole = slice_of(coll, before, commit)
    assert len(list(read_oplog(mongod, whole))) == 20
    none = slice_of(coll, Timestamp(before.time, before.inc - 1), before)
    assert list(read_oplog(mongod, none)) == []


def slice_of(coll: Collection[Document], after: Timestamp, upto: Timestamp) -> StreamSplit:
    name = f"{coll.database.name}.{coll.name}"
    stages = event_filter.pipeline([Selection.parse(name).condition("ns")])
    database = coll.database.name
    return StreamSplit(after, upto, database, stages, collections=name, is_whole=True)


def read_oplog(server: ReplicaSet, split: StreamSplit) -> Iterator[Any]:
    opener = partial(member, server.uri, TIMEOUT_MS)
    for events in oplog._read_oplog(opener, split):
        yield from events


def test_large_documents_become_events_in_parts_that_fit_in_memory(
    capture: Begin,
    database: Database[Document],
    encoders: None,
    methods: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: 10,000 deletes are a small reply, and their pre-images may have 16 MiB each."""
    monkeypatch.setattr(oplog_reading, "_MOST_BYTES", 2000)
    coll = filled(database, "a", range(50))
    by_oplog, by_stream = both(capture, "a")
    coll.delete_many({})
    assert len(require_same(by_oplog, by_stream)) == 50
    assert methods == ["oplog", "change stream"]


def test_a_change_that_is_too_large_for_a_change_stream_has_both_images(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    coll = database.create_collection("a", **RECORDING)
    coll.insert_one({"_id": 1, "x": "x" * (15 * 2**20)})
    by_oplog = capture("a", mode="latest")
    coll.replace_one({"_id": 1}, {"x": "y" * (15 * 2**20)})
    [row] = (row for batch in by_oplog.run() for row in batch.rows)
    before, after = document(row.before), document(row.after)
    assert before is not None
    assert after is not None
    assert (before["x"][:1], after["x"][:1], row.exact) == ("x", "y", True)
    assert methods == ["oplog"]


def test_a_field_that_an_update_moves_to_the_end_is_in_the_image_once_and_as_it_is_stored(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    """Guards: a change stream reports it at its earlier place too, with its earlier value."""
    coll = database.create_collection("a", **RECORDING)
    deep = {"moved": 2, "n": 3, "pad": "x" * 100}
    coll.insert_one({"_id": 1, "moved": 1, "deep": deep, "pad": "x" * 100})
    by_oplog, by_stream = both(capture, "a")
    deep = {"n": "$deep.n", "pad": "$deep.pad", "moved": 6}
    new = {"_id": 1, "deep": deep, "pad": "$pad", "moved": 5}
    coll.update_one({"_id": 1}, [{"$replaceWith": new}])
    [stored] = coll.with_options(codec_options=RAW).find()
    [row], [other] = (each.run()[-1].rows for each in (by_oplog, by_stream))
    assert (row.op, row.after) == ("update", bytes(stored.raw))
    assert row._replace(after=None) == other._replace(after=None)
    assert without_repeated_fields(bytes(other.after)) == row.after
    assert other.after != row.after, "the server does so no longer; see `Comparison`"


def update_one(coll: Collection[Document]) -> None:
    coll.update_one({"_id": 1}, {"$set": {"n": 2}})


def create_other(coll: Collection[Document]) -> None:
    coll.database.create_collection("other")


def create_in_transaction(coll: Collection[Document]) -> None:
    with coll.database.client.start_session() as session, session.start_transaction():
        coll.database["other"].insert_one({"_id": 1}, session=session)


def apply_directly(coll: Collection[Document]) -> None:
    """An administrator's applyOps is one entry, which a change stream does not unfold."""
    operations = [
        {"op": "i", "ns": f"{coll.database.name}.{coll.name}", "o": {"_id": number}}
        for number in (7, 8)
    ]
    coll.database.client.admin.command({"applyOps": operations})


def clone_capped(coll: Collection[Document]) -> None:
    coll.database.command("cloneCollectionAsCapped", coll.name, toCollection="b", size=10_000)


CASES = {
    "DDL": (create_other, "DDL"),
    "DDL in a transaction": (create_in_transaction, "DDL"),
    "an administrator's applyOps": (apply_directly, "a command that is no transaction"),
    "a clone, whose inserts look like a migration": (clone_capped, "DDL"),
    "no pre-images": (update_one, "a missing pre-image"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_understood_is_read_by_a_change_stream(
    capture: Begin,
    database: Database[Document],
    encoders: None,
    methods: list[str],
    caplog: pytest.LogCaptureFixture,
    case: str,
) -> None:
    caplog.set_level("INFO", "cdc.mongo.read.oplog")
    change, reason = CASES[case]
    coll = filled(database, "a", range(5), images=case != "no pre-images")
    by_oplog, by_stream = both(capture, "a", "b", missing_collections="wait")
    coll.insert_one({"_id": 10})
    change(coll)
    coll.insert_one({"_id": 11})
    by_oplog.run()
    assert "change stream" in methods
    assert f"read by a change stream: {reason}" in caplog.text
    rows = require_same(by_oplog, by_stream)
    inserted = [id_of(row) for row in rows if row.op == "insert"]
    assert {10, 11}.issubset(inserted)


def test_a_read_that_needs_a_change_stream_late_has_each_change_once(
    capture: Begin, database: Database[Document], encoders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the change stream begins at the lower time and skips what was already emitted."""
    monkeypatch.setattr(oplog, "_BATCH", 7)
    coll = filled(database, "a", range(5))
    by_oplog, by_stream = both(capture, "a")
    coll.insert_many([{"_id": number} for number in range(10, 40)])
    create_other(coll)
    coll.insert_many([{"_id": number} for number in range(40, 60)])
    rows = require_same(by_oplog, by_stream)
    assert len([row for row in rows if row.op == "insert"]) == 50


def test_an_operation_of_version_1_that_an_administrator_applies_is_an_update_of_version_2(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    """MongoDB 6.0 writes `$v: 1` nowhere, but in the `applyOps` that a change stream omits too."""
    coll = filled(database, "a", range(3))
    by_oplog, by_stream = both(capture, "a")
    for number, change in enumerate(({"$set": {"n": 5}}, {"$unset": {"n": True}})):
        applied = {"op": "u", "ns": f"{database.name}.a", "o2": {"_id": number}}
        operations = [{**applied, "o": {"$v": 1, **change}}]
        coll.database.client.admin.command({"applyOps": operations, "allowAtomic": False})
        assert raw_entry(database.client)["o"]["$v"] == 2
    assert [row.op for row in require_same(by_oplog, by_stream)] == ["update"] * 2
    assert methods == ["oplog", "change stream"]


def test_unknown_parts_of_an_entry_are_refused(database: Any, encoder: str) -> None:
    """Guards: an entry of a later server, or a part of a diff, is never taken for another one."""
    coll = filled(database, "a", range(3))
    coll.update_one({"_id": 1}, {"$set": {"n": 5}})
    entry = raw_entry(database.client)
    image = bson.encode({"_id": 1, "n": 0})
    for change in (
        {"op": "x"},
        {"fromMigrate": True},
        {"o": {"$v": 3, "diff": {}}},
        {"o": {"$v": 2, "diff": {"b": {"n": 1}}}},
        {"o": {"$v": 2, "diff": {"u": {"absent": 1}}}},
        {"o": {"$v": 2, "diff": {"sn": {"u": {"a": 1}}}}},
        {"o": {"$v": 2, "diff": {"sn": {"a": True, "u0": 1}}}},
        {"o": {"$v": 2, "diff": {"u": {"n": 1}}, "more": 1}},
        {"o2": None, "op": "u"},
    ):
        fields = {**entry, **change}
        changed = {name: value for name, value in fields.items() if value is not None}
        with pytest.raises(oplog.NeedsChangeStream):
            make_events(coll, [changed], [image])


def raw_entry(client: MongoClient[Document]) -> Document:
    [newest] = client.local["oplog.rs"].find({"op": "u"}).sort("$natural", -1).limit(1)
    return newest


def make_events(coll: Any, entries: list[Document], images: list[bytes]) -> Any:
    """The events of entries, made without a server."""

    def batch(documents: list[Any]) -> CursorBatch:
        reply = {"cursor": {"id": 0, "ns": "x", "firstBatch": documents}, "ok": 1}
        return CursorBatch.of(RawBSONDocument(bson.encode(reply)))

    selection = Selection.parse(f"{coll.database.name}.{coll.name}")
    operations = captured_operations(batch(entries), selection, lambda time: None)
    recorded = [
        {
            "_id": {"nsUUID": entry["ui"], "ts": entry["ts"], "applyOpsIndex": bson.Int64(0)},
            "preImage": RawBSONDocument(image),
        }
        for entry, image in zip(entries, images, strict=True)
    ]
    found = [Found(each, [batch(recorded)]) for each in operations.ranges()]
    return operations.events(found)


def test_a_member_that_has_not_reached_the_upper_time_is_not_taken_for_complete(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    """Guards: the oplog ends early there, and looks complete."""
    coll = filled(database, "a", range(3))
    after = last_write(database.client)
    upto = Timestamp(after.time + 2, 1)
    split = slice_of(coll, after, upto)
    opener = partial(member, mongod.uri, TIMEOUT_MS)
    writer = threading.Timer(0.5, lambda: coll.insert_one({"_id": 7}))
    writer.start()
    reasons = list[str]()
    parts = oplog.read(opener, split, IMAGES["auto"], 20, note=reasons.append)
    read = [event for events in parts for event in events]
    writer.join()
    assert reasons == ["a member that lags"]
    assert [bson.decode(event.raw["documentKey"].raw)["_id"] for event in read] == [7]


def test_an_oplog_that_begins_after_the_lower_time_is_not_read(mongod: ReplicaSet) -> None:
    """Guards: entries that were removed at the beginning of a slice leave no trace."""
    with mongod.client() as client:
        coll = filled(client["begins_late"], "a", range(3))
        split = slice_of(coll, Timestamp(1, 1), last_write(client))
    with pytest.raises(oplog.NeedsChangeStream, match="begins after"):
        list(read_oplog(mongod, split))


@pytest.mark.parametrize("missing", [None, OPLOG, PRE_IMAGES], ids=str)
def test_a_user_needs_two_more_privileges_and_gets_the_same_rows_without_them(
    guarded: Guarded, methods: list[str], missing: Namespace | None
) -> None:
    database = guarded.client[f"shop{next(_numbers)}"]
    coll = filled(database, "a", range(3))
    actions = ("find", "changeStream", "listCollections")
    needs = [Need(action, database.name) for action in actions]
    needs += [Need("find", *each) for each in (OPLOG, PRE_IMAGES) if each != missing]
    pipeline = Capture(guarded.user(needs), f"{database.name}.a", mode="latest")
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    [row] = (row for batch in pipeline.run() for row in batch.rows)
    assert ((document(row.before) or {})["n"], (document(row.after) or {})["n"]) == (0, 1)
    assert methods == (["oplog", "change stream"] if missing else ["oplog"])


@pytest.mark.parametrize(
    "settings",
    [
        {"images": "off"},
        {"images": "update_lookup"},
        {"read_by": "change_stream"},
    ],
    ids=str,
)
def test_what_the_oplog_does_not_have_is_not_read_from_it(
    capture: Begin, database: Database[Document], methods: list[str], settings: dict[str, str]
) -> None:
    coll = filled(database, "a", range(3))
    pipeline = capture("a", mode="latest", **settings)
    coll.insert_one({"_id": 7, "n": 0})
    pipeline.run()
    assert methods == ["change stream"]


def test_the_split_states_whether_the_oplog_may_be_read(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(3))
    pipeline = capture("a", mode="latest")
    database["a"].insert_one({"_id": 7})
    [split] = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
    assert isinstance(split, StreamSplit)
    assert oplog.find_exclusion(split, IMAGES["auto"]) is None
    time = split.upto
    for excluded in ({"late": (time,)}, {"emitted": (time,)}):
        assert oplog.find_exclusion(replace(split, **excluded), IMAGES["auto"]) is not None


@pytest.mark.parametrize(
    ("images", "late", "reason"),
    [
        ("off", False, "'images' asks for none that are recorded"),
        ("update_lookup", False, "'images' asks for none that are recorded"),
        ("auto", True, "a transaction across shards"),
    ],
)
def test_the_reason_why_a_slice_never_is_in_the_oplog_is_logged_and_counted_too(
    mongod: ReplicaSet,
    database: Database[Document],
    caplog: pytest.LogCaptureFixture,
    images: str,
    late: bool,
    reason: str,
) -> None:
    caplog.set_level("INFO", oplog.__name__)
    coll = filled(database, "a", range(3))
    after = last_write(database.client)
    coll.insert_one({"_id": 7})
    split = slice_of(coll, after, last_write(database.client))
    split = replace(split, late=(split.upto,)) if late else split
    reasons = list[str]()
    opener = partial(member, mongod.uri, TIMEOUT_MS)
    parts = oplog.read(opener, split, IMAGES[images], 20, note=reasons.append)
    assert len([event for events in parts for event in events]) == 1
    assert reasons == [reason]
    assert [record.getMessage().endswith(reason) for record in caplog.records] == [True]
