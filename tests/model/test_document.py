"""What becomes of a document in each `document.format`, also of one that cannot be mapped."""

from __future__ import annotations

import base64
import json
import math
import struct
from functools import partial
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson import json_util as driver
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from cdc.errors import BadOption, UnmappableValue
from cdc.model import document_key_json, merge_key
from cdc.model.bson import MAX_DEPTH
from cdc.model.encoding import encoder, relaxed_json
from cdc.model.encoding.document import canonical_json
from tests.model.nesting import NESTINGS, called_deep, nested

OID = ObjectId("0123456789abcdef01234567")
READ_FORMATS = [("variant",), ("json", "relaxed"), ("json", "canonical")]
DAMAGED = {
    "not BSON": b"\x01",
    "empty": b"",
    "a name twice": b"\x0b\0\0\0\x0aa\0\x0aa\0\0",
    "a string that is not UTF-8": b"\x0e\0\0\0\x02v\0\x02\0\0\0\xff\0\0",
}


def raw(kind: int, value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 8) + bytes([kind]) + b"v\0" + value + b"\0"


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def of(value: Any) -> bytes:
    return bson.encode({"v": value})


# Canonical texts of the specification's corpus (bson-corpus), one or more per type.
CANONICAL = {
    "double": (of(1.0), '{"$numberDouble":"1.0"}'),
    "double -0": (of(-0.0), '{"$numberDouble":"-0.0"}'),
    "double NaN": (of(math.nan), '{"$numberDouble":"NaN"}'),
    "double infinity": (of(-math.inf), '{"$numberDouble":"-Infinity"}'),
    "string": (of('ä"\n\0'), '"ä\\"\\n\\u0000"'),
    "document": (of({"b": {}, "a": None}), '{"b":{},"a":null}'),
    "array": (of([1, []]), '[{"$numberInt":"1"},[]]'),
    "binary": (of(b"\xff\xff"), '{"$binary":{"base64":"//8=","subType":"00"}}'),
    "binary old": (
        raw(0x05, b"\x06\0\0\0\x02\x02\0\0\0\xff\xff"),
        '{"$binary":{"base64":"//8=","subType":"02"}}',
    ),
    "undefined": (raw(0x06, b""), '{"$undefined":true}'),
    "object id": (of(OID), '{"$oid":"0123456789abcdef01234567"}'),
    "bool": (of(False), "false"),
    "date": (raw(0x09, struct.pack("<q", 1)), '{"$date":{"$numberLong":"1"}}'),
    "date of year 10000": (
        raw(0x09, struct.pack("<q", 253402300800000)),
        '{"$date":{"$numberLong":"253402300800000"}}',
    ),
    "null": (of(None), "null"),
    "regex": (of(Regex("a/b", "im")), '{"$regularExpression":{"pattern":"a/b","options":"im"}}'),
    "dbpointer": (
        raw(0x0C, text(b"db.c") + OID.binary),
        f'{{"$dbPointer":{{"$ref":"db.c","$id":{{"$oid":"{OID}"}}}}}}',
    ),
    "code": (of(Code("f()")), '{"$code":"f()"}'),
    "symbol": (raw(0x0E, text(b"s")), '{"$symbol":"s"}'),
    "code with scope": (
        of(Code("f()", {"x": 1})),
        '{"$code":"f()","$scope":{"x":{"$numberInt":"1"}}}',
    ),
    "int32": (of(-(2**31)), '{"$numberInt":"-2147483648"}'),
    "timestamp": (of(Timestamp(2**32 - 1, 7)), '{"$timestamp":{"t":4294967295,"i":7}}'),
    "int64": (of(Int64(1)), '{"$numberLong":"1"}'),
    "decimal128": (of(Decimal128("-1.00E+40")), '{"$numberDecimal":"-1.00E+40"}'),
    "decimal128 NaN": (of(Decimal128("NaN")), '{"$numberDecimal":"NaN"}'),
    "decimal128 infinity": (of(Decimal128("Infinity")), '{"$numberDecimal":"Infinity"}'),
    "min key": (of(MinKey()), '{"$minKey":1}'),
    "max key": (of(MaxKey()), '{"$maxKey":1}'),
}

# Where relaxed text differs from canonical text.
RELAXED = {
    "double": "1.0",
    "double -0": "-0.0",
    "array": "[1,[]]",
    "date": '{"$date":"1970-01-01T00:00:00.001Z"}',
    "code with scope": '{"$code":"f()","$scope":{"x":1}}',
    "int32": "-2147483648",
    "int64": "1",
}


@pytest.mark.parametrize("name", CANONICAL)
def test_canonical_json_keeps_every_type(name: str) -> None:
    document, expected = CANONICAL[name]
    assert encoder("json", "canonical")(document) == f'{{"v":{expected}}}'


@pytest.mark.parametrize("name", CANONICAL)
def test_relaxed_json_differs_for_numbers_and_common_dates_only(name: str) -> None:
    document, canonical = CANONICAL[name]
    assert encoder("json", "relaxed")(document) == f'{{"v":{RELAXED.get(name, canonical)}}}'


@pytest.mark.parametrize(
    ("millis", "expected"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (253402300799999, "9999-12-31T23:59:59.999Z"),
        (-1, {"$numberLong": "-1"}),
        (253402300800000, {"$numberLong": "253402300800000"}),
    ],
)
def test_relaxed_json_writes_a_date_as_iso_from_1970_to_9999_only(
    millis: int, expected: object
) -> None:
    written = json.loads(relaxed_json(raw(0x09, struct.pack("<q", millis))))
    assert written == {"v": {"$date": expected}}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=10).map(lambda payload: Binary(payload, 128)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([MinKey(), MaxKey(), Code("f()"), Decimal128("1.50E-6100")]),
)
NAMES = st.text(
    st.characters(exclude_characters="\0$", exclude_categories=["Cs"]), min_size=1, max_size=8
)
DOCUMENTS = st.dictionaries(
    NAMES,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
        max_leaves=10,
    ),
    max_size=6,
)


@settings(max_examples=75, derandomize=True, deadline=None, database=None)
@given(DOCUMENTS)
def test_the_driver_reads_canonical_json_back_as_the_same_bytes(document: dict[str, Any]) -> None:
    data = bson.encode(document)
    options = driver.CANONICAL_JSON_OPTIONS

    read_back = driver.loads(canonical_json(data), json_options=options)

    # NaN has many bit patterns and one text.
    if "NaN" not in canonical_json(data):
        assert bson.encode(read_back) == data


@pytest.mark.parametrize("name", DAMAGED)
def test_an_unmappable_document_stands_in_a_variant_with_its_reason_and_bytes(name: str) -> None:
    column = encoder("variant", "relaxed")(DAMAGED[name])

    assert isinstance(column, tuple)
    stand_in: Any = VariantVal(*column).toPython()
    assert list(stand_in) == ["$bson", "$unmappable"]
    assert stand_in["$bson"] == DAMAGED[name]
    assert isinstance(stand_in["$unmappable"], str)


@pytest.mark.parametrize("json_mode", ["relaxed", "canonical"])
@pytest.mark.parametrize("name", DAMAGED)
def test_an_unmappable_document_stands_in_json_with_its_reason_and_bytes(
    name: str, json_mode: str
) -> None:
    column = encoder("json", json_mode)(DAMAGED[name])

    assert isinstance(column, str)
    stand_in = json.loads(column)
    assert list(stand_in) == ["$unmappable", "$bson"]
    assert base64.b64decode(stand_in["$bson"]["$binary"]["base64"]) == DAMAGED[name]


def test_a_reason_names_no_value_of_the_document() -> None:
    secret = b"hunter2\xff"
    with pytest.raises(UnmappableValue) as refusal:
        canonical_json(raw(0x02, text(secret)))
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("name", DAMAGED)
def test_the_format_bson_passes_any_bytes_through(name: str) -> None:
    assert encoder("bson", "relaxed")(DAMAGED[name]) == DAMAGED[name]


@pytest.mark.parametrize(("format", "json_mode"), [("avro", "relaxed"), ("json", "shell")])
def test_an_unknown_format_is_a_bad_option(format: str, json_mode: str) -> None:
    with pytest.raises(BadOption):
        encoder(format, json_mode)


@pytest.mark.parametrize("nesting", NESTINGS)
def test_the_deepest_value_of_any_nesting_is_mapped_and_a_deeper_one_kept_as_bytes(
    nesting: str,
) -> None:
    """Guards: a code with scope takes two levels of Extended JSON, and the caller has frames."""
    for levels in (MAX_DEPTH, MAX_DEPTH + 1, 2000):
        document = raw(*nested(nesting, levels))
        columns = [called_deep(partial(encoder(*format), document)) for format in READ_FORMATS]
        columns.append(called_deep(partial(document_key_json, document)))
        for column in columns:
            text = column if isinstance(column, str) else str(column)
            assert ("$unmappable" in text) == (levels > MAX_DEPTH)
    assert called_deep(partial(merge_key, raw(*nested(nesting, MAX_DEPTH))))
