"""`filter` and `fields`: a part of the documents and of each, in the copy and in the changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from bson import MaxKey
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database
from pymongo.errors import OperationFailure

from cdc.errors import BadOption, CdcError, UnsuitableSource
from cdc.model import CaptureFilter, Selection
from cdc.mongo.connection import Member
from cdc.mongo.inspect import Wanted, check
from cdc.mongo.topology import replica_set
from tests.mongo.abilities import abilities
from tests.mongo.capture import (
    Capture,
    Document,
    Watched,
    contents,
    document,
    filled,
    id_of,
    repeated,
)
from tests.mongo.plan.test_reselect import after_the_listing

Begin = Callable[..., Capture]
EU = {"region": "EU"}
FIELDS = {"n": 1, "to.city": 1}
ASKED = {"filter": json.dumps(EU), "fields": "n, to.city"}


def populated(database: Database[Document], name: str, count: int, **how: Any) -> Any:
    """Every other document is in the filter."""
    coll = filled(database, name, [], **how)
    coll.insert_many([_drawn(n, "EU" if n % 2 else "US") for n in range(count)])
    return coll


def _drawn(n: int, region: str) -> Document:
    return {"_id": n, "region": region, "n": 0, "to": {"city": f"c{n}", "zip": n}, "pad": "x" * 99}


def same(pipeline: Capture, coll: Any, at: Any = None, **find: Any) -> None:
    find = find or {"filter": EU, "projection": FIELDS}
    assert pipeline.replayed(coll) == contents(coll, at, **find)
    reported = [(row.position, row.key) for row in pipeline.rows]
    assert len(set(reported)) == len(reported), "a row was emitted twice"


def anything(coll: Any, draw: random.Random, ids: int) -> None:
    """One write of any kind; half of them take a document across the filter."""
    key, region = draw.randrange(ids), draw.choice(["EU", "US"])
    kind = draw.randrange(6)
    if kind == 0:
        coll.replace_one({"_id": key}, _drawn(key, region), upsert=True)
    elif kind == 1:
        coll.delete_one({"_id": key})
    elif kind == 2:
        coll.update_one({"_id": key}, {"$inc": {"n": 1}})
    elif kind == 3:
        coll.update_one({"_id": key}, {"$set": {"to": {"city": "new", "zip": 0}}})
    else:
        coll.update_one({"_id": key}, {"$set": {"region": region}, "$inc": {"n": 1}})


def test_the_copy_holds_the_documents_of_the_filter_and_their_fields_alone(
    capture: Begin, database: Database[Document]
) -> None:
    """Also of the `_id` that is read apart, because no range holds it."""
    coll = populated(database, "c", 50)
    coll.insert_one({**_drawn(0, "US"), "_id": MaxKey()})
    pipeline = capture("c", **ASKED)
    pipeline.run()
    assert len(pipeline.rows) == 25
    assert document(pipeline.rows[0].after) == {"_id": 1, "to": {"city": "c1"}, "n": 0}
    same(pipeline, coll)


@pytest.mark.parametrize("rewinds", [False, True], ids=["at its time", "rewound"])
def test_a_batch_is_exact_whatever_is_written_across_the_filter(
    rewinds: bool, capture: Begin, database: Database[Document]
) -> None:
    """Random writes before, within and after what is copied, also while splits are read; the
    oracle is a find at T. Without after-images, it is one when all is quiet."""
    coll, draw = populated(database, "c", 120), random.Random(5)
    can = abilities(database.client)

    def write() -> None:
        for _ in range(25):
            anything(coll, draw, 150)

    pipeline = capture("c", documents_per_split=7, splits_per_batch=2, **ASKED)
    with unreadable_times(pipeline) if rewinds else nullcontext():
        for _ in range(12):
            write()
            batch = pipeline.read(pipeline.plan(), meanwhile=write)
            if can.after_images:
                assert all(row.exact for row in batch.rows)
                if pipeline.offset.is_streaming:
                    same(pipeline, coll, pipeline.offset.time)
    assert pipeline.offset.is_streaming
    pipeline.run()
    same(pipeline, coll)


@contextmanager
def unreadable_times(pipeline: Capture) -> Iterator[None]:
    """What a server answers that does not keep the history of a split's time."""

    def refuse(command: Mapping[str, Any]) -> None:
        if "atClusterTime" in command.get("readConcern", {}):
            raise OperationFailure("SnapshotTooOld", 239)

    def opened(*_: Any) -> Member:
        return Watched(pipeline.open_member(), refuse)

    with patch.object(replica_set, "member", opened):
        yield


def test_what_a_change_is_depends_on_which_side_of_the_filter_it_leads_to(
    capture: Begin, database: Database[Document]
) -> None:
    coll = populated(database, "c", 7)
    pipeline = capture("c", mode="latest", **ASKED)
    coll.update_one({"_id": 0}, {"$inc": {"n": 1}})
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    coll.update_one({"_id": 2}, {"$set": {"region": "EU"}})
    coll.update_one({"_id": 3}, {"$set": {"region": "US"}})
    coll.replace_one({"_id": 4}, _drawn(4, "EU"))
    coll.delete_one({"_id": 5})
    coll.delete_one({"_id": 6})
    coll.insert_one(_drawn(7, "EU"))
    coll.insert_one(_drawn(8, "US"))
    (batch,) = pipeline.run()
    can = abilities(database.client)
    if can.after_images:
        ops = ["update 1", "insert 2", "delete 3", "insert 4", "delete 5", "insert 7"]
    elif can.before_images:
        ops = ["delete 0", "update 1", "insert 2", "delete 3", "insert 4", "delete 5", "insert 7"]
    else:
        ops = ["delete 0", "update 1", "update 2", "delete 3", "replace 4"]
        ops += ["delete 5", "delete 6", "insert 7"]
    assert [f"{op} {key}" for op, key in batch.ops] == ops
    reported = {id_of(row): row for row in batch.rows}
    assert all(row.exact for row in batch.rows) == can.after_images
    assert document(reported[2].after) == {"_id": 2, "n": 0, "to": {"city": "c2"}}
    assert reported[2].before is None
    assert reported[3].after is None
    if can.before_images:
        assert document(reported[3].before) == {"_id": 3, "n": 0, "to": {"city": "c3"}}
    assert [reported[key].update_description for key in (2, 3)] == [
        None,
        None,
    ] or not can.before_images
    assert json.loads(reported[3].description or "")["filtered"] == "update"


def test_a_change_without_images_is_looked_up_by_the_filter(
    capture: Begin, database: Database[Document]
) -> None:
    """Documented: a change outside the filter may then come as a delete, which is harmless."""
    coll, draw = populated(database, "c", 60, images=False), random.Random(6)
    pipeline = capture("c", **ASKED)
    for _ in range(8):
        for _ in range(30):
            anything(coll, draw, 80)
        pipeline.batch()
    pipeline.run()
    same(pipeline, coll)
    lookups = [row for row in pipeline.rows if row.description and "filtered" in row.description]
    assert lookups
    assert not any(row.exact for row in lookups)


@pytest.mark.parametrize("images", ["update_lookup", "when_available"])
def test_an_image_outside_the_filter_is_reported_by_no_way_of_asking_for_it(
    images: str, capture: Begin, database: Database[Document]
) -> None:
    coll, draw = populated(database, "c", 60), random.Random(7)
    pipeline = capture("c", images=images, **ASKED)
    for _ in range(4):
        for _ in range(40):
            anything(coll, draw, 80)
        pipeline.batch()
    pipeline.run()
    if images == "update_lookup":
        same(pipeline, coll)
    found = [document(image) for row in pipeline.rows for image in (row.before, row.after)]
    assert all(set(each) <= {"_id", "n", "to"} for each in found if each)


def test_a_description_of_an_update_names_no_other_fields(
    capture: Begin, database: Database[Document]
) -> None:
    coll = filled(database, "c", [])
    coll.insert_one({"_id": 1, "a": 1, "b": 2, "l": [{"p": 1, "q": 2}, 5], "m": {"p": 1, "q": 2}})
    only = capture("c", mode="latest", fields="a, l.p, m.p")
    but = capture("c", mode="latest", fields="-b, -l.q, -m.q")
    coll.update_one({"_id": 1}, {"$set": {"a": 2, "b": 3, "l.0.p": 3, "l.0.q": 4}})
    coll.update_one({"_id": 1}, {"$set": {"l": [{"p": 8, "q": 9}, 6], "m": {"p": 8, "q": 9}}})
    coll.update_one({"_id": 1}, {"$unset": {"m": 1, "b": 1}})
    reported = [_updates(only), _updates(but)]
    fields = [{"a": 2, "l.0.p": 3}, {"l": [{"p": 8}], "m": {"p": 8}}, {}]
    assert [each["updatedFields"] for each in reported[0]] == fields
    assert [each["updatedFields"] for each in reported[1]] == [
        *({"a": 2, "l.0.p": 3}, {"l": [{"p": 8}, 6], "m": {"p": 8}}, {})
    ]
    assert [each["removedFields"] for each in reported[0] + reported[1]] == [[], [], ["m"]] * 2
    for pipeline, projection in ((only, {"a": 1, "l.p": 1, "m.p": 1}), (but, {"b": 0, "l.q": 0})):
        same(pipeline, coll, projection=projection)


def test_a_field_that_is_named_like_a_place_in_an_array_is_none(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a description shows nothing that the images do not."""
    coll = filled(database, "c", [])
    coll.insert_one({"_id": 1, "m": {"2024": {"x": "secret"}, "x": 1}})
    only, but = (
        capture("c", mode="latest", fields="m.x"),
        capture("c", mode="latest", fields="-m.x"),
    )
    coll.update_one({"_id": 1}, {"$set": {"m.2024.x": "other", "m.x": 2}})
    (reported,), (rest,) = _updates(only), _updates(but)
    assert reported["updatedFields"] == {"m.x": 2}
    known = abilities(database.client).after_images
    assert rest["updatedFields"] == {"m.2024.x": "other"} or not known


def test_a_description_that_is_no_text_stops_no_run(
    capture: Begin, database: Database[Document]
) -> None:
    coll = filled(database, "c", [1])
    pipeline = capture("c", mode="latest", fields="-ssn")
    text = b"\x02u\x00\x03\x00\x00\x00\xff\xfe\x00"
    coll.update_one({"_id": 1}, {"$set": _document(text)})
    (reported,) = _updates(pipeline)
    assert "$unmappable" in reported


def _document(fields: bytes) -> RawBSONDocument:
    return RawBSONDocument((len(fields) + 5).to_bytes(4, "little") + fields + b"\x00")


def test_what_a_document_was_outside_the_filter_is_reported_by_no_description(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: without images, a change is looked up, and is then another one perhaps."""
    coll = filled(database, "c", [], images=False)
    coll.insert_one({"_id": 1, "region": "US"})
    pipeline = capture("c", mode="latest", filter=json.dumps(EU))
    coll.update_one({"_id": 1}, {"$set": {"secret": 1}})
    coll.update_one({"_id": 1}, {"$set": {"region": "EU"}, "$unset": {"secret": 1}})
    (batch,) = pipeline.run()
    assert len(batch.rows) == 2
    assert not any("secret" in str(row) for row in batch.rows)


def test_a_filter_that_fails_for_a_document_is_named(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "c", [1])
    fails = '{"$expr": {"$gt": [{"$divide": [10, "$n"]}, 0]}}'
    with pytest.raises(CdcError, match="'filter'"):
        capture("c", filter=fails).batch()


def _updates(pipeline: Capture) -> list[Any]:
    (batch,) = pipeline.run()
    rows = sorted(batch.rows, key=lambda row: row.position)
    return [json.loads(row.update_description or "") for row in rows]


def test_ddl_is_reported_whole_of_a_part_of_the_fields(
    capture: Begin, database: Database[Document]
) -> None:
    coll = populated(database, "c", 4)
    both = [capture("c", mode="latest", **ASKED), capture("c", mode="latest")]
    coll.create_index("region")
    coll.rename("d")
    rows = [[row for batch in each.run() for row in batch.rows] for each in both]
    assert rows[0] == rows[1]
    assert rows[0]


def test_another_filter_on_the_same_checkpoint_copies_all_again(
    capture: Begin, database: Database[Document]
) -> None:
    """The batch that changes it derives from its offsets: a replay reports the same."""
    coll = populated(database, "c", 40)
    pipeline = capture("c", **ASKED)
    pipeline.run()
    coll.update_many({}, {"$inc": {"n": 1}})
    start = pipeline.offset
    pipeline = pipeline.restarted(f"{database.name}.c", filter='{"n": {"$gt": 0}}', fields="-pad")
    first = pipeline.read(pipeline.plan())
    assert pipeline.offset.capture_text != start.capture_text
    fields = {name for row in first.rows for name in document(row.after) or {}}
    assert fields == {"_id", "n", "to"}, "the batch that changes it is the last by the old one"
    pipeline.batches.pop()
    again = pipeline.restarted(f"{database.name}.c", **ASKED)
    again.offset = start
    coll.insert_one({**_drawn(99, "EU"), "n": 5})
    can = abilities(database.client)
    assert repeated(again.read(first.end).rows, can) == repeated(first.rows, can)
    pipeline.batches = again.batches
    pipeline.run()
    assert len(pipeline.resyncs) == 1
    same(pipeline, coll, filter={"n": {"$gt": 0}}, projection={"pad": 0})


def test_another_filter_waits_until_time_has_passed_since_the_copy(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: rows of another copy at the time of the copy could not be distinguished from it."""
    coll = populated(database, "a", 10)
    pipeline = capture("a")
    pipeline.run()
    again = pipeline.restarted(f"{database.name}.a", **ASKED)
    end = again.plan()
    assert end == again.offset or end.time > again.offset.time
    database["other"].insert_one({})
    again.run()
    same(again, coll)


def test_a_collection_born_after_the_listing_postpones_another_filter(
    capture: Begin, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: its first events would be reported by the old filter, and never by the new one."""
    populated(database, "a", 6)
    pipeline = capture("a|b", **ASKED)
    pipeline.run()
    pipeline = pipeline.restarted(f"{database.name}.a|{database.name}.b")
    after_the_listing(monkeypatch, pipeline, partial(populated, database, "b", 8))
    pipeline.read(pipeline.plan_now())
    pipeline.run()
    for coll in (database["a"], database["b"]):
        assert pipeline.replayed(coll) == contents(coll)


def test_another_filter_is_refused_by_a_mode_that_copies_nothing(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: what it brings in, or leaves out, no change reports."""
    populated(database, "c", 6)
    pipeline = capture("c", **ASKED)
    pipeline.run()
    with pytest.raises(BadOption, match="'filter'"):
        pipeline.restarted(f"{database.name}.c", mode="latest").plan()
    spelled = {"filter": '{ "region":"EU" }', "fields": "to.city,n"}
    again = pipeline.restarted(f"{database.name}.c", mode="latest", **spelled)
    assert again.plan().is_of(pipeline.offset.selection, pipeline.offset.capture_text)


def test_a_copy_under_way_begins_again_by_another_filter(
    capture: Begin, database: Database[Document]
) -> None:
    coll = populated(database, "c", 60)
    pipeline = capture("c", documents_per_split=5, splits_per_batch=1, **ASKED)
    pipeline.batch()
    pipeline.batch()
    assert pipeline.offset.copying
    pipeline = pipeline.restarted(f"{database.name}.c", documents_per_split=5)
    database["other"].insert_one({})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)


def test_a_collection_with_a_collation_is_refused_by_a_filter(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "c", range(3), collation={"locale": "en", "strength": 2})
    capture("c", fields="n").run()
    with pytest.raises(UnsuitableSource, match="collation"):
        capture("c", filter='{"n": 1}').plan()
    source, selection = capture("c").source, Selection.parse(f"{database.name}.c")
    with pytest.raises(UnsuitableSource, match="collation"):
        check(source, Wanted(selection, capture=CaptureFilter.from_options('{"n": 1}', None)))


def test_a_filter_that_the_server_does_not_take_is_refused_at_the_start(
    capture: Begin, database: Database[Document]
) -> None:
    filled(database, "c", range(3))
    source, selection = capture("c").source, Selection.parse(f"{database.name}.c")
    capture = CaptureFilter.from_options('{"$expr": {"$nonsense": 1}}', None)
    with pytest.raises(BadOption, match="'filter'"):
        check(source, Wanted(selection, capture=capture))
    check(
        source,
        Wanted(
            selection, capture=CaptureFilter.from_options('{"$expr": {"$gt": ["$n", 1]}}', None)
        ),
    )
