"""Where and how tables are kept, by collection: names in a catalog, shared tables, policies."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers.mirror import documents, state
from cdc.delta.log import SparkReader, Target
from cdc.delta.sink import Sink
from cdc.delta.tables import Layout, Table, existing, present
from cdc.delta.tables.routing import folder, former_folder
from cdc.errors import BadOption, CollectionGone, TableOwnedElsewhere
from cdc.model import Namespace
from tests.delta import delta_rs
from tests.delta.batches import batch, change, ops, sink

# Odd for every catalog: reserved, dotted, dashed, not ASCII, longer than Hive takes.
ODD = ["select", "a.b-`Ünï çödé`", "x" * 130]
OVERRIDES = [
    {"match": "shop.soft", "delete": "soft"},
    {"match": "shop.kept", "on.drop": "keep", "on.rename": "keep"},
    {"match": r"shop\.part_.*|club\.part_.*", "mirror": "all/parts/mirror", "delete": "hard"},
    {"match": r"shop\.soft_part_.*", "mirror": "all/soft_parts/mirror", "delete": "soft"},
    {
        "match": r"odd\..*",
        "mirror": "spark_catalog.named_{db}.m_{coll}",
        "changelog": "named_{db}.everything",
    },
]


def first(ns: tuple[str, str], *keys: str, time: int = 1) -> list[dict[str, Any]]:
    return [change("insert", key, {"in": ns[1]}, time=time, event=n, ns=ns)
            for n, key in enumerate(keys, 1)]  # fmt: skip


class Lake:
    """A pipeline with all of the overrides, written to batch by batch and started anew between."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark, self.base, self.batches = spark, base, 0

    def write(self, *rows: dict[str, Any], until: int, **options: Any) -> None:
        frame = batch(self.spark, rows, until=until)
        self.sink(**options).write_batch(frame, self.batches)
        self.batches += 1

    def sink(self, **options: Any) -> Sink:
        return sink(self.base, with_changelog=False, overrides=OVERRIDES, **options)

    def table(self, name: Namespace, kind: str = "mirror") -> Table:
        table = Layout.parse(str(self.base), {}, OVERRIDES).table(kind, name)
        assert table is not None
        return table

    def documents(self, name: str) -> dict[str, Any]:
        namespace = Namespace.parse(name)
        table = self.table(namespace)
        rows = documents(table.target.read(self.spark), table, namespace)
        found = rows.select("key", F.to_json("document").alias("document")).collect()
        assert len({row.key for row in found}) == len(found)
        return {row.key: json.loads(row.document) for row in found}


@pytest.mark.slow
def test_each_collection_is_kept_as_its_override_says(spark: SparkSession, tmp_path: Path) -> None:
    """Guards: soft deletes, kept tables, and what DDL does in a table that several share."""
    lake = Lake(spark, tmp_path)
    shared = [("shop", "part_a"), ("shop", "part_b"), ("club", "part_a")]
    soft = [("shop", "soft_part_a"), ("shop", "soft_part_b")]
    alone = [("shop", "soft"), ("shop", "kept")]
    lake.write(*[row for ns in (*alone, *shared, *soft) for row in first(ns, "a", "b")], until=2)
    lake.write(
        change("delete", "a", time=3, ns=("shop", "soft")),
        change("delete", "never seen", time=3, event=2, ns=("shop", "soft")),
        change("drop", None, time=3, event=3, ns=("shop", "kept")),
        *first(("shop", "kept"), "b", "c", time=4),
        change("delete", "a", time=3, event=4, ns=("shop", "part_a")),
        change("drop", None, time=3, event=5, ns=("shop", "part_b")),
        *first(("shop", "part_b"), "b", time=4),
        change("drop", None, time=3, event=6, ns=("shop", "soft_part_a")),
        until=5,
    )
    assert lake.documents("shop.soft") == {"b": {"in": "soft"}}
    assert lake.documents("shop.kept").keys() == {"a", "b", "c"}
    assert lake.documents("shop.part_a").keys() == {"b"}
    assert lake.documents("shop.part_b").keys() == {"b"}
    assert lake.documents("club.part_a").keys() == {"a", "b"}
    assert lake.documents("shop.soft_part_a") == {}
    assert lake.documents("shop.soft_part_b").keys() == {"a", "b"}
    kept = Namespace("shop", "kept")
    said = state(spark, lake.table(kept).target, kept)
    assert said
    assert said.kept
    lake.write(
        # Older than what is gone: only a table that remembers what is gone can know.
        *first(("shop", "soft"), "a", "never seen", time=2),
        *first(("shop", "soft_part_a"), "a", time=2),
        change("dropDatabase", None, time=6, ns=("shop", None)),
        *first(("shop", "part_b"), "z", time=7),
        until=8,
    )
    assert lake.documents("shop.soft") == {}
    assert lake.documents("shop.kept").keys() == {"a", "b", "c"}
    assert lake.documents("shop.part_a") == {}
    assert lake.documents("shop.part_b").keys() == {"z"}
    assert lake.documents("club.part_a").keys() == {"a", "b"}
    assert lake.documents("shop.soft_part_b") == {}
    everything = lake.table(Namespace("shop", "soft")).target.read(spark)
    gone = {row.key: row._deleted for row in everything.collect()}
    assert gone == {"a": True, "b": True, "never seen": True}


@pytest.mark.slow
def test_tables_with_names_in_a_catalog_are_written_found_again_and_never_mixed(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = [Namespace("odd", coll) for coll in ODD]
    lake = Lake(spark, tmp_path)
    options = {"overrides": OVERRIDES, "pipeline": "one"}
    rows = [row for name in names for row in first(name, "a", "b")]
    sink(tmp_path, **options).write_batch(batch(spark, rows, until=2), 0)
    rows = [change("delete", "a", time=3, ns=name) for name in names]
    sink(tmp_path, **options).write_batch(batch(spark, rows, until=4), 1)
    assert {name: [*lake.documents(str(name))] for name in names} == {name: ["b"] for name in names}
    shown = [row.tableName for row in spark.sql("SHOW TABLES IN named_odd").collect()]
    mirrors = [name for name in shown if name.startswith("m_") and not name.endswith("_live")]
    assert len(mirrors) == len(ODD)
    assert {f"{name}_live" for name in mirrors} < set(shown)
    everything = Target.named(["named_odd", "everything"])
    gone = [change("dropDatabase", None, time=5, ns=("odd", None))]
    sink(tmp_path, **options).write_batch(batch(spark, gone, until=5), 2)
    assert lake.documents(str(names[0])) == {}
    reported = everything.read(spark).groupBy("op").count().collect()
    assert {row["op"]: row["count"] for row in reported} == {
        "insert": 2 * len(ODD),
        "delete": len(ODD),
        "dropDatabase": 1,
    }
    other = batch(spark, first(("odd", "select"), "c", time=6), until=7)
    with pytest.raises(TableOwnedElsewhere, match="named_odd"):
        sink(tmp_path, "other", overrides=OVERRIDES).write_batch(other, 0)


def test_a_table_of_an_odd_name_is_read_by_other_engines_and_stays_where_an_earlier_version_put_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: two tables, each with a part of the changes."""
    names = [Namespace("shop", "a/b % é\\"), Namespace("shop", "x" * 240)]
    new = {name: tmp_path / "shop" / folder(name.coll) / "changelog" for name in names}
    old = {name: tmp_path / "shop" / former_folder(name.coll) / "changelog" for name in names}

    def write(number: int) -> None:
        rows = [row for name in names for row in first(name, f"{number}", time=number)]
        one = sink(tmp_path, with_mirror=False)  # as in a program that is started again
        one.write_batch(batch(spark, rows, until=number), number)

    def places() -> set[Path]:
        return {path.parent for path in tmp_path.glob("**/_delta_log")}

    write(1)
    assert places() == set(new.values())
    for name in names:
        assert delta_rs.by_key(new[name], "after") == {"1": {"in": name.coll}}
        new[name].parent.rename(old[name].parent)
    write(2)
    assert places() == set(old.values())
    layout = Layout.parse(str(tmp_path), {"mirror": ""})
    tables = [table for name in names if (table := layout.table("changelog", name))]
    settled = [replace(each, target=each.target.settled(spark)) for each in tables]
    for table, name in zip(tables, names, strict=True):
        assert {row.key for row in table.target.read(spark).collect()} == {"1", "2"}
        assert table.target.settled(spark) == Target(str(old[name]))
    for found in (
        existing(SparkReader(spark), layout, "changelog"),
        present(SparkReader(spark), layout, "changelog", tables),
    ):
        assert sorted((each for each, _ in found), key=settled.index) == settled
    shutil.copytree(old[names[0]], new[names[0]])
    with pytest.raises(TableOwnedElsewhere, match="two tables"):
        write(3)


def test_names_that_a_catalog_cannot_distinguish_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = sink(tmp_path, with_changelog=False, mirror="clash_{db}.{coll}")
    rows = [*first(("shop", "Orders"), "a"), *first(("shop", "orders"), "b")]
    with pytest.raises(TableOwnedElsewhere, match=r"shop\.Orders"):
        target.write_batch(batch(spark, rows, until=2), 0)


@pytest.mark.parametrize(
    ("op", "option", "kept"),
    [
        pytest.param("drop", "on.drop", "mirror", id="drop of a mirror"),
        pytest.param(
            *("rename", "on.rename", "history"), id="rename of a history", marks=pytest.mark.slow
        ),
    ],
)
def test_a_drop_that_must_not_be_ends_the_run_and_stands_in_the_changelog(
    spark: SparkSession, tmp_path: Path, op: str, option: str, kept: str
) -> None:
    """Guards: also where there is no mirror."""
    description = {"to": {"db": "shop", "coll": "old"}} if op == "rename" else None
    tables = {"mirror": "", "history": "", kept: f"{{db}}/{{coll}}/{kept}"}

    def write(policy: str, number: int, *rows: dict[str, Any], until: int) -> None:
        options = tables | {option.replace(".", "_"): policy}
        sink(tmp_path, **options).write_batch(batch(spark, rows, until=until), number)

    def held() -> list[str]:
        is_there = "__END_AT IS NULL" if kept == "history" else "true"
        rows = delta_rs.read(tmp_path / "shop/orders" / kept, f"SELECT key FROM t WHERE {is_there}")
        return [row["key"] for row in rows]

    write("fail", 0, *first(("shop", "orders"), "a"), until=2)
    gone = change(op, None, time=3, description=description)
    for _ in range(2):
        with pytest.raises(CollectionGone, match=option):
            write("fail", 1, gone, until=3)
    assert ops(tmp_path / "shop/orders/changelog") == [("insert", "a"), (op, None)]
    assert held() == ["a"]
    write("truncate", 1, gone, until=3)
    assert ops(tmp_path / "shop/orders/changelog") == [("insert", "a"), (op, None)]
    assert held() == []


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ({"mirror": "x/{coll}/mirror"}, "match"),
        ({"match": "shop.a", "mirror": "{kind}/{coll}"}, "template"),
        ({"match": "shop.a", "on.drop": "perhaps"}, "on.drop"),
        ({"match": "shop.a", "mirror": "{db}/{coll}/changelog"}, "meet"),
        ({"match": "shop.a", "mirror": "all/x/mirror/y"}, "meet"),
    ],
)
def test_a_mistaken_override_is_refused_before_anything_is_written(
    override: dict[str, str], names: str
) -> None:
    with pytest.raises(BadOption, match=names):
        Layout.parse(
            "/lake", {}, [*OVERRIDES, {"match": "a.b", "mirror": "all/x/mirror"}, override]
        )


def test_the_first_override_that_matches_holds() -> None:
    layout = Layout.parse(
        "/lake",
        {},
        [{"match": r"shop\.o.*", "delete": "soft"}, {"match": "shop.old", "mirror": ""}],
    )
    table = layout.table("mirror", Namespace("shop", "old"))
    assert table is not None
    assert table.options.delete == "soft"
    assert layout.table("mirror", Namespace("shop", "new")) is not None


def test_a_table_is_shared_by_all_that_its_template_is_given_for() -> None:
    """Guards: an override of one collection that leaves it where the others are."""
    overrides = [
        {"match": "a.b", "delete": "soft"},
        {"match": "a.c", "history": "all/c/history"},
        {"match": "a.d", "history": "all/both/history"},
        {"match": "a.e", "history": "all/both/history"},
    ]
    layout = Layout.parse("/lake", {"history": "all/of/history"}, overrides)

    def is_shared(coll: str) -> bool:
        table = layout.table("history", Namespace("a", coll))
        assert table is not None
        return table.is_shared

    assert {coll: is_shared(coll) for coll in "bcdex"} == {
        "b": True,
        "c": False,
        "d": True,
        "e": True,
        "x": True,
    }
