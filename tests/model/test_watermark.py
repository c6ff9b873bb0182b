"""What the watermark row says follows from two offsets, and says which copies are complete."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from bson.timestamp import Timestamp

from cdc.model import (
    MAX_KEY,
    Again,
    CaptureFilter,
    Namespace,
    Offset,
    Replaced,
    Scan,
    Selection,
    Watermark,
    advance,
    begin_again,
    beginning,
    encode_key,
    reselect,
)
from tests.model.test_offset import STREAMING, A, B, C, at, copying, key, name

START = beginning(at(1), "rs0", r"shop\.[abc]")
PARTLY = advance(START, at(2), (Scan(copying("shop.a"), MAX_KEY), Scan(copying("shop.b"), key(5))))
AGAIN = replace(STREAMING, again=(Again(A, at(1)), Again(B, at(1))))
ALL_OF_B = Scan(copying("shop.b", key(5)), MAX_KEY)
GONE = Replaced(emptied=frozenset({B}))
ONTO = Replaced(refilled=frozenset({B}))


@dataclass(frozen=True)
class Case:
    start: Offset
    end: Offset
    copied: set[Namespace]


CASES = {
    "a collection is copied to its end": Case(START, PARTLY, {A}),
    "the rest of one": Case(PARTLY, advance(PARTLY, at(3), (ALL_OF_B,)), {B}),
    "nothing but time passes": Case(PARTLY, advance(PARTLY, at(3)), set()),
    "one under copy is dropped": Case(PARTLY, advance(PARTLY, at(3), replaced=GONE), {B}),
    "one under copy is renamed onto": Case(PARTLY, advance(PARTLY, at(3), replaced=ONTO), set()),
    "one that was copied is dropped": Case(
        STREAMING, advance(STREAMING, at(3), replaced=GONE), set()
    ),
    "one not reached is dropped": Case(START, advance(START, at(3), replaced=GONE), set()),
    "one is copied again": Case(
        AGAIN, advance(AGAIN, at(3), (Scan(copying("shop.b"), MAX_KEY),)), {B}
    ),
    "one to be copied again does not exist": Case(
        AGAIN, advance(AGAIN, at(3), absent=frozenset({A})), {A}
    ),
    "one is not selected any more": Case(
        AGAIN, reselect(AGAIN, at(3), Selection.parse("shop.b"), CaptureFilter(), []), set()
    ),
    "all begin again": Case(AGAIN, begin_again(advance(AGAIN, at(3)), [A, B, C]), set()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_copy_is_reported_to_be_complete_by_the_batch_that_completes_it(case: Case) -> None:
    assert Watermark.of(case.start, case.end).copied == case.copied


def test_a_batch_holds_all_changes_of_what_was_copied_before_it() -> None:
    def reported(start: Offset) -> list[str]:
        watermark = Watermark.of(start, advance(start, at(9)))
        names = ("shop.a", "shop.b", "shop.c", "shop.d", "other.a")
        return [each for each in names if watermark.contains_changes(name(each))]

    assert reported(START) == []
    assert reported(PARTLY) == ["shop.a"]
    assert reported(AGAIN) == ["shop.c", "shop.d"]
    assert reported(advance(PARTLY, at(3), (ALL_OF_B,))) == ["shop.a", "shop.b"]
    assert reported(advance(PARTLY, at(3), (ALL_OF_B,), True)) == ["shop.a", "shop.b", "shop.c"]


def test_what_is_taken_out_leaves_with_the_last_batch_that_reports_it() -> None:
    end = reselect(PARTLY, at(3), Selection.parse("shop.b,shop.c"), CaptureFilter(), [])
    watermark = Watermark.of(PARTLY, end)
    names = ("shop.a", "shop.b", "shop.c", "other.a")
    assert [each for each in names if watermark.is_deselected(name(each))] == ["shop.a"]
    assert not Watermark.of(end, advance(end, at(4))).is_deselected(A)


def test_what_is_reported_is_read_back() -> None:
    for case in CASES.values():
        watermark = Watermark.of(case.start, case.end)
        assert Watermark.parse(watermark.text()) == watermark
        of_previous_release = watermark.text().replace('"reported": {', '"told": {')
        assert Watermark.parse(of_previous_release) == watermark
    end = advance(PARTLY, at(3))
    assert Watermark.of(PARTLY, end).time == Timestamp(1767225600, 3)
    assert Watermark.of(PARTLY, replace(end, again=(Again(C, at(3)),))).copying == {
        B: {"below": encode_key(key(5))},
        C: {"below": None},
    }
