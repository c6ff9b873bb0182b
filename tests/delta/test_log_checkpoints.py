"""Checkpoints of the log, written aside: due by what the log holds, and by a thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from cdc.delta.log import Target, log_checkpoints
from cdc.delta.log.log_checkpoints import LogCheckpoints, write_if_due
from cdc.delta.log.snapshot import delta_log
from cdc.delta.tables import known_table
from tests.delta.batches import batch, change, ops, sink

LOG = "shop/orders/changelog"


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(each.name[:20]) for each in folder.glob("_delta_log/*.checkpoint*.parquet"))


def fill(spark: SparkSession, base: Path, batches: range) -> None:
    own = sink(base, with_mirror=False)
    for number in batches:
        rows = [change("insert", str(number), {"n": 1}, time=number + 1)]
        own.write_batch(batch(spark, rows, until=number + 2), number)


def test_a_checkpoint_is_written_when_enough_commits_have_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a log that every reader replays from its first commit on, and that grows for ever;
    so does the writer, which does not list the log again."""
    target, log = Target(str(tmp_path / LOG)), tmp_path / LOG / "_delta_log"
    fill(spark, tmp_path, range(4))
    assert write_if_due(spark, target, commits=5) == 4
    assert checkpoints(tmp_path / LOG) == []
    shared = delta_log(spark, target.address).unsafeVolatileSnapshot()
    assert write_if_due(spark, target, commits=4) == 0
    assert checkpoints(tmp_path / LOG) == [3]
    assert not shared.stateReconstructionTriggered(), "a commit would wait for it"
    known = delta_log(spark, target.address).unsafeVolatileSnapshot().logSegment()
    assert known.checkpointProvider().version() == 3
    assert write_if_due(spark, target, commits=1) == 0
    fill(spark, tmp_path, range(4, 6))
    long_ago = time.time() - timedelta(days=10).total_seconds()
    for each in log.iterdir():
        os.utime(each, (long_ago, long_ago))
    assert write_if_due(spark, target, commits=2) == 0
    assert checkpoints(tmp_path / LOG)[-1] == 5
    assert not (log / f"{0:020}.json").exists()
    assert len(ops(tmp_path / LOG)) == 6


def test_the_commits_of_a_sink_are_followed_by_checkpoints_of_another_thread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_checkpoints, "_LOOK", 2)
    monkeypatch.setattr(LogCheckpoints, "commits", 3)
    fill(spark, tmp_path, range(4))
    deadline = time.monotonic() + 60
    while not checkpoints(tmp_path / LOG) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert checkpoints(tmp_path / LOG)
    properties = Target(str(tmp_path / LOG)).properties(spark)
    assert properties["delta.checkpointInterval"] == "1000"


def test_a_short_run_completes_the_checkpoint_that_it_began(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a log without checkpoints, if all its commits are those of short runs."""
    fill(spark, tmp_path, range(2))
    monkeypatch.setattr(LogCheckpoints, "commits", 3)
    own = sink(tmp_path, with_mirror=False)
    own.write_batch(batch(spark, [change("insert", "2", {}, time=3)], until=4), 2)
    own.close(None)
    assert checkpoints(tmp_path / LOG) == [2]


def test_checkpoints_that_fail_are_counted_and_do_not_end_their_thread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a log that grows for ever because of one error, and nobody who learns of it."""
    target, original, looks = Target(str(tmp_path / LOG)), write_if_due, []

    def fails_once(spark: SparkSession, target: Target, commits: int) -> int:
        looks.append(target)
        if looks == [target]:
            raise OSError("no space left")
        return original(spark, target, commits)

    fill(spark, tmp_path, range(3))
    monkeypatch.setattr(log_checkpoints, "_LOOK", 2)
    monkeypatch.setattr(log_checkpoints, "write_if_due", fails_once)
    own = LogCheckpoints()
    own.commits = 1
    for backlog in (1, 2):
        own.committed(spark, target)
        assert own.backlog() == backlog
    own.committed(spark, target)
    deadline = time.monotonic() + 60
    while own.backlog() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (own.backlog(), checkpoints(tmp_path / LOG)) == (0, [2])
    own.close()


@pytest.mark.parametrize("has_ended", [False, True])
def test_only_a_run_that_goes_on_warns_of_a_checkpoint_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_ended: bool
) -> None:
    """Guards: the end of a session, which interrupts the thread, shown as an error of the run."""
    may_fail, session = threading.Event(), cast(SparkSession, None)

    def fails(*_: object) -> int:
        assert may_fail.wait(60)
        raise OSError("no session\n\tat org.apache.spark.sql.SparkSession")

    monkeypatch.setattr(log_checkpoints, "write_if_due", fails)
    caplog.set_level(logging.DEBUG)
    own = LogCheckpoints()
    own.committed(session, Target("/orders"))
    if has_ended:
        own.close(0)
    may_fail.set()

    def records() -> list[logging.LogRecord]:  # threads of other tests log too
        return [each for each in caplog.records if each.name == log_checkpoints.__name__]

    deadline = time.monotonic() + 60
    while not records() and time.monotonic() < deadline:
        time.sleep(0.01)
    own.close()
    [record] = records()
    assert record.message == "the checkpoint of the log of /orders failed: no session"
    assert record.levelno == (logging.DEBUG if has_ended else logging.WARNING)


def test_above_a_limit_delta_writes_the_checkpoint_that_no_thread_has_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogCheckpoints, "committed", lambda *_: None)
    monkeypatch.setitem(known_table._PROPERTIES, "delta.checkpointInterval", "3")
    fill(spark, tmp_path, range(5))
    assert checkpoints(tmp_path / LOG) == [3]
    target = Target(str(tmp_path / LOG))
    assert write_if_due(spark, target, commits=100) == 1
    known = delta_log(spark, target.address).unsafeVolatileSnapshot().logSegment()
    assert known.checkpointProvider().version() == 3, "or each commit would make it longer"
