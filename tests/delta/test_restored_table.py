"""A table that somebody restored to an earlier version lacks batches, and its pipeline notices."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from cdc.delta.log import LocalReader, Target
from cdc.delta.reading import live
from cdc.delta.tables import Layout
from cdc.errors import TableRestored
from cdc.monitoring import read_table_stats
from tests.delta import delta_rs
from tests.delta.batches import batch, change, content, sink
from tests.delta.test_followers import LOG, MIRROR, WITH_HISTORY
from tests.delta.test_rebuild import HISTORY, ORDERS, empty
from tests.slow import slow_but


def numbered(spark: SparkSession, number: int) -> DataFrame:
    """Batch 0 copies a collection, each later one inserts a document."""
    if number == 0:
        rows = [change("read", key, {"n": 0}, time=9) for key in "ab"]
        return batch(spark, rows, until=9, copied=["shop.orders"])
    time = 10 * number + 1
    row = change("insert", f"k{number}", {"n": number}, time=time)
    return batch(spark, [row], until=time)


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lakehouse of three batches, in which each table got a commit of each batch."""
    return write_three(spark, tmp_path_factory.mktemp("restored"), **WITH_HISTORY)


def write_three(spark: SparkSession, base: Path, **options: Any) -> Path:
    own = sink(base, **options)
    for number in range(3):
        own.write_batch(numbered(spark, number), number)
    return base


@pytest.fixture
def lake(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "lake"))


@pytest.fixture
def lake_without_history(spark: SparkSession, tmp_path: Path) -> Path:
    return write_three(spark, tmp_path / "lake")


def newest(path: Path) -> int:
    return int(delta_rs.history(path, 1)[0]["version"])


def restore(spark: SparkSession, path: Path, back: int) -> int:
    """Restore the version that is so many before the newest one; return the newest one."""
    version = newest(path)
    DeltaTable.forPath(spark, str(path)).restoreToVersion(version - back)
    return version


def rebuild(spark: SparkSession, base: Path) -> None:
    """Do what `mongodb-cdc follow --rebuild` does."""
    own = sink(base, **WITH_HISTORY)
    for tables in own._tables.values():
        tables.discover(spark)
    own._followers.begin(3, numbered(spark, 0).schema)
    empty(spark, own)
    own._followers.apply(spark)


@pytest.mark.parametrize("name", slow_but([], [LOG, MIRROR, HISTORY], soak=[HISTORY]))
def test_a_restored_table_ends_the_job_and_each_start_until_that_is_undone(
    spark: SparkSession, request: pytest.FixtureRequest, name: str
) -> None:
    """Guards: batches that a table lacks for ever, because its log still has their commits; a
    commit of a batch after the RESTORE, behind which no later start would see it; a remedy that
    does not help. The restored table stays as it is."""
    # A history takes half of the time.
    options = WITH_HISTORY if name == HISTORY else {}
    lake = request.getfixturevalue("lake" if options else "lake_without_history")
    path, running = lake / name, sink(lake, **options)
    running.write_batch(numbered(spark, 3), 3)
    version = restore(spark, path, 2)
    for job in (running, sink(lake, **options)):
        with pytest.raises(
            TableRestored, match=f"lacks batch 3, which version {version} contained"
        ):
            job.write_batch(numbered(spark, 4), 4)
    for read in (LocalReader().newest_commit, read_table_stats):
        with pytest.raises(TableRestored):
            read(Target(str(path)))
    assert newest(path) == version + 1
    DeltaTable.forPath(spark, str(path)).restoreToVersion(version)
    sink(lake, **options).write_batch(numbered(spark, 4), 4)
    assert set(content(lake / MIRROR)) == {"a", "b", "k1", "k2", "k3", "k4"}
    for each in (LOG, *([HISTORY] if options else [])):
        assert len(delta_rs.rows(lake / each)) == 6


@pytest.mark.parametrize("name", slow_but([], [LOG, MIRROR], soak=[LOG]))
def test_a_table_that_is_restored_ends_a_job_whose_rows_spark_writes(
    spark: SparkSession, lake: Path, name: str
) -> None:
    own = sink(lake, by_spark=True, **WITH_HISTORY)
    own.write_batch(numbered(spark, 3), 3)
    version = restore(spark, lake / name, 1)
    with pytest.raises(TableRestored, match="lacks batch 3"):
        own.write_batch(numbered(spark, 4), 4)
    assert newest(lake / name) == version + 1


@pytest.mark.slow
def test_a_restored_mirror_can_be_made_again_from_its_changelog(
    spark: SparkSession, lake: Path
) -> None:
    """Guards: a rebuild that the error itself prevents, or whose transactions Delta has seen: the
    mirror was rebuilt once before, and restored to a version before that."""
    rebuild(spark, lake)
    restore(spark, lake / MIRROR, 3)
    with pytest.raises(TableRestored):
        live(spark, Layout.parse(str(lake), {}), ORDERS)
    rebuild(spark, lake)
    sink(lake, **WITH_HISTORY).write_batch(numbered(spark, 3), 3)
    assert set(content(lake / MIRROR)) == {"a", "b", "k1", "k2", "k3"}


@pytest.mark.slow
def test_a_restore_by_time_counts_and_one_that_takes_back_no_batch_does_not(
    spark: SparkSession, lake: Path
) -> None:
    """Guards: a RESTORE that does not name a version; an error where nothing is missing."""
    table = DeltaTable.forPath(spark, str(lake / MIRROR))
    table.optimize().executeCompaction()
    restore(spark, lake / MIRROR, 1)
    sink(lake, **WITH_HISTORY).write_batch(numbered(spark, 3), 3)
    [made] = [each["timestamp"] for each in delta_rs.history(lake / MIRROR, 2)[1:]]
    table.restoreToTimestamp(_text(spark, int(made)))
    with pytest.raises(TableRestored, match="lacks batch 3"):
        sink(lake, **WITH_HISTORY).write_batch(numbered(spark, 4), 4)


def _text(spark: SparkSession, milliseconds: int) -> str:
    """A time as the session writes it."""
    query = f"SELECT date_format(timestamp_millis({milliseconds}), 'yyyy-MM-dd HH:mm:ss.SSS') AS t"
    [row] = spark.sql(query).collect()
    return str(row.t)
