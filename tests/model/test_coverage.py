"""Which times a changelog covers: each batch's part of the rule, as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from bson.timestamp import Timestamp

from cdc.model import Coverage, Effect, Mark, Span


def t(second: int) -> Timestamp:
    return Timestamp(second, 1)


def before(second: int) -> Timestamp:
    return Timestamp(second, 0)


def mark(effect: Effect, second: int) -> Mark:
    return Mark(f"{second:08}", t(second), effect)


def spans(*times: tuple[Timestamp, Timestamp | None]) -> Coverage:
    return Coverage(tuple(Span(*each) for each in times))


def nothing_at(second: int) -> Span:
    return Span(t(second), from_nothing=True)


def empty(second: int) -> Mark:
    return mark(Effect.EMPTY, second)


LAST = t(5)
NOTHING, OPEN = Coverage(), spans((t(2), None))
TORN = Coverage(torn=True)
REPLACED, RECOPIED, LOST = mark(Effect.REPLACED, 7), mark(Effect.RECOPIED, 9), mark(Effect.LOST, 6)


@dataclass(frozen=True)
class Case:
    """One batch from 6:1 to 9:1, for a table whose last commit says 5:1."""

    before: Coverage
    after: Coverage
    marks: list[Mark] = field(default_factory=list)
    is_complete: bool = True
    is_copying: bool = False
    copied_from: Timestamp | None = None
    last: Timestamp | None = LAST


CASES = {
    "what is whole stays so": Case(OPEN, OPEN),
    "what is not known to be whole does not become so by itself": Case(NOTHING, NOTHING),
    "a copy that is complete makes it whole": Case(
        NOTHING, spans((t(9), None)), is_complete=False, copied_from=t(9)
    ),
    "a copy that is not exact, from when it is": Case(
        NOTHING, spans((t(12), None)), is_complete=False, copied_from=t(12)
    ),
    "a new table of a copy": Case(
        NOTHING, spans((t(9), None)), is_complete=False, copied_from=t(9), last=None
    ),
    "an event that empties it makes it whole, the first does": Case(
        NOTHING, Coverage((nothing_at(6),)), [empty(8), empty(6)], last=None
    ),
    "one that empties what is whole ends nothing": Case(OPEN, OPEN, [empty(7)]),
    "one before the copy makes nothing whole": Case(
        NOTHING, NOTHING, [empty(7)], is_complete=False
    ),
    "a rename onto it ends the span before": Case(OPEN, spans((t(2), before(7))), [REPLACED]),
    "and also one that began at that time": Case(
        OPEN, spans((t(2), before(7))), [empty(7), REPLACED, RECOPIED]
    ),
    "and what is empty after it begins another": Case(
        OPEN, Coverage((Span(t(2), before(7)), nothing_at(8))), [REPLACED, empty(8)]
    ),
    "what is copied again was right at the last commit": Case(
        OPEN, spans((t(2), t(5))), [RECOPIED]
    ),
    "what is copied again in its first commit was never right": Case(
        NOTHING, NOTHING, [empty(7), RECOPIED], last=None
    ),
    "what was taken out was right at the last commit": Case(
        OPEN, spans((t(2), t(5))), [empty(7)], is_complete=False
    ),
    "what was taken out and is copied again": Case(
        OPEN, spans((t(2), t(5)), (t(9), None)), is_complete=False, copied_from=t(9)
    ),
    "a gap ends the span where it begins": Case(OPEN, spans((t(2), t(6))), [LOST]),
    "a batch with a gap has copied nothing": Case(
        NOTHING, NOTHING, [LOST], is_complete=False, copied_from=t(9)
    ),
    "a gap in a copy": Case(NOTHING, TORN, [LOST], is_complete=False, is_copying=True),
    "is not undone by its end": Case(TORN, NOTHING, is_complete=False, copied_from=t(9)),
    "but by a new beginning": Case(TORN, NOTHING, [RECOPIED], is_complete=False),
    "or a drop": Case(TORN, spans((t(9), None)), [empty(9)], is_complete=False, copied_from=t(9)),
    "or another content": Case(TORN, NOTHING, [REPLACED], is_complete=False),
    "a gap that empties and copies all again": Case(
        OPEN, spans((t(2), t(6))), [LOST, mark(Effect.RECOPIED, 9)]
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_changelog_covers_what_was_reported_whole(case: Case) -> None:
    after = case.before.after(
        case.last,
        case.marks,
        is_complete=case.is_complete,
        is_copying=case.is_copying,
        copied_from=case.copied_from,
    )
    assert after == case.after
    assert Coverage.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_time_is_covered_between_both_ends_of_a_span_and_at_them() -> None:
    coverage, end = spans((t(2), t(5)), (t(7), None)), t(9)
    covered = [second for second in range(1, 12) if coverage.at(t(second), end)]
    assert covered == [2, 3, 4, 5, 7, 8, 9]
    assert coverage.text(end) == "2:1 to 5:1, 7:1 to 9:1"
    assert spans((t(12), None)).text(end) == NOTHING.text(end) == "no time"
    assert not coverage.at(before(2), end)


def test_a_collection_that_is_replaced_for_ever_keeps_the_newest_spans() -> None:
    coverage: Any = NOTHING
    for n in range(10, 500, 3):
        marks = [empty(n), mark(Effect.REPLACED, n + 1)]
        coverage = coverage.after(t(n), marks, is_complete=True, is_copying=False, copied_from=None)
    assert len(coverage.spans) == 32
    assert coverage.spans[-1] == Span(t(499), before(500), from_nothing=True)
