"""Mirrors and histories are rebuilt from changelogs alone, whoever follows these meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import BATCH
from cdc.delta.followers import mirror
from cdc.delta.followers import rebuild as rebuilding
from cdc.delta.log import Target
from cdc.delta.sink import Sink
from cdc.errors import ChangelogTooShort, RebuildRefused
from cdc.model import Namespace
from tests.delta.batches import batch, change, commits, content, sink
from tests.delta.test_followers import (
    LOG,
    MIRROR,
    NEVER,
    WITH_HISTORY,
    caught_up,
    copied,
    held,
    lagging,
    trim_log,
    write_as_earlier_release,
)

HISTORY = "shop/orders/history"
OWN = ("orders/mirror", "orders/history")
ORDERS = Namespace("shop", "orders")


def begun(spark: SparkSession, base: Path, number: int, **table: Any) -> Sink:
    """A run that applies nothing by itself."""
    own = sink(base, interval=NEVER, **table)
    own._start = lambda *_: None  # type: ignore[method-assign]
    own.begin(spark, number, copied(spark).schema)
    return own


def empty(spark: SparkSession, own: Sink) -> None:
    """Begin the rebuild of all tables."""
    every = [(kind, t) for kind, each in own._followers.kinds.items() for t in each.known()]
    for kind, table in every:
        own._followers.require_possible(spark, kind, table)
        own._followers.empty(spark, kind, table)


def rebuild(spark: SparkSession, base: Path, number: int, **table: Any) -> None:
    own = begun(spark, base, number, **table)
    empty(spark, own)
    own._followers.apply(spark)


def state(base: Path, names: tuple[str, ...] = OWN) -> dict[str, Any]:
    """The rows of tables and what their last commits state, but for the number of rebuilds."""
    found = held(base, names)
    for _, stated in found.values():
        stated.pop("rebuilds", None)
    return found


def made_again(spark: SparkSession) -> DataFrame:
    """A copy, and changes of which a drop makes void all that was before."""
    rows = [
        *(change("read", key, {"n": 1}, time=9) for key in "abcd"),
        change("update", "c", {"n": 9}, time=31),
        change("drop", None, time=32),
        change("create", None, time=41),
        change("insert", "c", {"n": 10}, time=42),
        change("insert", "f", {"n": 11}, time=43),
    ]
    return batch(spark, rows, until=44, copied=["shop.orders"])


def changed(spark: SparkSession) -> DataFrame:
    rows = [change("update", "f", {"n": 12}, time=45), change("insert", "e", {"n": 1}, time=46)]
    return batch(spark, rows, until=47)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("rebuilt")
    for number, rows in enumerate((made_again, changed)):
        lagging(base, number, rows(spark), **WITH_HISTORY)
    caught_up(spark, base, 2, **WITH_HISTORY)
    return base


@pytest.mark.slow
def test_a_rebuilt_table_is_as_if_it_had_never_been_damaged(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """Guards: batches whose commits the log no longer contains, and which have to be read from the
    rows; a rebuild that was killed after it emptied the tables."""
    base = Path(shutil.copytree(lake, tmp_path / "lake"))
    for name in (MIRROR, HISTORY):
        DeltaTable.forPath(spark, str(base / name)).delete("key IN ('c', 'b')")
    trim_log(spark, base / LOG, 1)
    empty(spark, begun(spark, base, 2, **WITH_HISTORY))
    assert content(base / MIRROR) == {}
    assert mirror.state(spark, Target(str(base / MIRROR)), ORDERS) is None
    caught_up(spark, base, 2, **WITH_HISTORY)
    assert commits(base / MIRROR)[-3:] == ["DELETE", "DELETE", "MERGE"]
    assert state(base) == state(lake)


@pytest.mark.slow
def test_a_run_that_does_not_know_of_a_rebuild_applies_no_batch_to_the_emptied_table(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """Guards: a mirror that contains the newest batches only; batches that neither of two processes
    applies, as the one that rebuilds ends before those that the other one has forgotten."""
    base = Path(shutil.copytree(lake, tmp_path / "lake"))
    more = [
        batch(spark, [change("insert", key, {"n": 0}, time=time)], until=time)
        for key, time in (("g", 51), ("h", 52), ("i", 53))
    ]
    first, other = (begun(spark, base, 2) for _ in range(2))
    first.write_batch(more[0], 2)
    empty(spark, other)
    first._followers.apply(spark)
    assert set(content(base / MIRROR)) == set("cefg")
    # The other one knows of the first two batches only, and rebuilds once more up to there.
    first.write_batch(more[1], 3)
    first._followers.apply(spark)
    empty(spark, other)
    other._followers.apply(spark)
    assert set(content(base / MIRROR)) == set("cef")
    first.write_batch(more[2], 4)
    first._followers.apply(spark)
    assert set(content(base / MIRROR)) == set("cefghi")


@pytest.mark.slow
def test_columns_that_another_run_added_are_kept_by_one_that_did_not_know_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a column that both add, with types of which each fits the batches of one run only."""
    table = {"columns": {"n": "bigint"}, "schema_evolution": True}
    rows = [
        batch(spark, [change(op, "a", image, time=time)], until=time)
        for op, image, time in (
            ("insert", {"n": 1}, 1),
            ("update", {"n": 1, "x": 1}, 2),
            ("update", {"n": 1, "x": "two"}, 3),
        )
    ]
    sink(tmp_path, **table).write_batch(rows[0], 0)
    first = begun(spark, tmp_path, 1, **table)
    lagging(tmp_path, 1, rows[1], **table)
    caught_up(spark, tmp_path, 2, **table)
    lagging(tmp_path, 2, rows[2], **table)
    first._followers.recover(spark, 3, copied(spark).schema)
    first._followers.apply(spark)
    found = spark.read.format("delta").load(str(tmp_path / MIRROR))
    assert found.select("key", "n", "x").collect() == [("a", 1, None)]


@pytest.mark.slow
def test_rows_that_no_batch_wrote_count_by_their_position_for_a_rebuild(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: documents that a backfill added, lost by a rebuild, also by one that was killed when
    it had created the table; those of a mirror that was backfilled while its changelog was not."""
    rows = [change("update", key, {"n": 2}, time=11) for key in "ab"]
    sink(tmp_path).write_batch(batch(spark, rows, until=14), 0)
    sink(tmp_path).write_batch(batch(spark, [change("delete", "b", time=15)], until=16), 1)
    # A backfill of a quiet collection is as of a time after the last commit of its changelog.
    read = [change("read", key, {"n": 1}, time=time) for key, time in (("b", 13), ("z", 99))]
    missing = batch(spark, read, until=99).where("op <> 'watermark'")
    mirrored = DeltaTable.forPath(spark, str(tmp_path / MIRROR))
    columns = ("key", "after AS document", "position AS _position")
    place = ("cluster_time AS _cluster_time", "cluster_inc AS _cluster_inc")
    found = missing.where("key = 'z'").selectExpr(*columns, *place)
    found.write.format("delta").mode("append").save(str(tmp_path / MIRROR))
    before = commits(tmp_path / MIRROR)
    with pytest.raises(RebuildRefused, match="contains 1 rows that its changelog does not"):
        rebuild(spark, tmp_path, 2)
    assert commits(tmp_path / MIRROR) == before
    numbered = missing.withColumn(BATCH, F.lit(None).cast("long"))
    numbered.write.format("delta").mode("append").save(str(tmp_path / LOG))
    rebuild(spark, tmp_path, 2)
    assert content(tmp_path / MIRROR) == {"a": {"n": 2}, "z": {"n": 1}}
    assert mirrored.history(1).collect()[0].operation == "MERGE"
    shutil.rmtree(tmp_path / MIRROR)
    killed = begun(spark, tmp_path, 2)
    table = killed._followers.kinds[mirror.MIRROR].of(ORDERS)
    assert table is not None
    with monkeypatch.context() as killing:
        killing.setattr(rebuilding, "empty", _killed)
        with pytest.raises(KeyboardInterrupt):
            killed._followers.empty(spark, mirror.MIRROR, table)
    assert content(tmp_path / MIRROR) == {}
    caught_up(spark, tmp_path, 2)
    assert content(tmp_path / MIRROR) == {"a": {"n": 2}, "z": {"n": 1}}


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_mirror_is_rebuilt_from_the_changelog_of_an_earlier_release(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: rows without the number of a batch, of a batch whose commit states none of them."""
    sink(tmp_path).write_batch(copied(spark), 0)
    write_as_earlier_release(spark, tmp_path / LOG, "9:1")
    expected = state(tmp_path, OWN[:1])
    rebuild(spark, tmp_path, 1)
    [(rows, stated)] = state(tmp_path, OWN[:1]).values()
    assert rows == expected[OWN[0]][0]
    assert (stated["batch"], stated["watermark"]) == (0, "9:1")
    sink(tmp_path).write_batch(changed(spark), 1)
    assert set(content(tmp_path / MIRROR)) == set("abcdef")


@pytest.mark.slow
def test_a_rebuild_states_how_far_the_copy_is_and_from_when_on_it_is_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a mirror that is taken for complete, or for incomplete for ever."""
    inexact = change("read", "a", {"n": 1}, time=9, description={"exactFrom": "30:1"})
    reads = [change("read", key, {"n": 1}, time=time) for key, time in (("b", 10), ("c", 11))]
    below = [{"shop.orders": {"below": text}} for text in ("K1", "K2")]
    apart = {"but": ["shop.orders"]}
    copying: list[DataFrame] = [
        batch(spark, [inexact], until=9, copying=below[0], reported=apart),
        batch(spark, reads[:1], until=10, copying=below[1], reported=apart),
        batch(spark, reads[1:], until=11, copied=["shop.orders"], reported=apart),
        batch(spark, [change("insert", "d", {"n": 1}, time=31)], until=31),
    ]
    for number, rows in enumerate(copying):
        lagging(tmp_path, number, rows)
        if number == 1:
            caught_up(spark, tmp_path, 2)
            expected = state(tmp_path, OWN[:1])
            assert copying_of(expected) == {"below": "K2"}
            trim_log(spark, tmp_path / LOG, 1)
            own = begun(spark, tmp_path, 2)
            empty(spark, own)
            assert copying_of(state(tmp_path, OWN[:1])) == {"below": "K2"}
            own._followers.apply(spark)
            assert state(tmp_path, OWN[:1]) == expected
    # The mirror lags, and no commit that is left states the end of the copy.
    trim_log(spark, tmp_path / LOG, 3)
    own = sink(tmp_path)
    with pytest.raises(ChangelogTooShort, match="follow --rebuild"):
        own.begin(spark, 4, copied(spark).schema)
    own._followers.begin(4, copied(spark).schema)
    empty(spark, own)
    own._followers.apply(spark)
    found = state(tmp_path, OWN[:1])
    assert (found[OWN[0]][1]["batch"], copying_of(found)) == (3, None)
    assert set(content(tmp_path / MIRROR)) == set("abcd")


def copying_of(found: dict[str, Any]) -> Any:
    return found[OWN[0]][1].get("of", {}).get("shop.orders", {}).get("copying")
