"""Changes of more than 16 MiB are told once and in order, whole where the server can split them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database

from cdc.errors import UnsuitableSource
from cdc.model.change import Change
from cdc.model.selection import Selection
from cdc.model.split import StreamSplit
from cdc.mongo import pipeline, stream
from cdc.mongo.client import Member, member
from cdc.mongo.images import IMAGES
from jobs.mongod import ReplicaSet
from tests.mongo.abilities import Abilities, abilities
from tests.mongo.capture import (
    TIMEOUT_MS,
    Capture,
    Client,
    Document,
    Watched,
    asked,
    contents,
    document,
    filled,
    id_of,
)

Begin = Callable[..., Capture]
MiB = 2**20
LARGE = 9 * MiB


def pad(letter: str, size: int = LARGE) -> str:
    return letter * size


def changed(capture: Capture) -> list[Change]:
    capture.run()
    return sorted((row for row in capture.rows if row.op != "read"), key=lambda row: row.position)


Told = tuple[str, Any, str | None, str | None, bool]


def told(row: Change) -> Told:
    """Images as the letter that their `pad` is of."""
    return (row.op, id_of(row), _letter(row.before), _letter(row.after), row.exact)


def _letter(image: Any) -> str | None:
    found = document(image)
    return None if found is None else found["pad"][0]


def expected(
    can: Abilities, op: str, before: str | None, after: str | None, last: str, described: int = 0
) -> Told:
    """The row of a change of the large document, whose description holds it `described` times;
    `last` is what a lookup finds."""
    recorded = after is not None and (op != "update" or can.after_images)
    has_before = before is not None and can.before_images
    with_after, most = described + recorded, 9 if can.splits_events else 1
    has_after = recorded and with_after <= most
    has_before = has_before and with_after + 1 <= most
    return (
        op,
        "large",
        before if has_before else None,
        after if has_after or after is None else last,
        has_before == (before is not None) and has_after == (after is not None),
    )


@pytest.fixture
def opener(mongod: ReplicaSet) -> Callable[[], Member]:
    return partial(member, mongod.uri, TIMEOUT_MS)


def test_what_the_server_gives_of_a_large_change_is_told_and_all_of_those_beside_it(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: all images where the server splits events, else those that fit and the document as
    it is found; never fewer of the events that are not too large."""
    coll = filled(database, "a", [])
    coll.insert_many([{"_id": "small", "pad": "r"}, {"_id": "large", "pad": pad("x")}])
    changes = capture("a", mode="latest")
    coll.update_one({"_id": "small"}, {"$set": {"pad": "s"}})
    coll.update_one({"_id": "large"}, {"$inc": {"n": 1}})
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    coll.update_one({"_id": "small"}, {"$set": {"pad": "t"}})
    coll.update_one({"_id": "large"}, {"$set": {"pad": pad("z")}})
    coll.update_one({"_id": "small"}, {"$set": {"pad": "t", "n": 1}})
    rows, can = changed(changes), abilities(database.client)
    assert len({row.position for row in rows}) == len(rows) == 6
    found = [told(row) for row in rows]
    assert found[1:5:3] + found[2:3] == [
        expected(can, "update", "x", "x" if can.after_images else "z", "z"),
        expected(can, "update", "y", "z", "z", described=1),
        expected(can, "replace", "x", "y", "z"),
    ]
    assert [len(json.loads(row.update_description or "")["updatedFields"]) for row in rows[4:]] == [
        1,
        1,
    ]
    earlier = ["r", "s", "t"] if can.before_images else [None] * 3
    later = ["s", "t", "t"] if can.after_images else ["t"] * 3
    assert [told(row) for row in rows[0:6:3] + rows[5:]] == [
        ("update", "small", before, after, can.after_images)
        for before, after in zip(earlier, later, strict=True)
    ]
    assert changes.replayed(coll) == contents(coll)


@pytest.mark.parametrize("images", ["when_available", "update_lookup"])
def test_an_after_that_does_not_fit_is_looked_up(
    capture: Begin, database: Database[Document], images: str
) -> None:
    """Guards: by key, whatever the images are.

    Without images (4.2) the change is not too large."""
    coll, can = filled(database, "a", []), abilities(database.client)
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest", images=images)
    coll.update_one({"_id": "large"}, {"$set": {"pad": pad("y")}})
    coll.update_one({"_id": "large"}, {"$inc": {"n": 1}})
    first, _ = changed(changes)
    found = images == "update_lookup" or can.before_images
    assert first.after is not None if found else first.after is None
    after = document(first.after) or {}
    whole = images == "when_available" and can.splits_events
    assert after.get("n") == (1 if found and not whole else None)
    assert first.exact == whole


def test_a_document_of_16_mib_is_told_beside_a_change_that_does_not_fit(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: what fits is not taken for too large."""
    coll, can = filled(database, "a", []), abilities(database.client)
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest")
    size = 16 * MiB - len(bson.encode({"_id": 1, "pad": ""}))
    coll.insert_one({"_id": 1, "pad": pad("f", size)})
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    assert [told(row) for row in changed(changes)] == [
        ("insert", 1, None, "f", True),
        expected(can, "replace", "x", "y", "y"),
    ]


@pytest.mark.parametrize("images", ["auto", "update_lookup"])
def test_a_transaction_with_a_large_change_is_told_once_in_order_by_the_positions_of_its_events(
    capture: Begin,
    database: Database[Document],
    opener: Any,
    monkeypatch: pytest.MonkeyPatch,
    images: str,
) -> None:
    """Guards: a stream that splits events has tokens of another form, which sort behind those that
    were handed out before the slice was opened again."""
    monkeypatch.setattr(stream, "_BATCH", 3)
    coll = filled(database, "a", range(8))
    coll.insert_one({"_id": "large", "n": 0, "pad": pad("x")})
    changes = capture("a", mode="latest", images=images)
    lower = changes.offset.time
    with database.client.start_session() as session, session.start_transaction():
        for number in range(8):
            coll.update_one({"_id": number}, {"$inc": {"n": 1}}, session=session)
            coll.update_one({"_id": "large"}, {"$inc": {"n": 1}}, session=session)
            if number == 4:
                coll.update_one({"_id": "large"}, {"$set": {"pad": pad("y")}}, session=session)
    rows = changes.run()[-1].rows
    plain = events(slice_of(coll, lower, changes.offset.time), opener, "off")
    assert [row.position for row in rows] == [event.position for event in plain]
    assert [id_of(row) for row in rows] == [event.raw["documentKey"]["_id"] for event in plain]
    assert len(rows) == 17
    can = abilities(database.client)
    if images == "auto" and can.splits_events:
        large = [document(row.after) or {} for row in rows if id_of(row) == "large"]
        assert [(image["n"], image["pad"][0]) for image in large] == [
            (1, "x"), (2, "x"), (3, "x"), (4, "x"), (5, "x"), (5, "y"), (6, "y"), (7, "y"), (8, "y")
        ]  # fmt: skip
        assert all(row.exact for row in rows)
    assert changes.replayed(coll) == contents(coll)


def slice_of(coll: Any, after: Timestamp, upto: Timestamp) -> StreamSplit:
    condition = Selection.parse(f"{coll.database.name}.{coll.name}").condition("ns")
    return StreamSplit(after, upto, coll.database.name, pipeline.pipeline([condition]))


def events(split: StreamSplit, open_member: Callable[[], Member], images: str) -> Any:
    read = stream.read(open_member, split, IMAGES[images], 20)
    return [event for group in read for event in group]


def test_a_slice_that_fails_between_fragments_tells_their_event_once_and_whole(
    capture: Begin, database: Database[Document], mongo: Client, opener: Any
) -> None:
    """Guards: at each reply that a read takes, it is begun anew."""
    coll = filled(database, "a", [1, 2])
    coll.insert_one({"_id": "large", "pad": pad("x")})
    lower = capture("a").now()
    coll.update_one({"_id": 1}, {"$set": {"pad": "s"}})
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    coll.update_one({"_id": 2}, {"$set": {"pad": "t"}})
    split = slice_of(coll, lower, capture("a").now())
    whole = events(split, opener, "auto")
    for number in itertools.count():
        fault = Fault(mongo, number)
        found = events(split, lambda fault=fault: Watched(opener(), fault), "auto")  # type: ignore[misc]
        assert [event.position for event in found] == [event.position for event in whole]
        assert [event.exact for event in found] == [event.exact for event in whole]
        assert found[1].after == whole[1].after
        images = [event.raw.get("fullDocumentBeforeChange") for event in (found[1], whole[1])]
        assert images[0] == images[1]
        if fault.left >= 0:
            break
    can = abilities(mongo)
    assert number >= 3 + 2 * can.splits_events if can.before_images else number


class Fault:
    """Kills the cursor at a reply of a read, the number of which is given from 0 on."""

    def __init__(self, mongo: Client, number: int) -> None:
        self._mongo, self.left = mongo, number

    def __call__(self, command: Mapping[str, Any]) -> None:
        if "getMore" not in command:
            return
        if self.left == 0:
            data = {"failCommands": ["getMore"], "appName": "mongodb-cdc", "errorCode": 237}
            point = {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
            self._mongo.admin.command(point)
        self.left -= 1


def test_a_run_goes_on_behind_a_large_change_by_its_position(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a position is a token, and leads neither into an event nor past another."""
    coll = filled(database, "a", [])
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest")
    with database.client.start_session() as session, session.start_transaction():
        for key in (1, 2):
            coll.insert_one({"_id": key, "pad": "s"}, session=session)
        coll.replace_one({"_id": "large"}, {"pad": pad("y")}, session=session)
        coll.insert_one({"_id": 3, "pad": "s"}, session=session)
    rows = changed(changes)
    assert len(rows) == 4
    for number, row in enumerate(rows):
        rest = changed(capture("a", mode="token", start=row.position))
        assert [told(row) for row in rest] == [told(row) for row in rows[number + 1 :]]


def test_a_run_that_is_to_fail_where_images_do_not_fit_says_where(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: on.oversize = fail; the message names collection and time, and no value."""
    coll, can = filled(database, "a", [1]), abilities(database.client)
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest", on_oversize="fail")
    coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
    changes.run()
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    if can.splits_events or not can.before_images:
        assert [told(row) for row in changed(changes)[1:]] == [
            expected(can, "replace", "x", "y", "y")
        ]
        return
    with pytest.raises(UnsuitableSource) as raised:
        changes.run()
    time = changes.now()
    message = str(raised.value)
    assert f"{database.name}.a at {time.time}:" in message
    assert "on.oversize" in message
    assert "large" not in message.replace("too large", "")


def test_a_change_whose_own_description_exceeds_16_mib_is_told_without_it(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the names of fields, which it tells in full, are short in the oplog.

    A server that has the whole document there (4.2) tells of a replacement."""
    coll, name = filled(database, "a", []), "k" * 900
    parts = {str(number): {"n": 0, "p": "p" * 60} for number in range(20_000)}
    coll.insert_one({"_id": "large", "pad": "x", name: parts})
    changes = capture("a", mode="latest")
    changed_part = {"k": "$$this.k", "v": {"n": 1, "p": "$$this.v.p"}}
    each = {"$map": {"input": {"$objectToArray": f"${name}"}, "in": changed_part}}
    coll.update_one({"_id": "large"}, [{"$set": {name: {"$arrayToObject": each}}}])
    coll.insert_one({"_id": 1, "pad": "s"})
    rows, can = changed(changes), abilities(database.client)
    op = "update" if can.before_images else "replace"
    before = "x" if can.before_images else None
    assert [told(row) for row in rows] == [
        (op, "large", before, "x", can.exact(op)),
        ("insert", 1, None, "s", True),
    ]
    assert rows[0].update_description is None
    assert changes.replayed(coll) == contents(coll)


def test_small_changes_are_read_by_one_cursor_and_as_they_are(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: only a slice with a large change pays for it."""
    coll = filled(database, "a", range(10))
    changes = capture("a", mode="latest")
    coll.update_many({}, {"$inc": {"n": 1}})
    with asked(database) as commands:
        changes.run()
    assert "bsonSize" not in str(commands)
    assert "changeStreamSplitLargeEvent" not in str(commands)
