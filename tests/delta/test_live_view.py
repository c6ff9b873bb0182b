"""A live view is what its mirror will contain once it has applied its changelog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers import mirror
from cdc.delta.reading import LiveView, live
from cdc.delta.tables import Layout
from cdc.errors import BadOption, NotCovered
from cdc.model import Namespace, Timestamp, resume_token
from tests.delta.batches import batch, change, sink
from tests.delta.test_followers import BATCHES, MIRROR, caught_up, copied, lagging
from tests.slow import slow_but

ORDERS = Namespace("shop", "orders")
FORMS: dict[str, dict[str, Any]] = {
    "documents": {},
    "several collections": {"changelog": "logs/{db}/{coll}", "mirror": "mirrors"},
}


def view(spark: SparkSession, base: Path, table: dict[str, Any]) -> LiveView:
    return live(spark, Layout.parse(str(base), table), ORDERS)


def mirrored(spark: SparkSession, base: Path, table: dict[str, Any]) -> LiveView:
    """The mirror alone, by its newest commit."""
    own = Layout.parse(str(base), table).table("mirror", ORDERS)
    assert own is not None
    state = mirror.state(spark, own.target, ORDERS)
    assert state is not None
    rows = own.target.read(spark, state.version)
    return LiveView(mirror.documents(rows, own, ORDERS), state)


def content(found: LiveView) -> tuple[list[str], list[Any]]:
    """The rows, and what is stated of them but for the mirror's version."""
    names = ("key", "document", "_position", "_cluster_time", "_cluster_inc")
    rows = found.rows.select(F.to_json(F.struct(*names)).alias("row")).collect()
    state = found.state
    stated = [state.batch, state.watermark, state.exact_from, state.copying, state.kept]
    return sorted(row.row for row in rows), stated


# A mirror of several collections differs from a plain one by a column and a filter alone. For other
# forms `tests/delta/test_sql_view.py` compares the live view with the mirror.
@pytest.mark.parametrize("form", slow_but([], FORMS, soak=["documents"]))
def test_a_live_view_is_the_mirror_that_has_applied_the_changelog(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Guards: changes and deletes of keys that the mirror has or has not; a drop among several
    batches; a view that changes while it is read."""
    table = FORMS[form]
    sink(tmp_path, **table).write_batch(BATCHES[0](spark), 0)
    for numbers in ((1,), (2, 3, 4)):
        before = mirrored(spark, tmp_path, table)
        for number in numbers:
            lagging(tmp_path, number, BATCHES[number](spark), **table)
        found = view(spark, tmp_path, table)
        assert found.state.version == before.state.version
        expected = content(found)
        assert expected != content(before)
        caught_up(spark, tmp_path, **table)
        assert content(mirrored(spark, tmp_path, table)) == expected
        assert content(found) == expected
    assert content(view(spark, tmp_path, table)) == expected


@pytest.mark.slow
def test_a_later_state_that_a_backfill_gave_the_mirror_is_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink(tmp_path).write_batch(copied(spark), 0)
    rows = [change("update", key, {"n": 2}, time=11) for key in "ab"]
    lagging(tmp_path, 1, batch(spark, rows, until=14))
    later = batch(spark, [change("read", "a", {"n": 3}, time=12)], until=12).where("op = 'read'")
    held = DeltaTable.forPath(spark, str(tmp_path / MIRROR)).alias("mirror")
    held.merge(later.alias("read"), "mirror.key = read.key").whenMatchedUpdate(
        set={"document": "read.after", "_position": "read.position"}
    ).execute()
    found = view(spark, tmp_path, {}).rows.selectExpr("key", "document:n::int AS n").collect()
    assert {row.key: row.n for row in found} == {"a": 3, "b": 2, "c": 1, "d": 1}


def test_what_a_live_view_needs_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"no changelog for shop\.orders"):
        view(spark, tmp_path, {"changelog": ""})
    with pytest.raises(NotCovered, match="contains no batch yet"):
        view(spark, tmp_path, {})
    lagging(tmp_path, 0, copied(spark))
    with pytest.raises(NotCovered, match="contains no batch yet"):
        view(spark, tmp_path, {})


@pytest.mark.slow
def test_documents_come_back_with_the_copy_as_of_the_time_at_which_their_content_was_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: deleted rows of a mirror with `delete = soft` that hide what the next batch copies,
    because no time has passed and both have the same position."""
    table = {"delete": "soft"}
    own = sink(tmp_path, **table)
    own.write_batch(copied(spark), 0)
    after = {"position": resume_token.position_after(Timestamp(12, 1))}
    own.write_batch(batch(spark, [change("resync", None, time=12) | after], until=12), 1)
    assert content(view(spark, tmp_path, table))[0] == []
    copy = [change("read", key, {"n": 2}, time=12) | after for key in "ab"]
    lagging(tmp_path, 2, batch(spark, copy, until=12, copied=["shop.orders"]), **table)
    found = content(view(spark, tmp_path, table))
    caught_up(spark, tmp_path, 3, **table)
    assert content(mirrored(spark, tmp_path, table)) == found
    rows = spark.read.format("delta").load(str(tmp_path / MIRROR))
    rows = rows.selectExpr("key", "document:n::int", "_deleted", "unix_seconds(_cluster_time)")
    assert {tuple(row) for row in rows.collect()} == {
        *[(key, 2, False, 12) for key in "ab"],
        *[(key, 1, True, 12) for key in "cd"],  # `maintain` counts its days from there
    }
