"""Each document is copied once, whatever its key, and its events arrive from its copy on."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from pymongo.database import Database
from pymongo.errors import OperationFailure

from cdc.errors import NotPermitted, UnsuitableSource
from cdc.mongo.connection import Member
from cdc.mongo.read import range_scan
from cdc.mongo.topology import replica_set
from tests.mongo.abilities import abilities
from tests.mongo.capture import (
    Capture,
    Client,
    Document,
    Watched,
    contents,
    document,
    failing,
    filled,
    id_of,
    repeated,
)

Begin = Callable[..., Capture]

# In the server's order, of every type that an _id may have.
KEYS: list[Any] = [
    MinKey(),
    None,
    Decimal128("NaN"),
    float("-inf"),
    -7,
    Decimal128("0.5"),
    1,
    Int64(2),
    2.5,
    Decimal128("3.00"),
    Int64(2**60),
    Decimal128("1E+300"),
    "",
    "$x",
    "$_id",
    "a",
    {},
    {"a": 1},
    {"a": {"b": "$x"}},
    Binary(b"\x00", 0),
    uuid.UUID(int=5),
    ObjectId("0123456789abcdef01234567"),
    False,
    True,
    datetime(1900, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=UTC),
    Timestamp(5, 5),
    MaxKey(),
]


def converted(key: Any) -> Any:
    return Binary.from_uuid(key) if isinstance(key, uuid.UUID) else key


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_type_of_key_is_copied_once_and_updated_from_its_copy_on(
    capture: Begin, database: Database[Document], size: int
) -> None:
    """Guards: ranges are index bounds; the key filter compares across types, by $literal."""
    keys = [converted(key) for key in KEYS]
    coll = filled(database, "a", keys)
    pipeline = capture("a", documents_per_split=size, splits_per_batch=1)
    copied: set[str | None] = set()
    while not pipeline.offset.is_streaming:
        for key in keys:
            coll.update_one({"_id": {"$eq": key}}, {"$inc": {"n": 1}})
        batch = pipeline.batch()
        updated = [row.key for row in batch.rows if row.op == "update"]
        assert len(updated) == len(set(updated))
        assert set(updated) == copied
        copied |= {row.key for row in batch.rows if row.op == "read"}
    pipeline.run()
    assert len(copied) == len(keys)
    assert len([row for row in pipeline.rows if row.op == "read"]) == len(keys)
    assert pipeline.replayed(coll) == contents(coll)


def test_changes_on_both_sides_of_the_frontier_leave_every_key_exact(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the invariant: below the frontier as of T, with every change; nothing above it."""
    coll = filled(database, "a", range(0, 200, 2))
    pipeline = capture("a")
    chance, can = random.Random(7), abilities(database.client)
    while not pipeline.offset.is_streaming:
        for _ in range(30):
            key = chance.randrange(200)
            chance.choice(
                [
                    lambda key=key: coll.update_one({"_id": key}, {"$inc": {"n": 1}}, upsert=True),
                    lambda key=key: coll.delete_one({"_id": key}),
                    lambda key=key: coll.replace_one({"_id": key}, {"new": key}, upsert=True),
                ]
            )()
        pipeline.batch()
        below = pipeline.offset.copying
        # Nothing has been written since.
        at = contents(coll, pipeline.offset.time if can.reads_at_a_time else None)
        held = pipeline.replayed(coll)
        assert held == ({key: value for key, value in at.items() if key in held} if below else at)
        assert below or held == at
        assert not below or len(held) == sum(int(key) < int(_key(below.below)) for key in at)
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)
    assert all(row.exact == can.exact(row.op) for row in pipeline.rows)


def _key(below: bytes) -> Any:
    return bson.decode(below)["_id"]


COLLATIONS = {
    "case does not count": {"locale": "en", "strength": 2},
    "digits count as numbers": {"locale": "en", "numericOrdering": True},
}


@pytest.mark.parametrize("collation", COLLATIONS)
def test_a_collection_with_a_collation_is_cut_and_filtered_at_the_same_keys(
    capture: Begin, database: Database[Document], collation: str
) -> None:
    """Guards: a stream of its own with that collation: simple comparison cuts elsewhere."""
    keys = [f"{letter}{number}" for letter in "aBcDeF" for number in (1, 2, 9, 10, 11, 100)]
    coll = filled(database, "a", keys, collation=COLLATIONS[collation])
    pipeline = capture("a", documents_per_split=3, splits_per_batch=1)
    copied: set[str | None] = set()
    while not pipeline.offset.is_streaming:
        coll.update_many({}, {"$inc": {"n": 1}})
        coll.delete_one({"_id": "c9"})
        coll.insert_one({"_id": "c9", "n": 0})
        batch = pipeline.batch()
        ids = batch.ids("update")
        assert len(ids) == len(set(ids))
        assert {row.key for row in batch.rows if row.op == "update"} == copied
        copied |= {row.key for row in batch.rows if row.op == "read"}
    pipeline.run()
    assert len(pipeline.batches) > 10
    assert pipeline.replayed(coll) == contents(coll)
    reads = [row.key for row in pipeline.rows if row.op == "read"]
    assert len(reads) == len(set(reads)) == len(keys)


def test_names_that_differ_in_case_are_not_mixed_up_under_a_collation(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: under a collation the server's comparison of names is not exact: `only`."""
    coll = filled(database, "orders", "abcdefgh", collation={"locale": "en", "strength": 2})
    other = filled(database, "Orders", "abcdefgh")
    pipeline = capture("orders", documents_per_split=2)
    pipeline.batch()
    other.update_many({}, {"$inc": {"n": 1}})
    coll.update_many({}, {"$inc": {"n": 1}})
    pipeline.run()
    assert {row.coll for row in pipeline.rows} == {"orders"}
    assert pipeline.replayed(coll) == contents(coll)


def test_documents_at_the_ends_of_the_key_space_are_copied(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: `_id: MaxKey` lies in no range and is read by equality in the last split."""
    coll = filled(database, "a", [MinKey(), MaxKey()])
    for documents_per_split in (1, 2, 3, None):
        pipeline = capture("a", documents_per_split=documents_per_split)
        pipeline.run()
        assert pipeline.replayed(coll) == contents(coll)
        assert len(pipeline.rows) == 2


KINDS: dict[str, tuple[str, list[Any], Document]] = {
    "empty": ("a", [], {}),
    "one document": ("a", ["only"], {}),
    "dots": ("coll.name", list(range(25)), {}),
    "a dash": ("coll-a1", list(range(25)), {}),
    "spaces, quotes and letters": ("Größe 'x' \"y\"", list(range(25)), {}),
    "equal prefixes": ("a", [f"{'p' * 300}{n:06}" for n in range(25)], {}),
    "clustered": ("a", list(range(25)), {"clusteredIndex": {"key": {"_id": 1}, "unique": True}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_collection_of_any_kind_and_name_is_copied_and_followed(
    capture: Begin, database: Database[Document], kind: str
) -> None:
    """Guards: names in the filters of streams, ranges of no document, the clustered index."""
    name, ids, options = KINDS[kind]
    if "clusteredIndex" in options and not abilities(database.client).names_the_incarnation:
        with pytest.raises(OperationFailure, match="clusteredIndex"):  # there are none before 5.3
            database.create_collection(name, **options)
        return
    coll = filled(database, name, ids, **options)
    # What their names begin with or resemble is not captured.
    others = [filled(database, other, [1]) for other in ("coll", "coll_name", "collxname", "b")]
    pipeline = capture(name, documents_per_split=10)
    pipeline.batch()
    for each in (coll, *others):
        each.update_many({}, {"$inc": {"n": 1}})
        each.insert_many([{"_id": "new"}, {"_id": "newer"}])
        each.delete_one({"_id": "new"})
    pipeline.run()
    for each in (*others, coll):
        each.delete_one({"_id": "newer"})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)
    assert {row.coll for row in pipeline.rows} == {name}
    reported = [(row.position, row.key) for row in pipeline.rows]
    assert len(set(reported)) == len(reported)
    assert max(pipeline.rows, key=lambda row: row.position).op == "delete"


def test_what_a_capped_collection_drops_at_its_end_is_a_delete_from_5_0_on(
    capture: Begin, database: Database[Document]
) -> None:
    """Documented: before that no change stream shows it, and the mirror keeps it."""
    coll = filled(database, "a", range(5), capped=True, size=4096, max=5)
    pipeline = capture("a")
    pipeline.run()
    coll.insert_many([{"_id": n} for n in range(5, 8)])
    pipeline.run()
    dropped = [id_of(row) for row in pipeline.rows if row.op == "delete"]
    if abilities(database.client).reads_at_a_time:
        assert dropped == [0, 1, 2]
        assert pipeline.replayed(coll) == contents(coll)
    else:
        assert dropped == []
        assert pipeline.replayed(coll).keys() - contents(coll).keys() == {"0", "1", "2"}


def test_large_documents_are_copied_and_changed_like_small_ones(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the driver hands out large raw documents as memoryviews."""
    coll = filled(database, "a", [])
    sizes = [0, 100, 2**10, 2**14, 2**17, 2**20, 7 * 2**20]
    coll.insert_many([{"_id": "k" * (size + 1), "pad": "x" * size} for size in sizes[:5]])
    coll.insert_many([{"_id": size, "pad": "x" * size} for size in sizes])
    pipeline = capture("a", documents_per_split=5)
    pipeline.run()
    coll.update_many({}, {"$inc": {"n": 1}})
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)
    assert len(pipeline.rows) == 2 * 12
    can = abilities(database.client)
    assert all(row.exact == can.exact(row.op) for row in pipeline.rows)


def test_all_splits_of_a_batch_see_one_moment(capture: Begin, database: Database[Document]) -> None:
    """Guards: atClusterTime: what is written between two splits is in neither.

    Where the server has neither that nor before-images, what may be of another moment is marked."""
    coll = filled(database, "a", range(40))
    pipeline = capture("a", splits_per_batch=4)
    splits = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
    rows = []
    for number, split in enumerate(splits):
        coll.update_many({}, {"$set": {"n": number + 1}})
        coll.insert_one({"_id": 1000 + number})
        coll.delete_one({"_id": number * 10})
        rows += pipeline.rows_of(split)
    assert len(splits) == 4
    exact = [document(row.after)["n"] for row in rows if row.op == "read" and row.exact]  # type: ignore[index]
    assert set(exact) <= {0}
    assert len(exact) == 40 or not abilities(database.client).before_images


@pytest.mark.parametrize("fault", [{"errorCode": 237}, {"closeConnection": True}])
def test_a_failure_in_mid_scan_neither_loses_nor_doubles_a_document(
    capture: Begin,
    database: Database[Document],
    mongo: Client,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
) -> None:
    """Guards: a scan goes on after the last document handed out."""
    monkeypatch.setattr(range_scan, "_BATCH", 7)
    coll = filled(database, "a", [*range(60), MaxKey()])
    pipeline = capture("a", documents_per_split=1000)
    inner, seen = pipeline.open_member, 0

    def watch(command: Any) -> None:
        nonlocal seen
        if "getMore" in command and command["collection"] == "a":
            seen += 1
            if seen in (2, 5, 6):
                data = {"failCommands": ["getMore"], "appName": "mongodb-cdc", **fault}
                mongo.admin.command(
                    {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
                )

    def watched() -> Member:
        return Watched(inner(), watch)

    pipeline.open_member = watched
    monkeypatch.setattr(replica_set, "member", lambda *_: watched())
    pipeline.run()
    assert seen > 6
    assert len(pipeline.rows) == 61
    assert pipeline.replayed(coll) == contents(coll)


def test_a_batch_read_of_a_dropped_collection_is_refused(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: collectionUUID: without it the read is zero rows and ok. Who will not see the DDL
    event must not take a part for the whole."""
    filled(database, "a", range(20))
    pipeline = capture("a")
    splits = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
    database.drop_collection("a")
    assert [pipeline.rows_of(split) for split in splits] == [[], []]
    with pytest.raises(UnsuitableSource, match="dropped, renamed or replaced"):
        pipeline.rows_of(splits[0], may_be_void=False)


def test_a_replayed_batch_holds_the_same_rows(capture: Begin, database: Database[Document]) -> None:
    """Guards: splits follow from the two offsets alone, also for a planner that remembers none."""
    coll = filled(database, "a", range(60))
    pipeline = capture("a")
    for _ in range(3):
        coll.update_many({}, {"$inc": {"n": 1}})
        batch = pipeline.batch()
    coll.update_many({}, {"$inc": {"n": 1}})
    other = capture("a")
    other.offset = batch.start
    again = other.read(batch.end)
    can = abilities(database.client)
    assert repeated(again.rows, can) == repeated(batch.rows, can)


def test_nothing_is_written_to_the_source(
    capture: Begin, database: Database[Document], mongo: Client
) -> None:
    """Guards: the connector only reads: no signal table, no watermark, no heartbeat."""
    coll = filled(database, "a", range(60))
    since = mongo.admin.command("ping")["operationTime"]
    pipeline = capture("a")
    while not pipeline.offset.is_streaming:
        coll.update_many({}, {"$inc": {"n": 1}})
        pipeline.batch()
    coll.drop()
    pipeline.run()
    entries = mongo.local["oplog.rs"].find({"ts": {"$gt": since}, "op": {"$ne": "n"}})
    # The server's own: pre-images and their expiry, and every five minutes the sessions.
    own = {f"config.{name}" for name in ("system.preimages", "system.sessions", "$cmd")}
    names = {entry["ns"] for entry in entries} - own
    assert names <= {f"{database.name}.a", f"{database.name}.$cmd"}


def test_a_server_that_refuses_the_read_is_not_asked_again(
    capture: Begin, database: Database[Document], mongo: Client
) -> None:
    """Guards: retry is an allow-list."""
    filled(database, "a", range(20))
    pipeline = capture("a")
    end, began = pipeline.plan(), time.monotonic()
    with (
        failing(mongo, "alwaysOn", failCommands=["find"], errorCode=13),
        pytest.raises(NotPermitted, match="Copying"),
    ):
        pipeline.read(end)
    assert time.monotonic() - began < 5
