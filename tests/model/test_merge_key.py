"""Two merge keys are equal exactly when a real server holds the two values equal."""

from __future__ import annotations

import decimal
import itertools
import random
import struct
from collections import defaultdict
from fractions import Fraction
from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from cdc.errors import UnmappableValue
from cdc.model import document_key_json, merge_key
from cdc.model.bson import MAX_DEPTH

Element = tuple[int, bytes]  # BSON type and value as bytes

OID = ObjectId("0123456789abcdef01234567")


def raw(*fields: tuple[bytes, Element]) -> bytes:
    body = b"".join(bytes([kind]) + name + b"\0" + value for name, (kind, value) in fields)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def text(value: bytes, kind: int = 0x02) -> Element:
    return kind, struct.pack("<i", len(value) + 1) + value + b"\0"


def document(*fields: tuple[bytes, Element], kind: int = 0x03) -> Element:
    return kind, raw(*fields)


def array(*items: Element) -> Element:
    return document(*[(str(number).encode(), item) for number, item in enumerate(items)], kind=0x04)


def of(value: Any) -> Element:
    encoded = bson.encode({"v": value})
    return encoded[4], encoded[7:-1]


def double(number: float) -> Element:
    return 0x01, struct.pack("<d", number)


def dec(number: str) -> Element:
    return of(Decimal128(number))


def key(item: Element) -> str:
    return merge_key(raw((b"_id", item)))


def numbers_around(integer: int) -> list[Element]:
    """The same number, its neighbours, and its rounded forms, in every type that can hold them."""
    found = []
    for number in (integer - 1, integer, integer + 1):
        found.append(double(float(number)))
        found += [of(number)] if abs(number) < 2**31 else []
        found += [of(Int64(number))] if -(2**63) <= number < 2**63 else []
        if abs(number) < 10**34:
            found += [dec(str(number)), dec(f"{number}.0") if abs(number) < 10**33 else dec("0")]
    return found


def decimals_around(number: float) -> list[Element]:
    """A double, and the decimals next to it: exact if there is one, of 34, 17 and 15 digits."""
    found = [double(number)]
    for digits in (34, 17, 15):
        for rounding in (decimal.ROUND_DOWN, decimal.ROUND_UP):
            context = decimal.Context(digits, rounding)
            found.append(of(Decimal128(context.create_decimal(decimal.Decimal(number)))))
    return found


INTEGERS = [0, 1, -1, 7, 100, 2**31, -(2**31), 2**53, -(2**53), 2**60, 2**62, 2**63, -(2**63)]
INTEGERS += [2**64, 10**15, 10**17, 10**18, 10**19, 10**22, 10**23, 10**33, 2**112, 2**113, 2**120]
DOUBLES = [0.1, -0.1, 0.5, 0.3, 1.1, 1 / 3, 2.0**-30, 2.0**-60, 2.0**-110, 1e-7, 123.456, 1e16 + 2]
DOUBLES += [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e300, 1e23, 1e22, -2.5e-5]

SPECIAL_NUMBERS = [
    *[double(float(name)) for name in ("nan", "-nan", "inf", "-inf", "-0.0")],
    *[dec(name) for name in ("NaN", "-NaN", "sNaN", "Infinity", "-Infinity", "-0", "0E+6000")],
    *[dec(name) for name in ("-0E-6176", "1", "1.00", "1E0", "10E-1", "1E+6144", "1.0E+6144")],
    *[dec(name) for name in ("1E-6176", "1E+400", "10E+399", "0.1", "0.10", "1E-1", "1E+100")],
    (0x01, struct.pack("<Q", 0xFFF8000000000001)),  # a NaN with a payload
    (0x13, struct.pack("<QQ", 0, 0x6C10000000000000)),  # not canonical: zero
    (0x13, struct.pack("<QQ", 10**34 % 2**64, 0x3040000000000000 | 10**34 >> 64)),  # the same
]

OTHERS = [
    *[text(raw_text) for raw_text in (b"", b"a", b"a\0b", b"1", "é".encode(), b"e\xcc\x81")],
    *[
        text(raw_text)
        for raw_text in (b"\xff", b"\xfe", b"\xef\xbf\xbd", b"\\udcff", b"\xed\xa0\x80")
    ],
    *[text(b"a", 0x0E), text(b"a", 0x0D), text(b"\xff", 0x0E), text(b"null"), text(b"{}")],
    *[text(b'{"$oid":"0123456789abcdef01234567"}'), text(OID.binary.hex().encode()), of(OID)],
    *[of(None), (0x06, b""), (0xFF, b""), (0x7F, b""), of(True), of(False), (0x08, b"\x01")],
    *[(0x05, struct.pack("<iB", 3, subtype) + b"abc") for subtype in (0, 1, 3, 5, 6, 128)],
    (0x05, b"\x07\0\0\0\x02\x03\0\0\0abc"),
    (0x05, b"\x10\0\0\0\x04" + bytes(16)),
    (0x05, b"\x10\0\0\0\x03" + bytes(16)),
    *[(0x09, struct.pack("<q", millis)) for millis in (0, 1, -1, 2**63 - 1, -(2**63))],
    *[of(Timestamp(0, 1)), of(Timestamp(1, 0)), (0x11, bytes(8)), of({}), of([])],
    *[(0x0B, pattern) for pattern in (b"a\0i\0", b"a\0m\0", b"a\0im\0", b"a\0mi\0", b"ai\0\0")],
    (0x0C, text(b"db.c")[1] + OID.binary),
    (0x0C, text(b"db.c")[1] + bytes(12)),
    (0x0C, text(b"db.d")[1] + OID.binary),
]


def code_with_scope(code: bytes, scope: bytes) -> Element:
    content = text(code)[1] + scope
    return 0x0F, struct.pack("<i", len(content) + 4) + content


def nested(inner: list[Element]) -> list[Element]:
    """The values inside of documents, arrays and scopes, some with names in another order."""
    one, two = of(1), double(2.0)
    found = [document((b"a", item)) for item in inner]
    found += [array(item) for item in inner] + [array(array(item)) for item in inner[::7]]
    found += [code_with_scope(b"f", raw((b"x", item))) for item in inner[::5]]
    found += [document((b"a", one), (b"b", two)), document((b"b", two), (b"a", one))]
    found += [document((b"a", one), (b"a", two)), document((b"a", dec("1.0")), (b"a", of(2)))]
    found += [document((b"5", one), kind=0x04), document((b"0", one)), document((b"", one))]
    found += [document((b"\xff", one)), document((b"\xfe", one)), document((b'":1,"', one))]
    return found


def tricky_values() -> list[Element]:
    numbers = [item for number in INTEGERS for item in numbers_around(number)]
    numbers += [item for number in DOUBLES for item in decimals_around(number)]
    # Each distinct pattern once: a server's answer about a value and itself shows nothing.
    flat = list(dict.fromkeys(numbers + SPECIAL_NUMBERS + OTHERS))
    values = list(dict.fromkeys(flat + nested(flat[::3] + OTHERS)))
    random.Random(20).shuffle(values)
    return values


def insertable(collection: Collection[Any], item: Element) -> bool:
    """False if the server held a value equal to this one."""
    try:
        # Below `_id` and not as it: the server refuses arrays, regexes and undefined at its top.
        collection.insert_one(RawBSONDocument(raw((b"_id", document((b"v", item))))))
    except DuplicateKeyError:
        return False
    return True


def delete(collection: Collection[Any], item: Element) -> None:
    wanted = raw((b"_id", document((b"$eq", document((b"v", item))))))
    assert collection.delete_one(RawBSONDocument(wanted)).deleted_count == 1


def test_keys_are_equal_exactly_when_a_unique_index_holds_the_values_equal(
    database: Database[Any],
) -> None:
    collection = database["keys"]
    classes: dict[str, list[Element]] = defaultdict(list)
    values = tricky_values()
    for item in values:
        classes[key(item)].append(item)
    assert len(values) > 600
    assert len(classes) > 400

    for first, *_ in classes.values():
        assert insertable(collection, first), f"equal to another key's value: {first}"
    for first, *others in classes.values():
        for item in others:
            assert not insertable(collection, item), f"not equal on the server: {first}, {item}"
        # With its one representative gone, each of the class fits: it collided with that one.
        delete(collection, first)
        for item in others:
            assert insertable(collection, item), f"equal to a value of another key: {item}"
            delete(collection, item)
        assert insertable(collection, first)


def test_the_server_takes_top_level_ids_as_it_takes_nested_ones(database: Database[Any]) -> None:
    collection = database["ids"]
    for item in (of(1), text(b"a"), dec("0.1"), double(0.1), of(None), of(OID)):
        collection.insert_one(RawBSONDocument(raw((b"_id", item))))
    for item in (double(1.0), dec("1.00"), of(Int64(1)), text(b"a", 0x0E), dec("0.10")):
        with pytest.raises(DuplicateKeyError):
            collection.insert_one(RawBSONDocument(raw((b"_id", item))))


def as_every_type(number: Fraction) -> list[Element]:
    """A fraction whose denominator is a power of two below 2**20, in each type that can hold it."""
    exact = decimal.Decimal(number.numerator) / decimal.Decimal(number.denominator)
    found = [double(float(number)), of(Decimal128(exact)), of(Decimal128(f"{exact:f}"))]
    return [*found, of(Int64(int(number)))] if number.denominator == 1 else found


FRACTIONS = st.builds(Fraction, st.integers(-(2**40), 2**40), st.sampled_from([1, 2, 8, 1024]))


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(FRACTIONS, FRACTIONS, st.integers(-2, 2))
def test_two_numbers_have_one_key_exactly_when_they_have_one_value(
    one: Fraction, other: Fraction, distance: int
) -> None:
    for second in (other, one + distance, one * Fraction(10) ** distance):
        if second.denominator & (second.denominator - 1) == 0:
            keys = {key(item) for item in as_every_type(one)}
            other_keys = {key(item) for item in as_every_type(second)}
            assert len(keys) == len(other_keys) == 1
            assert (keys == other_keys) == (one == second)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (of(OID), '{"$oid":"0123456789abcdef01234567"}'),
        (text(b'a"b'), '"a\\"b"'),
        (text("Zoë 😀".encode()), '"Zoë 😀"'),
        (of(-7), "-7"),
        (double(100.0), "100"),
        (dec("2.50"), "2.5"),
        (dec("1E+33"), "1" + "0" * 33),
        (dec("1E+34"), "1E+34"),
        (double(0.1), '{"$numberDouble":"0.1"}'),
        (of(None), "null"),
        (of(True), "true"),
        (document((b"b", of(1)), (b"a", array(text(b"x")))), '{"b":1,"a":["x"]}'),
        (of(Binary(bytes(2), 4)), '{"$binary":{"base64":"AAA=","subType":"04"}}'),
        ((0x09, struct.pack("<q", -5)), '{"$date":{"$numberLong":"-5"}}'),
    ],
)
def test_a_common_key_reads_like_extended_json(item: Element, expected: str) -> None:
    assert key(item) == expected


def test_the_name_of_the_field_does_not_matter() -> None:
    assert merge_key(raw((b"x", of(1)))) == merge_key(raw((b"_id", of(1))))


def test_a_document_with_dollar_names_has_not_the_key_of_the_type_it_resembles() -> None:
    resembling = [document((b"$oid", text(str(OID).encode()))), document((b"$$oid", text(b"")))]
    resembling += [document((b"$numberDouble", text(b"0.1"))), document((b"$oid", text(b"")))]
    keys = {key(item) for item in [*resembling, of(OID), double(0.1)]}
    assert len(keys) == len(resembling) + 2


def test_every_key_can_be_encoded_as_utf_8() -> None:
    for item in tricky_values():
        key(item).encode("utf-8")


@pytest.mark.parametrize(
    "document_bytes", [b"", raw(), raw((b"a", of(1)), (b"b", of(2))), raw((b"a", of("x")))[:-3]]
)
def test_bytes_that_are_no_document_of_one_field_are_refused(document_bytes: bytes) -> None:
    with pytest.raises(UnmappableValue):
        merge_key(document_bytes)


def test_a_key_nested_beyond_the_servers_limit_is_refused_and_does_not_overflow() -> None:
    deep: dict[int, Element] = {0: of(1)}
    for level in range(1, 1000):
        deep[level] = document((b"a", deep[level - 1]))
    assert key(deep[MAX_DEPTH]).startswith('{"a":')
    for level in (MAX_DEPTH + 1, 999):
        with pytest.raises(UnmappableValue):
            key(deep[level])


def test_damaged_keys_are_refused_but_never_crash() -> None:
    whole = raw((b"_id", document(*[(b"a", item) for item in OTHERS + SPECIAL_NUMBERS])))
    for index, wrong in itertools.product(range(len(whole)), (0, 1, 0x7F, 0xFF)):
        try:
            merge_key(whole[:index] + bytes([wrong]) + whole[index + 1 :])
        except UnmappableValue:
            continue


def test_a_document_key_keeps_its_types() -> None:
    document_key = raw((b"region", text(b"eu")), (b"_id", of(Int64(1))))
    assert document_key_json(document_key) == '{"region":"eu","_id":{"$numberLong":"1"}}'


def test_a_document_key_without_text_keeps_its_bytes() -> None:
    assert '"$bson"' in document_key_json(raw((b"_id", text(b"\xff"))))
