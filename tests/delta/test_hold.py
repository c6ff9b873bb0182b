"""A program that rewrites mirrors and histories lets their followers wait, and one that rewrites a
changelog lets the job leave gaps between its commits."""

from __future__ import annotations

import itertools
import json
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.checkpoint import (
    Folder,
    HadoopFiles,
    LocalFiles,
    gap,
    hold,
    hold_file,
    is_held,
    leave_gaps,
)
from cdc.delta.log import Target, conflict
from cdc.delta.maintenance import table_maintenance
from cdc.delta.sink import Sink
from cdc.errors import ConflictsUnresolved
from cdc.pipeline import config as configuration
from cdc.pipeline import maintain
from tests.delta.batches import batch, change, commits, content, sink
from tests.mongo.capture import until

LOG, MIRROR = "shop/orders/changelog", "shop/orders/mirror"
# Longer than a follower waits between two looks, and than a commit to a small mirror takes.
_A_WHILE = 2.0
_PATIENCE_SECONDS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "_checkpoint").mkdir()
    return Folder(LocalFiles(), str(tmp_path / "_checkpoint"))


@pytest.fixture
def own(spark: SparkSession, tmp_path: Path, folder: Folder) -> Sink:
    """A sink that has written a batch, and whose followers never pause."""
    own = sink(tmp_path, interval=0.0, waits=partial(is_held, folder))
    rows = [change("insert", key, {"n": 1}, time=1, event=n) for n, key in enumerate("ab", 1)]
    own.write_batch(batch(spark, rows, until=1), 0)
    _catch_up(own)
    return own


def _catch_up(own: Sink) -> None:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while own.backlog().batches:
        assert time.monotonic() < ends, "the followers still wait"
        time.sleep(0.02)


def _update(spark: SparkSession, own: Sink, number: int) -> None:
    rows = [change("update", "a", {"n": number + 1}, time=10 * number)]
    own.write_batch(batch(spark, rows, until=10 * number), number)


def test_followers_wait_while_another_program_holds_their_tables(
    spark: SparkSession, tmp_path: Path, folder: Folder, own: Sink
) -> None:
    with hold(folder):
        before = commits(tmp_path / MIRROR)
        _update(spark, own, 1)
        time.sleep(_A_WHILE)
        assert commits(tmp_path / MIRROR) == before
        assert own.backlog().batches == 1
    _catch_up(own)
    assert content(tmp_path / MIRROR) == {"a": {"n": 2}, "b": {"n": 1}}
    assert own.close(None)


def test_a_run_that_ends_waits_no_more(
    spark: SparkSession, tmp_path: Path, folder: Folder, own: Sink
) -> None:
    with hold(folder):
        _update(spark, own, 1)
        assert own.close(None, is_complete=True)
        assert content(tmp_path / MIRROR)["a"] == {"n": 2}


def test_a_batch_without_a_changelog_waits_while_another_program_holds_its_mirror(
    spark: SparkSession, tmp_path: Path, folder: Folder
) -> None:
    own = sink(tmp_path, with_changelog=False, waits=partial(is_held, folder))
    with ExitStack() as stack:
        stack.enter_context(hold(folder))
        threading.Timer(_A_WHILE, stack.close).start()
        began = time.monotonic()
        rows = [change("insert", "a", {"n": 1}, time=1)]
        own.write_batch(batch(spark, rows, until=1), 0)
        assert time.monotonic() - began >= _A_WHILE
    assert content(tmp_path / MIRROR) == {"a": {"n": 1}}


def test_a_job_leaves_gaps_between_its_commits_while_another_program_wants_them(
    spark: SparkSession, tmp_path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a log that Delta cannot list between two commits, so that OPTIMIZE is always late."""
    monkeypatch.setattr(conflict, "_LOOK_SECONDS", 0.1)
    own = sink(tmp_path, with_mirror=False, gap=partial(gap, folder))
    with leave_gaps(folder, _A_WHILE):
        for number in range(3):
            _update(spark, own, number)
    assert gap(folder) == 0
    files = sorted((tmp_path / LOG / "_delta_log").glob("*.json"))
    made = [file.stat().st_mtime for file in files]
    assert len(made) == 3
    assert all(later - each >= _A_WHILE for each, later in itertools.pairwise(made))
    assert own.close(None)


@pytest.mark.slow
def test_maintain_holds_mirrors_and_asks_for_gaps_while_it_rewrites_tables(
    spark: SparkSession,
    tmp_path: Path,
    folder: Folder,
    own: Sink,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: a table that is written so often that it is never compacted."""
    given = [f"sink.path={tmp_path}", "uri=mongodb://h", "collections=shop.orders"]
    compact, seen, gaps = table_maintenance._compact, dict[str, bool](), dict[str, float]()
    monkeypatch.setattr(Target, "time_of_list", lambda target, spark: 0.5)

    def compact_slowly(spark: SparkSession, table: Any) -> tuple[int, int]:
        before = commits(tmp_path / MIRROR)
        _update(spark, own, len(seen) + 1)
        time.sleep(_A_WHILE)
        gaps[table.target.address] = gap(folder)
        seen[table.target.address] = commits(tmp_path / MIRROR) == before
        return compact(spark, table)

    monkeypatch.setattr(table_maintenance, "_compact", compact_slowly)
    maintain(spark, configuration.load(None, given))
    assert seen == {str(tmp_path / LOG): False, str(tmp_path / MIRROR): True}
    assert gaps == {str(tmp_path / LOG): 2.0, str(tmp_path / MIRROR): 0.0}
    _catch_up(own)
    assert content(tmp_path / MIRROR) == {"a": {"n": 3}, "b": {"n": 1}}
    assert own.close(None)


@pytest.mark.parametrize("by_spark", [False, True], ids=["local", "hadoop"])
def test_a_hold_is_renewed_and_ends_with_its_program(
    spark: SparkSession, folder: Folder, by_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold_file, "_SECONDS", 0.5)
    monkeypatch.setattr(hold_file, "_RENEWAL_SECONDS", 0.05)
    folder = Folder(HadoopFiles(spark), folder.path) if by_spark else folder
    assert not is_held(folder)
    with hold(folder):
        time.sleep(1)
        # A file that is being replaced is not readable for a moment, and a busy machine renews it
        # late.
        until(lambda: is_held(folder), _PATIENCE_SECONDS)
    assert not is_held(folder)


@pytest.mark.parametrize("seconds", [-1.0, 3_600.0])
def test_a_hold_that_a_killed_program_or_a_wrong_clock_left_is_none(
    folder: Folder, seconds: float
) -> None:
    for name in ("hold", "gaps"):
        folder.write_text(name, json.dumps({"until": time.time() + seconds, "seconds": 1.0}))
    assert not is_held(folder)
    assert gap(folder) == 0


@pytest.mark.parametrize("text", ["", "[1]", '{"until": "x", "seconds": 1.0}', "\udcff"])
def test_a_damaged_hold_is_none(folder: Folder, text: str) -> None:
    for name in ("hold", "gaps"):
        Path(folder.path, name).write_bytes(text.encode(errors="surrogateescape"))
    assert not is_held(folder)
    assert gap(folder) == 0


def test_a_hold_that_cannot_be_read_is_none(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: a run that ends because a store did not answer this question."""
    for name in ("hold", "gaps"):
        Path(folder.path, name).mkdir()
    assert not is_held(folder)
    assert gap(folder) == 0
    assert len([each for each in caplog.messages if "cannot be read" in each]) == 2


@pytest.mark.parametrize("seconds", [None, "1", -1.0, 3_600.0, float("nan")])
def test_a_gap_without_a_sensible_length_is_none(folder: Folder, seconds: object) -> None:
    folder.write_text("gaps", json.dumps({"until": time.time() + 30, "seconds": seconds}))
    assert gap(folder) == 0


def test_a_gap_is_never_so_long_that_a_job_seems_to_stand_still(folder: Folder) -> None:
    with leave_gaps(folder, 600.0):
        assert gap(folder) == 10
    assert gap(folder) == 0


def test_a_hold_makes_no_checkpoint(tmp_path: Path) -> None:
    with hold(Folder(LocalFiles(), str(tmp_path / "none"))):
        assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_prevents_nothing(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    Path(folder.path, "hold.repaired").mkdir()
    with hold(folder):
        assert not is_held(folder)
    [record] = caplog.records
    assert "the job makes no room" in record.getMessage()


def test_a_write_that_takes_longer_than_the_patience_is_tried_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conflict, "_PATIENCE_SECONDS", 0.0)
    attempts = []

    def write(conflicts: int) -> int:
        attempts.append(conflicts)
        if len(attempts) <= conflicts:
            raise conflict.Outdated
        return len(attempts)

    assert conflict.repeated(partial(write, 2), Target("/t")) == 3
    attempts.clear()
    with pytest.raises(ConflictsUnresolved):
        conflict.repeated(partial(write, 3), Target("/t"))
    assert len(attempts) == 3
