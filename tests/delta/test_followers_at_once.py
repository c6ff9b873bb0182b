"""Several processes apply batches to one table at the same moment, and one is killed meanwhile."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.delta.followers import mirror, pending
from cdc.delta.followers.merges.file_merge import FileMerge
from cdc.delta.log import Commit
from cdc.delta.sink import Sink
from cdc.model import Timestamp
from tests.delta.batches import batch, change, commits, content, sink
from tests.delta.test_conflicts import until
from tests.delta.test_followers import MIRROR, caught_up, lagging
from tests.delta.test_rebuild import begun

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror that contains one batch, and lacks another one."""
    base = tmp_path_factory.mktemp("original")
    rows = [change("insert", key, {"n": 1}, time=1) for key in "abc"]
    sink(base).write_batch(batch(spark, rows, until=2), 0)
    rows = [change("update", "a", {"n": 2}, time=3), change("insert", "d", {"n": 2}, time=4)]
    lagging(base, 1, batch(spark, rows, until=5))
    return base


@pytest.fixture
def lake(original: Path, tmp_path: Path) -> Path:
    """The same in a lakehouse of the test's own."""
    return Path(shutil.copytree(original, tmp_path / "lake"))


def delete(spark: SparkSession, base: Path) -> None:
    """A third batch, which a follower finds and applies together with the second one."""
    lagging(base, 2, batch(spark, [change("delete", "d", time=6)], until=7))
    caught_up(spark, base, 3)


def read_by(monkeypatch: pytest.MonkeyPatch, task: Task) -> None:
    """Let rows of changelogs pass a task of the test, within the MERGE."""
    original = pending.with_after

    def read(changelog: DataFrame) -> DataFrame:
        frame = original(changelog)
        return frame.mapInArrow(task, frame.schema)

    monkeypatch.setattr(pending, "with_after", read)


@pytest.mark.parametrize("by_spark", [True, False])
def test_a_table_that_gets_later_batches_before_the_transaction_begins_is_left_alone(
    spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """Guards: a deleted document that comes back, because a batch is compared before the
    transaction and not in it."""
    late = begun(spark, lake, 2, by_spark=by_spark)
    writer = mirror.MIRROR if by_spark else FileMerge
    original = writer.write

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(writer, "write", original)
        delete(spark, lake)
        original(*args)

    monkeypatch.setattr(writer, "write", overtaken)
    late._followers.apply(spark)
    assert content(lake / MIRROR) == {"a": {"n": 2}, "b": {"n": 1}, "c": {"n": 1}}
    assert commits(lake / MIRROR) == ["CREATE TABLE", "STREAMING UPDATE", "STREAMING UPDATE"]
    assert late.backlog().batches == 0


def test_of_two_that_merge_the_same_batch_at_once_one_commits_it(
    spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: an error of the one that loses, and a batch that it merges again."""
    began, may_go = tmp_path / "began", tmp_path / "go"

    def waits(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        began.touch()
        while not may_go.exists():
            time.sleep(0.02)
        yield from rows

    first, errors = begun(spark, lake, 2, by_spark=True), list[BaseException]()
    read_by(monkeypatch, waits)
    thread = threading.Thread(target=lambda: _apply(spark, first, errors))
    thread.start()
    until(lambda: began.exists() or not thread.is_alive())
    monkeypatch.undo()
    delete(spark, lake)
    may_go.touch()
    thread.join(120)
    assert errors == []
    assert content(lake / MIRROR) == {"a": {"n": 2}, "b": {"n": 1}, "c": {"n": 1}}
    assert commits(lake / MIRROR) == ["CREATE TABLE", "STREAMING UPDATE", "STREAMING UPDATE"]


def _apply(spark: SparkSession, own: Sink, errors: list[BaseException]) -> None:
    try:
        own._followers.apply(spark)
    except BaseException as error:
        errors.append(error)


def test_a_merge_that_ends_before_its_commit_leaves_no_row(
    spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: data files and deletion vectors of a killed MERGE that a later one takes along."""
    [version] = {len(commits(lake / MIRROR))}
    commit = lake / MIRROR / f"_delta_log/{version:020}.json"

    def obstructs(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        commit.mkdir(exist_ok=True)
        yield from rows

    before = {each.name for each in (lake / MIRROR).iterdir()}
    own = begun(spark, lake, 2, by_spark=True)
    with monkeypatch.context() as patch:
        read_by(patch, obstructs)
        with pytest.raises(Exception, match=r"(?i)directory"):
            own._followers.apply(spark)
    commit.rmdir()
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    left = {each.name for each in (lake / MIRROR).iterdir()} - before
    assert any(name.endswith(".parquet") for name in left)
    assert set(content(lake / MIRROR)) == set("abc")
    caught_up(spark, lake, 2)
    expected = {"a": {"n": 2}, "b": {"n": 1}, "c": {"n": 1}, "d": {"n": 2}}
    assert content(lake / MIRROR) == expected


def test_a_table_that_takes_no_batch_ends_the_run_and_is_not_tried_for_ever(
    spark: SparkSession, lake: Path
) -> None:
    own = begun(spark, lake, 2, by_spark=True)
    name = own._followers.kinds[mirror.MIRROR].transaction_of(Commit(0, Timestamp(1, 1))).name
    nothing = spark.read.format("delta").load(str(lake / MIRROR)).limit(0)
    later = nothing.write.format("delta").mode("append").option("txnAppId", name)
    later.option("txnVersion", 2**62).save(str(lake / MIRROR))
    with pytest.raises(RuntimeError, match="passes over the batches"):
        own._followers.apply(spark)
