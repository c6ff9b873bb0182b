"""What every BSON type becomes in a VARIANT, read back by Spark; bytes that never crash."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import struct
import uuid
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantVal

from cdc.errors import UnmappableValue
from cdc.model.bson import MAX_DEPTH
from cdc.model.encoding import variant

OID = ObjectId("0123456789abcdef01234567")
PROPERTY = settings(max_examples=75, derandomize=True, deadline=None, database=None)


def of(value: Any) -> bytes:
    return bson.encode({"v": value})


def raw(*fields: tuple[int, bytes, bytes]) -> bytes:
    """A document from (type, name, value) as bytes: what no driver would write."""
    body = b"".join(bytes([kind]) + name + b"\0" + value for kind, name, value in fields)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


def date(millis: int) -> bytes:
    return raw((0x09, b"v", struct.pack("<q", millis)))


def read(document: bytes) -> Any:
    """The VARIANT as Python objects; pyspark would round decimals to its context's 28 digits."""
    with decimal.localcontext(prec=60):
        return VariantVal(*variant.transcode(document)).toPython()


# name: (document {"v": …}, Spark's to_json of v, Spark's schema_of_variant of v or None)
BY_TYPE: dict[str, tuple[bytes, Any, str | None]] = {
    "double": (of(1.5), 1.5, "DOUBLE"),
    "double NaN": (of(math.nan), "NaN", "DOUBLE"),
    "double infinity": (of(-math.inf), "-Infinity", "DOUBLE"),
    "string": (of("häß 😀\0"), "häß 😀\0", "STRING"),
    "empty string": (of(""), "", "STRING"),
    "string of 64 bytes": (of("x" * 64), "x" * 64, "STRING"),
    "document": (of({"b": 1, "a": {}}), {"a": {}, "b": 1}, "OBJECT<a: OBJECT<>, b: BIGINT>"),
    "array": (of([1, "a", []]), [1, "a", []], "ARRAY<VARIANT>"),
    "binary": (of(b"\0\xff"), "AP8=", "BINARY"),
    "binary uuid": (of(Binary(bytes(range(16)), 4)), str(uuid.UUID(bytes=bytes(range(16)))), None),
    "binary uuid of 15 bytes": (
        of(Binary(bytes(15), 4)),
        {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAA", "subType": "04"}},
        None,
    ),
    "binary user defined": (
        of(Binary(b"a", 128)),
        {"$binary": {"base64": "YQ==", "subType": "80"}},
        None,
    ),
    "undefined": (raw((0x06, b"v", b"")), {"$undefined": True}, None),
    "object id": (of(OID), "0123456789abcdef01234567", "STRING"),
    "bool": (of(True), True, "BOOLEAN"),
    "bool false": (of(False), False, "BOOLEAN"),
    "date": (date(1), "1970-01-01 00:00:00.001+00:00", "TIMESTAMP"),
    "date first": (date(-62135596800000), "0001-01-01 00:00:00+00:00", "TIMESTAMP"),
    "date last": (date(253402300799999), "9999-12-31 23:59:59.999+00:00", "TIMESTAMP"),
    "date too late": (
        date(253402300800000),
        {"$date": {"$numberLong": "253402300800000"}},
        None,
    ),
    "date too early": (date(-(2**63)), {"$date": {"$numberLong": str(-(2**63))}}, None),
    "null": (of(None), None, "VOID"),
    "regex": (
        of(Regex("^a", "i")),
        {"$regularExpression": {"options": "i", "pattern": "^a"}},
        None,
    ),
    "dbpointer": (
        raw((0x0C, b"v", text(b"db.c") + OID.binary)),
        {"$dbPointer": {"$id": {"$oid": str(OID)}, "$ref": "db.c"}},
        None,
    ),
    "code": (of(Code("f()")), {"$code": "f()"}, None),
    "symbol": (raw((0x0E, b"v", text(b"s"))), {"$symbol": "s"}, None),
    "code with scope": (
        of(Code("f()", {"x": 1, "y": [None]})),
        {"$code": "f()", "$scope": {"x": {"$numberInt": "1"}, "y": [None]}},
        None,
    ),
    "int32": (of(-(2**31)), -(2**31), "BIGINT"),
    "timestamp": (of(Timestamp(2**32 - 1, 7)), {"$timestamp": {"i": 7, "t": 2**32 - 1}}, None),
    "int64": (of(Int64(2**63 - 1)), 2**63 - 1, "BIGINT"),
    "decimal128": (of(Decimal128("-12.50")), decimal.Decimal("-12.5"), "DECIMAL(3,1)"),
    "decimal128 of 34 digits": (of(Decimal128("9" * 34)), int("9" * 34), "DECIMAL(34,0)"),
    "decimal128 of scale 38": (of(Decimal128("1E-38")), decimal.Decimal("1E-38"), "DECIMAL(38,38)"),
    "decimal128 of scale 39": (of(Decimal128("1E-39")), {"$numberDecimal": "1E-39"}, None),
    "decimal128 NaN": (of(Decimal128("NaN")), {"$numberDecimal": "NaN"}, None),
    "decimal128 infinity": (of(Decimal128("-Infinity")), {"$numberDecimal": "-Infinity"}, None),
    "min key": (of(MinKey()), {"$minKey": 1}, None),
    "max key": (of(MaxKey()), {"$maxKey": 1}, None),
}


@pytest.fixture(scope="module")
def through_spark(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """All of BY_TYPE in one query: name -> (to_json of the document, its schema)."""
    rows = [(name, VariantVal(*variant.transcode(case[0]))) for name, case in BY_TYPE.items()]
    frame = spark.createDataFrame(rows, "name string, v variant")
    read_back = frame.selectExpr(
        "name", "to_json(v, map('timeZone', 'UTC'))", "schema_of_variant(v)"
    )
    return {name: (as_json, schema) for name, as_json, schema in read_back.collect()}


@pytest.mark.parametrize("name", BY_TYPE)
def test_spark_reads_every_bson_type_as_the_table_says(
    name: str, through_spark: dict[str, tuple[str, str]]
) -> None:
    _, expected, schema = BY_TYPE[name]
    as_json, actual_schema = through_spark[name]

    parsed = json.loads(as_json, parse_float=decimal.Decimal)

    assert parsed == {"v": expected}
    assert type(parsed["v"]) is type(expected) or isinstance(expected, float)
    assert schema is None or actual_schema == f"OBJECT<v: {schema}>"


def test_spark_finds_every_field_of_a_wide_object_above_the_basic_multilingual_plane(
    spark: SparkSession,
) -> None:
    names = [f"f{number:03}" for number in range(300)] + ["\ue000", "\uffff", "\U00010000", "😀"]
    document = bson.encode({name: number for number, name in enumerate(names)})
    frame = spark.createDataFrame([(VariantVal(*variant.transcode(document)),)], "v variant")

    found = frame.selectExpr(*[f"variant_get(v, '$[\"{name}\"]', 'int')" for name in names]).first()

    assert found is not None
    assert list(found) == list(range(len(names)))


def test_spark_reads_offsets_of_two_three_and_four_bytes(spark: SparkSession) -> None:
    sizes = [300, 70_000, 17_000_000]
    rows = [(VariantVal(*variant.transcode(of(["x" * size, "end"]))),) for size in sizes]
    frame = spark.createDataFrame(rows, "v variant")

    read_back = frame.selectExpr(
        "length(variant_get(v, '$.v[0]', 'string'))", "variant_get(v, '$.v[1]', 'string')"
    )

    assert [tuple(row) for row in read_back.collect()] == [(size, "end") for size in sizes]


def test_a_decimal_of_39_digits_becomes_its_extended_json_object() -> None:
    assert read(of(Decimal128("9E+37"))) == {"v": 9 * decimal.Decimal(10) ** 37}
    assert read(of(Decimal128("9E+38"))) == {"v": {"$numberDecimal": "9E+38"}}


def test_a_decimal_keeps_its_scale() -> None:
    value, metadata = variant.transcode(of(Decimal128("1.00")))
    with decimal.localcontext(prec=60):
        assert str(VariantVal(value, metadata).toPython()["v"]) == "1.00"


@pytest.mark.parametrize("digits", [9, 10, 18, 19, 34])
def test_a_decimal_is_as_wide_as_its_digits_and_scale_need(digits: int) -> None:
    for coefficient in ("9" * digits, "-" + "9" * digits):
        for scale in (0, 9, 10, 18, 19, 38):
            expected = decimal.Decimal(f"{coefficient}E-{scale}")
            assert read(of(Decimal128(expected)))["v"] == expected


def test_a_non_canonical_decimal_is_the_zero_that_the_server_takes_it_for() -> None:
    too_long = struct.pack("<QQ", 10**34 % 2**64, 0x3040000000000000 | 10**34 >> 64)
    wrong_form = struct.pack("<QQ", 0, 0x6C10000000000000)
    for payload in (too_long, wrong_form):
        assert read(raw((0x13, b"v", payload))) == {"v": 0}


@pytest.mark.parametrize("count", [0, 1, 255, 256, 300, 70_000])
def test_objects_and_arrays_of_any_size_read_back(count: int) -> None:
    wide = {f"n{number}": number for number in range(count)}
    assert read(bson.encode(wide)) == wide
    assert read(of(list(range(count)))) == {"v": list(range(count))}


@pytest.mark.parametrize("bits", [7, 8, 15, 16, 31, 32, 63])
def test_integers_at_the_edge_of_a_width_are_stored_as_spark_stores_them(bits: int) -> None:
    for number in (2**bits - 1, -(2**bits), min(2**bits, 2**63 - 1), max(-(2**bits) - 1, -(2**63))):
        assert read(of(Int64(number))) == {"v": number}
        by_spark = VariantVal.parseJson(f'{{"v":{number}}}')
        assert variant.transcode(of(Int64(number))) == (by_spark.value, by_spark.metadata)


REFUSED = {
    "empty": b"",
    "too short": b"\x05\0\0\0",
    "length beyond the end": b"\x06\0\0\0\0",
    "rest after the document": bson.encode({}) + b"\0",
    "a name twice": raw((0x0A, b"a", b""), (0x0A, b"a", b"")),
    "a name that is not UTF-8": raw((0x0A, b"\xff", b"")),
    "two names that are UTF-8 only together": raw((0x0A, b"\xc3", b""), (0x0A, b"\xa4", b"")),
    "a string that is not UTF-8": raw((0x02, b"v", text(b"\xff"))),
    "a surrogate": raw((0x02, b"v", text(b"\xed\xa0\x80"))),
    "a symbol that is not UTF-8": raw((0x0E, b"v", text(b"\xff"))),
    "a string without NUL": raw((0x02, b"v", b"\x01\0\0\0a")),
    "a string of length 0": raw((0x02, b"v", b"\0\0\0\0")),
    "a negative binary": raw((0x05, b"v", b"\xff\xff\xff\xff\0")),
    "a bool that is 2": raw((0x08, b"v", b"\x02")),
    "an unknown type": raw((0x14, b"v", b"")),
    "an old binary with a wrong inner length": raw((0x05, b"v", b"\x04\0\0\0\x02\x09\0\0\0")),
    "a scope that is too long": raw((0x0F, b"v", b"\x0f\0\0\0" + text(b"") + b"\x06\0\0\0\0\0")),
    "a name twice inside of an array": raw(
        (0x04, b"v", raw((0x03, b"0", raw((0x0A, b"a", b""), (0x0A, b"a", b"")))))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bytes_that_have_no_variant_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(UnmappableValue) as refusal:
        variant.transcode(REFUSED[name])
    assert refusal.value.message


@pytest.mark.parametrize("name", BY_TYPE)
def test_a_value_cut_short_anywhere_is_refused(name: str) -> None:
    kind, value = BY_TYPE[name][0][4], BY_TYPE[name][0][7:-1]
    # Whole documents around a cut value: only the value's own length shows it. One byte short, the
    # document's closing NUL would pass for the value's last byte.
    for cut in range(len(value)):
        with pytest.raises(UnmappableValue):
            variant.transcode(raw((kind, b"v", value[:cut])))


def nested(levels: int, kind: int = 0x03) -> bytes:
    document = raw()
    for _ in range(levels):
        document = raw((kind, b"0", document))
    return document


@pytest.mark.parametrize("kind", [0x03, 0x04])
def test_nesting_is_mapped_up_to_the_servers_limit_and_refused_beyond(kind: int) -> None:
    assert variant.transcode(nested(MAX_DEPTH, kind))
    for levels in (MAX_DEPTH + 1, 1000, 20_000):
        with pytest.raises(UnmappableValue, match="nested"):
            variant.transcode(nested(levels, kind))


def test_a_scope_as_deep_as_the_limit_is_no_recursion_error() -> None:
    scope = nested(MAX_DEPTH - 1)
    code = text(b"f()")
    document = raw((0x0F, b"v", struct.pack("<i", 4 + len(code) + len(scope)) + code + scope))
    assert variant.transcode(document)


def test_a_value_above_the_limit_of_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = variant.transcode(of("x" * 1000))
    monkeypatch.setattr(variant, "SIZE_LIMIT", len(fits[0]))
    assert variant.transcode(of("x" * 1000)) == fits
    with pytest.raises(UnmappableValue, match="larger"):
        variant.transcode(of("x" * 1001))


def test_the_limit_is_the_one_that_spark_enforces(spark: SparkSession) -> None:
    assert spark._jvm is not None
    limit = spark._jvm.java.lang.Class.forName(
        "org.apache.spark.types.variant.VariantUtil"
    ).getField("SIZE_LIMIT")
    assert limit.get(None) == variant.SIZE_LIMIT


MOMENTS = st.datetimes().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
FINITE = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(allow_nan=False),
    st.text(max_size=80),
    st.binary(max_size=40),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    MOMENTS,
    FINITE.filter(lambda number: len(number.as_tuple().digits) <= 34).map(Decimal128),
    st.uuids().map(Binary.from_uuid),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([MinKey(), MaxKey(), Code("f()"), Regex("a", "i")]),
)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=15,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=8)


def mapped(value: Any) -> Any:
    """The documented mapping, from Python objects: a second, independent writing of it."""
    match value:
        case dict():
            return {name: mapped(item) for name, item in value.items()}
        case list():
            return [mapped(item) for item in value]
        case ObjectId():
            return str(value)
        case Binary(subtype=4):
            return str(value.as_uuid())
        case datetime.datetime():
            return value.replace(tzinfo=datetime.UTC)
        case Decimal128():
            number = value.to_decimal()
            exponent = number.as_tuple().exponent
            assert isinstance(exponent, int)
            fits = -38 <= exponent <= 38 and abs(number) < 10**38
            return number if fits else {"$numberDecimal": str(value)}
        case Timestamp():
            return {"$timestamp": {"t": value.time, "i": value.inc}}
        case MinKey():
            return {"$minKey": 1}
        case MaxKey():
            return {"$maxKey": 1}
        case Code():
            return {"$code": str(value)}
        case Regex():
            return {"$regularExpression": {"pattern": value.pattern, "options": "i"}}
    return value


@PROPERTY
@given(DOCUMENTS)
def test_a_random_document_reads_back_as_the_documented_mapping(document: dict[str, Any]) -> None:
    assert read(bson.encode(document)) == mapped(document)


@PROPERTY
@given(DOCUMENTS, st.data())
def test_damaged_bytes_are_mapped_or_refused_but_never_crash(
    document: dict[str, Any], data: st.DataObject
) -> None:
    damaged = bytearray(bson.encode(document))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for candidate in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged[cut:])):
        try:
            value, metadata = variant.transcode(candidate)
        except UnmappableValue:
            continue
        assert VariantVal(value, metadata).toJson(), "what was mapped, Spark can read"


def test_every_single_byte_of_a_document_of_all_types_may_be_wrong() -> None:
    whole = raw(*[(case[0][4], name.encode(), case[0][7:-1]) for name, case in BY_TYPE.items()])
    assert len(read(whole)) == len(BY_TYPE)
    for index in range(len(whole)):
        for replacement in (0, 1, 0x7F, 0xFF, whole[index] ^ 0x10):
            damaged = whole[:index] + bytes([replacement]) + whole[index + 1 :]
            try:
                variant.transcode(damaged)
            except UnmappableValue:
                continue
