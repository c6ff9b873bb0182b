"""A new kind of table is a class, an entry in KINDS and an option: a test adds one in this way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Image
from cdc.delta.followers import ALL_KINDS, Changes, FollowerKind
from cdc.delta.landing import BatchSummary
from cdc.delta.sink import sink as sinks
from cdc.delta.tables import KEYS, Table, Tables, layout
from cdc.errors import RebuildRefused
from cdc.model import Namespace
from tests.delta import delta_rs
from tests.delta.test_followers import caught_up, changed, changed_again, lagging

CENSUS: dict[str, Any] = {"census": "{db}/{coll}/census", "with_mirror": False}


class Census(FollowerKind):
    """Tables with every key that a collection ever had, and the op of its last change."""

    name = "census"
    is_typed = False

    def schema(self, document: DataType, table: Table, image: Image) -> StructType:
        return StructType().add("key", "string").add("op", "string").add("position", "string")

    def targets(self, summary: BatchSummary, tables: Tables) -> list[Table]:
        return [
            table for name in summary.counts if summary.rows(name) and (table := tables.of(name))
        ]

    def merge(self, held: DeltaTable, table: Table, changes: Changes) -> DeltaMergeBuilder:
        last = F.max_by(F.struct("op", "position"), "position").alias("last")
        rows = changes.rows.groupBy("key").agg(last).select("key", "last.*")
        merge = held.alias("held").merge(rows.alias("new"), "held.key = new.key")
        return merge.whenMatchedUpdateAll("new.position > held.position").whenNotMatchedInsertAll()

    def origins(self, rows: DataFrame, table: Table) -> DataFrame:
        return rows.select("key", "position")


@pytest.fixture
def census(monkeypatch: pytest.MonkeyPatch) -> FollowerKind:
    """The kind, which the layout and the sink know for the length of a test."""
    kind = Census()
    monkeypatch.setitem(KEYS, "census", layout.Key("", (), "Template.", kind.name))  # type: ignore[arg-type]
    monkeypatch.setitem(layout._TEMPLATES, kind.name, "census")
    monkeypatch.setattr(sinks, "KINDS", (*sinks.KINDS, kind))
    monkeypatch.setattr(sinks, "_KINDS", (*sinks._KINDS, kind))
    return kind


@pytest.mark.slow
def test_a_new_kind_follows_its_changelog_and_is_rebuilt_from_it(
    spark: SparkSession, tmp_path: Path, census: FollowerKind
) -> None:
    """Guards: knowledge of a kind in another place than its class."""
    lagging(tmp_path, 0, changed(spark), **CENSUS)
    assert found(tmp_path) == {}
    caught_up(spark, tmp_path, 1, **CENSUS)
    assert found(tmp_path) == {"a": "update", "b": "delete", "e": "insert"}
    own = lagging(tmp_path, 1, changed_again(spark), **CENSUS)
    own._followers.apply(spark)
    last = {"a": "replace", "b": "insert", "e": "delete"}
    assert found(tmp_path) == last
    table = own._followers.kinds[census].of(Namespace("shop", "orders"))
    assert table is not None
    # The changelog contains no copy, so each row has to be one of its changes.
    own._followers.require_possible(spark, census, table)
    own._followers.empty(spark, census, table)
    assert found(tmp_path) == {}
    own._followers.apply(spark)
    assert found(tmp_path) == last
    DeltaTable.forPath(spark, table.target.address).update("key = 'a'", {"position": F.lit("8")})
    with pytest.raises(RebuildRefused, match=r"The census at .* contains 1 rows"):
        own._followers.require_possible(spark, census, table)


def found(base: Path) -> dict[str, str]:
    rows = delta_rs.read(base / "shop/orders/census", "SELECT key, op FROM t")
    return {row["key"]: row["op"] for row in rows}


def test_each_kind_has_its_option_and_each_template_its_kind() -> None:
    kinds = [kind.name for kind in ALL_KINDS]
    assert kinds == [key.kind for key in KEYS.values() if key.kind]


def test_the_option_of_a_form_is_one_that_there_is() -> None:
    assert {kind.form_option for kind in ALL_KINDS if kind.form_option} <= KEYS.keys()
