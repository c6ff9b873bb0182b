"""`oplog.verify`: rows of the oplog are compared with those of a change stream first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.database import Database

from cdc.demo import ReplicaSet
from cdc.errors import BadOption, OplogDiffers
from cdc.model import StreamSplit
from cdc.mongo.connection import member
from cdc.mongo.read import IMAGES, Event, ReadMethod, oplog
from tests.mongo.capture import TIMEOUT_MS, Document, document, filled, last_write
from tests.mongo.random_writes import Writer
from tests.mongo.read.test_oplog import Begin, both, require_same, slice_of
from tests.mongo.read.test_oplog import encoder as encoder_fixture
from tests.mongo.read.test_oplog import encoders as encoders_fixture
from tests.mongo.read.test_oplog import methods as methods_fixture
from tests.mongo.read.test_oplog_random import collections_of

encoder, encoders, methods = encoder_fixture, encoders_fixture, methods_fixture
Events = list[Event]
# Each part of the slice has as many events as a reply has entries.
PART, COUNT = 7, 30


def changed(event: Event, **fields: Any) -> Event:
    raw = RawBSONDocument(bson.encode({**event.raw, **fields}))
    return event._replace(raw=raw)


def with_other_after(events: Events) -> Events:
    other = bson.encode({"_id": 0, "n": -5})
    return [*events[:-1], events[-1]._replace(after=other)]


def with_other_before(events: Events) -> Events:
    return [*events[:-1], changed(events[-1], fullDocumentBeforeChange={"_id": 0})]


def with_other_wall_time(events: Events) -> Events:
    return [*events[:-1], changed(events[-1], wallTime=bson.datetime_ms.DatetimeMS(5))]


DEFECTS: dict[str, tuple[Callable[[Events], Events], str]] = {
    "a lost row": (lambda events: events[1:], "position"),
    "a lost row at the end": (lambda events: events[:-1], "position"),
    "a doubled row": (lambda events: [events[0], *events], "position"),
    "reordered rows": (lambda events: events[::-1], "position"),
    "another after-image": (with_other_after, "after of"),
    "another before-image": (with_other_before, "before of"),
    "another wall time": (with_other_wall_time, "wall_time of"),
}


class Slice:
    """A slice with changes, read with a defect in a part of it."""

    def __init__(self, server: ReplicaSet, database: Database[Document]) -> None:
        coll = filled(database, "a", range(COUNT))
        after = last_write(database.client)
        coll.update_many({}, {"$inc": {"n": 1}})
        self._opener = partial(member, server.uri, TIMEOUT_MS)
        self.split = slice_of(coll, after, last_write(database.client))
        self.reasons = list[str]()

    def read(self, method: ReadMethod) -> Iterator[Event]:
        reading = oplog.read(
            self._opener, self.split, IMAGES["auto"], 20, method, self.reasons.append
        )
        for events in reading:
            yield from events


@pytest.fixture
def changes(
    mongod: ReplicaSet, database: Database[Document], monkeypatch: pytest.MonkeyPatch
) -> Slice:
    monkeypatch.setattr(oplog, "_BATCH", PART)
    return Slice(mongod, database)


def break_part(monkeypatch: pytest.MonkeyPatch, number: int, defect: Any) -> None:
    """Give one part of what is made of the oplog a defect."""
    make, count = oplog._events, iter(range(10**6))

    def broken(*arguments: Any) -> Iterator[Any]:
        for events in make(*arguments):
            yield defect(list(events)) if next(count) == number else events

    monkeypatch.setattr(oplog, "_events", broken)


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_difference_ends_the_run_before_the_part_with_it_leaves(
    changes: Slice, encoder: str, monkeypatch: pytest.MonkeyPatch, number: int, defect: str
) -> None:
    make, says = DEFECTS[defect]
    break_part(monkeypatch, number, make)
    left, reading = list[Event](), changes.read(ReadMethod(verify=1.0))
    with pytest.raises(OplogDiffers, match=says) as raised:
        left.extend(reading)
    assert str(raised.value).count(" at 82") == 2
    assert number * PART <= len(left) < (number + 1) * PART
    assert changes.reasons == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_after_a_difference_the_change_stream_has_the_rest_of_the_slice(
    changes: Slice,
    encoder: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    defect: str,
) -> None:
    expected = [event.raw for event in changes.read(ReadMethod("change_stream"))]
    break_part(monkeypatch, 2, DEFECTS[defect][0])
    method = ReadMethod(verify=1.0, on_difference="change_stream")
    assert [event.raw["_id"] for event in changes.read(method)] == [raw["_id"] for raw in expected]
    assert len(expected) == COUNT
    assert changes.reasons == ["a difference from the change stream"]
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.count(" at 82") == 2


def test_a_row_that_only_one_of_both_has_at_the_end_is_a_difference(
    changes: Slice, encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = (COUNT - 1) // PART
    for defect, says in (
        (lambda events: events[:-1], "only the change stream has the change at 82"),
        (lambda events: [*events, events[-1]], "only the oplog has the change at 82"),
    ):
        with monkeypatch.context() as patched:
            break_part(patched, last, defect)
            with pytest.raises(OplogDiffers, match=says):
                list(changes.read(ReadMethod(verify=1.0)))


def test_equal_rows_are_those_of_the_oplog_and_are_read_by_both(
    capture: Begin, database: Database[Document], encoders: None, methods: list[str]
) -> None:
    writer = Writer(collections_of(database), 4)
    settings = {"oplog_verify": "1", "oplog_on_difference": "change_stream"}
    verified, by_stream = capture("a", "b", mode="latest", **settings), both(capture, "a", "b")[1]
    writer.write(500)
    verified.run()
    assert methods == ["oplog", "change stream"]
    assert len(require_same(verified, by_stream)) > 300


@pytest.mark.parametrize("on_oversize", ["lookup", "fail"])
def test_an_image_that_a_change_stream_cannot_give_is_no_difference(
    capture: Begin, database: Database[Document], encoders: None, on_oversize: str
) -> None:
    """Guards: the check requests less than a run, which would fail at a row that the oplog has."""
    [coll, _] = collections_of(database)
    coll.insert_one({"_id": 1, "x": "x" * (15 * 2**20)})
    pipeline = capture("a", mode="latest", oplog_verify="1", on_oversize=on_oversize)
    coll.replace_one({"_id": 1}, {"x": "y" * (15 * 2**20)})
    [row] = (row for batch in pipeline.run() for row in batch.rows)
    before, after = document(row.before), document(row.after)
    assert (before or {})["x"][:1] + (after or {})["x"][:1] == "xy"
    assert row.exact


def slices(count: int) -> list[StreamSplit]:
    times = [Timestamp(1_700_000_000 + number, 1) for number in range(count + 1)]
    return [StreamSplit(*pair, "a", b"") for pair in itertools.pairwise(times)]


def test_the_slices_that_are_verified_are_a_share_and_always_the_same() -> None:
    many = slices(4000)
    chosen = [each for each in many if ReadMethod(verify=0.25).verifies(each)]
    assert 900 < len(chosen) < 1100
    assert chosen == [each for each in many if ReadMethod(verify=0.25).verifies(each)]
    assert set(chosen) < {each for each in many if ReadMethod(verify=0.5).verifies(each)}
    assert not any(ReadMethod(verify=0.0).verifies(each) for each in many)
    assert all(ReadMethod(verify=1.0).verifies(each) for each in many)
    # Another process or version must not choose others: it may replay a batch.
    few = [
        each.after.time - 1_700_000_000 for each in many if ReadMethod(verify=0.001).verifies(each)
    ]
    assert few == [129, 2757, 3549]


@pytest.mark.parametrize("share", ["-0.1", "1.01", "nan", "x", ""])
def test_a_share_outside_of_0_to_1_is_refused(capture: Begin, share: str) -> None:
    with pytest.raises(BadOption, match=r"'oplog\.verify'"):
        capture("a", oplog_verify=share)
