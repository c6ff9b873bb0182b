"""`_id` of mirrors and histories: the readable text of each row's key, whoever wrote the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc.delta.columns import Image, id_text
from cdc.delta.reading import live
from cdc.delta.tables import Layout
from cdc.model import Namespace, readable_id
from tests.delta import delta_rs
from tests.delta.batches import batch, change, commits, content, sink
from tests.delta.test_followers import caught_up, lagging
from tests.delta.test_rebuild import begun, empty
from tests.model.ids import texts_by_key

MIRROR = "shop/orders/mirror"
KEYS = sorted(texts_by_key())
# Of keys of each kind: those that are copied, and those that come later.
COPIED, LATER = KEYS[::2], KEYS[1::2]


def write(spark: SparkSession, base: Path, number: int, **table: Any) -> None:
    """Batch 0 copies documents; batch 1 changes one of them, deletes one and inserts others."""
    rows = [
        [change("read", key, {"n": 1}, time=1) for key in COPIED],
        [
            change("update", COPIED[0], {"n": 2}, time=11),
            change("delete", COPIED[1], time=11),
            *(change("insert", key, {"n": 1}, time=11) for key in LATER),
        ],
    ][number]
    made = batch(spark, rows, until=1 + 10 * number, copied=["shop.orders"])
    lagging(base, number, made, **table)


def ids(path: Path) -> dict[str, str]:
    """The `_id` of each key that a table has."""
    found = delta_rs.read(path, 'SELECT DISTINCT key, "_id" FROM t')
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: row["_id"] for row in found}


def expected(*gone: str) -> dict[str, str]:
    return {key: text for key, text in texts_by_key().items() if key not in gone}


def test_spark_gives_each_key_the_text_of_the_plain_rule(spark: SparkSession) -> None:
    """Guards: in `live` views, SQL views and merges, another rule than that of the copies."""
    keys = [*KEYS, "K1", '"', '"\\ud', '{"$oid":"']
    frame = spark.createDataFrame([(key,) for key in keys], "key string")
    found = dict(frame.selectExpr("key", f"{id_text('key')} AS id").collect())
    plain = [key for key in keys if key in KEYS or not key.startswith('"')]
    assert {key: found[key] for key in plain} == {key: readable_id(key) for key in plain}


def test_each_row_of_a_mirror_has_the_text_of_its_key(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: rows of tasks, of changes by files and of a live view, each by a rule of its own."""
    write(spark, tmp_path, 0)
    caught_up(spark, tmp_path, 1)
    assert ids(tmp_path / MIRROR) == {key: readable_id(key) for key in COPIED}
    write(spark, tmp_path, 1)
    seen = live(spark, Layout.parse(str(tmp_path), {}), Namespace("shop", "orders")).rows
    found = dict(seen.select("key", "_id").collect())
    caught_up(spark, tmp_path, 2)
    assert ids(tmp_path / MIRROR) == found == expected(COPIED[1])
    assert commits(tmp_path / MIRROR)[1:] == ["STREAMING UPDATE"] * 2


@pytest.mark.slow
def test_each_row_of_a_shared_mirror_and_of_a_history_has_the_text_of_its_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: rows that Spark merges; a document that is deleted, and its versions."""
    table = {"mirror": "all", "history": "versions", "changelog": "logs/{db}/{coll}"}
    table["delete"] = "soft"
    for number in (0, 1):
        write(spark, tmp_path, number, **table)
    caught_up(spark, tmp_path, 2, **table)
    assert ids(tmp_path / "all") == expected()
    assert ids(tmp_path / "versions") == expected()


@pytest.mark.slow
def test_a_table_of_an_earlier_release_goes_on_without_ids_until_it_is_rebuilt(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a mirror that is refused, or merged by Spark alone; files with a column that the
    table does not have; ids that are null in older rows."""
    with monkeypatch.context() as earlier:
        without = classmethod(lambda cls, typed: cls(typed, has_id=False))
        earlier.setattr(Image, "of_new", without)
        write(spark, tmp_path, 0)
        caught_up(spark, tmp_path, 1)
    write(spark, tmp_path, 1)
    more = [change("read", "copied later", {"n": 1}, time=12)]
    sink(tmp_path).write_batch(batch(spark, more, until=12), 2)
    before = content(tmp_path / MIRROR)
    assert before.keys() == expected(COPIED[1]).keys() | {"copied later"}
    assert "MERGE" not in commits(tmp_path / MIRROR)
    files = DeltaTable(str(tmp_path / MIRROR)).file_uris()
    assert files
    assert not any("_id" in pq.read_schema(file).names for file in files)
    again = begun(spark, tmp_path, 3)
    empty(spark, again)
    again._followers.apply(spark)
    assert content(tmp_path / MIRROR) == before
    texts = {**expected(), "copied later": "copied later"}
    assert ids(tmp_path / MIRROR) == {key: texts[key] for key in before}
