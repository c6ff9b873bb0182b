"""Typed columns: a value is in its column or in `_rescued`, and nowhere else, and never gone."""

from __future__ import annotations

import datetime
import json
import math
import random
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Decimal128, Int64, ObjectId, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import LongType, StringType, StructType, VariantType, VariantVal

from cdc.delta.columns import Columns, TypedColumn, of_table, path_text, typed_column
from cdc.delta.log import settings as spark_settings
from cdc.delta.tables.evolution import count_families, families_of
from cdc.errors import BadOption
from cdc.model.encoding import encoder
from tests.model import mixed
from tests.model.test_merge_key import Element, of, raw

MISFIT, NOTHING = object(), object()
DAY = datetime.datetime(2026, 2, 28)
NOON = datetime.datetime(1969, 12, 31, 12)
UNMAPPABLE = b"\x05\0\0\0"

# (type, value, what to_json makes of the column or MISFIT)
FITS: list[tuple[str, Any, Any]] = [
    ("string", "häß '\"\\`", "häß '\"\\`"),
    ("string", "", ""),
    ("string", ObjectId("0123456789abcdef01234567"), "0123456789abcdef01234567"),
    ("string", 1, MISFIT),
    ("string", True, MISFIT),
    ("string", {"a": "b"}, MISFIT),
    ("string", ["a"], MISFIT),
    ("string", DAY, MISFIT),
    ("boolean", False, False),
    ("boolean", "true", MISFIT),
    ("boolean", 1, MISFIT),
    ("bigint", 7, 7),
    ("bigint", Int64(-(2**63)), -(2**63)),
    ("bigint", 3.0, 3),
    ("bigint", 3.5, MISFIT),
    ("bigint", 2.0**63, MISFIT),
    ("bigint", -(2.0**63), -(2**63)),
    ("bigint", math.nan, MISFIT),
    ("bigint", math.inf, MISFIT),
    ("bigint", 1e300, MISFIT),
    ("bigint", Decimal128("1E+2"), 100),
    ("bigint", Decimal128("2.000"), 2),
    ("bigint", Decimal128("2.001"), MISFIT),
    ("bigint", Decimal128("9223372036854775808"), MISFIT),
    ("bigint", "1", MISFIT),
    ("bigint", True, MISFIT),
    ("bigint", DAY, MISFIT),
    ("int", 2**31 - 1, 2**31 - 1),
    ("int", 2**31, MISFIT),
    ("int", 2147483647.5, MISFIT),
    ("smallint", -(2**15), -(2**15)),
    ("smallint", 32768.0, MISFIT),
    ("tinyint", 127, 127),
    ("tinyint", 128, MISFIT),
    ("double", 0.1, 0.1),
    ("double", math.nan, "NaN"),
    ("double", 2**53 - 1, 9007199254740991.0),
    ("double", 2**53 + 1, MISFIT),
    ("double", Int64(2**63 - 1), MISFIT),
    ("double", Decimal128("0.1"), 0.1),
    ("double", Decimal128("0.1000000000000000055511151231257827"), MISFIT),
    ("double", "0.1", MISFIT),
    ("float", 0.5, 0.5),
    ("float", 0.1, MISFIT),
    ("float", 1e300, MISFIT),
    ("float", 2**24 + 1, MISFIT),
    ("float", Decimal128("0.25"), 0.25),
    ("float", Decimal128("0.1"), MISFIT),
    ("decimal(18,2)", 19.99, Decimal("19.99")),
    ("decimal(18,2)", 1.005, MISFIT),
    ("decimal(18,2)", 5, 5),
    ("decimal(18,2)", Decimal128("12.50"), Decimal("12.5")),
    ("decimal(18,2)", Decimal128("12.500000"), Decimal("12.5")),
    ("decimal(18,2)", Decimal128("1.005"), MISFIT),
    ("decimal(18,2)", Decimal128("1E+17"), MISFIT),
    ("decimal(18,2)", Decimal128("NaN"), MISFIT),
    ("decimal(18,2)", math.nan, MISFIT),
    ("decimal(18,2)", Int64(2**63 - 1), MISFIT),
    ("decimal(38,38)", Decimal128("1E-38"), Decimal("1E-38")),
    ("timestamp", NOON, "1969-12-31T12:00:00.000Z"),
    ("timestamp", "1969-12-31T12:00:00.000Z", MISFIT),
    ("timestamp", Timestamp(1, 1), MISFIT),
    ("date", DAY, "2026-02-28"),
    ("date", datetime.datetime(1, 1, 1), "0001-01-01"),
    ("date", NOON, MISFIT),
    ("date", "2026-02-28", MISFIT),
    ("binary", b"\0\xff", "AP8="),
    ("binary", "AP8=", MISFIT),
    ("array<string>", [], []),
    ("array<string>", ["a", None], ["a", None]),
    ("array<string>", ["a", 1], MISFIT),
    ("array<string>", "a", MISFIT),
    ("array<double>", [1, 2.5], [1.0, 2.5]),
    ("array<array<date>>", [[DAY], []], [["2026-02-28"], []]),
    ("array<array<date>>", [[DAY], [NOON]], MISFIT),
    ("map<string,int>", {"a": 1, "": 2.0}, {"a": 1, "": 2}),
    ("map<string,int>", {"a": 1, "b": "2"}, MISFIT),
    ("struct<a: int, `b.c`: struct<d: string>>", {"a": 1}, {"a": 1}),
    ("struct<a: int, `b.c`: struct<d: string>>", {"b.c": {"d": "x"}}, {"b.c": {"d": "x"}}),
    ("struct<a: int, `b.c`: struct<d: string>>", {"b.c": {"d": 1}}, MISFIT),
    ("struct<a: int>", {"a": 1, "b": 2}, MISFIT),
    ("struct<a: int>", {"A": 1}, MISFIT),
    ("variant", {"a": [1, "b"]}, {"a": [1, "b"]}),
    ("variant", None, None),
    *(
        (kind, None, NOTHING)
        for kind in ("string", "bigint", "date", "array<int>", "struct<a: int>")
    ),
]

TYPES = {kind: f"t{number}" for number, kind in enumerate(dict.fromkeys(kind for kind, *_ in FITS))}
COLUMNS = {
    "_id": "string",
    "n": "int",
    "city": "string from address.city",
    "lat": "double from address.geo.lat",
    "part": "variant",
    "inside": "string from part.x",
    "a": "int from `x.y`.`b``'\"\\\\`",
    "b": "int from ``.`$`",
    "c": "int from $each",
    "there": "int from there",
    "d": "int from `a b`",
    **{column: kind for kind, column in TYPES.items()},
}
# name: (document, what its columns and `_rescued` are; what is null is left out)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "a path leads through objects": (
        {"address": {"city": "Bonn", "geo": {"lat": 1.5, "lon": 2}, "zip": 1}},
        {"city": "Bonn", "lat": 1.5, "_rescued": {"address": {"geo": {"lon": 2}, "zip": 1}}},
    ),
    "what is no object on a path is rescued whole": (
        {"address": [{"city": "Bonn"}]},
        {"_rescued": {"address": [{"city": "Bonn"}]}},
    ),
    "a null on a path is rescued": ({"address": None}, {"_rescued": {"address": None}}),
    "an empty object on a path is rescued": ({"address": {}}, {"_rescued": {"address": {}}}),
    "a null that a column takes is not distinguished from nothing": (
        {"address": {"city": None}, "n": None},
        {},
    ),
    "nothing is left of a document that fits": ({"_id": "a", "n": 1}, {"_id": "a", "n": 1}),
    "nothing is left of an empty document": ({}, {}),
    "a null that no column takes is rescued": (
        {"n": 1, "x": None},
        {"n": 1, "_rescued": {"x": None}},
    ),
    "names may hold anything": (
        {
            "x.y": {"b`'\"\\\\": 1, "b": 2},
            "": {"$": 3, "": 4},
            "$each": 5,
            "there": 6,
            "a b": 7,
            "a": {"b": 8},
            "x": {"y": 9},
        },
        {
            "a": 1,
            "b": 3,
            "c": 5,
            "there": 6,
            "d": 7,
            "_rescued": {"x.y": {"b": 2}, "": {"": 4}, "a": {"b": 8}, "x": {"y": 9}},
        },
    ),
    "a part may stand beside its columns": (
        {"part": {"x": 1, "y": 1}, "m": 2},
        {"part": {"x": 1, "y": 1}, "_rescued": {"part": {"x": 1}, "m": 2}},
    ),
    "a document that cannot be mapped is rescued as it is": (
        b"\x05\0\0\0",
        {
            "_rescued": {
                "$unmappable": "corrupt BSON: a document's length is wrong",
                "$bson": "BQAAAA==",
            }
        },
    ),
    "of no document there is nothing": (None, {}),
}
BESIDE = {"document": "variant from $", "n": "int", "city": "string from address.city"}


def as_variant(document: Any) -> VariantVal:
    found = encoder("variant")(document if isinstance(document, bytes) else bson.encode(document))
    return VariantVal(*found)


class Number:
    """A number as text, equal by its value; as a double, where one of the two is written as one."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number | int | float | Decimal):
            return NotImplemented
        texts = (self.text, str(other))
        kind = float if "E" in "".join(texts) else Decimal
        return kind(texts[0]) == kind(texts[1])

    def __hash__(self) -> int:
        return hash(float(self.text))

    def __str__(self) -> str:
        return self.text


def parsed(text: str) -> Any:
    return json.loads(text, parse_float=Number, parse_int=Number)


def reported(names: Iterable[str]) -> Column:
    columns = [F.col(f"`{name}`") for name in (*names, "_rescued")]
    return F.to_json(F.struct(*columns), {"timeZone": "UTC"}).alias("reported")


@pytest.fixture(scope="module")
def taken(spark: SparkSession) -> dict[str, Any]:
    """What becomes of each case, and of each value of FITS by its number, all in one query."""
    documents = {name: document for name, (document, _) in CASES.items()}
    for number, (kind, value, _) in enumerate(FITS):
        documents[str(number)] = {TYPES[kind]: value}
    rows = [
        (name, None if document is None else as_variant(document))
        for name, document in documents.items()
    ]
    frame = spark.createDataFrame(rows, "name string, v variant")
    # A date is one of UTC, wherever the session is.
    with spark_settings(spark, {"spark.sql.session.timeZone": "America/Los_Angeles"}):
        found = (
            Columns.parse(COLUMNS).select(frame, "v").select("name", reported(COLUMNS)).collect()
        )
    return {row.name: parsed(row.reported) for row in found}


@pytest.mark.parametrize("number", range(len(FITS)))
def test_a_value_is_in_its_column_if_that_loses_nothing_and_else_rescued(
    number: int, taken: dict[str, Any]
) -> None:
    kind, _, expected = FITS[number]
    found, name = taken[str(number)], TYPES[kind]
    assert (name in found.get("_rescued", {})) == (expected is MISFIT)
    assert found.get(name, NOTHING) == (NOTHING if expected is MISFIT else expected)


@pytest.mark.parametrize("name", CASES)
def test_columns_and_rescued_hold_each_value_once(name: str, taken: dict[str, Any]) -> None:
    assert taken[name] == CASES[name][1]


def test_beside_the_whole_document_only_what_does_not_fit_is_rescued(spark: SparkSession) -> None:
    document = {"n": "1", "m": 2, "address": {"city": "Bonn", "zip": 1}}
    frame = spark.createDataFrame([(as_variant(document),)], "after variant")
    found = Columns.parse(BESIDE).select(frame, "after").select(reported(BESIDE)).collect()
    assert [json.loads(row.reported) for row in found] == [
        {"document": document, "city": "Bonn", "_rescued": {"n": "1"}}
    ]


PLACES = {
    "i": "int from a",
    "d": "decimal(20,3) from b.a",
    "f": "double from b.b",
    "ts": "timestamp from b.``",
    "s": "string from b.ab.a",
    "o": "boolean from b.ab.b",
    "bin": "binary from b.ab.``",
    "day": "date from ab",
    "l": "bigint from é.``",
    "list": "array<double> from é.ab",
    "m": "map<string,string> from é.a",
    "st": "struct<a: int, b: string> from é.b",
    "f4": "float from é.é.a",
    "any": "variant from é.é.b",
}


LIKELY = [
    *[of(value) for value in (1, 2.5, 3.0, "text", True, DAY, NOON, b"x", Decimal128("1.5"), None)],
    *[of(value) for value in ([1, 2.5, None], [], {"a": 1, "b": "x"}, {"a": "y"}, {})],
]
STRUCT = ("é", "b")
NAMES = (b"a", b"b", b"ab", b"", "é".encode())


def nested(draw: random.Random, pool: list[Element], depth: int = 2) -> Element:
    """An object that has in the places of PLACES, and beside them, whatever BSON has."""
    fields = []
    for name in draw.sample(NAMES, draw.randrange(2, len(NAMES) + 1)):
        is_on_the_way = depth and name in (b"b", b"ab", NAMES[-1]) and draw.random() < 0.6
        value = draw.choice(LIKELY if draw.random() < 0.7 else pool)
        fields.append((name, nested(draw, pool, depth - 1) if is_on_the_way else value))
    return 0x03, raw(*fields)


def test_columns_and_rescued_are_the_document_whatever_it_holds(spark: SparkSession) -> None:
    columns, draw = Columns.parse(PLACES), random.Random(7)
    pool = [item for item in mixed.values(7, 2000) if is_mappable(item)]
    documents = [(as_variant(nested(draw, pool)[1]),) for _ in range(250)]
    rows = spark.createDataFrame(documents, "d variant").withColumn("reported", F.col("d"))
    rows = columns.select(rows, "d")
    found = rows.select(
        F.to_json("reported").alias("reported"),
        F.to_json(columns.document()).alias("again"),
        F.to_json("_rescued").alias("rescued"),
        *[F.col(name).isNotNull().alias(name) for name in PLACES],
    ).collect()
    outcomes = Counter[tuple[str, str]]()
    for row in found:
        rescued = parsed(row.rescued or "{}")
        assert without_nulls(parsed(row.again)) == without_nulls(parsed(row.reported))
        for column in columns.columns:
            left = at(rescued, column.path)
            assert not (row[column.name] and left is not NOTHING), "in two places"
            if row[column.name] or left is not NOTHING:
                outcomes[column.name, "taken" if row[column.name] else "left"] += 1
    assert {name for name, outcome in outcomes if outcome == "taken"} == PLACES.keys()
    assert {name for name, outcome in outcomes if outcome == "left"} == PLACES.keys() - {"any"}


def is_mappable(item: Element) -> bool:
    return b"$unmappable" not in as_variant(raw((b"v", item))).metadata


def at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return NOTHING
        tree = tree[name]
    return tree


def without_nulls(tree: Any, path: tuple[str, ...] = ()) -> Any:
    """Without those of typed columns, and objects on their paths that hold nothing else."""
    places = {(*STRUCT, "a"), (*STRUCT, "b")} | {
        column.path for column in Columns.parse(PLACES).columns if not column.is_variant
    }
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for name, value in tree.items():
        inner = without_nulls(value, (*path, name))
        is_on_the_way = any(place[: len(path) + 1] == (*path, name) for place in places)
        is_gone = (inner is None and (*path, name) in places) or (
            is_on_the_way and inner == {} and value != {}
        )
        if not is_gone:
            kept[name] = inner
    return kept


REFUSED = {
    "an unknown type": {"a": "text"},
    "a type with a rest": {"a": "int b"},
    "no type": {"a": ""},
    "no text": {"a": 5},
    "nothing after from": {"a": "int from "},
    "a path with a hole": {"a": "int from b..c"},
    "a path that ends in a dot": {"a": "int from b."},
    "a path with half a name in backticks": {"a": "int from `b`c"},
    "more digits than there are": {"a": "decimal(39,0)"},
    "more digits after the point than at all": {"a": "decimal(2,3)"},
    "a decimal without digits": {"a": "decimal"},
    "an array of nothing": {"a": "array"},
    "an array that does not end": {"a": "array<int"},
    "keys that are no text": {"a": "map<int,int>"},
    "a struct with a field twice": {"a": "struct<b: int, B: int>"},
    "a struct with a field that cannot be stored": {"a": "struct<`b c`: int>"},
    "the key": {"Key": "string"},
    "document, which is the whole": {"document": "string"},
    "a name of the table's own": {"_position": "string"},
    "a name of the history's": {"__START_AT": "string"},
    "a name that Delta refuses": {"a b": "string"},
    "an empty name": {"": "string"},
    "one name twice": {"a": "int", "A": "int from b"},
    "one name twice, for Spark": {"\u0130": "int", "i": "int from b"},
    "one value twice": {"a": "int", "b": "string from a"},
    "one value twice, all of it": {"a": "variant", "b": "variant from a"},
    "a value and a part of it": {"a": "struct<b: int>", "b": "int from a.b"},
    "the whole as text": {"a": "string from $"},
    "no column": {},
}


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(BadOption):
        Columns.parse(REFUSED[name])


@given(st.lists(st.text(max_size=5), max_size=4))
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_a_path_is_read_as_it_was_written(path: list[str]) -> None:
    assert typed_column.parse_path(path_text(tuple(path))) == tuple(path)


def test_a_table_reports_its_columns_again() -> None:
    columns = Columns.parse(
        {**PLACES, "_id": "string", "x": "int from `$`", "document": "variant from $"}
    )
    schema = StructType(columns.fields()).add("_position", StringType()).add("mine", LongType())
    assert of_table(StructType.fromJson(json.loads(schema.json()))) == columns


def test_families_are_counted_without_spark_as_spark_counts_them(spark: SparkSession) -> None:
    """Guards: columns that `infer` proposes, and that a table would not get as it grows."""
    values = [*mixed.values(3, 400), *mixed.edges()]
    values += [of(Decimal128(text)) for text in ("1E+2", "0", "-0.00", "1E-38", "0.10", "9E+37")]
    names = ["a", "b", "é", "x.y", "$c", "d e", "_f"]
    documents = [
        raw(*((names[(number + k) % len(names)].encode(), each) for k, each in enumerate(chunk)))
        for number, chunk in enumerate(values[at : at + 4] for at in range(0, len(values), 4))
    ]
    documents += [UNMAPPABLE, raw()]
    encoded = [encoder("variant")(document) for document in documents]
    rows = spark.createDataFrame([(VariantVal(*each),) for each in encoded], "d variant")
    arrow = pa.array(
        [{"value": value, "metadata": metadata} for value, metadata in encoded],
        to_arrow_type(VariantType()),
    )
    known = [TypedColumn("other", LongType(), ("a",))]
    for columns in ([], known):
        counted = count_families([arrow[:7], arrow[7:]], columns)
        assert counted == families_of(rows, "d", columns)
        assert set(counted) == {"a", "b", "é", "x.y", "_f"} - {column.path[0] for column in columns}
