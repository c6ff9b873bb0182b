"""The rules by which the oplog is read, and the forms of its entries that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.collection import Collection
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.model import StreamSplit
from cdc.model.oplog import NeedsChangeStream, unfold
from cdc.mongo.connection import OPLOG, Member, member
from cdc.mongo.read import IMAGES, oplog, oplog_reading
from tests.mongo.capture import TIMEOUT_MS, Client, Document, failing, filled, last_write, until
from tests.mongo.read.test_oplog import Begin, both, make_events, raw_entry, require_same, slice_of
from tests.mongo.read.test_oplog import encoder as encoder_fixture
from tests.mongo.read.test_oplog import methods as methods_fixture

encoder, methods = encoder_fixture, methods_fixture

# --- how a slice is read --------------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Document]]:
    """The finds of members so far, each with its member."""
    sent = list[tuple[Any, Document]]()
    send = Member.command

    def note(reader: Member, db: str, command: Mapping[str, Any]) -> RawBSONDocument:
        if "find" in command:
            sent.append((reader, dict(command)))
        return send(reader, db, command)

    monkeypatch.setattr(Member, "command", note)
    return sent


@pytest.fixture
def updates(database: Database[Document]) -> Any:
    """A slice with an update of each of three documents."""
    coll = filled(database, "a", range(3))
    after = last_write(database.client)
    coll.update_many({}, {"$inc": {"n": 1}})
    return slice_of(coll, after, last_write(database.client))


def read_once(server: ReplicaSet, split: Any) -> list[Any]:
    parts = oplog._read_oplog(partial(member, server.uri, TIMEOUT_MS), split)
    return [event for events in parts for event in events]


def test_a_slice_is_read_from_one_member_at_majority_and_not_before_its_upper_time(
    mongod: ReplicaSet, updates: Any, commands: list[tuple[Any, Document]]
) -> None:
    """Guards: another member may lack entries or pre-images; others may still be rolled back."""
    assert len(read_once(mongod, updates)) == 3
    assert len({id(reader) for reader, _ in commands}) == 1
    asked = {command["find"]: command["readConcern"] for _, command in reversed(commands)}
    expected = {"level": "majority", "afterClusterTime": updates.upto}
    assert asked == {"oplog.rs": expected, "system.preimages": expected}


def test_the_beginning_of_the_oplog_is_checked_after_the_first_entries_were_read(
    mongod: ReplicaSet, updates: Any, commands: list[tuple[Any, Document]]
) -> None:
    """Guards: entries that the server removes between a check and the read leave no trace."""
    read_once(mongod, updates)
    entries, check, *_ = [each for _, each in commands if each["find"] == "oplog.rs"]
    assert "$or" in entries["filter"]
    assert check["filter"] == {}


def test_a_slice_whose_place_in_the_oplog_was_removed_is_read_by_a_change_stream(
    capture: Begin,
    database: Database[Document],
    methods: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "cdc.mongo.read.oplog")
    monkeypatch.setattr(oplog, "_BATCH", 7)
    coll = filled(database, "a", range(60))
    by_oplog, by_stream = both(capture, "a")
    coll.update_many({}, {"$inc": {"n": 1}})
    end = by_oplog.plan()
    capped_position_lost = {"failCommands": ["getMore"], "errorCode": 136, "namespace": str(OPLOG)}
    with failing(database.client, {"times": 1}, **capped_position_lost):
        by_oplog.read(end)
    assert methods == ["oplog", "change stream"]
    assert "OperationFailure 136" in caplog.text
    assert len(require_same(by_oplog, by_stream)) == 60


def test_another_version_of_the_server_is_read_by_a_change_stream(
    mongod: ReplicaSet, updates: Any, methods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oplog, "_WIRE_VERSION", 21)
    reasons = list[str]()
    opener = partial(member, mongod.uri, TIMEOUT_MS)
    parts = oplog.read(opener, updates, IMAGES["auto"], 20, note=reasons.append)
    assert len([event for events in parts for event in events]) == 3
    assert reasons == ["the server is not MongoDB 6.0"]
    assert methods == ["oplog", "change stream"]
    assert oplog.find_obstacle(opener(), IMAGES["auto"]) == reasons[0]


def test_an_image_that_is_missing_within_a_transaction_is_not_replaced_by_that_of_another_change(
    capture: Begin, database: Database[Document], encoder: str, methods: list[str]
) -> None:
    """Guards: images are taken in order, and those of a transaction differ only in their number."""
    coll = filled(database, "a", range(4))
    by_oplog, by_stream = both(capture, "a")
    with database.client.start_session() as session, session.start_transaction():
        for number in range(4):
            coll.update_one({"_id": number}, {"$inc": {"n": 1}}, session=session)
    images = database.client.config["system.preimages"]
    number = {"_id.applyOpsIndex": 1, "_id.ts": last_write(database.client)}
    assert images.delete_many(number).deleted_count == 1
    by_oplog.run()
    assert methods == ["oplog", "change stream"]
    rows = require_same(by_oplog, by_stream)
    assert [row.before is None for row in rows] == [False, True, False, False]


ASKED: dict[str, tuple[Document, bool]] = {
    "a change": ({"op": "u", "ns": "shop.a"}, True),
    "a change of another collection": ({"op": "u", "ns": "shop.other"}, False),
    "a change of the server's own": ({"op": "i", "ns": "shop.system.views"}, False),
    "a no-op": ({"op": "n", "ns": ""}, False),
    "a transaction": ({"op": "c", "ns": "admin.$cmd", "o": {"applyOps": []}}, True),
    "DDL of its database": ({"op": "c", "ns": "shop.$cmd", "o": {"drop": "x"}}, True),
    "DDL of another database": ({"op": "c", "ns": "other.$cmd", "o": {"drop": "x"}}, False),
    "a rename from another database": (
        {"op": "c", "ns": "other.$cmd", "o": {"renameCollection": "other.a", "to": "shop.a"}},
        True,
    ),
}


def test_entries_that_may_concern_a_collection_are_asked_for_and_no_others(
    database: Database[Document],
) -> None:
    split = StreamSplit(Timestamp(5, 1), Timestamp(5, 3), "shop", b"", collections="shop.a")
    coll = database["entries"]
    coll.insert_many({"_id": n, "ts": Timestamp(5, 2), **ASKED[n][0]} for n in ASKED)
    found = {each["_id"] for each in coll.find(oplog_reading._condition(split))}
    assert found == {name for name, (_, is_asked_for) in ASKED.items() if is_asked_for}
    coll.update_many({}, {"$set": {"ts": split.after}})
    assert coll.find_one(oplog_reading._condition(split)) is None
    coll.update_many({}, {"$set": {"ts": split.upto}})
    assert len(list(coll.find(oplog_reading._condition(split)))) == len(found)


def test_the_removal_of_old_pre_images_does_not_keep_a_slice_from_being_read() -> None:
    """Guards: the server removes them in commands like those of an administrator, every few seconds
    once its oplog is full. With `read.by = oplog` each of them ended the run."""
    often = {"expiredChangeStreamPreImageRemovalJobSleepSecs": 1}
    with ReplicaSet(set_parameters=often) as server, server.client() as client:
        coll = filled(client["test"], "a", range(30))
        coll.update_many({}, {"$inc": {"n": 1}})
        after, images = last_write(client), client["config"]["system.preimages"]
        _expire(client, 1)
        until(lambda: not images.count_documents({}))
        _expire(client, "off")
        coll.update_many({}, {"$inc": {"n": 1}})
        removed = {"ts": {"$gt": after}, "o.applyOps.ns": "config.system.preimages"}
        assert client["local"]["oplog.rs"].count_documents(removed)
        split = slice_of(coll, after, last_write(client))
        assert len(read_once(server, split)) == 30


def _expire(client: Client, seconds: int | str) -> None:
    images = {"preAndPostImages": {"expireAfterSeconds": seconds}}
    client.admin.command({"setClusterParameter": {"changeStreamOptions": images}})


# --- entries that are refused ---------------------------------------------------------------------

UPDATES: dict[str, tuple[Document, str]] = {
    "of an array with an unknown section": (
        {"slist": {"a": True, "x0": 1}},
        "an unknown part of an update's diff",
    ),
    "of an array by a name": ({"slist": {"a": True, "ux": 1}}, "an unknown part"),
    "of an array whose length is a text": ({"slist": {"a": True, "l": "1"}}, "an unknown part"),
    "of a longer array": ({"slist": {"a": True, "u16777216": 1}}, "longer than a document"),
    "of a document that is an array": ({"slist": {"u": {"a": 1}}}, "another type"),
    "of an array that is a document": ({"sdeep": {"a": True, "u0": 1}}, "another type"),
    "of an absent document": ({"sabsent": {"u": {"a": 1}}}, "does not have"),
    "of an absent field": ({"u": {"absent": 1}}, "does not have"),
    "with an unknown section": ({"x": {"n": 1}}, "an unknown part"),
    "with a section that is a number": ({"u": 1}, "an unknown part"),
}


@pytest.fixture
def entry(database: Database[Document]) -> tuple[Collection[Document], Document]:
    coll = filled(database, "a", [1])
    coll.update_one({"_id": 1}, {"$set": {"n": 5}})
    return coll, raw_entry(database.client)


IMAGE = bson.encode({"_id": 1, "n": 0, "list": [1, 2], "deep": {"a": 0}})


@pytest.mark.parametrize("case", UPDATES)
def test_a_diff_that_is_not_understood_is_refused(entry: Any, encoder: str, case: str) -> None:
    diff, reason = UPDATES[case]
    coll, fields = entry
    with pytest.raises(NeedsChangeStream, match=reason):
        make_events(coll, [{**fields, "o": {"$v": 2, "diff": diff}}], [IMAGE])


ENTRIES: dict[str, tuple[Document, str]] = {
    "an unknown op": ({"op": "x"}, "an unknown kind"),
    "an unknown field": ({"fromMigrate": True}, "an unknown field"),
    "without a UUID": ({"ui": None}, "without a usual field"),
    "without a change": ({"o": None}, "without a usual field"),
    "without a key": ({"o2": None}, "without document key"),
    "without a time of day": ({"wall": None}, "without wall"),
    "an unknown version": ({"o": {"$v": 3, "diff": {}}}, "an unknown version"),
    "a longer update": ({"o": {"$v": 2, "diff": {}, "more": 1}}, "an unknown form"),
    "an update by operators": ({"o": {"$set": {"n": 1}}}, "an unknown form"),
    # MongoDB 4.4 and earlier wrote such entries, which therefore never have a pre-image.
    "an update of version 1": ({"o": {"$v": 1, "$set": {"n": 1}}}, "an unknown form"),
    "a command without a session": (
        {"op": "c", "ns": "admin.$cmd", "lsid": None, "o": {"applyOps": []}},
        "no transaction",
    ),
}
TRANSACTION = {
    "op": "c",
    "ns": "admin.$cmd",
    "lsid": {"id": 1},
    "txnNumber": bson.Int64(1),
    "prevOpTime": {"ts": Timestamp(0, 0), "t": bson.Int64(-1)},
}
COMMANDS: dict[str, tuple[Document, str]] = {
    "of another command": ({"applyOps": [], "more": 1}, "no transaction"),
    "without operations": ({"count": 1}, "no transaction"),
    "prepared": ({"applyOps": [], "prepare": True}, "a prepared transaction"),
    "its commit": ({"commitTransaction": 1}, "a prepared transaction"),
    "its abort": ({"abortTransaction": 1}, "a prepared transaction"),
    "with DDL": ({"applyOps": [{"op": "c", "ns": "a.$cmd", "o": {}}]}, "DDL"),
    "with a no-op": ({"applyOps": [{"op": "n", "ns": "", "o": {}}]}, "an unknown kind"),
    "with a migration": (
        {"applyOps": [{"op": "d", "ns": "a.b", "o": {}, "ui": 1, "fromMigrate": True}]},
        "an unknown field",
    ),
}


@pytest.mark.parametrize("case", [*ENTRIES, *COMMANDS])
def test_an_entry_that_is_not_understood_is_refused(entry: Any, encoder: str, case: str) -> None:
    coll, fields = entry
    if case in ENTRIES:
        change, reason = ENTRIES[case]
    else:
        command, reason = COMMANDS[case]
        change = {**TRANSACTION, "o": command, "o2": None, "ui": None}
    changed = {name: value for name, value in {**fields, **change}.items() if value is not None}
    with pytest.raises(NeedsChangeStream, match=reason):
        make_events(coll, [changed], [IMAGE])


def test_a_transaction_whose_first_entry_is_gone_is_refused() -> None:
    before = Timestamp(5, 1)
    entry = {
        **TRANSACTION,
        "ts": Timestamp(5, 2),
        "prevOpTime": {"ts": before},
        "o": {"applyOps": []},
    }
    asked = list[Timestamp]()
    with pytest.raises(NeedsChangeStream, match="began before the oplog"):
        list(unfold(RawBSONDocument(bson.encode(entry)), asked.append))  # type: ignore[arg-type]
    assert asked == [before]
