"""DDL cuts the batch: what stood before it and what stands after it never share one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.write_concern import WriteConcern

from cdc.demo import ReplicaSet
from cdc.model import timestamp
from cdc.mongo.plan import Limits
from cdc.mongo.topology.replica_set import ReplicaSet as Source
from tests.mongo.abilities import abilities
from tests.mongo.capture import (
    EMPTYING,
    Capture,
    Client,
    Document,
    contents,
    filled,
    id_of,
    last_write,
)

Begin = Callable[..., Capture]
Ddl = Callable[[Database[Document]], str]  # the collection it concerns is `b`; the op of its event

UNCONFIRMED = WriteConcern(1)
OLD, NEW = range(60), range(1000, 1040)


def drop(database: Database[Document]) -> str:
    database.drop_collection("b")
    return "drop"


def rename_away(database: Database[Document]) -> str:
    database["b"].rename("elsewhere")
    return "rename"


def drop_and_create(database: Database[Document]) -> str:
    drop(database)
    filled(database, "b", NEW)
    return "drop"


def rename_onto(database: Database[Document]) -> str:
    filled(database, "incoming", NEW)
    database["incoming"].rename("b", dropTarget=True)
    return "rename"


def out_onto(database: Database[Document]) -> str:
    filled(database, "incoming", NEW)
    database["incoming"].aggregate([{"$out": "b"}])
    return "rename"


def convert_to_capped(database: Database[Document]) -> str:
    database.command("convertToCapped", "b", size=2**20)
    return "rename"


def drop_database(database: Database[Document]) -> str:
    database.client.drop_database(database.name)
    return "drop"


def drop_database_and_create(database: Database[Document]) -> str:
    drop_database(database)
    filled(database, "b", NEW)
    return "drop"


DDL = [
    drop,
    rename_away,
    drop_and_create,
    rename_onto,
    out_onto,
    convert_to_capped,
    drop_database,
    drop_database_and_create,
]
# By name the stream is opened on the database and ends at dropDatabase; by a regular expression on
# the cluster.
SELECTIONS = {"by name": ["a", "b", "c"], "by expression": ["[abc]"]}
PHASES = ["untouched", "copying", "streaming"]


@pytest.mark.parametrize("selected", SELECTIONS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("ddl", DDL, ids=lambda ddl: ddl.__name__)
def test_a_batch_ends_exactly_at_the_ddl_and_the_new_content_arrives(
    capture: Begin, database: Database[Document], ddl: Ddl, phase: str, selected: str
) -> None:
    """Guards: a DDL event cuts the batch at its time, without a scan; the next begins anew."""
    a, b, _ = (filled(database, name, OLD) for name in "abc")
    pipeline = capture(*SELECTIONS[selected])
    advance_to(phase, pipeline, b)
    a.update_one({"_id": 0}, {"$inc": {"n": 1}})
    b.update_one({"_id": 0}, {"$inc": {"n": 1}})
    op = ddl(database)
    database["a"].insert_one({"_id": "after"})
    database["b"].insert_one({"_id": "after"})

    cut = pipeline.batch()

    assert not cut.ids("read")
    row = next(row for row in cut.rows if row.op == op)
    assert row.position == max(row.position for row in cut.rows)
    assert (cut.end.time.time, cut.end.time.inc) == (row.cluster_time // 1_000_000, row.cluster_inc)
    assert cut.end.copying is None or cut.end.copying.namespace.coll != row.coll
    pipeline.run()
    same(pipeline, database, "a", "b", "c")


@pytest.mark.parametrize("ddl", [drop_database_and_create, rename_onto, rename_away])
def test_ddl_is_found_where_an_expression_begins_with_its_database(
    mongod: ReplicaSet, database: Database[Document], ddl: Ddl
) -> None:
    """Guards: such a stream is one of the database, like that of names, and ends with it."""
    a, b, _ = (filled(database, name, OLD) for name in "abc")
    pipeline = Capture(mongod.uri, rf"{database.name}\.[abc]")
    advance_to("streaming", pipeline, b)
    a.update_one({"_id": 0}, {"$inc": {"n": 1}})
    op = ddl(database)
    database["a"].insert_one({"_id": "after"})
    pipeline.run()
    assert op in {row.op for row in pipeline.rows}
    same(pipeline, database, "a", "b", "c")


def advance_to(phase: str, pipeline: Capture, b: Collection[Document]) -> None:
    if phase == "streaming":
        pipeline.run()
    while phase == "copying" and not (
        pipeline.offset.copying and pipeline.offset.copying.namespace.coll == b.name
    ):
        pipeline.batch()


def same(pipeline: Capture, database: Database[Document], *names: str) -> None:
    for name in names:
        held, there = pipeline.replayed(database[name]), contents(database[name])
        assert held == there, f"{name}: {held.keys() ^ there.keys()}"
    for batch in pipeline.batches:
        cuts = [row.position for row in batch.rows if row.op in EMPTYING]
        assert not cuts or cuts == [max(row.position for row in batch.rows)]
    positions = [(row.position, row.db, row.coll, row.key) for row in pipeline.rows]
    assert len(set(positions)) == len(positions)


@pytest.mark.parametrize("ddl", [rename_onto, out_onto, convert_to_capped])
def test_content_that_came_without_row_events_is_copied_again_from_the_lowest_key(
    capture: Begin, database: Database[Document], ddl: Ddl
) -> None:
    """Guards: a name refilled by rename goes on the list `again`; its copy begins at MinKey."""
    b = filled(database, "b", OLD)
    pipeline = capture("b")
    advance_to("copying", pipeline, b)
    ddl(database)
    pipeline.batch()
    assert [str(each.namespace) for each in pipeline.offset.again] == [f"{database.name}.b"]
    rest = [split for batch in pipeline.run() for split in batch.snapshot_splits]
    uuid = next(database.list_collections(filter={"name": "b"}))["info"]["uuid"]
    assert {split.uuid for split in rest} == {bytes(uuid)}
    same(pipeline, database, "b")


def changes(database: Database[Document], born: str = "born") -> list[tuple[str, Any]]:
    """Of `b`, as (op, _id) of their rows."""
    b = database["b"]
    b.update_one({"_id": NEW[0]}, {"$inc": {"n": 1}})
    b.insert_one({"_id": born, "n": 0})
    b.update_one({"_id": born}, {"$inc": {"n": 1}})
    return [("update", NEW[0]), ("insert", born), ("update", born)]


@pytest.mark.parametrize("limits", [None, Limits(2, 2**30, 1)], ids=["one batch", "a backlog"])
@pytest.mark.parametrize("replace_content", [rename_onto, out_onto])
def test_no_change_of_replaced_content_is_missing(
    capture: Begin, database: Database[Document], replace_content: Ddl, limits: Limits | None
) -> None:
    """Guards: new content is copied as of the time at which it came, while that can be read."""
    filled(database, "b", OLD)
    pipeline = capture("b", splits_per_batch=100, limits=limits)
    pipeline.run()
    replace_content(database)
    reported = changes(database)
    batches = pipeline.run()
    copy = next(batch for batch in batches if batch.snapshot_splits)
    assert copy.start.time == copy.end.time == batches[0].end.time
    if abilities(database.client).reads_at_a_time:
        assert copy.ids("read") == list(NEW)
    assert [
        row for batch in batches for row in batch.ops if row[0] in ("insert", "update")
    ] == reported
    assert [row.description for row in pipeline.resyncs] == [None]
    same(pipeline, database, "b")


def test_no_change_of_replaced_content_is_missing_while_the_majority_lags(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the batch after the cut cannot copy before its listing is confirmed, which takes
    seconds on a busy server. If it went on without the copy, changes would be withheld."""
    filled(database, "b", OLD)
    pipeline = capture("b", splits_per_batch=100)
    pipeline.run()
    rename_onto(database)
    cut, reported = pipeline.batch(), changes(database)
    pipeline.now()
    admin, lagging = database.client.admin, {"configureFailPoint": "disableSnapshotting"}
    admin.command({**lagging, "mode": "alwaysOn"})

    def catch_up() -> None:
        admin.command({**lagging, "mode": "off"})
        database["other"].insert_one({})

    confirmed = threading.Timer(2, catch_up)
    confirmed.start()
    try:
        database.get_collection("other", write_concern=UNCONFIRMED).insert_one({})
        copy = pipeline.read(pipeline.plan_now())
    finally:
        confirmed.join()
    assert copy.snapshot_splits
    assert copy.start.time == copy.end.time == cut.end.time
    assert [row for batch in pipeline.run() for row in batch.ops] == reported
    assert [row.description for row in pipeline.resyncs] == [None]
    same(pipeline, database, "b")


def test_content_that_is_replaced_once_more_is_copied_as_of_the_second_time(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: what is listed was not there yet at the first time."""
    filled(database, "b", OLD)
    pipeline = capture("b", splits_per_batch=100)
    pipeline.run()
    rename_onto(database)
    changes(database)
    database["a"].insert_many({"_id": key} for key in OLD)
    database["a"].rename("b", dropTarget=True)
    reported = changes(database)[1:]  # what the first one is about is not there
    first, second, copy, rest = pipeline.run()
    assert (first.ids("rename"), second.ops) == (["b"], [("rename", "b")])
    assert copy.start.time == copy.end.time == second.end.time
    assert (copy.ids("read"), rest.ops) == (list(OLD), reported)
    missing = {"from": timestamp.text(first.end.time), "to": timestamp.text(second.end.time)}
    assert [row.description for row in pipeline.resyncs] == [None, json.dumps(missing)]
    same(pipeline, database, "b")


@pytest.mark.parametrize("ddl", [rename_onto, out_onto, convert_to_capped])
def test_a_mode_that_copies_nothing_goes_on_with_the_changes_of_replaced_content(
    capture: Begin, database: Database[Document], ddl: Ddl
) -> None:
    """Guards: no copy that nobody asked for, and no change that is missing for it."""
    filled(database, "b", NEW)
    pipeline = capture("b", mode="latest")
    first = changes(database)
    ddl(database)
    then = changes(database, "born later")
    pipeline.run()
    reported = [row for batch in pipeline.batches for row in batch.ops]
    assert reported == [*first, ("rename", "b"), *then]
    assert not pipeline.namespaces_copied
    assert not pipeline.resyncs


def test_a_copy_under_way_begins_again_in_a_mode_that_copies_nothing(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a checkpoint of `initial` that goes on as `latest` ends what it began."""
    b = filled(database, "b", OLD)
    pipeline = capture("b")
    advance_to("copying", pipeline, b)
    pipeline = pipeline.restarted(f"{database.name}.b", mode="latest")
    out_onto(database)
    pipeline.run()
    same(pipeline, database, "b")


@pytest.mark.parametrize("phase", PHASES)
def test_a_collection_dropped_and_created_three_times_ends_with_the_last(
    capture: Begin, database: Database[Document], phase: str
) -> None:
    """Guards: one cut per DDL event."""
    b = filled(database, "b", OLD)
    pipeline = capture("b")
    advance_to(phase, pipeline, b)
    for incarnation in range(3):
        database.drop_collection("b")
        coll = filled(database, "b", range(incarnation, 50))
        coll.update_one({"_id": 10}, {"$set": {"incarnation": incarnation}})
    batches = pipeline.run()
    assert [len(batch.ids("drop")) for batch in batches if batch.ids("drop")] == [1, 1, 1]
    same(pipeline, database, "b")


def test_ddl_of_a_collection_of_which_nothing_is_copied_is_emitted(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the key filter is for row events only; with K = MinKey it would drop the DDL row."""
    filled(database, "b", OLD)
    pipeline = capture("b")
    database["b"].create_index("n")
    database.drop_collection("b")
    assert pipeline.batch().ids("drop") == ["b"]
    assert [row for batch in pipeline.run() for row in batch.rows] == []


def test_ddl_of_the_collection_being_copied_is_emitted_below_any_key(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: events without a document key pass by their type, not by the key filter."""
    b = filled(database, "b", OLD)
    pipeline = capture("b")
    advance_to("copying", pipeline, b)
    b.update_many({}, {"$inc": {"n": 1}})
    b.drop()
    batch = pipeline.batch()
    assert batch.ids("drop") == ["b"]
    below = len({row.key for row in pipeline.batches[0].rows})
    assert batch.ids("update") == list(range(below))


def test_a_void_split_emits_nothing_and_the_next_batch_reports_why(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: 361 and 26 are no failure: retrying would never end, failing would end the run."""
    for ddl in (drop, rename_away, drop_and_create, out_onto):
        database.drop_collection("elsewhere")
        database.drop_collection("b")
        filled(database, "b", OLD)
        pipeline = capture("b")
        batch = pipeline.read(pipeline.plan(), meanwhile=partial(ddl, database))
        assert batch.snapshot_splits
        assert batch.rows == []
        assert pipeline.batch().ids("drop", "rename")
        pipeline.run()
        same(pipeline, database, "b")


def test_a_collection_born_after_the_listing_is_not_lost(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: an event of a name that the batch declares done and nobody scans postpones the
    scan."""
    filled(database, "a", OLD)
    filled(database, "c", OLD)
    pipeline = capture("[abc]", splits_per_batch=100)
    ask = Source.confirm

    def born(source: Source, found: Any, patience: float) -> Any:
        monkeypatch.setattr(Source, "confirm", ask)
        filled(database, "b", OLD)
        return pipeline.now()

    pipeline.now()
    monkeypatch.setattr(Source, "confirm", born)
    first = pipeline.read(pipeline.plan_now())
    assert "b" in database.list_collection_names()
    assert not first.snapshot_splits
    pipeline.run()
    same(pipeline, database, "a", "b", "c")


def test_a_collection_born_at_a_name_already_passed_is_complete_from_birth(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: it needs no copy, and gets none: each document arrives once, by its event."""
    filled(database, "b", OLD)
    pipeline = capture("[abc]", splits_per_batch=1)
    pipeline.batch()
    assert pipeline.offset.copying is not None
    filled(database, "a", NEW)
    filled(database, "c", NEW)
    pipeline.run()
    same(pipeline, database, "a", "b", "c")
    assert f"{database.name}.a" not in pipeline.namespaces_copied
    assert f"{database.name}.c" in pipeline.namespaces_copied


@pytest.mark.parametrize("selected", SELECTIONS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("size", [2**20, 2**12], ids=["all of it", "the end of it"])
def test_a_collection_that_is_cloned_as_capped_is_reported_document_by_document(
    capture: Begin, database: Database[Document], size: int, phase: str, selected: str
) -> None:
    """Guards: a stream shows these inserts only if it is asked for those of migrations too. What
    does not fit is deleted, which is shown since 5.0."""
    for name in "bd":
        filled(database, name, OLD)
    pipeline = capture(*SELECTIONS[selected])
    advance_to(phase, pipeline, database["b"])
    for target in ("a", "c"):  # at one name the sweep has passed, at the other it has not
        command = {"cloneCollectionAsCapped": "d", "toCollection": target, "size": size}
        database.command(command)
        database[target].insert_one({"_id": "after"})
    there = contents(database["a"])
    assert len(there) == len(OLD) + 1 if size == 2**20 else 1 < len(there) < len(OLD)
    pipeline.run()
    if size == 2**20 or abilities(database.client).reads_at_a_time:
        same(pipeline, database, "a", "b", "c")
    passed = {"untouched": "", "copying": "a", "streaming": "ac"}[phase]
    for name in passed:
        reported = [id_of(row) for row in pipeline.rows if (row.coll, row.op) == (name, "insert")]
        assert reported == [*[*OLD][1 - len(reported) :], "after"]
        assert f"{database.name}.{name}" not in pipeline.namespaces_copied


def test_a_collection_replaced_without_an_event_is_copied_anew(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: another incarnation under the name than the offset's, as after a restore."""
    b = filled(database, "b", OLD)
    pipeline = capture("b")
    advance_to("copying", pipeline, b)
    copying = pipeline.offset.copying
    assert copying is not None
    pipeline.offset = replace(pipeline.offset, copying=replace(copying, uuid=b"\x01" * 16))
    database["other"].insert_one(
        {}
    )  # what is copied again lies after what was reported: time has to pass
    batches = pipeline.run()
    copied = [key for batch in batches for key in batch.ids("read")]
    assert copied == list(OLD)


def test_new_content_on_an_idle_server_sorts_after_the_ddl_that_brought_it(
    capture: Begin, database: Database[Document], mongo: Client
) -> None:
    """Guards: a row read at T has seen everything at T, so its position lies after it."""
    filled(database, "b", OLD)
    filled(database, "incoming", NEW)
    pipeline = capture("b", splits_per_batch=100)
    pipeline.run()
    database["incoming"].rename("b", dropTarget=True)
    ddl_time = last_write(mongo)
    pipeline.batch()
    assert pipeline.offset.time == ddl_time
    copy = pipeline.batch()
    assert copy.ids("read") == list(NEW)
    same(pipeline, database, "b")
