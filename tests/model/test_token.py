"""Resume tokens: order among themselves and with high-water marks, and what is no token."""

from __future__ import annotations

import pytest
from bson.timestamp import Timestamp
from hypothesis import assume, given
from hypothesis import strategies as st

from cdc.errors import BadToken
from cdc.model import timestamp, token

MOST = 2**32 - 1
NUMBERS = st.integers(0, MOST) | st.sampled_from([0, 1, MOST - 1, MOST])
LAST = Timestamp(2**32 - 1, 2**32 - 1)
TIMES = st.builds(Timestamp, NUMBERS, NUMBERS)

# What follows the time in tokens of events: version 0 (4.0), 1 (4.2 to 6.0), 2 (from 7.0), the
# first and a later event of a transaction, of a document and of DDL.
EVENT_TAILS = (
    "46645F69640064611BC2CA8E6A7D3D3A0F4A820004",
    "2B022C0100296E5A10046A3D4B9A0A8E4C5E9B1F3C7D2E8A6B5446645F696400290004",
    "2B022C010C296E5A10046A3D4B9A0A8E4C5E9B1F3C7D2E8A6B5446645F6964002B020004",
    "2B042C0100296E5A10046A3D4B9A0A8E4C5E9B1F3C7D2E8A6B5446645F696400290004",
    "2B042C0100296E5A1004463C6F7065726174696F6E54797065003C64726F700004",
)


def event(time: Timestamp, tail: str) -> str:
    return f"82{time.time:08X}{time.inc:08X}{tail}"


@given(TIMES, st.sampled_from(EVENT_TAILS))
def test_a_high_water_mark_sorts_before_every_event_of_its_time(time: Timestamp, tail: str) -> None:
    assert token.high_water_mark(time) < event(time, tail)


@given(TIMES, TIMES, st.sampled_from(EVENT_TAILS))
def test_a_high_water_mark_sorts_after_every_event_of_an_earlier_time(
    one: Timestamp, other: Timestamp, tail: str
) -> None:
    early, late = sorted([one, other])
    if early < late:
        assert event(early, tail) < token.high_water_mark(late)


@given(TIMES.filter(lambda time: time > Timestamp(0, 0)), st.sampled_from(EVENT_TAILS))
def test_a_high_water_mark_sorts_after_the_events_of_the_very_time_before(
    time: Timestamp, tail: str
) -> None:
    assert event(timestamp.before(time), tail) < token.high_water_mark(time)


@given(TIMES, TIMES, st.sampled_from(EVENT_TAILS))
def test_what_was_read_at_a_time_sorts_behind_its_events_and_before_later_ones(
    one: Timestamp, other: Timestamp, tail: str
) -> None:
    early, late = sorted([one, other])
    assume(early < LAST)  # nothing comes behind it
    assert event(early, tail) < token.behind(early)
    assert early == late or token.behind(early) <= token.high_water_mark(late) < event(late, tail)


@given(TIMES, TIMES)
def test_high_water_marks_sort_as_their_times_do(one: Timestamp, other: Timestamp) -> None:
    marks = token.high_water_mark(one), token.high_water_mark(other)
    assert (marks[0] < marks[1]) == (one < other)


@given(TIMES, st.sampled_from(EVENT_TAILS))
def test_the_time_of_a_token_is_the_one_it_was_made_for(time: Timestamp, tail: str) -> None:
    assert token.time_of(event(time, tail)) == time
    assert token.time_of(token.high_water_mark(time)) == time
    assume(time < LAST)
    assert token.time_of(token.behind(time)) == timestamp.after(time)


@pytest.mark.parametrize(
    "data",
    ["", "82", "8265", "8265" * 4, "83" + "00" * 8, "82" + "zz" * 8, "82 " * 9, "8200000001000000"],
)
def test_what_does_not_begin_with_a_time_is_a_bad_token(data: str) -> None:
    with pytest.raises(BadToken):
        token.time_of(data)


@given(st.text() | st.text("0123456789ABCDEFabcdef ", max_size=40).map("82".__add__))
def test_any_text_has_a_time_or_is_a_bad_token(data: str) -> None:
    try:
        time = token.time_of(data)
    except BadToken:
        return
    assert data.upper().startswith(f"82{time.time:08X}{time.inc:08X}")
