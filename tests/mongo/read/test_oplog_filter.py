"""The oplog has the rows of a change stream also where a pipeline decides which changes pass."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.errors import CdcError
from cdc.model import Change, StreamSplit
from cdc.mongo.connection import OPLOG, PRE_IMAGES, Need, member
from cdc.mongo.read import Run, oplog
from cdc.tasks import task
from tests.mongo.abilities import abilities
from tests.mongo.access import Guarded
from tests.mongo.capture import TIMEOUT_MS, Capture, Document, contents, document, filled
from tests.mongo.random_writes import CAPTURED, Writer
from tests.mongo.read.test_oplog import RECORDING, Begin, both, require_same
from tests.mongo.read.test_oplog import encoders as encoders_fixture
from tests.mongo.read.test_oplog import methods as methods_fixture
from tests.mongo.read.test_oplog_random import collections_of

encoders, methods = encoders_fixture, methods_fixture
_numbers = itertools.count(1)


@pytest.mark.parametrize("captured", CAPTURED)
def test_a_part_of_the_documents_and_of_each_has_the_same_rows_by_both_methods(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str], captured: str
) -> None:
    writer = Writer(collections_of(database), 8)
    by_oplog, by_stream = both(capture, "a", "b", **CAPTURED[captured])
    writer.write(600)
    by_oplog.run()
    assert methods == ["oplog"]
    rows = require_same(by_oplog, by_stream)
    assert len(rows) > 30
    if "filter" in CAPTURED[captured]:
        crossing = {row.op for row in rows if row.description == '{"filtered": "update"}'}
        assert crossing == {"insert", "delete"}


@pytest.mark.parametrize("is_filtered", [False, True])
def test_large_replies_stay_in_bytes_if_no_filter_marked_their_changes(
    capture: Begin, database: Database[Document], mongod: ReplicaSet, is_filtered: bool
) -> None:
    """Guards: a run has no marks, which make an update a delete or an insert."""
    coll = filled(database, "a", range(1500))
    captured = {"filter": '{"n": 0}'} if is_filtered else {"fields": "pad, n"}
    by_oplog, by_stream = both(capture, "a", **captured)
    coll.update_many({}, {"$set": {"n": 1, "other": 2}})
    [split] = by_oplog.planner.splits(by_oplog.offset, by_oplog.plan(), control=False)
    assert isinstance(split, StreamSplit)
    parts = list(oplog._read_oplog(partial(member, mongod.uri, TIMEOUT_MS), split))
    assert {type(part) for part in parts} == {list if is_filtered else Run}
    assert len(parts) > 1, "all events were in one command"
    rows = require_same(by_oplog, by_stream)
    assert [row.op for row in rows] == ["delete" if is_filtered else "update"] * 1500


def test_changes_during_a_copy_have_the_same_rows_by_both_methods(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    """The server decides which keys are below the frontier, in the order of the index."""
    clustered = {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}
    colls = [
        database.create_collection(name, **RECORDING, **options)
        for name, options in (("a", {}), ("b", clustered), ("c", {}))
    ]
    writers = [Writer(colls, 5, common_keys) for common_keys in (True, False)]
    for writer in writers:
        writer.write(100)
    pipeline = capture(".*", documents_per_split=7)
    assert compare_copy(pipeline, methods, lambda: [writer.write(12) for writer in writers]) > 100
    for coll in colls:
        assert pipeline.replayed(coll) == contents(coll)


def test_changes_during_a_copy_by_a_collation_have_the_same_rows_by_both_methods(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    """By it, keys have another order, and the names of two collections are equal."""
    chance = random.Random(1)
    keys = [f"{letter}{number}" for letter in "aBcDeäÖzßé" for number in range(10)]
    collation = {"locale": "en", "strength": 2}
    colls = [filled(database, name, keys, collation=collation) for name in ("a", "A")]
    pipeline = capture("a", "A", documents_per_split=13, splits_per_batch=1)

    def write() -> None:
        for _ in range(30):
            key = {"_id": chance.choice(keys)}
            chance.choice(colls).update_one(key, {"$inc": {"n": 1}}, upsert=True)
            chance.choice(colls).delete_one({"_id": chance.choice(keys)})

    assert compare_copy(pipeline, methods, write) > 100
    for coll in colls:
        assert pipeline.replayed(coll) == contents(coll)


def compare_copy(pipeline: Capture, methods: list[str], write: Any) -> int:
    """Compare the changes of each batch of a copy; return how many a pipeline passed."""
    passed = 0
    for batch in copied(pipeline, write):
        for split in batch.stream_splits:
            methods.clear()
            own = rows_of(split, pipeline, "oplog")
            assert methods == ["oplog"]
            assert own == rows_of(split, pipeline, "change_stream")
            passed += len(own) if not split.is_whole else 0
    return passed


def copied(pipeline: Capture, write: Any) -> Iterator[Any]:
    """The batches of a copy, with writes before each, and while its splits are read."""
    while not pipeline.offset.is_streaming or pipeline.offset.scans:
        write()
        yield pipeline.read(pipeline.plan(), meanwhile=write)
    yield from pipeline.run()


def rows_of(split: StreamSplit, pipeline: Capture, by: str) -> list[Change]:
    options = replace(pipeline.options, read_by=by)
    return list(task.read_split(split, options, may_be_void=True))


def test_no_privilege_is_needed_to_filter(guarded: Guarded, methods: list[str]) -> None:
    database = guarded.client[f"filtered{next(_numbers)}"]
    coll = filled(database, "a", range(9))
    actions = ("find", "changeStream", "listCollections")
    needs = [Need(action, database.name) for action in actions]
    uri = guarded.user([*needs, *(Need("find", *each) for each in (OPLOG, PRE_IMAGES))])
    pipeline = Capture(uri, f"{database.name}.a", mode="latest", filter='{"n": 1}')
    coll.update_many({"_id": {"$lt": 5}}, {"$inc": {"n": 1}})
    assert [row.op for batch in pipeline.run() for row in batch.rows] == ["insert"] * 5
    assert methods == ["oplog"]


def test_a_change_that_is_too_large_to_be_filtered_is_read_by_a_change_stream(
    capture: Begin, database: Database[Document], methods: list[str], caplog: Any
) -> None:
    coll = filled(database, "a", [])
    coll.insert_one({"_id": 1, "x": "x" * (7 * 2**20)})
    by_oplog, by_stream = both(capture, "a", filter='{"n": {"$ne": 5}}')
    for size in (8 * 2**20, 9 * 2**20 + 2**19):
        coll.replace_one({"_id": 1}, {"x": "y" * size})
    by_oplog.run()
    assert methods == ["oplog", "change stream"]
    assert "a change that is too large to be filtered" in caplog.text
    is_split = abilities(database.client).splits_events
    assert [row.exact for row in require_same(by_oplog, by_stream)] == [True, is_split]


@pytest.mark.parametrize("read_by", ["auto", "oplog"])
def test_a_filter_that_fails_for_a_document_ends_the_run_and_names_the_option(
    capture: Begin, database: Database[Document], read_by: str
) -> None:
    coll = filled(database, "a", [1])
    fails = '{"$expr": {"$eq": [{"$size": "$n"}, 1]}}'
    pipeline = capture("a", mode="latest", read_by=read_by, filter=fails)
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    with pytest.raises(CdcError, match=r"with option 'filter': .* code 17124"):
        pipeline.run()


def test_nested_documents_of_the_greatest_depth_are_filtered(
    capture: Begin, database: Database[Document], methods: list[str]
) -> None:
    coll = filled(database, "a", [1])
    nested: Document = {"n": 1}
    for _ in range(177):
        nested = {"d": nested}
    by_oplog, by_stream = both(capture, "a", fields="-pad")
    coll.update_one({"_id": 1}, {"$set": {"d": nested}})
    by_oplog.run()
    assert methods == ["oplog"]
    require_same(by_oplog, by_stream)


def test_documents_that_contain_expressions_are_not_evaluated(
    capture: Begin, database: Database[Document], methods: list[str]
) -> None:
    coll = filled(database, "a", [])
    by_oplog, by_stream = both(capture, "a", fields="x")
    coll.insert_one({"_id": "$x", "x": {"y": "$$NOW", "$add": [1, 2], "$literal": 1}})
    coll.replace_one({"_id": "$x"}, {"x": [{"$ifNull": ["$a", 1]}, "$$ROOT"]})
    by_oplog.run()
    assert methods == ["oplog"]
    assert len(require_same(by_oplog, by_stream)) == 2


def test_a_nested_field_that_an_update_moves_passes_a_filter_by_its_stored_value(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    """A change stream of MongoDB 6.0 repeats the earlier value in the image, and decides by it."""
    coll = database.create_collection("a", **RECORDING)
    deep: Document = {"n": 3, "pad": "x" * 100}
    coll.insert_one({"_id": 1, "deep": {"moved": 2, **deep}, "pad": "x" * 100})
    captured = {"filter": '{"deep.moved": {"$in": [2, 6]}}', "fields": "deep.moved"}
    by_oplog, by_stream = both(capture, "a", **captured)
    passing = both(capture, "a", filter='{"deep.moved": 6}')
    moved = {"n": "$deep.n", "pad": "$deep.pad", "moved": 6}
    coll.update_one({"_id": 1}, [{"$replaceWith": {"_id": 1, "deep": moved, "pad": "$pad"}}])
    [row], [other] = (each.run()[-1].rows for each in (by_oplog, by_stream))
    images = [(document(each.after) or {})["deep"] for each in (row, other)]
    assert images == [{"moved": 6}, {"moved": 2}], "the server does so no longer"
    assert row._replace(after=None) == other._replace(after=None)
    assert [[r.op for b in each.run() for r in b.rows] for each in passing] == [["insert"], []]
