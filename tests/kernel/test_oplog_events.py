"""Compiled functions make the same events of oplog entries as plain Python, or leave them to it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import bson
import numpy as np
import pytest
from bson.raw_bson import RawBSONDocument

from cdc.kernel import oplog_reply, reply
from cdc.kernel.oplog_reply import Operations
from cdc.model.bson import elements
from cdc.model.oplog import change_event, unfold
from tests.kernel.guarded import damaged, listed
from tests.kernel.oplog_entries import IMAGE, entries, entry, recorded

IMAGES = [recorded(number) for number in range(3)]


class Rare(Exception):
    """The compiled functions leave an event to plain Python."""


def compiled(entry: bytes) -> list[bytes] | None:
    """The events of an entry; None if plain Python is to locate its operations. Raises Rare."""

    def refuse(row: int) -> bytes:
        raise Rare

    data = listed([entry])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdc.kernel.oplog_reply.WORTH", 0)
        operations = Operations.of((data, 0, len(data)), lambda collection: True)
    if operations is None:
        return None
    before = listed(IMAGES)
    images = [(each, [(before, 0, len(before))]) for each in operations.ranges()]
    array = operations.events(images, refuse)
    return [array[each.start : each.stop] for each in elements(array, 0, len(array))]


def test_a_process_loads_the_compiled_functions_after_some_replies_however_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = listed([bson.encode(entry(o={"$v": 2, "diff": {"u": {"a": 1}}}))])
    monkeypatch.setattr(oplog_reply, "WORTH", 3 * len(data))
    monkeypatch.setattr(oplog_reply, "_read", reply.Total())
    tries = [Operations.of((data, 0, len(data)), lambda collection: True) for _ in range(5)]
    assert [each is not None for each in tries] == [False, False, True, True, True]


def plain(entry: bytes) -> list[bytes]:
    image = bson.encode(IMAGE)
    return [
        bytes(change_event(each, image if each.pre_image else None).raw)
        for each in unfold(RawBSONDocument(entry), lambda time: None)
    ]


def test_each_kind_of_entry_has_the_same_events() -> None:
    for each in entries():
        assert compiled(each) == plain(each)


def diffs(draw: random.Random) -> Iterator[dict[str, object]]:
    """Many fields at one level, many levels, and a result much longer than the image."""
    for count in (1, 63, 64, 65, 200):
        yield {"i": {f"n{number}": draw.random() for number in range(count)}}
    for size in (1, 900, 20_000):
        yield {"sb": {"sc": {"a": True, f"u{size}": "x" * 10}}}
    for size in (10, 3000):
        yield {"u": {"a": "x" * size}, "sb": {"sc": {"a": True, "s2": {"i": {"n" * size: 1}}}}}


def test_a_diff_of_any_size_has_the_same_event_or_is_left_to_plain_python() -> None:
    rare = 0
    for diff in diffs(random.Random(1)):
        each = bson.encode(entry(o={"$v": 2, "diff": diff}))
        try:
            assert compiled(each) == plain(each)
        except Rare:
            rare += 1
            assert len(plain(each)) == 1
    assert rare == 2, "only those of more changes at one level than there is room for"


def test_a_damaged_entry_has_the_same_events_or_none() -> None:
    """Guards: what plain Python refuses is refused, and nothing else comes out."""
    draw, samples, same = random.Random(1), list(entries()), 0
    for _ in range(3000):
        each = damaged(draw, draw.choice(samples))
        try:
            events = compiled(each)
        except Rare:
            continue
        if events is None:
            continue
        try:
            expected = plain(each)
        except bson.errors.BSONError:
            continue  # a clock beyond Python's years
        assert events == expected
        same += 1
    assert same > 100


def test_a_change_of_a_field_that_occurs_twice_is_left_to_plain_python() -> None:
    """Guards: each change is written once, which bounds the output."""
    field = b"\x10a\0" + np.int32(1).tobytes()
    image = b"".join((b"\x10_id\0", np.int32(7).tobytes(), field * 50))
    document = (len(image) + 5).to_bytes(4, "little") + image + b"\0"
    own = RawBSONDocument(recorded(0))
    before = bson.encode({**own, "preImage": RawBSONDocument(document)})
    data = listed([bson.encode(entry(o={"$v": 2, "diff": {"u": {"a": "x" * 5000}}}))])
    array = listed([before])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdc.kernel.oplog_reply.WORTH", 0)
        operations = Operations.of((data, 0, len(data)), lambda collection: True)
    assert operations is not None
    left: list[int] = []
    images = [(each, [(array, 0, len(array))]) for each in operations.ranges()]
    operations.events(images, lambda row: left.append(row) or bson.encode({}))
    assert left == [0]
