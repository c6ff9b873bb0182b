"""What Spark spends on many rows is left out where there are few, in batch and tables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc.delta.followers import MIRROR
from cdc.delta.log import Target
from cdc.delta.tables import small_write_settings
from tests.delta.batches import batch, change, sink

FEW, MANY = 1_000, 10_001


def test_few_rows_are_small_for_a_table_that_is_not_there_or_small(
    spark: SparkSession, tmp_path: Path
) -> None:
    sizes, there = small_write_settings.Sizes(), Target(str(tmp_path / "there"))
    spark.range(3).write.format("delta").save(there.address)
    assert sizes.are_small(spark, [there, Target(str(tmp_path / "new"))], FEW)
    assert not sizes.are_small(spark, [there], MANY)


@pytest.fixture(scope="module")
def large(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 20 MB that nothing makes smaller."""
    path = tmp_path_factory.mktemp("large") / "large"
    noise = pa.table({"noise": [os.urandom(2**20) for _ in range(20)]})
    spark.createDataFrame(noise).write.format("delta").save(str(path))
    return path


def test_one_large_table_makes_a_write_large(
    spark: SparkSession, large: Path, tmp_path: Path
) -> None:
    sizes, new = small_write_settings.Sizes(), Target(str(tmp_path / "new"))
    assert not sizes.are_small(spark, [new, Target(str(large))], FEW)


def test_a_table_is_measured_again_when_enough_was_written_to_make_it_large(
    spark: SparkSession, large: Path, tmp_path: Path
) -> None:
    sizes, target = small_write_settings.Sizes(), Target(str(tmp_path / "large"))
    assert sizes.are_small(spark, [target], FEW)
    shutil.copytree(large, target.address)
    reported = [sizes.are_small(spark, [target], 10_000) for _ in range(12)]
    assert reported == [True] * 10 + [False] * 2


def test_a_table_of_many_files_is_large(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_write_settings, "_FILES", 5)
    target = Target(str(tmp_path / "files"))
    spark.range(0, 6, 1, 6).write.format("delta").save(target.address)
    assert not small_write_settings.Sizes().are_small(spark, [target], FEW)


@pytest.mark.slow
def test_a_small_batch_is_written_without_generated_code_and_leaves_no_setting(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [*small_write_settings.SETTINGS]
    before = [spark.conf.get(name) for name in names]
    seen, write = list[list[str | None]](), MIRROR.write

    def seeing(own: SparkSession, *given: object) -> None:
        seen.append([own.conf.get(name) for name in names])
        write(own, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(MIRROR, "write", seeing)
    monkeypatch.setitem(small_write_settings.SETTINGS, "spark.sql.shuffle.partitions", "7")
    monkeypatch.setattr(small_write_settings, "_ROWS", 10)
    own = sink(tmp_path, by_spark=True)
    rows = [change("insert", str(n), {"n": n}, time=1000) for n in range(3)]
    own.write_batch(batch(spark, rows, until=1001), 0)
    many = [change("update", str(n % 3), {"n": n}, time=1002, event=n + 1) for n in range(11)]
    own.write_batch(batch(spark, many, until=1003), 1)
    assert seen == [[*small_write_settings.SETTINGS.values()], before]
    assert [spark.conf.get(name) for name in names] == before
