"""A range that cannot be read at its time any more is rewound to it: the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import bson
import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from cdc.demo import ReplicaSet
from cdc.model import Namespace, SnapshotSplit, Split
from cdc.mongo.connection import Member
from cdc.mongo.read import range_scan, rewind, snapshot
from cdc.mongo.topology import replica_set
from tests.mongo.abilities import Abilities, abilities
from tests.mongo.capture import (
    Capture,
    Client,
    Contents,
    Document,
    Watched,
    contents,
    failing,
    filled,
)

Begin = Callable[..., Capture]


@pytest.fixture(scope="module")
def forgetful(mongo: Client) -> Iterator[ReplicaSet]:
    """A server that keeps almost no history: a read at a time gone by answers 239 at once.

    One that gives no reads at a time never had any, and does not know the parameter."""
    parameters: dict[str, object] = {"enableTestCommands": True}
    if abilities(mongo).reads_at_a_time:
        parameters["minSnapshotHistoryWindowInSeconds"] = 0
    with ReplicaSet(set_parameters=parameters, cache_gigabytes=0.5) as replica_set:
        yield replica_set


@pytest.fixture
def source(forgetful: ReplicaSet) -> Iterator[Database[Document]]:
    with forgetful.client() as client:
        client.drop_database("test")
        yield client["test"]


def planned(source: Database[Document], replica_set: ReplicaSet, **settings: Any) -> Capture:
    """A pipeline, and in its first batch a split for each part of collection `a`."""
    return Capture(replica_set.uri, f"{source.name}.a", splits_per_batch=100, **settings)


def snapshots(pipeline: Capture) -> list[Split]:
    splits = pipeline.planner.splits(pipeline.offset, pipeline.plan(), control=False)
    return [split for split in splits if isinstance(split, SnapshotSplit)]


def read(pipeline: Capture, splits: list[Split]) -> tuple[Contents, Contents]:
    """What was read: exact documents, and those that are not."""
    found: tuple[Contents, Contents] = ({}, {})
    for split in splits:
        for row in pipeline.rows_of(split):
            assert row.key is not None
            assert row.key not in {**found[0], **found[1]}
            found[0 if row.exact else 1][row.key] = bytes(row.after)  # type: ignore[arg-type]
            assert row.exact or '"exactFrom"' in (row.description or "")
    return found


def check(found: tuple[Contents, Contents], there: Contents, can: Abilities) -> None:
    """Found is what was there. On a server without before-images: nothing that was not, what is
    called exact is, and the rest is marked; a document deleted since is missing."""
    exact, inexact = found
    if can.before_images:
        assert found == (there, {})
    assert exact.items() <= there.items()
    assert inexact.keys() <= there.keys()


def change(coll: Any, round_: int = 0) -> None:
    """Every kind of change, on keys that a scan has passed and on keys that it has not."""
    for key in range(round_, 60, 7):
        coll.update_one({"_id": key}, {"$inc": {"n": 1}})
        coll.update_one({"_id": key}, {"$inc": {"n": 1}})
    for key in range(round_ + 1, 60, 11):
        coll.delete_one({"_id": key})
    for key in range(round_ + 2, 60, 13):
        coll.delete_one({"_id": key})
        coll.insert_one({"_id": key, "again": round_})
    for key in range(round_ + 3, 60, 17):
        coll.replace_one({"_id": key}, {"new": round_})
    coll.insert_many([{"_id": n + (round_ + 1) / 100} for n in range(0, 60, 10)])
    coll.delete_one({"_id": 10 + (round_ + 1) / 100})
    with coll.database.client.start_session() as session, session.start_transaction():
        for key in (4, 5, 33, 34):
            coll.update_one({"_id": key}, {"$inc": {"n": 100}}, session=session, upsert=True)
        coll.delete_one({"_id": 6}, session=session)
        coll.insert_one({"_id": 6, "in": "transaction"}, session=session)


def age(pipeline: Capture, splits: list[Split]) -> None:
    """Until the server has forgotten the splits' time."""
    split = splits[0]
    assert isinstance(split, SnapshotSplit)
    concern = {"level": "snapshot", "atClusterTime": split.at}
    client = pipeline.source.client
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            command = {"find": split.namespace.coll, "limit": 1, "readConcern": concern}
            client[split.namespace.db].command(command)
        except OperationFailure as error:
            if error.code != (239 if abilities(client).reads_at_a_time else 72):
                raise
            return
        client["other"]["tick"].insert_one({})
        time.sleep(0.05)
    raise AssertionError("the server still knows that time")


@pytest.mark.parametrize("documents_per_split", [1000, 9])
@pytest.mark.parametrize("kind", ["plain", "clustered"])
def test_a_read_too_late_gives_the_rows_of_its_time(
    source: Database[Document], forgetful: ReplicaSet, kind: str, documents_per_split: int
) -> None:
    """Guards: the first before-image of each key, an insert as no document."""
    options: dict[str, Document] = {
        "plain": {},
        "clustered": {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
    }
    try:
        coll = filled(source, "a", range(60), **options[kind])
    except OperationFailure:
        # There are clustered collections since 5.3, after-images since 6.0.
        assert kind == "clustered"
        assert not abilities(source.client).after_images
        return
    pipeline = planned(source, forgetful, documents_per_split=documents_per_split)
    splits = snapshots(pipeline)
    assert len(splits) == (1 if documents_per_split > 60 else 7)
    there = contents(coll)
    change(coll)
    change(coll, 1)
    age(pipeline, splits)
    check(read(pipeline, splits), there, abilities(pipeline.source.client))


def test_a_rewind_under_a_collation_takes_the_events_of_its_own_keys(
    source: Database[Document], forgetful: ReplicaSet
) -> None:
    """Guards: the events of a range compare keys as its index does."""
    keys = [f"{letter}{number}" for letter in "aBcD" for number in (1, 2, 9, 10, 100)]
    coll = filled(source, "a", keys, collation={"locale": "en", "numericOrdering": True})
    pipeline = planned(source, forgetful, documents_per_split=3)
    splits = snapshots(pipeline)
    there = contents(coll)
    coll.update_many({}, {"$inc": {"n": 1}})
    coll.delete_many({"_id": {"$in": keys[::3]}})
    age(pipeline, splits)
    assert len(splits) == 7
    check(read(pipeline, splits), there, abilities(pipeline.source.client))


def test_a_document_whose_change_with_all_images_exceeds_16_mib_is_rewound_exactly(
    source: Database[Document], forgetful: ReplicaSet
) -> None:
    """Guards: no before-image is given up for the sake of an after-image."""
    coll = filled(source, "a", [1, 2])
    coll.insert_one({"_id": 3, "pad": "x" * 9 * 2**20})
    pipeline = planned(source, forgetful)
    splits = snapshots(pipeline)
    there = contents(coll)
    coll.replace_one({"_id": 3}, {"pad": "y" * 9 * 2**20})
    coll.update_one({"_id": 3}, {"$set": {"pad": "z" * 9 * 2**20}})
    coll.update_many({}, {"$inc": {"n": 1}})
    age(pipeline, splits)
    check(read(pipeline, splits), there, abilities(pipeline.source.client))


def test_a_range_of_large_ids_is_rewound_exactly(
    source: Database[Document], forgetful: ReplicaSet
) -> None:
    """Guards: a reply full of before-images has no room for the token of its last change."""
    coll = filled(source, "a", [])
    coll.insert_many({"_id": f"{n:02}" + "k" * 260_000, "n": 0} for n in range(20))
    pipeline = planned(source, forgetful, documents_per_split=1000)
    splits = snapshots(pipeline)
    there = contents(coll)
    coll.update_many({}, {"$inc": {"n": 1}})
    coll.delete_many({"_id": {"$lt": "05"}})
    age(pipeline, splits)
    check(read(pipeline, splits), there, abilities(pipeline.source.client))


@pytest.mark.parametrize("code", [239, 246])
def test_a_time_that_is_forgotten_in_mid_scan_is_rewound_from_there(
    capture: Begin,
    database: Database[Document],
    mongo: Client,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    """Guards: 239 and 246 from a getMore too; what was handed out is not read again."""
    monkeypatch.setattr(range_scan, "_BATCH", 8)
    coll = filled(database, "a", range(60))
    pipeline = capture("a", documents_per_split=1000)
    splits = snapshots(pipeline)
    there = contents(coll)
    inner, more = pipeline.open_member, 0

    def watch(command: Mapping[str, Any]) -> None:
        nonlocal more
        if command.get("collection") != "a":
            return
        more += 1
        change(coll, more)
        if more == 3:
            data = {"failCommands": ["getMore"], "errorCode": code, "appName": "mongodb-cdc"}
            mongo.admin.command(
                {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
            )

    use(pipeline, monkeypatch, lambda: Watched(inner(), watch))
    check(read(pipeline, splits), there, abilities(pipeline.source.client))
    assert more > 6


def test_a_rewind_in_parts_gives_the_rows_of_its_time(
    capture: Begin, database: Database[Document], mongo: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a part ends with its last key, the next begins after it; memory is bounded."""
    monkeypatch.setattr(range_scan, "_BATCH", 8)
    monkeypatch.setattr(rewind, "BYTES", 2000)
    coll = filled(database, "a", range(60))
    pipeline = capture("a", documents_per_split=35)
    splits = snapshots(pipeline)
    there = contents(coll)
    inner, rounds = pipeline.open_member, 0

    def watch(command: Mapping[str, Any]) -> None:
        nonlocal rounds
        if command.get("collection") == "a" or "find" in command:
            change(coll, rounds := rounds + 1) if rounds < 12 else None
            if command.get("readConcern", {}).get("level") == "snapshot":
                data = {"failCommands": ["find"], "errorCode": 239, "appName": "mongodb-cdc"}
                mongo.admin.command(
                    {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
                )

    use(pipeline, monkeypatch, lambda: Watched(inner(), watch))
    check(read(pipeline, splits), there, abilities(pipeline.source.client))
    assert rounds == 12


@pytest.mark.parametrize("collation", [None, {"locale": "en", "strength": 2}])
def test_a_part_does_not_begin_with_the_last_key_of_the_part_before_in_another_form(
    source: Database[Document],
    forgetful: ReplicaSet,
    monkeypatch: pytest.MonkeyPatch,
    collation: Document | None,
) -> None:
    """Guards: two rows of one key, the second one later than the time of the range."""
    monkeypatch.setattr(range_scan, "_BATCH", 10)
    monkeypatch.setattr(rewind, "BYTES", 1)
    keys = range(30) if collation is None else [f"a{number:02}" for number in range(30)]
    coll = filled(source, "a", keys, **({"collation": collation} if collation else {}))
    pipeline = planned(source, forgetful, documents_per_split=1000)
    [split] = snapshots(pipeline)
    assert isinstance(split, SnapshotSplit)
    there = contents(coll)
    age(pipeline, [split])
    parts = snapshot.read(pipeline.open_member, split, 5, True)
    found = [*next(parts).raw]
    last = bson.decode(found[-1])["_id"]
    coll.delete_one({"_id": last})
    coll.insert_one({"_id": float(last) if collation is None else last.upper()})
    found += [document for part in parts for document in part.raw]
    assert sorted(map(bytes, found)) == sorted(there.values())


def test_a_document_that_a_part_brought_back_is_not_in_the_next_one(
    source: Database[Document], forgetful: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: two rows of one key: that of the last document of a part, before it was replaced by
    one whose `_id` the collation holds equal."""
    monkeypatch.setattr(range_scan, "_BATCH", 10)
    monkeypatch.setattr(rewind, "BYTES", 1)
    keys = [f"a{number:02}" for number in range(30)]
    coll = filled(source, "a", keys, collation={"locale": "en", "strength": 2})
    pipeline = planned(source, forgetful, documents_per_split=1000)
    [split] = snapshots(pipeline)
    assert isinstance(split, SnapshotSplit)
    there = contents(coll)
    for key in keys:
        coll.delete_one({"_id": key})
        coll.insert_one({"_id": key.upper()})
    age(pipeline, [split])
    parts = snapshot.read(pipeline.open_member, split, 5, True)
    found = [bytes(document) for part in parts for document in part.raw]
    assert sorted(found) == sorted(there.values())


def test_deletes_after_the_last_document_found_are_undone(
    capture: Begin, database: Database[Document], mongo: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the window of events reaches to the end of the scan, not to its last document."""
    monkeypatch.setattr(range_scan, "_BATCH", 8)
    coll = filled(database, "a", range(60))
    pipeline = capture("a", documents_per_split=1000)
    splits = snapshots(pipeline)
    there = contents(coll)
    inner, more = pipeline.open_member, 0

    def watch(command: Mapping[str, Any]) -> None:
        nonlocal more
        more += command.get("collection") == "a"
        if more == 4:  # the rest of the scan finds nothing
            coll.delete_many({"_id": {"$gte": 32}})
            pipeline.now()

    refuse_snapshots(mongo)
    try:
        use(pipeline, monkeypatch, lambda: Watched(inner(), watch))
        check(read(pipeline, splits), there, abilities(mongo))
    finally:
        mongo.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


@pytest.mark.parametrize("documents_per_split", [1000, 9])
def test_a_capped_collection_is_copied_by_rewind(
    capture: Begin, database: Database[Document], documents_per_split: int
) -> None:
    """Guards: the server gives no snapshot of a capped collection."""
    coll = filled(database, "a", range(60), capped=True, size=40_000)
    there = contents(coll)
    assert len(there) == 60
    pipeline = capture("a", documents_per_split=documents_per_split)
    first = pipeline.plan()
    coll.insert_many([{"_id": n, "n": 0, "pad": "y" * 450} for n in range(100, 160)])
    coll.update_one({"_id": 159}, {"$inc": {"n": 1}})
    pipeline.read(first)
    assert {key: there[key] for key in pipeline.replayed(coll)} == pipeline.replayed(coll)
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll)


def test_without_before_images_no_row_that_may_be_wrong_is_called_exact(
    source: Database[Document], forgetful: ReplicaSet
) -> None:
    """Guards: converging: a state between T and exactFrom, said so; inserts since T are known."""
    coll = filled(source, "a", range(60), images=False)
    pipeline = planned(source, forgetful, documents_per_split=9)
    end = pipeline.plan()
    splits = snapshots(pipeline)
    there = contents(coll)
    change(coll)
    age(pipeline, splits)
    exact, inexact = read(pipeline, splits)
    assert exact.items() <= there.items()
    assert inexact
    assert not inexact.keys() & exact.keys()
    assert (exact | inexact).keys() <= there.keys()
    deleted = there.keys() - (exact | inexact).keys()
    assert deleted, "what was deleted since is missing"
    pipeline.read(end)
    pipeline.run()
    assert deleted <= {row.key for row in pipeline.rows if row.op == "delete"}
    assert pipeline.replayed(coll) == contents(coll)


def test_a_database_dropped_after_the_scan_does_not_hold_up_the_rewind(
    capture: Begin, database: Database[Document], mongo: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a stream of the database ends there, with an event that the pipeline lets pass."""
    coll = filled(database, "a", range(20))
    pipeline = capture("a", documents_per_split=1000)
    splits = snapshots(pipeline)
    there = contents(coll)
    inner = pipeline.open_member

    def watch(command: Mapping[str, Any]) -> None:
        if "ping" in command:
            mongo.drop_database(database.name)
            database["b"].insert_one({})
            pipeline.now()

    refuse_snapshots(mongo)
    try:
        use(pipeline, monkeypatch, lambda: Watched(inner(), watch))
        began = time.monotonic()
        check(read(pipeline, splits), there, abilities(mongo))
        assert time.monotonic() - began < 5
    finally:
        mongo.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def refuse_snapshots(mongo: Client) -> None:
    data = {"failCommands": ["find"], "errorCode": 239, "appName": "mongodb-cdc"}
    mongo.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})


def use(
    pipeline: Capture, monkeypatch: pytest.MonkeyPatch, open_member: Callable[[], Member]
) -> None:
    """The pipeline's splits are read through `open_member`."""
    monkeypatch.setattr(replica_set, "member", lambda *_: open_member())


def test_documents_renamed_onto_the_name_after_the_time_are_not_rewound_into_it(
    source: Database[Document], forgetful: ReplicaSet
) -> None:
    """A sweep was planned while the name was free; its splits are made when it is taken."""
    source.x.insert_many([{"_id": 1}, {"_id": 2}])
    pipeline = Capture(forgetful.uri, f"{source.name}.x", splits_per_batch=100)
    found = snapshots(pipeline)
    time.sleep(1.5)
    source.x.rename("c")
    elsewhere: list[Split] = [
        replace(split, namespace=Namespace(source.name, "c"))
        for split in found
        if isinstance(split, SnapshotSplit)
    ]
    assert elsewhere
    assert read(pipeline, elsewhere) == ({}, {})


@pytest.mark.parametrize("renamed_at", [1, 4])
def test_a_collection_renamed_away_is_not_rewound_with_the_changes_of_its_new_name(
    capture: Begin,
    database: Database[Document],
    mongo: Client,
    monkeypatch: pytest.MonkeyPatch,
    renamed_at: int,
) -> None:
    """Guards: the read before 6.0 finds the collection by UUID, wherever it is now; the events of
    the old name do not report what happened there."""
    monkeypatch.setattr(range_scan, "_BATCH", 8)
    coll = filled(database, "a", range(60))
    pipeline = capture("a", documents_per_split=1000)
    end = pipeline.plan()
    inner, reads = pipeline.open_member, 0

    def watch(command: Mapping[str, Any]) -> None:
        nonlocal reads
        reads += command.get("collection") == "a" or "find" in command
        if reads == renamed_at and "elsewhere" not in database.list_collection_names():
            coll.rename("elsewhere")
            database["elsewhere"].update_many({}, {"$inc": {"n": 1}})
            pipeline.now()

    refuse_snapshots(mongo)
    try:
        use(pipeline, monkeypatch, lambda: Watched(inner(), watch))
        batch = pipeline.read(end)
    finally:
        mongo.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
    assert reads >= renamed_at
    assert not batch.rows
    pipeline.run()
    assert pipeline.replayed(coll) == contents(coll) == {}


def test_a_member_that_lags_is_asked_again_and_not_taken_for_one_that_has_no_snapshots(
    capture: Begin, database: Database[Document], mongo: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: both refuse with 72; the second refuses its own time too, and only it is rewound."""
    coll = filled(database, "a", range(20))
    pipeline = capture("a", documents_per_split=1000)
    splits = snapshots(pipeline)
    coll.insert_one({"_id": "later"})
    pipeline.now()
    inner, streams = pipeline.open_member, 0

    def watch(command: Mapping[str, Any]) -> None:
        nonlocal streams
        streams += "aggregate" in command

    use(pipeline, monkeypatch, lambda: Watched(inner(), watch))
    with failing(mongo, {"times": 1}, failCommands=["find"], errorCode=72):
        exact, inexact = read(pipeline, splits)
    assert len(exact) == 20
    assert not inexact
    assert bool(streams) != abilities(mongo).reads_at_a_time
