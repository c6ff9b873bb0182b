"""Typed columns that SQL alone takes from a document are those that the tasks take."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, VariantVal
from pyspark.sql import functions as F

from cdc.delta.columns import Columns, taken_text
from cdc.delta.log import settings as spark_settings
from cdc.delta.sql import quoted
from tests.delta.test_columns import BESIDE, CASES, COLUMNS, FITS, PLACES, TYPES, as_variant, nested
from tests.kernel.test_typed_columns import LIKELY, NESTED, SCALARS
from tests.model import mixed
from tests.model.test_merge_key import array, of, raw


def assert_same(
    spark: SparkSession, documents: Iterable[VariantVal | None], texts: dict[str, str]
) -> None:
    """Compare both ways, in a session whose zone is not UTC."""
    typed = Columns.parse(texts)
    frame = spark.createDataFrame([*enumerate(documents)], "number int, v variant")
    taken = taken_text("SELECT * FROM documents", "v", typed.columns)
    columns = ", ".join(f"{text} AS {quoted(name)}" for name, text in taken.columns.items())
    with spark_settings(spark, {"spark.sql.session.timeZone": "America/Los_Angeles"}):
        frame.createOrReplaceTempView("documents")
        found = spark.sql(f"SELECT number, {columns} FROM ({taken.query})")
        expected = typed.select(frame, "v")
        types, others = ([each.dataType for each in rows.schema] for rows in (found, expected))
        assert types == others
        for row, other in zip(by_number(found), by_number(expected), strict=True):
            assert row == other


def by_number(rows: DataFrame) -> list[dict[str, Any]]:
    """The rows, with each column as JSON."""
    columns = [
        F.to_json(F.struct(F.col(quoted(name)))).alias(f"c{at}")
        for at, name in enumerate(rows.columns)
    ]
    return [row.asDict() for row in rows.orderBy("number").select("number", *columns).collect()]


def test_the_cases_of_typed_columns(spark: SparkSession) -> None:
    documents = [
        None if document is None else as_variant(document) for document, _ in CASES.values()
    ]
    documents += [as_variant({TYPES[kind]: value}) for kind, value, _ in FITS]
    assert_same(spark, documents, COLUMNS)
    assert_same(spark, documents, BESIDE)


def test_any_documents(spark: SparkSession) -> None:
    draw, pool = random.Random(7), mixed.values(7, 2000)
    assert_same(spark, [as_variant(nested(draw, pool)[1]) for _ in range(150)], PLACES)


@pytest.mark.slow
def test_values_of_all_types_and_ranges(spark: SparkSession) -> None:
    """Guards: doubles that Java writes with more digits than they need, 2^63 in a bigint."""
    draw = random.Random(3)
    items = mixed.values(3, 100) + mixed.edges() + LIKELY + list(map(of, doubles(draw)))
    kinds = [*SCALARS, *NESTED, *(f"array<{kind}>" for kind in SCALARS)]
    texts = {f"c{number}": kind for number, kind in enumerate(kinds)}
    documents = [
        as_variant(raw(*((name.encode(), each) for name, each in zip(texts, cells, strict=True))))
        for item in items
        for cells in [[item] * len(SCALARS + NESTED) + [array(item, item)] * len(SCALARS)]
    ]
    assert_same(spark, documents, texts)


def doubles(draw: random.Random) -> list[float]:
    """Powers of two, whose neighbours are nearer on one side; many digits; few digits."""
    found = [sign * 2.0**power for power in range(-130, 130) for sign in (1, -1)]
    found += [draw.uniform(0, 10) * 10 ** draw.randint(-38, 20) for _ in range(300)]
    return found + [round(draw.uniform(0, 1000), draw.randint(0, 6)) for _ in range(100)]
