"""Documents of each `document.format` back as BSON, by the functions alone."""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import bson
import pytest
from bson import Code, Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.delta.reading import LOSSES, restored
from cdc.errors import UnmappableValue
from cdc.model import document_key_json, key_of
from cdc.model.bson import DOCUMENT, MAX_DEPTH, elements
from cdc.model.encoding import Column, encoder, pack_object, relaxed_json
from cdc.model.encoding.document import canonical_json, unmappable_json
from cdc.model.encoding.variant import pack_metadata
from tests.model import mixed
from tests.model.nesting import NESTINGS, called_deep, nested
from tests.model.test_merge_key import OTHERS, SPECIAL_NUMBERS, document, of
from tests.model.test_variant import SCALARS, read

FORMATS = {
    "bson": ("bson",),
    "canonical": ("json", "canonical"),
    "relaxed": ("json", "relaxed"),
    "variant": ("variant",),
}
OID = "0123456789abcdef01234567"


def captured(data: bytes, *format: str) -> Any:
    """As a task captures it and Arrow reports it."""
    column: Column = encoder(*format)(data)
    if isinstance(column, tuple):
        return dict(zip(("value", "metadata"), column, strict=True))
    return column


def through(data: bytes, *format: str) -> bytes:
    return restored(captured(data, *format), document_key_json(key_of(data)))


@pytest.mark.parametrize("format", FORMATS)
def test_a_document_of_any_type_comes_back_as_its_format_promises(format: str) -> None:
    """Guards: what could not be mapped was kept as bytes."""
    for n, item in enumerate(SPECIAL_NUMBERS + OTHERS + mixed.values(seed=11, count=400)):
        data = document((b"_id", of(n)), (b"v", item), (b"last", of(None)))[1]
        again = through(data, *FORMATS[format])
        if format == "bson":
            assert again == data
            continue
        assert key_of(again) == key_of(data)
        assert through(again, *FORMATS[format]) == again
        if format == "canonical":
            kept = document((b"_id", of(n)), (b"v", mixed.as_kept(item)), (b"last", of(None)))[1]
            assert again in (kept, data)
        elif format == "variant" and again != data:
            assert repr(read(again)) == repr(read(data))


def test_a_variant_gives_back_its_types_and_the_key_its_own() -> None:
    own = ObjectId()
    reported = {"_id": own, "z": 1, "a": Int64(2), "o": own, "d": Decimal128("1.50"), "b": b"x"}
    reported["t"] = bson.Timestamp(3, 4)
    reported["when"] = bson.decode(bson.encode({"x": bson.DatetimeMS(1_769_860_800_123)}))["x"]
    again = bson.decode(through(bson.encode(reported), "variant"))
    assert again == {**reported, "a": 2, "o": str(own)}
    assert list(again) == ["_id", "a", "b", "d", "o", "t", "when", "z"]


@pytest.mark.parametrize(
    ("number", "again"),
    [
        ("12345678901234567890123456789", None),
        ("-9999999999999999999999999999999999", None),
        ("1.234567890123456789012345678901234", None),
        ("0.00000000000000000000000000000000000001", None),
        ("1E-6176", None),
        ("9E+38", None),
        ("0.0000", None),
        ("Infinity", None),
        # What restore says of itself: zeros are written out as far as a decimal128 can have them.
        ("5E+3", "5000"),
        ("0E+3", "0"),
        ("-0.0", "0.0"),
        ("9E+37", f"9.{'0' * 33}E+37"),
    ],
)
def test_a_variant_gives_back_every_digit_of_a_decimal(number: str, again: str | None) -> None:
    data = bson.encode({"_id": 1, "v": Decimal128(number)})
    expected = data if again is None else bson.encode({"_id": 1, "v": Decimal128(again)})
    assert through(data, "variant") == expected


def test_restore_says_of_every_format_but_bson_what_it_changes() -> None:
    assert LOSSES.keys() == FORMATS.keys() - {"bson"}
    assert all('{"$symbol": "x"}' in losses for losses in LOSSES.values())
    assert "5E+3 is 5000" in LOSSES["variant"]


# --- what looks like Extended JSON ---------------------------------------------------------------

# In relaxed form, which may be in one table with canonical form; and in that.
DATES = {"2026-01-31T12:00:00Z": 1_769_860_800_000, "2026-01-31T12:00:00.120Z": 1_769_860_800_120}
# Contents of a field of that name, the only one of a document of the user's own; and the formats (c
# for canonical, r for relaxed, v for VARIANT) that write some value of BSON alike, so that it
# becomes that. All else comes back as it was.
LIKE_EXTENDED_JSON: dict[str, list[tuple[Any, str]]] = {
    "$numberInt": [
        *[(text, "cr") for text in ("0", "5", "-2147483648")],
        *[
            (text, "")
            for text in ("abc", "", " 5 ", "1_0", "٥", "+5", "-0", "05", "5.0", "2147483648")
        ],
        *[(other, "") for other in (5, 5.0, True, None, [], ["5"], {}, {"$numberInt": "x"})],
    ],
    "$numberLong": [
        ("-9223372036854775808", "cr"),
        *[(text, "") for text in ("9223372036854775808", "5L", "५", "9" * 5000, Int64(5))],
    ],
    "$numberDouble": [
        *[("1.5", "cr"), ("-0.0", "cr"), ("1e+300", "cr")],
        *[("NaN", "cr"), ("Infinity", "cr"), ("-Infinity", "cr")],
        *[
            (text, "")
            for text in ("1", "nan", "-NaN", "inf", "1_0.0", " 1.5", "1.50", "1e300", "٥.0")
        ],
        *[(other, "") for other in (1.5, Decimal128("1.5"))],
    ],
    "$numberDecimal": [
        *[("1.50", "cr"), ("-0", "cr"), ("5E+3", "cr"), ("1" * 34, "cr")],
        *[("NaN", "crv"), ("-Infinity", "crv"), ("9E+38", "crv"), ("1E-39", "crv")],
        *[
            (text, "")
            for text in ("abc", "", "5e3", "05", ".5", "+5", "sNaN", "-NaN", "inf", "1_0")
        ],
        *[(text, "") for text in ("٥", " 1", "1" * 35, "1E+9999", "1E+999999999999999999999")],
        *[(other, "") for other in (5, Decimal128("5"), Decimal128("NaN"))],
    ],
    "$oid": [
        (OID, "cr"),
        *[
            (text, "")
            for text in (OID.upper(), OID[:-2], f"{OID}00", f" {OID}", "x" * 24, "00", "")
        ],
        *[(other, "") for other in (1, ObjectId(OID).binary)],
    ],
    "$date": [
        *[(text, "cr") for text in DATES],
        *[(f"2026-01-31T12:00:00{fraction}Z", "") for fraction in (".12", ".000", ".1234")],
        *[({"$numberLong": "1769860800123"}, "cr"), ({"$numberLong": str(2**60)}, "crv")],
        (Int64(1_769_860_800_123), "c"),
        *[(text, "") for text in ("2026-01-31", "1969-12-31T00:00:00Z", "yesterday", "", "9" * 99)],
        *[(text, "") for text in ("2026-01-31T12:00:00", "2026-01-31T13:00:00+01:00")],
        *[({"$numberLong": text}, "") for text in ("x", "1_0", "9" * 20)],
        *[(other, "") for other in (1.5, None, {}, {"$numberLong": "1", "more": 1})],
    ],
    "$binary": [
        ({"base64": "AP8=", "subType": "00"}, "cr"),
        *[({"base64": text, "subType": "80"}, "crv") for text in ("", "AP8=")],
        ({"base64": "A" * 22 + "==", "subType": "04"}, "cr"),
        ({"base64": "AA==", "subType": "04"}, "crv"),
        *[
            ({"base64": text, "subType": "80"}, "")
            for text in ("?", "AP8", "AP9=", "AP8=\n", "AP 8=")
        ],
        *[
            ({"base64": "", "subType": text}, "")
            for text in ("", "0", "000", "8A", "x", "100", "-1")
        ],
        *[({"base64": ""}, ""), ({"base64": "", "subType": "80", "x": 1}, ""), ("AP8=", "")],
    ],
    "$regularExpression": [
        ({"pattern": "^a", "options": "i"}, "crv"),
        *[({"pattern": "a\0", "options": ""}, ""), ({"pattern": "a"}, ""), ("a", "")],
        ({"pattern": "a", "options": 1}, ""),
    ],
    "$dbPointer": [
        ({"$ref": "db.c", "$id": {"$oid": OID}}, "crv"),
        ({"$ref": "db.c", "$id": {"$oid": "x"}}, ""),
        ({"$ref": "db.c", "$id": 1}, ""),
        ({"$ref": "db.c"}, ""),
    ],
    "$code": [("f()", "crv"), ("", "crv"), (1, ""), (None, "")],
    "$symbol": [("a\0b", "crv"), (1, ""), (b"a", "")],
    "$timestamp": [
        ({"t": 2**31 - 1, "i": 0}, "rv"),
        *[({"t": t, "i": 0}, "") for t in (-1, True, 1.0, "1", None, Int64(2**32))],
        *[({"t": 1}, ""), ({"t": 1, "i": 0, "x": 0}, ""), ([1, 0], ""), ("10", "")],
    ],
    "$undefined": [(True, "crv"), (False, ""), (1, ""), ("true", "")],
    "$minKey": [(1, "rv"), (1.0, ""), (True, ""), (2, ""), ("1", "")],
    "$maxKey": [(1, "rv"), (0, ""), (None, "")],
    # Spellings of other drivers and releases, which no format here writes.
    "$uuid": [("01234567-89ab-cdef-0123-456789abcdef", "")],
    "$regex": [("a", "")],
    "$ref": [("c", "")],
    "$type": [("00", "")],
}


@pytest.mark.parametrize("format", ["canonical", "relaxed", "variant"])
@pytest.mark.parametrize("name", LIKE_EXTENDED_JSON)
def test_a_document_of_the_user_s_own_becomes_a_value_where_that_is_written_alike_and_nowhere_else(
    name: str, format: str
) -> None:
    for content, formats in LIKE_EXTENDED_JSON[name]:
        own = {name: content}
        data = bson.encode({"_id": 1, "v": own, "w": [own, {"a": own}], "z": {**own, "b": 1}})
        again = through(data, *FORMATS[format])
        (kind,) = (each.kind for each in elements(again, 0, len(again)) if each.name == b"v")
        assert (kind == DOCUMENT) == (format[0] not in formats), own
        if kind == DOCUMENT:
            assert bson.decode(again) == bson.decode(data), own
        assert_reads_alike(again, data, format)


def assert_reads_alike(again: bytes, data: bytes, format: str) -> None:
    """What is restored would be captured as it was."""
    if format == "variant":
        assert repr(read(again)) == repr(read(data))
    elif format == "canonical":
        text = canonical_json(data)
        for iso, millis in DATES.items():
            text = text.replace(f'{{"$date":"{iso}"}}', f'{{"$date":{{"$numberLong":"{millis}"}}}}')
        assert canonical_json(again) == text
    else:  # of the numbers of canonical form, relaxed form gives back none as it was
        assert relaxed_json(through(again, "json", "relaxed")) == relaxed_json(again)


NAMES = st.sampled_from([*LIKE_EXTENDED_JSON, "$scope", "a", "t", "i", "base64", "subType"])
CONTENTS = [content for contents in LIKE_EXTENDED_JSON.values() for content, _ in contents]
TREES = st.recursive(
    st.sampled_from(CONTENTS) | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.dictionaries(NAMES, TREES, max_size=4), st.sampled_from(["f()", "", None]))
def test_whatever_names_a_document_has_it_is_restored_as_what_was_captured(
    fields: dict[str, Any], code: str | None
) -> None:
    """Guards: a user's own `$scope` that holds what no scope of a VARIANT does."""
    value = fields if code is None else Code(code, fields)
    data = bson.encode({"_id": 1, "v": value, "own": {"$code": "f()", "$scope": fields}})
    for format in ("canonical", "relaxed", "variant"):
        assert_reads_alike(through(data, *FORMATS[format]), data, format)


# --- what ends no run ----------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_the_deepest_value_of_any_nesting_comes_back(nesting: str, format: str) -> None:
    for levels in (MAX_DEPTH, MAX_DEPTH + 1):
        data = document((b"_id", of(1)), (b"v", nested(nesting, levels)))[1]
        again = called_deep(partial(through, data, *FORMATS[format]))
        if format == "variant" and again != data:  # it has the names of references in its order
            again = called_deep(partial(through, again, "variant"))
            assert sorted(again) == sorted(data)
        else:
            assert again == data


def test_what_could_not_be_mapped_comes_back_as_it_was() -> None:
    twice = document((b"_id", of(1)), (b"a", of(1)), (b"a", of(2)))[1]
    for format in FORMATS.values():
        assert through(twice, *format) == twice


def test_a_shard_key_that_could_not_be_mapped_is_in_nobody_s_way() -> None:
    """Guards: `fields` may leave it out of the document, and of the documentKey it may not."""
    key = document((b"s", (0x02, b"\x02\0\0\0\xff\0")), (b"_id", of(Int64(1))))[1]
    data = bson.encode({"_id": Int64(1), "a": 1})
    assert document_key_json(key) == unmappable_json("a name or a string is not valid UTF-8", key)
    for format in FORMATS.values():
        assert restored(captured(data, *format), document_key_json(key)) == data


OF_OTHERS: dict[str, tuple[bytes, Any]] = {
    "a date": (b"\x2c" + struct.pack("<i", 20_000), DatetimeMS(20_000 * 86_400_000)),
    "a timestamp without a zone": (b"\x34" + struct.pack("<q", -1), DatetimeMS(-1)),
    "a float": (b"\x38" + struct.pack("<f", 1.5), 1.5),
    "a decimal of 36 digits": (
        b"\x28\x01" + (10**35).to_bytes(16, "little"),
        Decimal128(f"1{'0' * 33}E+1"),
    ),
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_types_of_a_variant_that_only_others_write_are_read_too(name: str) -> None:
    leaf, value = OF_OTHERS[name]
    image = {"value": pack_object([0], [leaf]), "metadata": pack_metadata([b"v"])}
    assert restored(image, '{"_id":1}') == bson.encode({"_id": 1, "v": value})


@pytest.mark.parametrize(
    "image",
    [
        *["", "nonsense", "[]", "5", "null", '{"a":1', '{"a":' * 9999, "[" * 9999],
        *['{"a":18446744073709551616}', '{"a":"\\ud800"}', '{"a\\u0000":1}'],
        *['{"a":' * 300 + "1" + "}" * 300, '{"a":' + "[" * 300 + "]" * 300 + "}"],
        *['{"$unmappable":"x","$bson":1}', '{"$unmappable":"x","$bson":null}'],
        {"value": b"", "metadata": b""},
        {"value": b"\0", "metadata": pack_metadata([])},  # null
        {"value": pack_object([0, 0], [b"\0", b"\0"]), "metadata": pack_metadata([b"v"])},
        {"value": pack_object([1], [b"\0"]), "metadata": pack_metadata([b"v"])},
        {
            "value": pack_object([0], [b"\x50" + bytes(16)]),
            "metadata": pack_metadata([b"v"]),
        },  # UUID
        {"value": pack_object([0], [b"\x05\xff"]), "metadata": pack_metadata([b"v"])},
        {"value": pack_object([0], [b"\x05a"]), "metadata": pack_metadata([b"\xff"])},
        {
            "value": pack_object([0], [b"\x28\0" + (10**38 - 1).to_bytes(16, "little")]),
            "metadata": pack_metadata([b"v"]),
        },
    ],
)
def test_an_image_that_nothing_here_writes_is_refused_with_a_reason(image: Any) -> None:
    with pytest.raises(UnmappableValue) as refusal:
        restored(image, '{"_id":1}')
    assert refusal.value.message


def test_every_single_byte_of_a_variant_may_be_wrong() -> None:
    fields = [(str(n).encode(), item) for n, item in enumerate(SPECIAL_NUMBERS + OTHERS[:4])]
    data = document((b"_id", of(1)), *fields, (b"n", of([{"a": {"b": 2**40}}, "x" * 99])))[1]
    whole = captured(data, "variant")
    for part in whole:
        for index in range(len(whole[part])):
            for wrong in (0, 1, 0x7F, 0xFF, whole[part][index] ^ 0x10):
                damaged = bytearray(whole[part])
                damaged[index] = wrong
                try:
                    restored({**whole, part: bytes(damaged)}, '{"_id":1}')
                except UnmappableValue:
                    continue
