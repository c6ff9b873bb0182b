"""Before and after of a change: exact when recorded, and said so when not."""

from __future__ import annotations

import json
from collections.abc import Callable

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from cdc import source
from cdc.demo import ReplicaSet
from cdc.errors import ImagesMissing
from cdc.model import Change
from cdc.model.bson import DOCUMENT, STRING, encode_document, encode_field
from cdc.model.bson.element import DBPOINTER
from cdc.mongo.read import Event
from tests.mongo.abilities import abilities
from tests.mongo.capture import RAW, Capture, Client, Document, contents, document, filled, until

Begin = Callable[..., Capture]


def enable(coll: Collection[Document], enabled: bool) -> None:
    recording = abilities(coll.database.client).recording
    off = {"changeStreamPreAndPostImages": {"enabled": False}, "recordPreImages": False}
    options = recording if enabled else {name: off[name] for name in recording}
    coll.database.command("collMod", coll.name, **options)


def changed(pipeline: Capture) -> list[Change]:
    pipeline.run()
    rows = [row for row in pipeline.rows if row.key is not None and row.op != "read"]
    return sorted(rows, key=lambda row: row.position)


def test_the_size_of_images_is_known_though_a_driver_refuses_their_bytes() -> None:
    """Guards: a server stores strings that are not UTF-8, which only the encoders accept."""
    image = encode_document([encode_field(STRING, b"a", b"\2\0\0\0\xff\0")])
    fields = [encode_field(DOCUMENT, b"fullDocumentBeforeChange", image)]
    event = Event(RawBSONDocument(encode_document(fields)), image, exact=True)
    assert event.size == 2 * len(image)


_BAD = encode_document([encode_field(STRING, b"_id", b"\3\0\0\0\xff\xfe\0")])
_POINTER = encode_document([encode_field(DBPOINTER, b"_id", b"\2\0\0\0a\0" + b"x" * 12)])


@pytest.mark.parametrize(
    "key",
    [bson.encode({"_id": DatetimeMS(10**16)}), _BAD, _POINTER],
    ids=["a date after the year 9999", "not UTF-8", "a pointer"],
)
def test_documents_are_looked_up_by_an_id_that_python_does_not_read(
    capture: Begin, database: Database[Document], key: bytes
) -> None:
    """Guards: an error of the driver that ends the run, each time that the change is read."""
    filled(database, "a", [1, 2], images=False)
    raw = database.with_options(codec_options=RAW)["a"]
    raw.insert_one(RawBSONDocument(key))
    pipeline = capture("a", images="auto")
    pipeline.run()
    change = {"q": {"_id": {"$nin": [1, 2]}}, "u": {"$set": {"v": 1}}}
    database.command({"update": "a", "updates": [change]})
    pipeline.run()
    assert pipeline.replayed(database["a"]) == contents(database["a"])
    assert [row.op for row in pipeline.rows if row.op != "read"] == ["update"]


def test_recorded_images_are_exact(capture: Begin, database: Database[Document]) -> None:
    """Guards: images are those of the event, whatever came later.

    A server without after-images is asked for the document, which is gone here; one without
    before-images has none of them."""
    coll = filled(database, "a", [])
    pipeline = capture("a", mode="latest")
    coll.insert_one({"_id": 1, "n": 0})
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    coll.replace_one({"_id": 1}, {"n": 9})
    coll.delete_one({"_id": 1})
    rows = changed(pipeline)
    images = [(row.op, document(row.before), document(row.after), row.exact) for row in rows]
    can = abilities(database.client)
    assert images == [
        (op, before if can.before_images else None, after, can.exact(op))
        for op, before, after in (
            ("insert", None, {"_id": 1, "n": 0}),
            ("update", {"_id": 1, "n": 0}, {"_id": 1, "n": 1} if can.after_images else None),
            ("replace", {"_id": 1, "n": 1}, {"_id": 1, "n": 9}),
            ("delete", {"_id": 1, "n": 9}, None),
        )
    ]


@pytest.mark.parametrize("images", ["auto", "required", "when_available", "update_lookup", "off"])
def test_what_is_not_recorded_is_marked(
    capture: Begin, database: Database[Document], images: str
) -> None:
    """Guards: a looked-up after is a later state, with exactFrom; one not to be had is None. What
    was found deleted has exactFrom too: a mirror before the delete lacks the update."""
    coll = filled(database, "a", [1, 2])
    pipeline = capture("a", mode="latest", images=images)
    enable(coll, False)
    coll.update_one({"_id": 1}, {"$set": {"n": 1}})
    coll.update_one({"_id": 1}, {"$set": {"n": 2}})
    coll.update_one({"_id": 2}, {"$set": {"n": 1}})
    coll.delete_one({"_id": 2})
    first, second, gone, deleted = changed(pipeline)
    assert [row.exact for row in (first, second, gone)] == [False] * 3
    looks_up = images in ("auto", "required", "update_lookup")
    assert [(document(row.after) or {}).get("n") for row in (first, second)] == (
        [2, 2] if looks_up else [None, None]
    )
    for row in (first, second, gone):
        reported = json.loads(row.description or "{}").get("exactFrom")
        assert bool(reported) == looks_up
        if reported:
            seconds, increment = map(int, reported.split(":"))
            last = deleted.cluster_time // 1_000_000, deleted.cluster_inc
            assert (seconds, increment) >= last
    assert gone.after is None
    # A delete is fully reported without its before-image where none was asked for.
    assert deleted.exact == (images in ("update_lookup", "off"))
    assert deleted.before is None


@pytest.mark.parametrize("images", ["auto", "required"])
def test_an_image_that_has_expired_is_marked_and_never_reported_as_null(
    mongo: Client, images: str
) -> None:
    """Guards: the server's own `required` would end the stream here (47).

    Before 6.0 what is recorded stays as long as the oplog."""
    expire = {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 1}}}
    if not abilities(mongo).after_images:
        with pytest.raises(OperationFailure):
            mongo.admin.command({"setClusterParameter": expire})
        return
    often = {"expiredChangeStreamPreImageRemovalJobSleepSecs": 1}
    with ReplicaSet(set_parameters=often) as server, server.client() as client:
        coll = filled(client["test"], "a", [1, 2, 3])
        pipeline = Capture(server.uri, "test.a", images=images)
        pipeline.run()
        coll.update_one({"_id": 1}, {"$set": {"n": 1}})
        coll.update_one({"_id": 2}, {"$set": {"n": 1}})
        coll.delete_one({"_id": 2})
        coll.delete_one({"_id": 3})
        client.admin.command({"setClusterParameter": expire})
        until(lambda: not client["config"]["system.preimages"].count_documents({}))
        rows = changed(pipeline)
        assert [row.op for row in rows] == ["update", "update", "delete", "delete"]
        assert [row.exact for row in rows] == [False] * 4
        assert [row.before for row in rows] == [None] * 4
        assert [document(row.after) is None for row in rows] == [False, True, True, True]
        assert pipeline.replayed(coll) == contents(coll)


def test_images_enabled_late_are_used_from_then_on(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: each event by itself."""
    coll = filled(database, "a", [1], images=False)
    pipeline = capture("a", mode="latest")
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    enable(coll, True)
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    rows, can = changed(pipeline), abilities(database.client)
    assert [row.exact for row in rows] == [False, can.after_images]
    assert [row.before is not None for row in rows] == [False, can.before_images]


def test_a_collection_without_images_is_refused_where_they_are_required(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: images = required is checked when the run starts, and says what to do."""
    filled(database, "a", [1], images=False)
    with pytest.raises(ImagesMissing) as raised:
        source.ChangeReader(capture("a", images="required").options, None).initialOffset()  # type: ignore[arg-type]
    assert 'collMod: "a"' in str(raised.value)
    source.ChangeReader(capture("a").options, None).initialOffset()  # type: ignore[arg-type]


def test_a_looked_up_document_is_the_one_of_the_event_key(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: under a collation another document may answer to the same key."""
    collation = {"locale": "en", "strength": 2}
    coll = filled(database, "a", ["a"], collation=collation, images=False)
    pipeline = capture("a", mode="latest")
    coll.update_one({"_id": "a"}, {"$inc": {"n": 1}})
    coll.delete_one({"_id": "a"})
    coll.insert_one({"_id": "A"})
    rows = changed(pipeline)
    assert [(row.op, row.key, document(row.after)) for row in rows] == [
        ("update", '"a"', None),
        ("delete", '"a"', None),
        ("insert", '"A"', {"_id": "A"}),
    ]
