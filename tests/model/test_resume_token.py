"""Resume tokens: their order and that of high-water marks, what they report, and what is none."""

from __future__ import annotations

import random
import uuid
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64
from bson.timestamp import Timestamp
from hypothesis import assume, given
from hypothesis import strategies as st

from cdc.errors import BadToken
from cdc.model import Token, resume_token, timestamp
from tests.model.test_merge_key import of, raw, text

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
    assert resume_token.high_water_mark(time) < event(time, tail)


@given(TIMES, TIMES, st.sampled_from(EVENT_TAILS))
def test_a_high_water_mark_sorts_after_every_event_of_an_earlier_time(
    one: Timestamp, other: Timestamp, tail: str
) -> None:
    early, late = sorted([one, other])
    if early < late:
        assert event(early, tail) < resume_token.high_water_mark(late)


@given(TIMES.filter(lambda time: time > Timestamp(0, 0)), st.sampled_from(EVENT_TAILS))
def test_a_high_water_mark_sorts_after_the_events_of_the_very_time_before(
    time: Timestamp, tail: str
) -> None:
    assert event(timestamp.before(time), tail) < resume_token.high_water_mark(time)


@given(TIMES, TIMES, st.sampled_from(EVENT_TAILS))
def test_what_was_read_at_a_time_sorts_after_its_events_and_before_later_ones(
    one: Timestamp, other: Timestamp, tail: str
) -> None:
    early, late = sorted([one, other])
    assume(early < LAST)  # nothing comes after it
    assert event(early, tail) < resume_token.position_after(early)
    assert early == late or resume_token.position_after(early) <= resume_token.high_water_mark(
        late
    ) < event(late, tail)


@given(TIMES, TIMES)
def test_high_water_marks_sort_as_their_times_do(one: Timestamp, other: Timestamp) -> None:
    marks = resume_token.high_water_mark(one), resume_token.high_water_mark(other)
    assert (marks[0] < marks[1]) == (one < other)


@given(TIMES, st.sampled_from(EVENT_TAILS))
def test_the_time_of_a_token_is_the_one_it_was_made_for(time: Timestamp, tail: str) -> None:
    assert resume_token.time_of(event(time, tail)) == time
    assert resume_token.time_of(resume_token.high_water_mark(time)) == time
    assume(time < LAST)
    assert resume_token.time_of(resume_token.position_after(time)) == timestamp.after(time)


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
        assert resume_token.time_of(data) == Timestamp(second, increment)


@pytest.mark.parametrize("recorded", [key for key in RECORDED if "version 0" not in key[0]])
def test_recorded_tokens_sort_as_they_came_and_after_the_high_water_mark(
    recorded: tuple[str, int],
) -> None:
    tokens = [data for _, data in RECORDED[recorded]]
    assert tokens == sorted(set(tokens))
    for data in tokens:
        time = resume_token.time_of(data)
        assert resume_token.high_water_mark(time) <= data < resume_token.position_after(time)


def test_a_high_water_mark_is_the_one_that_the_server_gives() -> None:
    time, data = Timestamp(0x6B016EF0, 8), "826B016EF0000000082B0229296E04"
    assert resume_token.high_water_mark(time) == data


@pytest.mark.parametrize(
    "data",
    ["", "82", "8265", "8265" * 4, "83" + "00" * 8, "82" + "zz" * 8, "82 " * 9, "8200000001000000"],
)
def test_what_does_not_begin_with_a_time_is_a_bad_token(data: str) -> None:
    with pytest.raises(BadToken):
        resume_token.time_of(data)


@given(st.text() | st.text("0123456789ABCDEFabcdef ", max_size=40).map("82".__add__))
def test_any_text_has_a_time_or_is_a_bad_token(data: str) -> None:
    try:
        time = resume_token.time_of(data)
    except BadToken:
        return
    assert data.upper().startswith(f"82{time.time:08X}{time.inc:08X}")


COLLECTION = uuid.UUID("bbbc97b5-4dd0-429f-9940-df2f562e0c6b")
TYPE = "463C6F7065726174696F6E54797065003C"  # a document that begins with a text operationType
KEY = "46646F63756D656E744B65790046"  # and goes on with a document documentKey
DESCRIPTION = "466F7065726174696F6E4465736372697074696F6E0046"
CREATED = "466964496E64657800461E76002B04466B657900461E5F6964002B02003C6E616D65003C5F69645F"
UPDATED = f"2B042C0100296E{UUID}{TYPE}75706461746500{KEY}3C5F6964003C6269670000"
INDEX = {"idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
BIG = {"document_key": bson.encode({"_id": "big"}), "operation_type": "update", "version": 2}
MIXED_KEY = bson.encode({"_id": {"a": Int64(5), "d": Decimal128("-0.00"), "e": -0.0}})

# From 6.0.5 and 6.0.27, the time left out: what a token contains besides, `_data` and `_typeBits`.
DECODED: list[tuple[dict[str, Any], str, bytes]] = [
    ({"kind": "high_water_mark", "uuid": None}, "2B0229296E04", b""),
    ({"kind": "high_water_mark", "uuid": None, "version": 2}, "2B0429296E1404", b""),
    ({}, f"2B022C0100296E{UUID}04", b""),
    ({"from_invalidate": True}, f"2B022C0100296F{UUID}04", b""),
    ({"uuid": None}, "2B022C0100296E04", b""),
    (
        {"document_key": bson.encode({"_id": 8}), "txn_op_index": 1},
        f"2B022C01002B026E{UUID}461E5F6964002B100004",
        b"",
    ),
    (
        {"document_key": MIXED_KEY},
        f"2B022C0100296E{UUID}46465F696400461E61002B0A1E6400291E650029000004",
        b"\x84\x80/\xf0\x06",
    ),
    (
        # A shard key may have any name.
        {"document_key": raw((b"operationType", text(b"x")), (b"_id", of(1)))},
        f"2B022C0100296E{UUID}{TYPE}78001E5F6964002B020004",
        b"",
    ),
    (
        {"operation_type": "create", "operation_description": bson.encode(INDEX)},
        f"2B022C0100296E{UUID}{TYPE}63726561746500{DESCRIPTION}{CREATED}0000000004",
        b"",
    ),
    (
        {"document_key": bson.encode({"_id": 1.5}), "operation_type": "insert", "version": 2},
        f"2B042C0100296E{UUID}{TYPE}696E7365727400{KEY}1E5F6964002B0380000000000000000004",
        b"\x82\x80\x00",
    ),
    ({**BIG}, f"{UPDATED}0004", b""),
    ({**BIG, "fragment": 0}, f"{UPDATED}002904", b""),
    ({**BIG, "fragment": 2}, f"{UPDATED}002B0404", b""),
    ({"operation_type": "drop", "version": 2}, f"2B042C0100296E{UUID}{TYPE}64726F70000004", b""),
    (
        {"operation_type": "dropDatabase", "version": 2, "uuid": None, "from_invalidate": True},
        f"2B042C0100296F14{TYPE}64726F704461746162617365000004",
        b"",
    ),
]


@pytest.mark.parametrize(("reported", "tail", "type_bits"), DECODED)
def test_a_token_reports_what_its_server_put_into_it(
    reported: dict[str, Any], tail: str, type_bits: bytes
) -> None:
    event = {"version": 1, "kind": "event", "uuid": COLLECTION, **reported}
    expected = Token(cluster_time=Timestamp(1795274655, 2**32 - 1), **event)
    data = f"826B01B79FFFFFFFFF{tail}"
    assert resume_token.decode(data, type_bits) == expected
    assert resume_token.decode(data.lower(), type_bits) == expected


@pytest.mark.parametrize("recorded", RECORDED)
def test_recorded_tokens_are_of_their_version_and_time(recorded: tuple[str, int]) -> None:
    for increment, data in RECORDED[recorded]:
        reported = resume_token.decode(data)
        assert recorded[0].startswith(f"version {reported.version}")
        assert reported.cluster_time == Timestamp(recorded[1], increment)


def test_a_token_of_version_0_reports_a_key() -> None:
    [(_, data)] = RECORDED["version 0, taken by 4.2.6", 1795256155]
    collection = uuid.UUID("5be8ab7d-2cfc-4fed-89a2-9dce7af6c7f6")
    key = bson.encode({"_id": 1})
    time = Timestamp(1795256155, 10)
    assert resume_token.decode(data) == Token(0, "event", time, uuid=collection, document_key=key)


@given(TIMES)
def test_a_high_water_mark_reports_its_time_and_nothing_else(time: Timestamp) -> None:
    mark = resume_token.decode(resume_token.high_water_mark(time))
    assert mark == Token(1, "high_water_mark", time)


HEAD = "826B01B7990000001"
MARK = f"{HEAD}22B0229296E04"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "not hexadecimal"),
        ("8", "not hexadecimal"),
        ("82  6B", "not hexadecimal"),
        ("８２", "not hexadecimal"),
        ("zz", "not hexadecimal"),
        (f"{HEAD}22B0229296E04\n", "not hexadecimal"),
        (f"{HEAD}22B0229296E", "ends in the middle of a value"),
        (f"{HEAD}22B0229296E0404", "no server writes"),
        ("7800000000000000012B0229296E04", "cluster time is of a wrong type"),
        (f"{HEAD}204", "ends before its version"),
        (f"{HEAD}22B0629296E1404", "version is 3"),
        (f"{HEAD}227FD29296E04", "version is below zero"),
        (f"{HEAD}22B022B02296E04", "type is neither"),
        (f"{HEAD}22B02296E04", "index in a transaction is of a wrong type"),
        (f"{HEAD}22B0229292904", "origin is of a wrong type"),
        (f"{HEAD}22B02292B026E04", "describes an event"),
        (f"{HEAD}22B0229296F04", "describes an event"),
        (f"{HEAD}22B0229296E{UUID}04", "describes an event"),
        (f"{HEAD}22B0229296E1404", "collection is of a wrong type"),
        (f"{HEAD}22B0429296E04", "ends before its collection"),
        (f"{HEAD}22B0429296E142904", "continues after its end"),
        (f"{HEAD}22B022C0100296E5A01040004", "no UUID"),
        (f"{HEAD}22B022C0100296E5A1003{'00' * 16}04", "no UUID"),
        (f"{HEAD}22B022C0100296E{UUID}2B0204", "event is of a wrong type"),
        (f"{HEAD}22B022C0100296E{UUID}461E5F6964002B02002904", "continues after its end"),
        (f"{HEAD}22B042C0100296E{UUID}04", "ends before its event"),
        (f"{HEAD}22B042C0100296E{UUID}461E5F6964002B020004", "operation type is of a wrong type"),
        (f"{HEAD}22B042C0100296E{UUID}{TYPE}64726F70001E61002904", "ends in the middle"),
        (f"{HEAD}22B042C0100296E{UUID}{TYPE}64726F70001E6100290004", "continues after its end"),
        (f"{HEAD}22B042C0100296E{UUID}{TYPE}FF000004", "not valid UTF-8"),
        (f"{HEAD}22B042C0100296E{UUID}{TYPE}640000{'27FD'}04", "fragment is below zero"),
    ],
)
def test_what_is_no_token_is_refused_with_its_reason(data: str, reason: str) -> None:
    with pytest.raises(BadToken) as error:
        resume_token.decode(data)
    assert reason in error.value.message
    assert error.value.remedy is not None


def test_a_damaged_token_is_refused_or_one_that_a_server_could_have_given() -> None:
    draw = random.Random(8)
    accepted = refused = 0
    for _, tail, type_bits in DECODED * 60:
        data = bytearray(bytes.fromhex(f"826B01B79900000012{tail}"))
        for _ in range(draw.randrange(1, 3)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            reported = resume_token.decode(data.hex(), type_bits)
        except BadToken:
            refused += 1
            continue
        accepted += 1
        assert reported.cluster_time == resume_token.time_of(data.hex())
    assert accepted > 50
    assert refused > 50


def test_a_token_with_type_bits_is_another_one_without_or_with_other_ones() -> None:
    data = f"{HEAD}22B022C0100296E{UUID}461E5F6964002B03800000000000000004"
    key = bson.encode({"_id": 1.5})
    assert (
        resume_token.decode(data, b"@").document_key
        == resume_token.decode(data).document_key
        == key
    )
    for wrong in (b"", b"A", b"@\0", b"\x81@", b"\x20"):
        with pytest.raises(BadToken):
            resume_token.decode(data, wrong)


@given(st.text(), st.binary(max_size=5))
def test_any_text_is_a_token_or_is_refused(data: str, type_bits: bytes) -> None:
    with pytest.raises(BadToken):
        resume_token.decode(data, type_bits)


def test_a_deeply_nested_token_is_refused() -> None:
    with pytest.raises(BadToken, match="levels deep"):
        resume_token.decode(f"{HEAD}22B022C0100296E{UUID}" + "4646610046" * 100_000)


@pytest.mark.parametrize("text", [MARK, f" {MARK.lower()}\n", f'{{"_data": "{MARK}"}}'])
def test_a_start_is_named_by_a_token_or_by_its_data(text: str) -> None:
    assert resume_token.parse(text) == MARK


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", '{"_data": 8}', '{"_data":' * 100_000, MARK[:-2], MARK[:18], f"{MARK}04"],
)
def test_what_is_no_whole_token_is_no_start(text: str) -> None:
    """Guards: a token that was cut lies elsewhere in the order than the event it is of."""
    with pytest.raises(BadToken):
        resume_token.parse(text)


def test_nothing_starts_between_the_fragments_of_an_event() -> None:
    assert resume_token.parse(f"{HEAD}2{UPDATED}0004")
    with pytest.raises(BadToken):
        resume_token.parse(f"{HEAD}2{UPDATED}002904")
