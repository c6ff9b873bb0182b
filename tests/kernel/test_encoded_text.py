"""Relaxed Extended JSON that compiled functions write is the text that plain Python writes."""

from __future__ import annotations

import random
import struct
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from cdc.arrow import cells
from cdc.kernel import Places, loading
from tests.kernel.test_encoded_images import FILLS, PROPERTY, STEPS, assert_same, damaged_everywhere
from tests.model.mixed import a_decimal, a_double, values
from tests.model.test_merge_key import document as of_elements
from tests.model.test_variant import DOCUMENTS, nested, of


def is_compiled(value: Any) -> bool:
    columns, places = loading.columns(), Places.concatenate([of(value)])
    text = cells.Cells(1, 10_000)
    reported = columns.write_relaxed_json(
        *places.arrays, 0, text.out, text.ends, *columns.tables.learn_nothing(places.longest)
    )
    return reported == (1, columns.DONE)


OFTEN = [
    *(1, -1, 0, Int64(2**63 - 1), Int64(-(2**63)), True, False, None, "", "häß 😀"),
    *(1.5, 0.0, -0.0, 1.0, 0.1, 19.99, -273.15, 1e14, 0.0001, 123456789.125, 999999999999999.0),
    *(
        ObjectId("0123456789abcdef01234567"),
        b"",
        b"a",
        b"ab",
        b"abc",
        Binary(bytes(16), 4),
        {"a": {"b": []}},
        [[], {}, [1]],
    ),
    *(DatetimeMS(0), DatetimeMS(1), DatetimeMS(1_709_164_800_000), DatetimeMS(253_402_300_799_999)),
    *(DatetimeMS(-1), DatetimeMS(253_402_300_800_000), DatetimeMS(-(2**63)), DatetimeMS(2**63 - 1)),
    *(Decimal128("1.50"), Decimal128("-0.00"), Decimal128("0.000001"), Decimal128("18446744073")),
]


@pytest.mark.parametrize("value", OFTEN, ids=repr)
def test_what_is_frequent_is_written_by_compiled_functions(value: Any) -> None:
    assert is_compiled(value)
    assert_same([of(value), of([value, {"n": value}, value])], "json")


@pytest.mark.parametrize("value", [1e15, 1e-5, 1 / 3, float("inf"), Decimal128("1E+3")], ids=repr)
def test_what_is_written_in_a_rare_way_is_left_to_python(value: Any) -> None:
    assert not is_compiled(value)
    assert_same([of(1), of(value), of(2)], "json")


def test_every_character_is_escaped_as_before() -> None:
    texts = [chr(code) for code in [*range(300), 0x2028, 0xFFFF, 0x1F600]]
    names = [bson.encode({text: text}) for text in texts if text != "\0"]
    assert_same([*names, of("".join(texts)), of("x\0y")], "json")


def test_doubles_of_all_kinds_read_as_before() -> None:
    draw = random.Random(7)
    doubles = [a_double(draw) for _ in range(2000)]
    doubles += [draw.randrange(10**15) / 10 ** draw.randrange(18) for _ in range(4000)]
    assert_same([of(doubles[n : n + 1]) for n in range(len(doubles))], "json", fills=FILLS[:1])


def test_decimals_of_all_kinds_read_as_before() -> None:
    draw = random.Random(8)
    decimals = [a_decimal(draw) for _ in range(2000)]
    decimals += [Decimal128(f"{draw.randrange(10**19)}E-{draw.randrange(26)}") for _ in range(2000)]
    assert_same([of(each) for each in decimals], "json", fills=FILLS[:1])


def test_every_day_from_1970_to_9999_reads_as_before() -> None:
    days = [*range(40_000), *range(40_000, 2_932_897, 37), 2_932_896]
    moments = [DatetimeMS(day * 86_400_000 + day % 1000 * 86_399) for day in days]
    assert_same([of(moments)], "json", fills=FILLS[:1])


def test_values_of_all_types_and_ranges_read_as_before() -> None:
    drawn = values(12, 3000)
    assert_same([of_elements((b"v", one))[1] for one in drawn], "json", fills=FILLS[:1])


@PROPERTY
@given(st.lists(DOCUMENTS, max_size=2))
def test_random_documents_read_as_before(documents: list[dict[str, Any]]) -> None:
    assert_same([bson.encode(document) for document in documents], "json", fills=FILLS[:1])


@pytest.mark.parametrize("step", STEPS)
def test_every_single_byte_may_be_wrong_in_a_text_too(step: int) -> None:
    assert_same(damaged_everywhere(step), "json", fills=FILLS[2:])


def test_what_needs_most_room_for_its_bytes_gets_it() -> None:
    most = [[DatetimeMS(-(2**63))] * 50, [b""] * 50, "\1" * 500, [None] * 50, {"": None}]
    assert_same([of(each) for each in most], "json")
    assert_same([nested(levels) for levels in (100, 250, 251)], "json")
    assert_same([of(struct.pack("<i", 1) + b"x"), of("x" * 2**20)], "json")
