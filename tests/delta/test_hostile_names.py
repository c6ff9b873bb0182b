"""Keys of documents and names of collections as a hostile writer chooses them: each document lies
under its own key in the tables of its own collection, and nothing lies elsewhere."""

from __future__ import annotations

import json
import random
from pathlib import Path

import bson
import pytest
from pyspark.sql import SparkSession

from cdc.delta.tables.routing import folder
from cdc.model import merge_key
from tests.delta.batches import batch, change, content, ops, sink
from tests.slow import slow_but

SEED = 27
LETTERS = "ab`'\"\\$.;-/*%_ \n\t\0é\u0435\u0430\u202e\ufeff{}()=,#?!~|&<>"
CHOSEN = (
    *("../../etc/passwd", "a/b", "a\\b", "'; DROP TABLE x; --", "`a``b`", "${env:HOME}", "\0"),
    *("%2e%2e%2f", "%00", "a\nb", "a", "\u0430", "e\u0301", "\u00e9", "A", "_delta_log", ".", ".."),
    *("x" * 1000, "x" * 999 + "y", "\U0010ffff" * 40, "null", "true", '{"$oid": "x"}', " a", "a "),
)


def names(count: int) -> list[str]:
    """The chosen ones, and as many of the letters at random; all distinct."""
    chance = random.Random(SEED)
    drawn = ("".join(chance.choices(LETTERS, k=chance.randrange(1, 30))) for _ in range(count))
    return sorted({*CHOSEN, *drawn})


@pytest.mark.parametrize("by_spark", slow_but([False], [False, True]))
def test_each_document_lies_under_its_own_key_whatever_that_is(
    spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    """Guards: a key in the text of a statement, in a path, or in bounds that exclude it."""
    keys = sorted(merge_key(bson.encode({"_id": name})) for name in names(100))
    base = tmp_path / "lake"
    own = sink(base, by_spark=by_spark)
    first = [change("read", key, {"n": number}, time=1) for number, key in enumerate(keys)]
    own.write_batch(batch(spark, first, until=1), 0)
    updated, deleted = keys[::3], keys[1::3]
    then = [change("update", key, {"n": -1}, time=2, event=n + 1) for n, key in enumerate(updated)]
    then += [change("delete", key, time=2, event=500 + n) for n, key in enumerate(deleted)]
    own.write_batch(batch(spark, then, until=2), 1)
    expected = {key: {"n": -1 if key in updated else n} for n, key in enumerate(keys)}
    for key in deleted:
        del expected[key]
    assert content(base / "shop/orders/mirror") == expected
    found = ops(base / "shop/orders/changelog")
    assert sorted(key for op, key in found if op == "read") == sorted(keys)
    assert len(found) == len(first) + len(then)
    assert [each.name for each in tmp_path.iterdir()] == ["lake"]
    files = {path.name for path in base.rglob("*.parquet")}
    assert all(name.startswith(("cdc-", "part-", "0")) for name in files), files


@pytest.mark.slow
def test_each_collection_has_folders_of_its_own_whatever_its_name_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    colls, base = names(10), tmp_path / "lake"
    own = sink(base, with_mirror=False)
    rows = [
        change("insert", coll[:50], {"coll": coll}, time=1, event=number + 1, ns=("shop", coll))
        for number, coll in enumerate(colls)
    ]
    own.write_batch(batch(spark, rows, until=1), 0)
    there = {path.name for path in (base / "shop").iterdir()}
    assert there == {folder(coll) for coll in colls}
    for coll in colls:
        assert ops(base / "shop" / folder(coll) / "changelog") == [("insert", coll[:50])]
        [log] = (base / "shop" / folder(coll) / "changelog/_delta_log").glob("*0.json")
        [metadata] = [
            action["metaData"]
            for action in map(json.loads, log.read_text().splitlines())
            if "metaData" in action
        ]
        assert json.loads(metadata["configuration"]["mongodb-cdc.namespace"]) == ["shop", coll]
    assert [each.name for each in tmp_path.iterdir()] == ["lake"]
