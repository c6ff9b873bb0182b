"""Changes of more than 16 MiB are emitted once and in order, whole where the server can split them.

So are small changes of large `_id`s, beside which a reply of 16 MiB has no room for its token.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.database import Database

from cdc import options as declared
from cdc.demo import ReplicaSet
from cdc.errors import UnsuitableSource
from cdc.model import Change, Selection, StreamSplit, key_of, merge_key, timestamp
from cdc.mongo.connection import Member, member
from cdc.mongo.query import event_filter
from cdc.mongo.read import IMAGES, BatchSize, change_stream
from cdc.source import inquiry
from tests.mongo.abilities import Abilities, abilities
from tests.mongo.capture import (
    RAW,
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
    last_write,
    open_cursors,
    until,
)

Begin = Callable[..., Capture]
MiB = 2**20
LARGE = 9 * MiB


def pad(letter: str, size: int = LARGE) -> str:
    return letter * size


def changed(capture: Capture) -> list[Change]:
    capture.run()
    return sorted((row for row in capture.rows if row.op != "read"), key=lambda row: row.position)


Reported = tuple[str, Any, str | None, str | None, bool]


def reported(row: Change) -> Reported:
    """Images as the letter that their `pad` is of."""
    return (row.op, id_of(row), _letter(row.before), _letter(row.after), row.exact)


def _letter(image: Any) -> str | None:
    found = document(image)
    return None if found is None else found["pad"][0]


def expected(
    can: Abilities, op: str, before: str | None, after: str | None, last: str, described: int = 0
) -> Reported:
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
def capture(mongod: ReplicaSet, database: Database[Document]) -> Begin:
    """Like that of all tests, but it reads no oplog, which has no such limits."""

    def begun(name: str, **settings: Any) -> Capture:
        names = f"{database.name}.{name}"
        return Capture(mongod.uri, names, read_by="change_stream", **settings)

    return begun


@pytest.fixture
def opener(mongod: ReplicaSet) -> Callable[[], Member]:
    return partial(member, mongod.uri, TIMEOUT_MS)


def test_what_the_server_gives_of_a_large_change_is_reported_and_all_of_those_beside_it(
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
    found = [reported(row) for row in rows]
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
    assert [reported(row) for row in rows[0:6:3] + rows[5:]] == [
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


def test_a_change_that_cannot_be_split_leaves_those_after_it_whole(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a server that splits events does not split one whose image fills a reply alone."""
    coll, can = filled(database, "a", []), abilities(database.client)
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest")
    coll.insert_one({"_id": "k" * 20_000, "pad": pad("f", 16_700_000)})
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    first, second = changed(changes)
    assert (first.op, _letter(first.after)) == ("insert", "f")
    assert reported(second) == expected(can, "replace", "x", "y", "y")


def test_a_slice_with_a_large_change_leaves_no_cursor_on_the_server(
    capture: Begin, database: Database[Document], mongo: Client
) -> None:
    """Guards: left to the garbage collector, the cursor that completes a change is ended wherever
    that runs; within the driver, which holds a lock then, the reader waits for ever."""
    coll = filled(database, "a", [])
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest")
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    gc.collect()
    before = open_cursors(mongo)
    gc.disable()
    try:
        changes.run()
        until(lambda: open_cursors(mongo) <= before, 5)
    finally:
        gc.enable()


def test_a_document_of_16_mib_is_reported_beside_a_change_that_does_not_fit(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: what fits is not taken for too large."""
    coll, can = filled(database, "a", []), abilities(database.client)
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest")
    size = 16 * MiB - len(bson.encode({"_id": 1, "pad": ""}))
    coll.insert_one({"_id": 1, "pad": pad("f", size)})
    coll.replace_one({"_id": "large"}, {"pad": pad("y")})
    assert [reported(row) for row in changed(changes)] == [
        ("insert", 1, None, "f", True),
        expected(can, "replace", "x", "y", "y"),
    ]


@pytest.mark.parametrize("images", ["auto", "update_lookup"])
def test_a_transaction_with_a_large_change_is_reported_once_in_order_by_the_positions_of_its_events(
    capture: Begin,
    database: Database[Document],
    opener: Any,
    monkeypatch: pytest.MonkeyPatch,
    images: str,
) -> None:
    """Guards: a stream that splits events has tokens of another form, which sort after those that
    were handed out before the slice was opened again."""
    monkeypatch.setattr(change_stream, "_BATCH", 3)
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
    return StreamSplit(after, upto, coll.database.name, event_filter.pipeline([condition]))


def events(split: StreamSplit, open_member: Callable[[], Member], images: str) -> Any:
    read = change_stream.read(open_member, split, IMAGES[images], 20)
    return [event for group in read for event in group]


def test_a_slice_that_fails_between_fragments_reports_their_event_once_and_whole(
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


def test_a_run_goes_on_after_a_large_change_by_its_position(
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
        assert [reported(row) for row in rest] == [reported(row) for row in rows[number + 1 :]]


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
        assert [reported(row) for row in changed(changes)[1:]] == [
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


def test_a_change_whose_own_description_exceeds_16_mib_is_reported_without_it(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: the names of fields, which it reports in full, are short in the oplog.

    A server that has the whole document there (4.2) reports a replacement."""
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
    assert [reported(row) for row in rows] == [
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


# --- small changes of large `_id`s ----------------------------------------------------------------

LARGE_IDS = {"20 KB": (200, 20_000), "100 KB": (60, 100_000), "1 MB": (6, 1_000_000)}


def keys_of(count: int, size: int) -> list[str]:
    return [f"{number:05}" + "k" * (size - 5) for number in range(count)]


def write(coll: Any, keys: list[str], session: Any = None) -> None:
    coll.insert_many(({"_id": key, "n": 0} for key in keys), session=session)
    coll.update_many({"n": 0}, {"$inc": {"n": 1}}, session=session)
    coll.delete_many({"n": 1, "_id": {"$in": keys[::2]}}, session=session)


Small = tuple[str, str, Any, Any, bool]


def small(row: Change) -> Small:
    """Images as their `n`, keys as their beginning."""
    images = [image and image["n"] for image in map(document, (row.before, row.after))]
    return (row.op, id_of(row)[:5], *images, row.exact)


def written(can: Abilities, keys: list[str]) -> list[Small]:
    """The rows of what `write` did, of a key that is deleted in the end with what is found then."""
    before, after = can.before_images, can.after_images
    return [
        *(("insert", key[:5], None, 0, True) for key in keys),
        *(
            (
                "update",
                key[:5],
                0 if before else None,
                1 if after or number % 2 else None,
                can.exact("update"),
            )
            for number, key in enumerate(keys)
        ),
        *(("delete", key[:5], 1 if before else None, None, before) for key in keys[::2]),
    ]


def in_order(capture: Capture) -> list[Change]:
    """The changes, which came in the order of their positions, each once."""
    rows = [row for batch in capture.run() for row in batch.rows if row.op != "read"]
    positions = [row.position for row in rows]
    assert positions == sorted(set(positions))
    return rows


@contextmanager
def in_transaction(coll: Any) -> Iterator[Any]:
    with coll.database.client.start_session() as session, session.start_transaction():
        yield session


ALONE: Callable[[Any], Any] = lambda _: nullcontext()  # noqa: E731


@pytest.mark.parametrize(
    ("size", "session_of"),
    [*((size, ALONE) for size in LARGE_IDS), ("100 KB", in_transaction)],
    ids=[*LARGE_IDS, "100 KB in a transaction"],
)
def test_small_changes_of_large_ids_keep_all_their_images(
    capture: Begin, database: Database[Document], size: str, session_of: Callable[[Any], Any]
) -> None:
    """Guards: to what fills a reply the server adds a token of twice the `_id`, and refuses both
    (10334): fewer events are asked for then, before any image is left out."""
    coll, keys = filled(database, "a", []), keys_of(*LARGE_IDS[size])
    changes = capture("a", mode="latest")
    with session_of(coll) as session:
        write(coll, keys, session)
    assert list(map(small, in_order(changes))) == written(abilities(database.client), keys)
    assert changes.replayed(coll) == contents(coll)


@pytest.mark.slow
@pytest.mark.parametrize("session_of", [ALONE, in_transaction], ids=["", "in a transaction"])
def test_beside_large_ids_only_the_change_that_is_too_large_itself_lacks_images(
    capture: Begin,
    database: Database[Document],
    opener: Any,
    session_of: Callable[[Any], Any],
) -> None:
    """Guards: it is found among those that a reply does not hold together. Wherever a slice ends,
    beside it too, each change is reported once, by the same position."""
    coll, keys = filled(database, "a", []), keys_of(60, 100_000)
    coll.insert_one({"_id": "large", "pad": pad("x")})
    changes = capture("a", mode="latest")
    lower = changes.offset.time
    with session_of(coll) as session:
        coll.insert_many(({"_id": key, "pad": "s"} for key in keys), session=session)
        coll.replace_one({"_id": "large"}, {"pad": pad("y")}, session=session)
        coll.update_many({"pad": "s"}, {"$set": {"pad": "t"}}, session=session)
    rows, can = in_order(changes), abilities(database.client)
    assert reported(rows.pop(60)) == expected(can, "replace", "x", "y", "y")
    before = "s" if can.before_images else None
    assert [(row.op, _letter(row.before), _letter(row.after), row.exact) for row in rows] == [
        *[("insert", None, "s", True)] * 60,
        *[("update", before, "t", can.exact("update"))] * 60,
    ]
    assert changes.replayed(coll) == contents(coll)
    whole = events(slice_of(coll, lower, changes.offset.time), opener, "auto")
    times = sorted({event.raw["clusterTime"] for event in whole})
    large = next(n for n, event in enumerate(whole) if event.raw["documentKey"]["_id"] == "large")
    around = [times.index(whole[large].raw["clusterTime"]) + n for n in (-1, 0, 1)]
    for cut in {times[n] for n in around if 0 <= n < len(times)}:
        parts = [slice_of(coll, lower, cut), slice_of(coll, cut, changes.offset.time)]
        found = [event for part in parts for event in events(part, opener, "auto")]
        assert [(e.position, e.after, e.exact) for e in found] == [
            (e.position, e.after, e.exact) for e in whole
        ]


def test_a_slice_of_large_ids_that_fails_again_and_again_is_read_once_and_whole(
    capture: Begin, database: Database[Document], mongo: Client, opener: Any
) -> None:
    """Guards: what one cursor has learnt of replies that are too large holds for the next."""
    coll, keys = filled(database, "a", []), keys_of(20, 300_000)
    lower = capture("a").now()
    write(coll, keys)
    split = slice_of(coll, lower, capture("a").now())
    whole = events(split, opener, "auto")
    assert len(whole) == 50
    faults = [Fault(mongo, number) for number in (0, 1, 2, 4)]

    def before(command: Mapping[str, Any]) -> None:
        for fault in faults:
            fault(command)

    found = events(split, lambda: Watched(opener(), before), "auto")  # type: ignore[arg-type]
    assert all(fault.left < 0 for fault in faults)
    assert [(e.position, e.after, e.exact) for e in found] == [
        (e.position, e.after, e.exact) for e in whole
    ]


def test_a_copy_of_large_ids_is_exact_beside_their_changes(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: a reply of documents is filled to 16 MiB, too; keys are in conditions of a stream."""
    coll, keys = filled(database, "a", []), keys_of(40, 500_000)
    coll.insert_many({"_id": key, "n": 0} for key in keys)
    changes = capture("a", documents_per_split=15)
    for number in range(2):
        changes.batch()
        coll.update_many({"_id": {"$in": keys[number::8]}}, {"$inc": {"n": 1}})
    changes.run()
    assert changes.namespaces_copied.count(f"{database.name}.a") == 3
    assert all(row.exact for row in changes.rows if abilities(database.client).after_images)
    stored = [bytes(each.raw) for each in coll.with_options(codec_options=RAW).find()]
    assert changes.replayed(coll) == {merge_key(key_of(each)): each for each in stored}


def test_a_change_whose_id_is_too_large_for_any_reply_is_what_the_error_blames(
    capture: Begin, database: Database[Document]
) -> None:
    """Guards: it names what is at fault and where, and no value; a new copy leads past it.

    A server without images (4.2) gives replies of more than 16 MiB."""
    coll = filled(database, "a", [])
    changes = capture("a", mode="latest")
    coll.insert_one({"_id": "v" * 3 * MiB})  # at most its image is too much
    [row] = in_order(changes)
    assert (row.op, document(row.after)) == ("insert", coll.find_one())
    reached, failing = changes.offset.time, capture("a", mode="latest", on_oversize="fail")
    coll.insert_one({"_id": "v" * 4 * MiB})
    if not abilities(database.client).before_images:
        assert [row.op for row in in_order(changes)] == ["insert"]
        return
    with pytest.raises(UnsuitableSource) as raised:
        changes.run()
    message = "".join(traceback.format_exception(raised.value, chain=True))
    assert f"follows {timestamp.text(reached)} exceeds" in message
    assert "_id" in message
    assert "vvv" not in message
    with pytest.raises(UnsuitableSource, match=r"Set on\.oversize to lookup"):
        failing.run()
    again = capture("a")
    coll.insert_one({"_id": 1})
    again.run()
    assert again.replayed(coll) == contents(coll)


def test_a_run_may_begin_with_a_change_that_is_read_with_less_only(
    mongod: ReplicaSet, database: Database[Document]
) -> None:
    """Guards: a start asks for the first change there is, of any collection, to see whether the
    oplog reaches back so far."""
    filled(database, "a", [])
    database.b.insert_one({"_id": "k" * 200_000, "pad": pad("x", 16 * MiB - 401_000)})
    named = {"uri": mongod.uri, "collections": f"{database.name}.a", "mode": "timestamp"}
    start = timestamp.text(last_write(database.client))
    assert inquiry.preflight(declared.parse({**named, "start": start}))


def drawn(*choices: int) -> list[int]:
    draw = random.Random(0)
    return [draw.choice(choices) for _ in range(3000)]


# Bytes of the tokens of a slice's events, what each has besides, and how many cursors it takes.
SLICES = {
    "equal": ([2 * 10**6] * 500, [300] * 500, 2),
    "large between small": (
        [100] * 2000 + [2 * 10**6] * 200 + [100] * 2000,
        [300] * 4200,
        2,
    ),
    "large and small in turns": (([100] * 500 + [2 * 10**6] * 20) * 10, [300] * 5200, 11),
    "mixed": (drawn(100, 100, 20_000, 10**6), drawn(300, 10**5, 3 * 10**6), 3),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_is_read_by_few_cursors_wherever_replies_are_refused(name: str) -> None:
    """Guards: each of them begins with the slice; what has come once comes again."""
    tokens, others, cursors = SLICES[name]
    sizes = [token * 5 // 2 + other for token, other in zip(tokens, others, strict=True)]
    assert opened(sizes, tokens) == (cursors, True)


def test_an_event_that_no_reply_holds_is_found_by_the_second_cursor() -> None:
    sizes = [300] * 700 + [17 * MiB] + [300] * 700
    assert opened(sizes, [100] * len(sizes)) == (2, False)


def opened(sizes: list[int], tokens: list[int]) -> tuple[int, bool]:
    """How many cursors a slice of such events takes on a server that fills replies as one does, and
    whether all of them come."""
    size = BatchSize(1000)
    for cursors in itertools.count(1):
        size.begin()
        got = 0
        while got < len(sizes):
            asked = itertools.accumulate(sizes[got : got + size.next()])
            count = max(1, sum(together <= 16 * MiB for together in asked))
            reply = sum(sizes[got : got + count]) + tokens[got + count - 1]
            if reply > 16 * MiB + 16 * 1024:
                break
            size.record_reply(count, reply)
            got += count
        else:
            return cursors, True
        if not size.shrink():
            return cursors, False
    raise AssertionError
