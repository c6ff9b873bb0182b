"""Cluster times as text, and their neighbours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import BadToken
from cdc.model import timestamp

MOST = 2**32 - 1
NUMBERS = st.integers(0, MOST) | st.sampled_from([0, 1, MOST - 1, MOST])
TIMES = st.builds(Timestamp, NUMBERS, NUMBERS)
NOON = Timestamp(int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()), 0)


def number(time: Timestamp) -> int:
    return (time.time << 32) + time.inc


@given(TIMES)
def test_the_text_of_a_time_is_read_back_as_that_time(time: Timestamp) -> None:
    assert timestamp.parse(timestamp.text(time)) == time


@given(TIMES.filter(lambda time: time != Timestamp(0, 0)))
def test_nothing_lies_between_a_time_and_the_one_before_it(time: Timestamp) -> None:
    before = timestamp.before(time)
    assert number(before) == number(time) - 1


def test_before_the_first_time_of_all_lies_no_other() -> None:
    assert timestamp.before(Timestamp(0, 0)) == Timestamp(0, 0)


def test_the_time_before_a_second_is_the_last_increment_of_the_one_before() -> None:
    assert timestamp.before(Timestamp(7, 0)) == Timestamp(6, MOST)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31 12:00",
        "2026-01-31T14:00:00+02:00",
        "2026-01-31T06:30:00-05:30",
        "2026-01-31T12:00:00.999999Z",
    ],
)
def test_an_iso_time_is_the_beginning_of_its_second_in_utc_unless_it_says_otherwise(
    text: str,
) -> None:
    assert timestamp.parse(text) == NOON


def test_a_date_is_its_midnight_in_utc() -> None:
    assert timestamp.parse("2026-01-31") == Timestamp(NOON.time - 12 * 3600, 0)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2106, 2, 6)),
    st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_no_event_at_or_after_an_iso_moment_is_left_out(moment: datetime, zone: timezone) -> None:
    there = moment.replace(tzinfo=UTC).astimezone(zone)
    parsed = timestamp.parse(there.isoformat())
    assert parsed.inc == 0
    assert 0 <= moment.replace(tzinfo=UTC).timestamp() - parsed.time < 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "5",
        "5:",
        ":5",
        "-1:0",
        "1:-1",
        "1.5:0",
        " 1:1",
        "1:1:1",
        f"{MOST + 1}:0",
        f"0:{MOST + 1}",
        "9" * 5000 + ":1",
        "1:" + "9" * 5000,
        "yesterday",
        "2026-13-01",
        "2026-01-31T25:00:00Z",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00Z",
        "2106-02-07T06:28:16Z",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "²:1",
        "\ud800:1",
    ],
)
def test_what_is_no_cluster_time_is_refused(text: str) -> None:
    with pytest.raises(BadToken):
        timestamp.parse(text)


@given(st.text() | st.from_regex(r"[0-9T:Z+.-]{1,40}", fullmatch=True))
def test_any_text_is_a_time_or_a_bad_token(text: str) -> None:
    try:
        time = timestamp.parse(text)
    except BadToken:
        return
    assert Timestamp(0, 0) <= time <= Timestamp(MOST, MOST)
