"""A checkpoint goes on with other `collections`: what is new is copied while the rest streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pymongo.database import Database

from cdc.errors import UnsuitableSource
from cdc.model import Namespace
from cdc.mongo.topology.replica_set import ReplicaSet as Source
from tests.mongo.abilities import abilities
from tests.mongo.capture import Capture, Document, contents, filled, repeated

Begin = Callable[..., Capture]


def restarted(pipeline: Capture, database: Database[Document], *names: str, **how: Any) -> Capture:
    full = ",".join(f"{database.name}.{name}" for name in names)
    return pipeline.restarted(full, **how)


def touch(database: Database[Document], *names: str) -> None:
    """An insert, an update and a delete in each."""
    for name in names:
        ids = sorted(database[name].distinct("_id"))
        database[name].insert_one({"_id": ids[-1] + 1})
        database[name].update_one({"_id": ids[-1]}, {"$inc": {"n": 1}})
        database[name].delete_one({"_id": ids[0]})


def same(pipeline: Capture, database: Database[Document], *names: str) -> None:
    for name in names:
        assert pipeline.replayed(database[name]) == contents(database[name]), name
    reported = [(row.position, row.db, row.coll, row.key) for row in pipeline.rows]
    assert len(set(reported)) == len(reported), "a row was emitted twice"


def updates(pipeline: Capture, name: str) -> list[Any]:
    return [row for row in pipeline.rows if row.coll == name and row.op == "update"]


def test_an_added_collection_is_copied_while_the_others_keep_streaming(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(30))
    filled(database, "b", range(60))
    pipeline = capture("a")
    pipeline.run()
    touch(database, "a", "b")
    pipeline = restarted(pipeline, database, "a", "b", splits_per_batch=1)
    while not pipeline.offset.is_streaming or "b" not in str(pipeline.offset.selection):
        touch(database, "a", "b")
        pipeline.batch()
    assert len([split for split in pipeline.namespaces_copied if split.endswith(".b")]) >= 3
    assert len([split for split in pipeline.namespaces_copied if split.endswith(".a")]) == 3
    touch(database, "a", "b")
    pipeline.run()
    same(pipeline, database, "a", "b")


def test_a_replay_of_the_batch_that_changes_the_selection_reports_the_same(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the batch derives from its two offsets, not from the option."""
    filled(database, "a", range(30))
    filled(database, "b", range(30))
    pipeline = capture("a")
    pipeline.run()
    touch(database, "a", "b")
    start, pipeline = pipeline.offset, restarted(pipeline, database, "a", "b")
    end = pipeline.plan()
    first = pipeline.read(end)
    assert end.selection != start.selection
    touch(database, "a", "b")
    pipeline.batches.pop()
    pipeline = restarted(pipeline, database, "a", "b")
    pipeline.offset = start
    can = abilities(database.client)
    assert repeated(pipeline.read(end).rows, can) == repeated(first.rows, can)
    pipeline.run()
    same(pipeline, database, "a", "b")


def test_a_named_collection_that_does_not_exist_yet_is_complete_from_birth(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    pipeline = capture("a")
    pipeline.run()
    pipeline = restarted(pipeline, database, "a", "b", missing_collections="wait")
    pipeline.run()
    filled(database, "b", range(5))
    pipeline.run()
    same(pipeline, database, "a", "b")
    assert f"{database.name}.b" not in pipeline.namespaces_copied


@pytest.mark.parametrize("added", ["ordesr", "orders_.*"])
def test_a_name_or_expression_that_is_added_and_matches_nothing_ends_the_run_before_it_is_taken_up(
    capture: Begin, database: Database[Document], added: str
) -> None:
    """Guards: what was captured before may be gone for good reason, and is not asked for."""
    for name in ("a", "orders"):
        filled(database, name, range(5))
    pipeline = capture("a", "orders")
    pipeline.run()
    filled(database, "other", range(5))
    touch(database, "orders")
    database.drop_collection("a")
    full = f"{database.name}.{added}"
    again = restarted(pipeline, database, "a", "orders", added)
    with pytest.raises(UnsuitableSource, match=f"nearest: {database.name}.orders") as caught:
        again.plan()
    assert full in caught.value.message
    assert f"{database.name}.a," not in caught.value.message
    again = restarted(pipeline, database, "a", "orders", "other")
    again.run()
    same(again, database, "orders", "other")


def test_a_removed_collection_stops_and_stays_as_it_is(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(10))
    filled(database, "b", range(30))
    pipeline = capture("a", "b", splits_per_batch=2)
    pipeline.batch()
    assert pipeline.offset.copying
    assert pipeline.offset.copying.namespace == Namespace(database.name, "b")
    pipeline = restarted(pipeline, database, "a")
    pipeline.run()
    held = pipeline.replayed(database["b"])
    assert len(held) == 10
    touch(database, "a", "b")
    pipeline.run()
    same(pipeline, database, "a")
    assert pipeline.replayed(database["b"]) == held


def test_a_collection_that_comes_back_is_copied_again(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: what was deleted while nobody looked is not left in a mirror."""
    filled(database, "a", range(10))
    filled(database, "b", range(30))
    pipeline = capture("a", "b")
    pipeline.run()
    pipeline = restarted(pipeline, database, "a")
    pipeline.run()
    touch(database, "b")
    pipeline = restarted(pipeline, database, "b", "a")
    pipeline.run()
    same(pipeline, database, "a", "b")
    assert [row.coll for row in pipeline.resyncs] == ["b"]


def test_collections_are_added_and_removed_in_the_middle_of_a_copy(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a name that the sweep has passed and one that it has not."""
    for name in "aceghi":
        filled(database, name, range(30))
    pipeline = capture("c", "e", "g", "h", splits_per_batch=2)
    pipeline.batch()
    pipeline.batch()
    assert pipeline.offset.copying
    assert pipeline.offset.copying.namespace == Namespace(database.name, "e")
    touch(database, *"aceghi")
    pipeline = restarted(pipeline, database, *"acehi", splits_per_batch=2)
    pipeline.batch()
    touch(database, *"aceghi")
    pipeline.run()
    same(pipeline, database, *"acehi")
    assert f"{database.name}.g" not in pipeline.namespaces_copied
    assert len([name for name in pipeline.namespaces_copied if name.endswith(".c")]) == 3


def test_without_a_snapshot_an_added_collection_begins_with_its_next_change(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(5))
    filled(database, "b", range(5))
    pipeline = capture("a", mode="latest")
    pipeline.run()
    database["b"].update_one({"_id": 1}, {"$inc": {"n": 1}})
    pipeline = restarted(pipeline, database, "a", "b", mode="latest")
    pipeline.run()
    database["b"].update_one({"_id": 2}, {"$inc": {"n": 1}})
    pipeline.run()
    assert pipeline.namespaces_copied == []
    assert [row.key for row in updates(pipeline, "b")] == ["2"]


def test_a_collection_born_after_the_listing_postpones_the_change(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: events before the change, of a name that the old selection does not have."""
    other = database.client[f"{database.name}_other"]
    try:
        filled(database, "a", range(5))
        pipeline = capture("a")
        pipeline.run()
        full = f"{database.name}.a,{database.name}.b,{other.name}.b"
        for born in (database, other):
            pipeline = pipeline.restarted(full, missing_collections="wait")
            after_the_listing(monkeypatch, pipeline, partial(filled, born, "b", range(9)))
            batch = pipeline.read(pipeline.plan_now())
            assert batch.end.selection == batch.start.selection
        pipeline.run()
        same(pipeline, database, "a", "b")
        assert pipeline.replayed(other["b"]) == contents(other["b"])
    finally:
        database.client.drop_database(other)


@pytest.mark.parametrize("what", ["dropped", "replaced", "filled by rename"])
def test_what_happens_to_an_added_collection_after_the_listing_is_not_lost(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Guards: between the listing and the end of the batch, events of it are not emitted yet."""
    filled(database, "a", range(5))
    filled(database, "b", range(5))
    filled(database, "x", range(20, 25))
    pipeline = capture("a")
    pipeline.run()
    pipeline = restarted(pipeline, database, "a", "b")
    acts = {
        "dropped": lambda: database.drop_collection("b"),
        "replaced": lambda: (database.drop_collection("b"), filled(database, "b", range(7))),
        "filled by rename": lambda: database["x"].rename("b", dropTarget=True),
    }
    after_the_listing(monkeypatch, pipeline, acts[what])
    pipeline.read(pipeline.plan_now())
    pipeline.run()
    same(pipeline, database, "a", "b")


@pytest.mark.parametrize("source", ["x", "b"])
def test_an_added_name_that_a_rename_fills_after_the_listing_is_copied(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Guards: a rename has no row events, and the old selection has neither name. With `b` the
    source is selected newly too."""
    filled(database, "a", range(5))
    filled(database, source, range(20, 25))
    pipeline = capture("a")
    pipeline.run()
    pipeline = restarted(pipeline, database, "a", "b", "c", missing_collections="wait")
    after_the_listing(monkeypatch, pipeline, lambda: database[source].rename("c"))
    pipeline.read(pipeline.plan_now())
    pipeline.run()
    database["c"].insert_one({"_id": 99})
    pipeline.run()
    same(pipeline, database, "a", "b", "c")


@pytest.mark.parametrize("gone", ["dropped", "renamed"])
def test_a_name_that_was_selected_before_and_is_gone_meanwhile_leaves_nothing(
    capture: Begin, database: Database[Document], gone: str
) -> None:
    """Guards: rows of its earlier content, whose end was in no event of a selected collection."""
    filled(database, "a", range(5))
    filled(database, "b", range(10))
    pipeline = capture("a", "b")
    pipeline.run()
    pipeline = restarted(pipeline, database, "a")
    pipeline.run()
    if gone == "dropped":
        database["b"].drop()
    else:
        database["b"].rename("x")
    pipeline = restarted(pipeline, database, "a", "b", missing_collections="wait")
    pipeline.run()
    same(pipeline, database, "a", "b")
    filled(database, "b", [100])
    pipeline.run()
    same(pipeline, database, "a", "b")


def test_a_listing_that_may_be_rolled_back_changes_nothing_yet(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(database, "a", range(5))
    filled(database, "b", range(5))
    pipeline = capture("a")
    pipeline.run()
    touch(database, "a")
    pipeline.batch()  # finds that what was copied is still there
    touch(database, "a")
    pipeline = restarted(pipeline, database, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(Source, "confirm", lambda *_: None)
        batch = pipeline.batch()
    assert batch.ids("insert", "update", "delete")
    assert batch.end.selection == batch.start.selection
    pipeline.run()
    same(pipeline, database, "a", "b")


def after_the_listing(
    monkeypatch: pytest.MonkeyPatch, pipeline: Capture, act: Callable[[], Any]
) -> None:
    """Has it happen between the next listing and the live edge that is taken after it."""
    ask = Source.confirm

    def happens(source: Source, *arguments: Any) -> Any:
        monkeypatch.setattr(Source, "confirm", ask)
        act()
        return pipeline.now()

    monkeypatch.setattr(Source, "confirm", happens)


@pytest.mark.parametrize("recreated", [True, False])
def test_an_added_collection_dropped_while_the_job_was_down_leaves_nothing(
    capture: Begin, database: Database[Document], recreated: bool
) -> None:
    """Guards: events from before the selection changed, of a collection nobody has copied."""
    filled(database, "a", range(5))
    filled(database, "b", range(5))
    pipeline = capture("a")
    pipeline.run()
    touch(database, "b")
    database.drop_collection("b")
    if recreated:
        filled(database, "b", range(7))
    pipeline = restarted(pipeline, database, "a", "b", missing_collections="wait")
    pipeline.run()
    same(pipeline, database, "a", "b")
    assert [row for row in pipeline.rows if row.coll == "b" and row.op == "insert"] == []
    assert updates(pipeline, "b") == []


def test_ddl_of_a_collection_that_stays_cuts_the_batch_that_changes_the_selection(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "a", range(20))
    filled(database, "b", range(20))
    filled(database, "x", range(50, 60))
    pipeline = capture("a")
    pipeline.run()
    touch(database, "a")
    database["x"].rename("a", dropTarget=True)
    pipeline = restarted(pipeline, database, "a", "b")
    first = pipeline.batch()
    assert first.end.selection == first.start.selection
    assert first.ids("rename")
    pipeline.run()
    same(pipeline, database, "a", "b")


def test_a_selection_over_other_databases_is_found(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the stream of a batch has the scope of its own selection."""
    other = database.client[f"{database.name}_other"]
    try:
        filled(database, "a", range(5))
        filled(other, "b", range(5))
        pipeline = capture("a")
        pipeline.run()
        pipeline = pipeline.restarted(f"{database.name}.a,{other.name}.b")
        pipeline.run()
        touch(database, "a")
        other["b"].insert_one({"_id": 77})
        pipeline.run()
        same(pipeline, database, "a")
        assert pipeline.replayed(other["b"]) == contents(other["b"])
    finally:
        database.client.drop_database(other)
