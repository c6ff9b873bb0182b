"""The offset: what it says, how it is stored, and the rule that moves it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import ForeignOffset
from cdc.model import (
    MAX_KEY,
    MIN_KEY,
    Again,
    Copying,
    Namespace,
    Offset,
    Replaced,
    Scan,
    advance,
    begin_again,
    beginning,
    list_withheld,
    streaming,
)

RECORDED = Path(__file__).parent / "offsets"


def key(value: Any) -> bytes:
    return bson.encode({"_id": value})


def name(text: str) -> Namespace:
    return Namespace.parse(text)


def at(increment: int) -> Timestamp:
    return Timestamp(1767225600, increment)


def copying(text: str, below: bytes = MIN_KEY, uuid: int = 0) -> Copying:
    return Copying(name(text), bytes([uuid]) * 16, None, below)


A, B, C, D = (name(f"shop.{letter}") for letter in "abcd")
START = beginning(at(1), "rs0", r"shop\..*")
STREAMING = streaming(at(1), "rs0", r"shop\..*")

# Names whose order as text is not the order of their parts: "a-b.c" < "a.b".
NAMESPACES = [name(text) for text in ("a-b.c", "a.a", "a.b", "a.b.c", "a.b-c", "ab.a", "ü.ö")]
TIMES = st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
KEYS = st.one_of(
    st.just(MIN_KEY), st.builds(key, st.integers(-9, 9) | st.text(max_size=3) | st.binary())
)
COPYING = st.builds(
    Copying,
    st.sampled_from(NAMESPACES),
    st.binary(min_size=16, max_size=16),
    st.none() | st.builds(lambda locale: bson.encode({"locale": locale}), st.text(min_size=1)),
    KEYS,
    st.sampled_from(["", "s1"]),
)
OFFSETS = st.builds(
    Offset,
    TIMES,
    st.text(),
    st.text(),
    st.text(),
    st.none() | st.sampled_from(["", *map(str, NAMESPACES)]),
    st.none() | COPYING,
    st.lists(st.sampled_from(NAMESPACES), unique=True).flatmap(
        lambda names: st.tuples(*(st.builds(Again, st.just(n), st.none() | TIMES) for n in names))
    ),
    st.lists(st.builds(Scan, COPYING, KEYS | st.just(MAX_KEY)), max_size=3).map(tuple),
    st.lists(st.sampled_from(["s1", "s2"]), unique=True).map(tuple),
    shard_keys=st.none()
    | st.dictionaries(st.sampled_from(NAMESPACES), st.lists(st.text()).map(tuple)).map(
        lambda keys: tuple(keys.items())
    ),
)


# --- stored --------------------------------------------------------------------------------------


@given(OFFSETS)
def test_an_offset_is_read_back_from_its_json_as_it_was(offset: Offset) -> None:
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


SAMPLES = {
    "initial": Offset(at(1), "rs0", r"shop\..*,log.a-b.c", swept=""),
    "copying_with_collation": Offset(
        at(7),
        "rs0",
        r"shop\..*,log.a-b.c",
        swept="shop.orders",
        copying=Copying(
            name("shop.orders"),
            bytes(range(16)),
            bson.encode({"locale": "en", "strength": 2}),
            key("müller"),
        ),
        scans=(
            Scan(Copying(name("shop.carts"), bytes(16), None, key(5)), MAX_KEY),
            Scan(
                Copying(
                    name("shop.orders"),
                    bytes(range(16)),
                    bson.encode({"locale": "en", "strength": 2}),
                ),
                key("müller"),
            ),
        ),
    ),
    "again_while_copying": Offset(
        at(7),
        "rs0",
        r"shop\..*,log.a-b.c",
        swept="shop.orders",
        copying=Copying(name("shop.items"), bytes(range(16, 32)), None, key(bson.Int64(2**40))),
        again=(Again(name("log.a-b.c"), at(5)), Again(name("shop.carts"), at(7))),
    ),
    "streaming": Offset(at(7), "rs0", r"shop\..*,log.a-b.c"),
    "of_a_cluster": Offset(
        at(7),
        "cluster 65a1",
        r"shop\..*,log.a-b.c",
        silent=("s2",),
        shards=("s1", "s2"),
        topology_time=Timestamp(1767225000, 2),
        late=(("s2", (Timestamp(1767225600, 8), Timestamp(1767225601, 1))),),
        position="8269569B800000000A2B0229296E04",
        gap=Timestamp(1767225000, 3),
    ),
}


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_a_recorded_offset_of_each_version_still_means_the_same(sample: str) -> None:
    """Version 1 did not say since when a collection waits to be copied again."""
    first, *later = (
        json.loads((RECORDED / f"v{n}_{sample}.json").read_text()) for n in (1, 2, 3, 4)
    )
    offset = SAMPLES[sample]
    assert all(Offset.from_json(each) == offset for each in later)
    assert offset.to_json() == later[-1]
    unknown = tuple(each._replace(since=None) for each in offset.again)
    assert Offset.from_json(first) == replace(offset, again=unknown)


def test_an_offset_can_be_read_by_people() -> None:
    shown = {sample: offset.readable for sample, offset in SAMPLES.items()}
    assert shown == {
        "initial": "2026-01-01T00:00:00Z, before the copy",
        "copying_with_collation": '2026-01-01T00:00:00Z, copying shop.orders from _id "müller" on',
        "again_while_copying": "2026-01-01T00:00:00Z, copying shop.items from _id 1099511627776 on",
        "streaming": "2026-01-01T00:00:00Z",
        "of_a_cluster": "2026-01-01T00:00:00Z",
    }
    copying = replace(START, copying=Copying(A, bytes(16), None, key("x" * 2**20)), swept="shop.a")
    assert len(copying.readable) < 150
    assert replace(copying, copying=None).readable.endswith(", copied up to shop.a")
    assert replace(STREAMING, again=(Again(A, None),)).readable.endswith("copied again: shop.a")


def test_another_text_for_people_is_no_other_offset() -> None:
    """A later release may word it differently."""
    stored = {**STREAMING.to_json(), "readable": "at noon"}
    assert Offset.from_json(stored) == STREAMING
    with pytest.raises(ForeignOffset):
        Offset.from_json({**stored, "readable": 5})


def test_every_recorded_offset_is_tested() -> None:
    tested = {f"v{version}_{sample}" for version in (1, 2, 3, 4) for sample in SAMPLES}
    assert {path.stem for path in RECORDED.iterdir()} == tested


@pytest.mark.parametrize("again", ["", None, {}, [5], ["orders"], [{"namespace": "shop.a"}]])
def test_an_offset_of_version_1_is_read_as_strictly(again: Any) -> None:
    first = json.loads((RECORDED / "v1_streaming.json").read_text())
    with pytest.raises(ForeignOffset):
        Offset.from_json({**first, "again": again})


FOREIGN: dict[str, Any] = {
    "a newer version": {"version": 5},
    "a version before the first": {"version": 0},
    "a version that is a text": {"version": "1"},
    "a version that is a truth value": {"version": True},
    "no time": {"time": None},
    "a time that we do not write": {"time": "2026-01-01T00:00:00Z"},
    "a time with zeros in front": {"time": "01:1"},
    "a field of somebody else": {"partition": 0},
    "a source that is no text": {"source": 5},
    "collections that are no text": {"collections": ["shop.a"]},
    "a sweep that is no text": {"swept": 5},
    "names that are no list": {"again": ""},
    "no list of names": {"again": None},
    "a name that is none": {"again": [{"namespace": "orders", "since": "1767225600:5"}]},
    "a name that is a number": {"again": [{"namespace": 5, "since": "1767225600:5"}]},
    "a name as version 1 has it": {"again": ["shop.a"]},
    "a name without its time": {"again": [{"namespace": "shop.a"}]},
    "a name with a time that is none": {"again": [{"namespace": "shop.a", "since": "now"}]},
    "an empty copy": {"copying": {}},
    "a copy that is a text": {"copying": "shop.a"},
    "a copy that is false": {"copying": False},
    "scans that are no list": {"scans": {}},
    "shards that are no list": {"shards": "s1"},
    "a change of shards that is no time": {"topology_time": None},
    "a gap that is no time": {"gap": ""},
    "a position that is no text": {"position": None},
    "late times that are none": {"late": {"s1": ["yesterday"]}},
    "late times without a shard": {"late": ["1767225600:8"]},
    "no list of scans": {"scans": None},
    "shard keys that are a list": {"shard_keys": []},
    "a shard key without its fields": {"shard_keys": {"shop.a": None}},
    "a scan that is a text": {"scans": ["shop.a"]},
    "a scan without its end": {"scans": [SAMPLES["again_while_copying"].to_json()["copying"]]},
}
FOREIGN_COPYING: dict[str, Any] = {
    "a field of somebody else": {"above": ""},
    "a name that is none": {"namespace": "orders"},
    "an incarnation that is not hexadecimal": {"uuid": "xyz"},
    "an incarnation with spaces": {"uuid": "00 01"},
    "a key that is not base64": {"below": "ä"},
    "a key that is base64 with rubbish in it": {"below": "EgAA!AABJfaWQAAAAAAAABAAAA"},
    "no key": {"below": None},
    "an empty collation": {"collation": ""},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_an_offset_with_something_foreign_is_not_read(what: str) -> None:
    data = SAMPLES["copying_with_collation"].to_json()
    with pytest.raises(ForeignOffset):
        Offset.from_json({**data, **FOREIGN[what]})


@pytest.mark.parametrize("what", FOREIGN_COPYING)
def test_a_copy_with_something_foreign_is_not_read(what: str) -> None:
    data = SAMPLES["copying_with_collation"].to_json()
    with pytest.raises(ForeignOffset):
        Offset.from_json({**data, "copying": {**data["copying"], **FOREIGN_COPYING[what]}})


@pytest.mark.parametrize("field", sorted(START.to_json()))
def test_an_offset_that_lacks_a_field_is_not_read(field: str) -> None:
    data = SAMPLES["copying_with_collation"].to_json()
    del data[field]
    with pytest.raises(ForeignOffset):
        Offset.from_json(data)


@pytest.mark.parametrize("field", ["namespace", "uuid", "collation", "below"])
def test_a_copy_that_lacks_a_field_is_not_read(field: str) -> None:
    data = SAMPLES["copying_with_collation"].to_json()
    del data["copying"][field]
    with pytest.raises(ForeignOffset):
        Offset.from_json(data)


@pytest.mark.parametrize(
    "data",
    [
        {"orders": {"0": 17, "1": 4}},
        {"logOffset": 5},
        {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": 5, "index": -1},
        {},
        [],
        [1],
        17,
        "17",
        None,
        True,
    ],
)
def test_the_offset_of_another_source_is_foreign(data: Any) -> None:
    with pytest.raises(ForeignOffset):
        Offset.from_json(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_an_offset_with_one_field_of_any_other_content_is_foreign_or_that_content(
    sample: str, data: st.DataObject
) -> None:
    whole = SAMPLES[sample].to_json()
    inside = whole
    if whole["copying"] and data.draw(st.booleans()):
        inside = whole["copying"]
    inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(JSON)
    try:
        offset = Offset.from_json(whole)
    except ForeignOffset:
        return
    found = offset.to_json()
    # For people only, and made of the other fields.
    assert {**found, "readable": None} == {**whole, "readable": None}


def test_an_offset_does_not_grow_with_the_collections_that_were_swept() -> None:
    offset, sizes = START, set()
    for number in range(1, 500):
        scan = Scan(copying(f"shop.c{number:03}"), MAX_KEY)
        offset = advance(offset, at(100 + number), (scan,))
        sizes.add(len(json.dumps(offset.to_json())))
    assert len(sizes) == 1


# --- the rule ------------------------------------------------------------------------------------


def test_a_run_with_a_snapshot_begins_with_nothing_passed() -> None:
    assert not START.is_streaming
    assert not any(START.passes_whole(namespace) for namespace in (A, D, name("0.0")))


def test_a_run_without_a_snapshot_begins_with_everything_passed() -> None:
    assert STREAMING.is_streaming
    assert all(STREAMING.passes_whole(namespace) for namespace in (A, D, name("0.0")))


def test_a_batch_without_a_scan_moves_the_time_alone() -> None:
    for offset in (START, STREAMING, *SAMPLES.values()):
        expected = replace(offset, time=at(99), scans=(), silent=(), late=(), position="", gap=None)
        assert advance(offset, at(99)) == expected


def test_a_collection_scanned_in_part_is_copied_up_to_its_frontier_and_not_passed() -> None:
    offset = advance(START, at(2), (Scan(copying("shop.a"), key(5)),))
    assert offset.copying == copying("shop.a", key(5))
    assert not offset.passes_whole(A)
    assert not offset.is_streaming


def test_a_collection_scanned_to_its_end_is_passed_and_those_after_it_are_not() -> None:
    offset = advance(START, at(2), (Scan(copying("shop.b"), MAX_KEY),))
    assert offset.copying is None
    assert [offset.passes_whole(namespace) for namespace in (A, B, C)] == [True, True, False]
    assert not offset.is_streaming


def test_one_batch_can_end_one_collection_pass_another_and_begin_a_third() -> None:
    begun = advance(START, at(2), (Scan(copying("shop.a"), key(5)),))
    offset = advance(
        begun,
        at(3),
        (
            Scan(copying("shop.a", key(5)), MAX_KEY),
            Scan(copying("shop.b"), MAX_KEY),
            Scan(copying("shop.c"), key(1)),
        ),
    )
    assert offset.copying == copying("shop.c", key(1))
    assert [offset.passes_whole(namespace) for namespace in (A, B, C)] == [True, True, False]


def test_a_sweep_that_finds_nothing_after_its_scans_passes_every_name() -> None:
    offset = advance(START, at(2), (Scan(copying("shop.a"), MAX_KEY),), swept_all=True)
    assert offset.is_streaming
    assert advance(START, at(2), swept_all=True).is_streaming


def test_a_collection_that_is_gone_is_done_and_none_of_its_names_is_copied_again() -> None:
    begun = advance(START, at(2), (Scan(copying("shop.b"), key(5)),))
    offset = advance(begun, at(3), replaced=Replaced(emptied=frozenset({B})))
    assert offset.copying is None
    assert offset.again == ()
    assert offset.passes_whole(B)
    assert not offset.passes_whole(C)


def test_a_passed_collection_that_was_refilled_is_copied_again_before_the_sweep_goes_on() -> None:
    passed = advance(START, at(2), (Scan(copying("shop.b"), MAX_KEY),))
    held = advance(passed, at(3), replaced=Replaced(refilled=frozenset({A})))
    assert held.again == (Again(A, at(3)),)
    assert [held.passes_whole(namespace) for namespace in (A, B)] == [False, True]
    begun = advance(held, at(4), (Scan(copying("shop.a"), key(5)),))
    assert (begun.again, begun.swept) == ((), "shop.b")
    assert not begun.passes_whole(A)
    last = Scan(copying("shop.a", key(5)), MAX_KEY)
    assert advance(begun, at(5), (last,)) == replace(passed, time=at(5), scans=(last,))


def test_the_collection_being_copied_begins_again_when_it_was_refilled() -> None:
    begun = advance(START, at(2), (Scan(copying("shop.b"), key(5)),))
    held = advance(begun, at(3), replaced=Replaced(refilled=frozenset({B})))
    assert (held.copying, held.again, held.swept) == (None, (Again(B, at(3)),), "shop.b")


def test_a_collection_refilled_after_the_sweep_waits_for_the_sweep() -> None:
    begun = advance(START, at(2), (Scan(copying("shop.b"), key(5)),))
    assert advance(begun, at(3), replaced=Replaced(frozenset({D}), frozenset({C}))) == replace(
        begun, time=at(3), scans=()
    )


def test_an_offset_that_would_not_move_is_the_same_offset() -> None:
    cut = advance(STREAMING, at(2), replaced=Replaced(emptied=frozenset({A})))
    assert advance(cut, at(2)) is cut
    begun = advance(START, at(2), (Scan(copying("shop.b"), key(5)),))
    assert advance(begun, at(2)) is begun


def test_a_stream_stops_being_one_until_what_was_refilled_is_copied() -> None:
    held = advance(STREAMING, at(2), replaced=Replaced(frozenset({A}), frozenset({B})))
    assert not held.is_streaming
    assert held.passes_whole(A)
    assert not held.passes_whole(B)
    assert advance(held, at(3), (Scan(copying("shop.b"), MAX_KEY),)).is_streaming


def test_a_collection_that_waits_to_be_copied_again_is_forgotten_when_it_is_dropped() -> None:
    held = advance(STREAMING, at(2), replaced=Replaced(refilled=frozenset({A, B})))
    assert held.again == (Again(A, at(2)), Again(B, at(2)))
    gone = advance(held, at(3), replaced=Replaced(emptied=frozenset({A})))
    assert gone.again == (Again(B, at(2)),)


def test_a_collection_refilled_twice_waits_once_and_since_the_first_time() -> None:
    held = advance(STREAMING, at(2), replaced=Replaced(refilled=frozenset({A, B})))
    twice = advance(held, at(3), replaced=Replaced(refilled=frozenset({A})))
    assert twice.again == (Again(B, at(2)), Again(A, at(2)))
    assert begin_again(replace(twice, time=at(4)), [A, C]).again == (
        Again(A, at(2)),
        Again(B, at(2)),
        Again(C, at(4)),
    )


def test_what_was_withheld_is_reported_when_the_copy_begins_and_as_of_a_later_time() -> None:
    held = advance(STREAMING, at(2), replaced=Replaced(refilled=frozenset({A, B})))
    scan = Scan(copying("shop.a"), key(5))
    assert list_withheld(held, advance(held, at(2), (scan,))) == []
    begun = advance(held, at(3), (scan,))
    assert list_withheld(held, begun) == [Again(A, at(2))]
    assert (
        list_withheld(begun, advance(begun, at(4), (Scan(copying("shop.a", key(5)), MAX_KEY),)))
        == []
    )
    gone = advance(held, at(3), replaced=Replaced(emptied=frozenset({A})))
    assert list_withheld(held, gone) == []


def test_a_collection_that_was_to_be_copied_again_and_does_not_exist_is_done() -> None:
    held = advance(STREAMING, at(2), replaced=Replaced(refilled=frozenset({A, B})))
    offset = advance(held, at(3), (Scan(copying("shop.b"), MAX_KEY),), absent=frozenset({A}))
    assert offset.is_streaming


def test_a_batch_that_ends_at_ddl_cannot_scan() -> None:
    scan = Scan(copying("shop.a"), MAX_KEY)
    with pytest.raises(ValueError):
        advance(START, at(2), (scan,), replaced=Replaced())
    with pytest.raises(ValueError):
        advance(START, at(2), swept_all=True, replaced=Replaced())


def test_the_collection_being_copied_has_always_been_reached_by_the_sweep() -> None:
    for offset in SAMPLES.values():
        copied = offset.copying
        assert copied is None or offset.swept is None or str(copied.namespace) <= offset.swept


# --- what a replay reads -------------------------------------------------------------------------


def test_a_batch_that_scanned_says_what_and_the_next_one_forgets_it() -> None:
    scans = (
        Scan(Copying(A, bytes(16), bson.encode({"locale": "en"})), MAX_KEY),
        Scan(copying("shop.b", uuid=1), key(5)),
    )
    begun = advance(START, at(2), scans)
    assert begun.scans == scans
    assert Offset.from_json(json.loads(json.dumps(begun.to_json()))).scans == scans
    assert advance(begun, at(3)).scans == ()
    assert advance(begun, at(3), replaced=Replaced(emptied=frozenset({B}))).scans == ()
