"""KeyStrings: what is encoded is decoded again, sorts by value, and nothing else is taken for one.

That they are the server's bytes is asked of real ones in tests/mongo/read/test_server_tokens.py.
"""

from __future__ import annotations

import decimal
import random
import struct
from collections.abc import Callable
from fractions import Fraction

import pytest
from bson import Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.errors import BadToken, UnmappableValue
from cdc.model.bson import MAX_DEPTH, element
from cdc.model.keystring import keystring
from tests.model import mixed
from tests.model.test_merge_key import (
    Element,
    array,
    code_with_scope,
    dec,
    document,
    double,
    of,
    raw,
    text,
    tricky_values,
)

# Key and type bits, one for each way in which a number is stored.
SAMPLES = [
    (of(0), "2904", ""),
    (of(-1), "27FD04", ""),
    (of(1), "2B0204", ""),
    (of(Int64(1)), "2B0204", "02"),
    (double(1.0), "2B0204", "01"),
    (double(-0.0), "2904", "03"),
    (double(float("nan")), "1E04", "01"),
    (of(Int64(-(2**63))), "1FF83FFFFFFFFFFFFF04", "02"),
    (double(5e-324), "2A59A000000000000004", "01"),
    (dec("0"), "2904", "833B0800"),
    (dec("-0"), "2904", "832F0800"),
    (dec("1.0"), "2B0204", "81FB"),
    (dec("1.00"), "2B0204", "7B"),
    (dec("-0.1"), "2801199999999999" + "9904", "81FB"),
    (dec("1.5"), "2B0380000000000000" + "04", "81FB"),
    (dec("3.14159265358979323846264338327950"), "2B07243F6A8885A30101B314FA3FD986D204", "03"),
    (dec("9007199254740993"), "3140000000000002" + "04", "07"),
    (dec("9007199254740993.5"), "314000000000000303" + "06F05B59D3B2000004", "81FB"),
    (dec("40000000000000000.25"), "32011C37937E080001" + "0058D15E1762800004", "7B"),
    (dec("12345678901234567890.5"), "3307CAD52A633AC7C3" + "0100AEFE0105A00004", "81FB"),
    (dec("1E+400"), "33B31E314DC6448D93" + "38C15B0A0000000004", "0F"),
    (dec("1E-100"), "2AB657FE5DC91C0A5F" + "0ED6090EC7B5103F04", "3F"),
    (dec("3E-320"), "2A5B2F70229C5D686B" + "020904963F98386704", "07"),
    (dec("-1E-400"), "28D321CEB239BB726C" + "C73EA4F5FFFFFFFF04", "0B"),
    (dec("-Infinity"), "1F000000000000000004", "03"),
    (dec("NaN"), "1E04", "03"),
    (text(b"a\0b"), "3C6100FF620004", ""),
    (text(b"a", 0x0E), "3C610004", "01"),
    (document((b"a", array(of(1), of(True)))), "46506100502B026F000004", ""),
]


def key(*items: Element) -> tuple[bytes, bytes]:
    return keystring.encode(raw(*[(b"", item) for item in items]))


@pytest.mark.parametrize(("item", "data", "type_bits"), SAMPLES)
def test_a_value_has_this_key(item: Element, data: str, type_bits: str) -> None:
    assert key(item) == (bytes.fromhex(data), bytes.fromhex(type_bits))


def test_what_is_encoded_is_decoded_again() -> None:
    for item in tricky_values() + mixed.edges() + mixed.values(seed=3, count=4000):
        assert keystring.decode(*key(item)) == raw((b"", mixed.as_kept(item)))


def test_several_values_are_one_key() -> None:
    items = [mixed.as_kept(item) for item in mixed.values(seed=4, count=300)]
    assert keystring.decode(*key(*items)) == raw(*[(b"", item) for item in items])


DECIMALS = st.builds(
    lambda sign, coefficient, exponent: Decimal128(
        decimal.Decimal((sign, tuple(map(int, str(coefficient))), exponent))
    ),
    st.integers(0, 1),
    st.integers(0, 10**34 - 1) | st.integers(0, 10**16),
    st.integers(-6176, 6111) | st.integers(-40, 10) | st.integers(-380, -280),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.builds(Int64, st.integers(-(2**63), 2**63 - 1))
PROPERTY = settings(max_examples=200, derandomize=True, deadline=None, database=None)


def exact(number: float | Int64 | Decimal128) -> Fraction:
    return Fraction(number.to_decimal() if isinstance(number, Decimal128) else number)


def sort_by_value(one: float | Int64, other: Decimal128) -> bool:
    keys, values = (key(of(one))[0], key(of(other))[0]), (exact(one), exact(other))
    is_equal = (keys[0] == keys[1]) == (values[0] == values[1])
    return is_equal and (keys[0] < keys[1]) == (values[0] < values[1])


@PROPERTY
@given(FLOATS | INTEGERS, DECIMALS)
def test_two_numbers_sort_as_their_values_do(one: float | Int64, other: Decimal128) -> None:
    assert sort_by_value(one, other)


@PROPERTY
@given(FLOATS, st.integers(1, 34), st.booleans())
def test_a_decimal_next_to_a_double_sorts_beside_it(number: float, digits: int, up: bool) -> None:
    rounding = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    context = decimal.Context(digits, rounding, Emin=-6143, Emax=6144)
    assert sort_by_value(number, Decimal128(context.create_decimal(decimal.Decimal(number))))


def test_all_numbers_of_a_sample_sort_by_value() -> None:
    draw = random.Random(5)
    numbers = [mixed.a_decimal(draw) for _ in range(2000)]
    numbers += [mixed.a_double(draw) for _ in range(2000)]
    finite = [number for number in numbers if "n" not in str(number).lower()]
    pairs = sorted((key(of(number))[0], exact(number)) for number in finite)
    assert [value for _, value in pairs] == sorted(value for _, value in pairs)
    assert len({first for first, _ in pairs}) == len({value for _, value in pairs})


def test_type_bits_have_a_length_of_one_byte_or_of_four() -> None:
    for count in (5, 100, 507, 508, 509, 512, 1200):
        items = [double(float(number)) for number in range(1, count + 1)]
        data, type_bits = key(*items)
        assert keystring.decode(data, type_bits) == raw(*[(b"", item) for item in items])
        size = (2 * count + 7) // 8
        assert len(type_bits) == size + (1 if size < 128 else 5)
        for wrong in (type_bits[:-1], type_bits + b"\0", type_bits[1:], b"\x80", b"\x81"):
            with pytest.raises(BadToken):
                keystring.decode(data, wrong)


def refused(data: bytes, type_bits: bytes | None = b"") -> str:
    with pytest.raises(BadToken) as error:
        keystring.decode(data, type_bits)
    return error.value.message


@pytest.mark.parametrize(
    ("data", "type_bits", "reason"),
    [
        ("", "", "ends in the middle"),
        ("2B02", "", "ends in the middle"),
        ("2B020404", "", "no server writes"),
        ("2B020104", "", "an unknown type, 0x01"),  # a discriminator
        ("2C000204", "", "no server writes"),  # 1 in two bytes
        ("2B0204", "00", "no server writes"),
        ("2B0204", "04", "no server writes"),
        ("2B038000000000000004", "", "no integer"),
        ("318000000000000004", "", "too large"),
        ("2A5820000000000001" + "00" * 8 + "04", "01", "type bits of another"),
        ("2904", "0B", "type bits end"),
        ("2904", "810B", "type bits end"),
        ("2904", "82070000", "length of its type bits"),
        ("2904", "83130000", "zero that does not exist"),
        ("337FE000000000000004", "01", "larger than any BSON number"),
        ("1E04", "", "no integer"),
        ("5AFFFFFFFFFF0004", "", "ends in the middle"),
        ("8CFF04", "", "ends in the middle"),
    ],
)
def test_what_is_no_key_is_refused_with_the_reason(data: str, type_bits: str, reason: str) -> None:
    assert reason in refused(bytes.fromhex(data), bytes.fromhex(type_bits))


def test_damaged_keys_are_refused_or_are_keys_themselves() -> None:
    """Guards: never a crash, and never a value that has another key."""
    draw = random.Random(6)
    accepted = 0
    for item in SAMPLES_AND_OTHERS:
        data, type_bits = key(item)
        for wrong, wrong_bits in damaged(draw, data, type_bits):
            try:
                found = keystring.decode(wrong, wrong_bits)
            except BadToken:
                continue
            accepted += 1
            assert keystring.encode(found) == (wrong, wrong_bits)
    assert accepted > 100


SAMPLES_AND_OTHERS = [item for item, _, _ in SAMPLES] + mixed.values(seed=7, count=500)


def damaged(draw: random.Random, data: bytes, type_bits: bytes) -> list[tuple[bytes, bytes]]:
    at, bit, cut = draw.randrange(len(data)), 1 << draw.randrange(8), draw.randrange(len(data))
    flipped = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
    found = [(flipped, type_bits), (data[:cut], type_bits), (data + data[cut:], type_bits)]
    found += [(data[:cut] + draw.randbytes(9) + data[cut:], type_bits), (data, b"")]
    found += [(data, draw.randbytes(draw.randrange(1, 5))), (draw.randbytes(20), type_bits)]
    return [(data, bits) for data, bits in found if (data, bits) != (b"", b"")]


@settings(max_examples=250, derandomize=True, deadline=None, database=None)
@given(st.binary(max_size=40), st.binary(max_size=4))
def test_any_bytes_are_a_key_or_are_refused(data: bytes, type_bits: bytes) -> None:
    for code in range(30, 52):
        number = bytes([code]) + data + b"\x04"
        try:
            found = keystring.decode(number, type_bits)
        except BadToken:
            continue
        assert keystring.encode(found) == (number, type_bits)
        assert keystring.encode(keystring.decode(number))[0] == number


def test_without_type_bits_a_value_keeps_its_place_and_loses_its_type() -> None:
    for item in tricky_values() + mixed.values(seed=9, count=2000):
        data, _ = key(item)
        assert key_without_type_bits(data) == data


def key_without_type_bits(data: bytes) -> bytes:
    return keystring.encode(keystring.decode(data))[0]


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (double(-0.0), of(0)),
        (dec("1.00"), of(1)),
        (double(-(2.0**31)), of(-(2**31))),
        (double(2.0**31), of(Int64(2**31))),
        (double(-(2.0**63)), of(Int64(-(2**63)))),
        (of(Int64(2**63 - 1)), of(Int64(2**63 - 1))),
        (dec("9223372036854775808"), double(2.0**63)),
        (dec("1.50"), double(1.5)),
        (dec("0.100"), dec("0.1")),
        (dec("1E+6144"), dec("1E+6144")),
        (dec("-Infinity"), double(float("-inf"))),
        (dec("NaN"), double(float("nan"))),
        (text(b"a", 0x0E), text(b"a")),
    ],
)
def test_without_type_bits_a_number_is_of_the_first_type_that_holds_it(
    item: Element, found: Element
) -> None:
    assert keystring.decode(key(item)[0]) == raw((b"", found))


CONTAINERS: dict[str, Callable[[Element], Element]] = {
    "array": array,
    "document": lambda item: document((b"a", item)),
    "scope": lambda item: code_with_scope(b"", raw((b"a", item))),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_nesting_ends_at_the_limit_of_documents_and_does_not_overflow(name: str) -> None:
    container = CONTAINERS[name]
    item = of(1)
    for _ in range(MAX_DEPTH):
        item = container(item)
    data, type_bits = key(item)
    assert keystring.decode(data, type_bits) == raw((b"", item))
    with pytest.raises(UnmappableValue):
        key(container(item))
    opening = data[: data.index(b"\x2b\x02") // MAX_DEPTH]
    for times in (1, 1000, 100_000):
        assert "levels deep" in refused(opening * times + data)


@pytest.mark.parametrize("document_bytes", [b"", raw((b"a", of("x")))[:-3], raw((b"", (8, b"\2")))])
def test_bytes_that_are_no_document_have_no_key(document_bytes: bytes) -> None:
    with pytest.raises(UnmappableValue):
        keystring.encode(document_bytes)


def test_the_names_of_the_values_do_not_matter() -> None:
    assert keystring.encode(raw((b"a", of(1)), (b"b", of("x")))) == key(of(1), of("x"))


def test_decimal_zeros_keep_sign_and_exponent() -> None:
    for biased in (0, 1, 0xFFF, 0x1000, 6176, 12286, 12287):
        for sign in (0, 1):
            zero = 0x13, struct.pack("<QQ", 0, sign << 63 | biased << 49)
            assert keystring.decode(*key(zero)) == raw((b"", zero))
            assert element.decimal128(zero[1], 0) == 0
