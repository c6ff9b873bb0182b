"""The SQL view of a mirror is what `cdc.live` gives, whatever is committed meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers import renew_view
from cdc.delta.log import Commit
from cdc.delta.tables import Layout
from cdc.errors import TableOwnedElsewhere
from cdc.model import Namespace
from tests.delta.batches import batch, change, position, sink
from tests.delta.test_followers import BATCHES, caught_up, copied, lagging
from tests.delta.test_live_view import mirrored, view
from tests.documents import code
from tests.slow import slow_but

ORDERS = Namespace("shop", "orders")
FORMS: dict[str, dict[str, Any]] = {
    "documents": {},
    "soft deletes, a change feed": {"delete": "soft", "form": "cdf"},
    "typed columns that grow": {
        "columns": {"n": "bigint", "document": "variant from $"},
        "schema.evolution": True,
    },
    "kept when dropped, one changelog": {"on.drop": "keep", "changelog": "{schema}_log.all"},
}

IS_PRESENT = {name: "NOT _deleted" if "delete" in form else "true" for name, form in FORMS.items()}


def tables(base: Path, **others: Any) -> dict[str, Any]:
    """Tables in a schema of the test's own."""
    schema = f"s{abs(hash(str(base)))}"
    found = {"changelog": "{schema}_log_{db}.{coll}", "mirror": "{schema}_of_{db}.{coll}", **others}
    return {
        name: value.replace("{schema}", schema) if isinstance(value, str) else value
        for name, value in found.items()
    }


def view_of(table: dict[str, Any], coll: str = "orders") -> str:
    return f"{table['mirror'].format(db='shop', coll=coll)}_live"


def text(spark: SparkSession, view: str) -> str:
    facts = spark.sql(f"DESCRIBE TABLE EXTENDED {view}").collect()
    return next(str(row.data_type) for row in facts if row.col_name == "View Text")


def quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


def content(rows: DataFrame) -> list[str]:
    names = [name for name in rows.columns if name != "_deleted"]
    return sorted(
        row.row for row in rows.select(F.to_json(F.struct(*names)).alias("row")).collect()
    )


def now(spark: SparkSession, base: Path, table: dict[str, Any]) -> list[str]:
    return content(view(spark, base, table).rows)


def moved(spark: SparkSession) -> DataFrame:
    """A document moves to another shard, which reports it first."""
    txn = {"lsid": "s", "number": 1}
    there = change("insert", "c", {"n": 12}, time=51) | {"txn": {**txn, "shard": "two"}}
    gone = change("delete", "c", None, time=52) | {"txn": {**txn, "shard": "one"}}
    older = change("delete", "f", None, time=51, event=2)
    return batch(spark, [there, gone, older], until=54)


@pytest.mark.slow
def test_a_view_contains_what_its_mirror_lacks(spark: SparkSession, tmp_path: Path) -> None:
    table = tables(tmp_path)
    name = view_of(table)
    sink(tmp_path, **table).write_batch(copied(spark), 0)
    rows = [change("update", "a", {"n": 2}, time=11), change("delete", "b", None, time=12)]
    rows.append(change("insert", "e", {"n": 1}, time=13))
    lagging(tmp_path, 1, batch(spark, rows, until=14), **table)
    [query] = code("Live view", "sql")
    select = query.partition(",")[0] + ", document:n::int AS n FROM" + query.partition("FROM")[2]
    found = spark.sql(select.replace("main.shop.orders_live", name)).collect()
    assert {row.key: row.n for row in found} == {"a": 2, "c": 1, "d": 1, "e": 1}
    assert content(spark.table(name)) == now(spark, tmp_path, table)


# A drop in what a plain mirror lacks is also in `tests/cli/test_follow.py`.
@pytest.mark.parametrize(
    "form", slow_but([], FORMS, soak=FORMS.keys() - {"soft deletes, a change feed"})
)
def test_a_view_gives_what_its_mirror_will_contain(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """So does the live view in Python, beside it.

    Guards: changes, deletes and inserts again of keys that the mirror has or has not; a drop
    among them; a move between shards; a later state that a backfill gave the mirror; a query
    during which the mirror applies batches that the query has, or has not, read."""
    table = tables(tmp_path, **FORMS[form])
    name = view_of(table)
    batches = [*BATCHES, moved]
    sink(tmp_path, **table).write_batch(batches[0](spark), 0)
    old, states = text(spark, name), {}
    for number in range(1, len(batches)):
        lagging(tmp_path, number, batches[number](spark), **table)
        if number == 2:
            states[number] = content(spark.table(name))
            assert states[number] == now(spark, tmp_path, table)
    before, found = mirrored(spark, tmp_path, table), view(spark, tmp_path, table)
    assert found.state.version == before.state.version
    early, expected = spark.table(name), content(found.rows)
    assert content(early) == expected
    caught_up(spark, tmp_path, len(batches), **table)
    after = mirrored(spark, tmp_path, table).state
    assert after.version > before.state.version
    assert replace(found.state, version=after.version) == after
    assert content(spark.table(name.removesuffix("_live")).where(IS_PRESENT[form])) == expected
    for each in (early, found.rows, spark.table(name)):
        assert content(each) == expected
    # A query that got its text and read the changelog before the mirror was changed.
    log = table["changelog"].format(db="shop", coll="orders")
    for row in DeltaTable.forName(spark, log).history().collect():
        commit = Commit.parse(row.userMetadata)
        if commit is not None and commit.batch in states:
            then = old.replace(f"FROM {quoted(log)} ", f"FROM {log} VERSION AS OF {row.version} ")
            assert then != old
            assert content(spark.sql(then)) == states.pop(commit.batch)
    assert not states
    last = batch(spark, [change("update", "c", {"n": 13}, time=61)], until=62)
    lagging(tmp_path, 6, last, **table)
    mirror = DeltaTable.forName(spark, name.removesuffix("_live"))
    mirror.update("key = 'c'", {"_position": F.lit(position(63))})
    renew_view(spark, Layout.parse(str(tmp_path), table), ORDERS)
    assert content(spark.table(name)) == now(spark, tmp_path, table)


def step(spark: SparkSession, number: int) -> DataFrame:
    """After it there is `a`, and one other document, each with this number."""
    at = 100 * number
    rows = [change("update", "a", {"n": number}, time=at)]
    rows.append(change("insert", f"k{number}", {"n": number}, time=at + 1))
    rows.append(change("delete", f"k{number - 1}", None, time=at + 2))
    return batch(spark, rows, until=at + 9)


@pytest.mark.soak
def test_each_read_of_a_view_is_one_batch_while_followers_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a mirror that is read after its changelog, a changelog that is read before what the
    mirror contains."""
    table = tables(tmp_path)
    own = sink(tmp_path, interval=0.0, **table)
    first = [change("insert", key, {"n": 0}, time=9) for key in ("a", "k0")]
    own.write_batch(batch(spark, first, until=10), 0)
    until = time.monotonic() + 60
    while not spark.catalog.tableExists(view_of(table)):
        assert time.monotonic() < until
        time.sleep(0.1)
    written, is_over = [0], threading.Event()

    def write() -> None:
        try:
            for number in range(1, 6):
                own.write_batch(step(spark, number), number)
                written.append(number)
        finally:
            is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not is_over.is_set():
        least = written[-1]
        rows = spark.table(view_of(table)).selectExpr("key", "document:n::int AS n").collect()
        found = {row.key: row.n for row in rows}
        number = found["a"]
        assert found == {"a": number, f"k{number}": number}
        assert number >= least
        reads += 1
    writer.join()
    assert own.close(None, is_complete=True)
    assert written[-1] == 5
    assert reads > 1


@pytest.mark.slow
def test_what_somebody_else_has_named_like_a_view_stays(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tables(tmp_path)
    name = view_of(table)
    spark.sql(f"CREATE SCHEMA {name.partition('.')[0]}")
    spark.sql(f"CREATE VIEW {name} AS SELECT 1 AS one")
    with caplog.at_level(logging.WARNING):
        sink(tmp_path, **table).write_batch(copied(spark), 0)
    assert "belongs to a table or view that this pipeline did not make" in caplog.text
    assert spark.table(name).columns == ["one"]
    assert spark.table(name.removesuffix("_live")).count() == 4
    mirror = view_of(table, "other").removesuffix("_live")
    spark.sql(f"CREATE VIEW {mirror} AS SELECT 1 AS one")
    other = [change("insert", "a", {"n": 1}, time=11, ns=("shop", "other"))]
    with pytest.raises(TableOwnedElsewhere, match="belongs to a view"):
        sink(tmp_path, **table).write_batch(batch(spark, other, until=12), 1)
    assert spark.table(mirror).columns == ["one"]


@pytest.mark.slow
def test_the_mirror_of_another_collection_may_have_the_name_of_a_view(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a collection that cannot be replicated because of a view of ours."""
    table = tables(tmp_path)
    sink(tmp_path, **table).write_batch(copied(spark), 0)
    assert spark.catalog.getTable(view_of(table)).tableType == "VIEW"
    other = [change("insert", "a", {"n": 1}, time=11, ns=("shop", "orders_live"))]
    sink(tmp_path, **table).write_batch(batch(spark, other, until=12), 1)
    assert spark.catalog.getTable(view_of(table)).tableType == "MANAGED"
    assert spark.table(view_of(table)).count() == 1
    assert spark.table(view_of(table, "orders_live")).count() == 1


@pytest.mark.slow
def test_the_log_says_why_a_mirror_has_no_view(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tables(tmp_path)
    whole = table["mirror"].replace("{db}.{coll}", "shop.whole")
    overrides = [
        {"match": "shop.part_.*", "mirror": whole},
        {"match": "shop.path", "changelog": "{db}/{coll}/changelog"},
    ]
    reasons = {
        "part_1": "the mirror contains several collections",
        "path": "its changelog is not in a catalog",
    }
    rows = [
        change("insert", "a", {"n": 1}, time=9, event=n, ns=("shop", coll))
        for n, coll in enumerate(reasons, 1)
    ]
    with caplog.at_level(logging.INFO):
        sink(tmp_path, overrides=overrides, **table).write_batch(batch(spark, rows, until=10), 0)
    for coll, reason in reasons.items():
        name = whole if coll == "part_1" else view_of(table, coll).removesuffix("_live")
        assert spark.table(name).count() == 1
        assert not spark.catalog.tableExists(f"{name}_live")
        [line] = [each for each in caplog.messages if reason in each]
        assert name.rpartition(".")[2] in line


@pytest.mark.parametrize(
    "form", slow_but([], ["documents", "typed columns that grow"], soak=["documents"])
)
def test_what_somebody_has_added_to_a_mirror_is_in_its_view_as_it_will_be_in_the_mirror(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Guards: a run that ends because of a column of which a document has no value."""
    table = tables(tmp_path, **FORMS[form])
    name = view_of(table)
    mirror = name.removesuffix("_live")
    sink(tmp_path, **table).write_batch(copied(spark), 0)
    spark.sql(f"ALTER TABLE {mirror} ADD COLUMNS (last INT)")
    spark.sql(f"UPDATE {mirror} SET last = 7")
    first = [change("insert", "e", {"n": 1}, time=11), change("delete", "a", None, time=12)]
    sink(tmp_path, **table).write_batch(batch(spark, first, until=14), 1)
    rows = [change("update", "b", {"n": 2}, time=21), change("insert", "f", {"n": 1}, time=22)]
    lagging(tmp_path, 2, batch(spark, rows, until=24), **table)
    expected = {"b": 7, "c": 7, "d": 7, "e": None, "f": None}
    assert {row.key: row["last"] for row in spark.table(name).collect()} == expected
    found = content(spark.table(name))
    assert found == now(spark, tmp_path, table)
    caught_up(spark, tmp_path, 3, **table)
    assert content(spark.table(mirror)) == found
