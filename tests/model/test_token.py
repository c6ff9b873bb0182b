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

# What follows the time in tokens of events: version 1 (4.2 to 6.0) and 2 (from 7.0), the first and
# a later event of a transaction, of a document and of DDL. Those of version 0 (4.0) have their time
# at the same place, but sort before a high-water mark: no server that is read gives them out.
EVENT_TAILS = (
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


UUID = "5A1004BBBC97B54DD0429F9940DF2F562E0C6B"
# From real servers (but for the UUID, which is one here): the events' second, then in the order in
# which they came each one's increment and token. Version 2 is what 6.0.27 makes when asked for it.
RECORDED = {
    ("version 0, taken by 4.2.6", 1795256155): [
        (10, "826B016F5B0000000A29295A10045BE8AB7D2CFC4FED89A29DCE7AF6C7F6461E5F6964002B020004"),
    ],
    ("version 1, from 4.2.6", 1795256048): [
        (8, "826B016EF0000000082B0229296E04"),
        (9, f"826B016EF0000000092B022C0100296E{UUID}461E5F6964002B020004"),
        (11, f"826B016EF00000000B2B022C0100296E{UUID}463C5F6964003C7431000004"),
        (11, f"826B016EF00000000B2B022C01002B026E{UUID}46465F696400461E6B002B04000004"),
        (13, f"826B016EF00000000D2B022C0100296E{UUID}04"),
        (15, "826B016EF00000000F2B022C0100296E04"),
        (15, "826B016EF00000000F2B022C0100296F04"),
    ],
    ("version 1, from 5.0.32", 1795256042): [
        (1, f"826B016EEA000000012B022C0100296E{UUID}461E5F6964002B020004"),
        (3, f"826B016EEA000000032B022C01002B026E{UUID}46465F696400461E6B002B04000004"),
        (6, f"826B016EEA000000062B022C0100296E{UUID}04"),
    ],
    ("version 2", 1795256047): [
        (8, "826B016EEF000000082B0429296E1404"),
        (
            9,
            f"826B016EEF000000092B042C0100296E{UUID}463C6F7065726174696F6E54797065003C696E73657274"
            "0046646F63756D656E744B657900461E5F6964002B02000004",
        ),
        (
            14,
            f"826B016EEF0000000E2B042C0100296E{UUID}463C6F7065726174696F6E54797065003C64726F700000"
            "04",
        ),
        (
            15,
            "826B016EEF0000000F2B042C0100296E14463C6F7065726174696F6E54797065003C64726F704461746162"
            "617365000004",
        ),
    ],
}


@pytest.mark.parametrize(("server", "second"), RECORDED)
def test_a_recorded_token_has_the_time_of_its_event(server: str, second: int) -> None:
    for increment, data in RECORDED[server, second]:
        assert token.time_of(data) == Timestamp(second, increment)


@pytest.mark.parametrize("recorded", [key for key in RECORDED if "version 0" not in key[0]])
def test_recorded_tokens_sort_as_they_came_and_behind_the_high_water_mark(
    recorded: tuple[str, int],
) -> None:
    tokens = [data for _, data in RECORDED[recorded]]
    assert tokens == sorted(set(tokens))
    for data in tokens:
        time = token.time_of(data)
        assert token.high_water_mark(time) <= data < token.behind(time)


def test_a_high_water_mark_is_the_one_that_the_server_gives() -> None:
    time, data = Timestamp(0x6B016EF0, 8), "826B016EF0000000082B0229296E04"
    assert token.high_water_mark(time) == data


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
