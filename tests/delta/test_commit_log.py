"""The commits of a table's log, read from its files and by Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.log import Target, commit_log, newest_entry, read_log

COMMITS = 12


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of so many commits, each with metadata but one. A checkpoint contains the state."""
    path = tmp_path_factory.mktemp("log") / "t"
    for number in range(COMMITS):
        said = {"userMetadata": f"commit {number}"} if number != COMMITS - 2 else {}
        given = CommitProperties(custom_metadata=said)
        write_deltalake(path, pa.table({"n": [number]}), mode="append", commit_properties=given)
    DeltaTable(path).create_checkpoint()
    return path


@pytest.mark.parametrize("from_files", [2, 8, 50])
@pytest.mark.parametrize("oldest", [0, 5])
def test_all_commits_that_the_log_contains_are_read_once_the_newest_first(
    spark: SparkSession,
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    from_files: int,
    oldest: int,
) -> None:
    """Guards: a commit that is passed over or yielded twice where Spark takes over from the files,
    and an error where a clean-up has removed the oldest ones."""
    monkeypatch.setattr(commit_log, "_FROM_FILES", from_files)
    path = tmp_path / "t"
    shutil.copytree(written, path)
    for number in range(oldest):
        (path / f"_delta_log/{number:020}.json").unlink()
    target = Target(str(path))
    found = list(read_log(spark, target))
    reported = target.delta(spark).history().withColumn("made", F.unix_millis("timestamp"))
    expected = sorted(reported.collect(), key=lambda row: -int(row.version))
    assert [entry.version for entry in found] == [*range(COMMITS - 1, oldest - 1, -1)]
    assert [entry.metadata for entry in found] == [row.userMetadata for row in expected]
    assert [entry.metrics for entry in found] == [row.operationMetrics or {} for row in expected]
    # A file gets its time of change a moment after the commit states its own.
    assert all(
        abs(entry.made - row.made / 1000) < 2 for entry, row in zip(found, expected, strict=True)
    )
    assert newest_entry(spark, target) == found[0]
