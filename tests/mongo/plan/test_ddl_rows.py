"""Every event of DDL is one row, and none of them ends the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.database import Database

from cdc.errors import ContentReplaced
from cdc.model import CaptureFilter, Change, Selection, event_row
from tests.mongo.abilities import abilities
from tests.mongo.capture import Capture, Client, Document, contents, filled, replayed

Begin = Callable[..., Capture]
ROWS = ("read", "insert", "update", "replace", "delete")


def ddl(pipeline: Capture) -> list[Change]:
    reported = [row for row in pipeline.rows if row.op not in ROWS]
    return sorted(reported, key=lambda row: row.position)


def ops(pipeline: Capture) -> list[str]:
    return [row.op for row in ddl(pipeline)]


def described(row: Change) -> Any:
    return json.loads(row.description or "null")


ACTS: dict[str, tuple[str, Callable[[Database[Document]], Any], Any]] = {
    "a creation": ("create", lambda db: db.create_collection("new"), {"idIndex"}),
    "an index": (
        "createIndexes",
        lambda db: db.b.create_index("n"),
        {"indexes": [{"v": 2, "key": {"n": 1}, "name": "n_1"}]},
    ),
    "a dropped index": (
        "dropIndexes",
        lambda db: db.b.drop_index("x_1"),
        {"indexes": [{"v": 2, "key": {"x": 1}, "name": "x_1"}]},
    ),
    "a changed option": (
        "modify",
        lambda db: db.command("collMod", "b", validator={"n": {"$gte": 0}}),
        {"validator": {"n": {"$gte": 0}}},
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_ddl_that_changes_no_content_is_one_row_with_its_description(
    capture: Begin, database: Database[Document], act: str
) -> None:
    """Guards: it cuts no batch and copies nothing. A server before 6.0 does not report it."""
    filled(database, "b", range(5)).create_index("x")
    op, change, description = ACTS[act]
    pipeline = capture("b", "new", mode="latest")
    database.b.update_one({"_id": 1}, {"$inc": {"n": 1}})
    change(database)
    database.b.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert pipeline.batch().ids("update") == [1, 1]
    pipeline.run()
    assert not pipeline.namespaces_copied
    if not abilities(database.client).reports_all_ddl:
        assert ops(pipeline) == []
        return
    (row,) = ddl(pipeline)
    assert (row.op, row.db, row.coll) == (op, database.name, "new" if op == "create" else "b")
    reported = described(row)["operationDescription"]
    assert set(reported) == description if op == "create" else reported == description
    assert described(row)["ns"] == {"db": row.db, "coll": row.coll}


def test_a_rename_reports_both_names_and_the_incarnations(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "b", range(5))
    filled(database, "c", range(5))
    pipeline = capture("b", mode="latest")
    database.c.rename("b", dropTarget=True)
    pipeline.run()
    (row,) = ddl(pipeline)
    reported = described(row)
    assert (reported["ns"]["coll"], reported["to"]["coll"]) == ("c", "b")
    if abilities(database.client).reports_all_ddl:
        assert set(reported["operationDescription"]) == {"to", "dropTarget"}


def test_out_and_convert_to_capped_are_a_rename_each_and_nothing_else(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: of the collections in which the server builds the new content nothing is reported."""
    filled(database, "a", range(40))
    filled(database, "b", range(5))
    pipeline = capture(".*", "[ab]")
    pipeline.run()
    before = len(ddl(pipeline))
    database.a.aggregate([{"$match": {"_id": {"$lt": 20}}}, {"$out": "b"}])
    database.a.aggregate([{"$match": {"_id": {"$gte": 10}}}, {"$out": "b"}])
    pipeline.run()
    database.command("convertToCapped", "b", size=2**20)
    pipeline.run()
    assert [(row.op, row.coll) for row in ddl(pipeline)[before:]] == [("rename", "b")] * 3
    assert pipeline.replayed(database.b) == contents(database.b)
    assert len(contents(database.b)) == 30


def test_a_view_and_a_time_series_are_in_no_row(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the server reports them as if they were collections; a drop would cut a batch."""
    filled(database, "b", range(5))
    pipeline = capture("[a-z]+", mode="latest")
    for kind in ({"viewOn": "b", "pipeline": []}, {"timeseries": {"timeField": "t"}}):
        if "timeseries" in kind and not abilities(database.client).reads_at_a_time:
            continue  # before 5.0 there is none
        database.create_collection("v", **kind)
        database.drop_collection("v")
    database.create_collection("w", viewOn="b", pipeline=[])
    database.command("collMod", "w", viewOn="b", pipeline=[{"$match": {"n": 1}}])
    database.b.insert_one({"_id": 9})
    assert pipeline.batch().ops == [("insert", 9)]
    database.drop_collection("b")
    pipeline.run()
    assert ops(pipeline) == ["drop"]


def test_a_collection_dropped_and_created_three_times_keeps_streaming(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "b", range(5))
    pipeline = capture("b", mode="latest")
    for incarnation in range(3):
        database.drop_collection("b")
        pipeline.run()
        filled(database, "b", range(incarnation, 9))
        database.b.delete_one({"_id": 8})
        pipeline.run()
        held = replayed(pipeline.rows, database.name, "b")
        assert held == contents(database.b)
    created = ["create"] if abilities(database.client).reports_all_ddl else []
    assert ops(pipeline) == ["drop", *created] * 3
    assert not pipeline.namespaces_copied


def test_a_stream_that_is_invalidated_goes_on(
    capture: Begin, database: Database[Document], mongo: Client
) -> None:
    """Guards: a stream of one database ends with it, the run does not; and `invalidate` is no
    row."""
    filled(database, "b", range(5))
    pipeline = capture("b", mode="latest")
    for incarnation in range(3):
        mongo.drop_database(database.name)
        database.b.insert_one({"_id": incarnation})
        if incarnation:
            pipeline.run()
    pipeline.run()
    created = ["create"] if abilities(mongo).reports_all_ddl else []
    assert ops(pipeline) == ["drop", "dropDatabase", *created] * 3
    assert pipeline.replayed(database.b) == contents(database.b)


# --- on.replaced --------------------------------------------------------------------------------

REPLACING: dict[str, Callable[[Database[Document]], Any]] = {
    "$out": lambda db: db.a.aggregate([{"$out": "b"}]),
    "a rename onto it": lambda db: db.a.rename("b", dropTarget=True),
    "convertToCapped": lambda db: db.command("convertToCapped", "b", size=2**20),
}


@pytest.mark.parametrize("mode", ["initial", "latest"])
@pytest.mark.parametrize("replacing", REPLACING)
def test_with_on_replaced_fail_the_run_ends_before_anything_of_the_new_content_is_reported(
    capture: Begin, database: Database[Document], replacing: str, mode: str
) -> None:
    filled(database, "a", range(10, 30))
    filled(database, "b", range(20))
    pipeline = capture("b", on_replaced="fail", mode=mode)
    pipeline.run()
    REPLACING[replacing](database)
    with pytest.raises(ContentReplaced, match=rf"{database.name}\.b was replaced .*on\.replaced"):
        pipeline.plan()
    pipeline = pipeline.restarted(f"{database.name}.b", on_replaced="resync")
    pipeline.run()
    assert pipeline.replayed(database.b) == contents(database.b)


@pytest.mark.parametrize("drop", [True, False])
def test_with_on_replaced_fail_a_drop_is_no_reason_to_end(
    capture: Begin, database: Database[Document], drop: bool
) -> None:
    """Guards: what comes after it comes with row events; also when it is renamed away."""
    filled(database, "b", range(20))
    pipeline = capture("b", on_replaced="fail")
    pipeline.batch()
    if drop:
        database.b.drop()
    else:
        database.b.rename("elsewhere")
    filled(database, "b", range(7))
    pipeline.run()
    assert pipeline.replayed(database.b) == contents(database.b)


def test_with_on_replaced_fail_a_collection_taken_out_ends_nothing(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the remedy that the error names."""
    filled(database, "a", range(10))
    filled(database, "b", range(10))
    pipeline = capture("a", "b", on_replaced="fail")
    pipeline.run()
    database.a.aggregate([{"$out": "b"}])
    pipeline = pipeline.restarted(f"{database.name}.a", on_replaced="fail")
    pipeline.run()
    database.a.insert_one({"_id": 99})
    assert pipeline.batch().ids("insert") == [99]


# --- what no server reports yet -------------------------------------------------------------------

BASE: Document = {
    "_id": {"_data": "82"},
    "operationType": "frobnicate",
    "clusterTime": Timestamp(7, 3),
}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, (None, None)),
        ({"ns": {"db": "d"}}, ("d", None)),
        ({"ns": {"db": "d", "coll": "c"}, "to": "another shard"}, ("d", "c")),
        ({"ns": {"db": "d", "coll": "c"}, "documentKey": {"k": 1}}, ("d", "c")),
        ({"ns": {"db": "d", "coll": "x"}, "to": {"db": "d", "coll": "c"}}, ("d", "c")),
        (
            {"ns": {"db": "d", "coll": "c"}, "fullDocument": {"_id": 1}, "list": [1, "a"]},
            ("d", "c"),
        ),
    ],
)
def test_an_event_of_an_unknown_type_is_a_row_whatever_its_fields(
    more: Document, names: tuple[str | None, str | None]
) -> None:
    event = RawBSONDocument(bson.encode({**BASE, **more}))
    row = event_row(event, None, True, None, "", Selection.parse("d.c"), CaptureFilter(), bytes)
    assert (row.op, row.db, row.coll) == ("frobnicate", *names)
    assert described(row) == more
    assert row.key is row.after is None
