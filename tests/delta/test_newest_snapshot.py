"""The newest version of a table is known without a list of its log, which may be long."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc.delta.log.snapshot import delta_log, listed_snapshot, newest_snapshot
from cdc.errors import TableRestored
from tests.delta.test_transaction import Table, schema, table

__all__ = ["schema", "table"]


def newest(table: Table) -> int:
    return int(table.target.snapshot(table.spark).version())


def test_a_commit_lists_no_log(table: Table) -> None:
    """Guards: commits that take longer the more there are. A list that contains a version without
    those before it is refused by Delta."""
    table.commit(0, table.written(["a"]), first=True)
    far = table.path / f"_delta_log/{9:020}.json"
    far.write_text("{}\n")
    table.commit(1, table.written(["b"]), newest=(0, 0))
    assert newest(table) == 1
    with pytest.raises(Py4JJavaError, match="not contiguous"):
        listed_snapshot(table.spark, delta_log(table.spark, str(table.path)))
    far.unlink()
    assert table.keys() == table.keys_for_spark() == ["a", "b"]


def test_what_another_process_commits_is_seen_before_the_next_commit(table: Table) -> None:
    """Guards: a commit after a RESTORE, behind which nobody would see it any more."""
    table.commit(0, table.written(["a"]), first=True)
    table.commit(1, table.written(["b"]))
    [path] = [action["add"]["path"] for action in table.log(1) if "add" in action]
    about = {"timestamp": 0, "operation": "RESTORE", "operationParameters": {"version": "0"}}
    actions = {"commitInfo": about}, {"remove": {"path": path, "dataChange": True}}
    file = table.path / f"_delta_log/{2:020}.json"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in actions))
    with pytest.raises(TableRestored):
        table.commit(2, table.written(["c"]), newest=(1, 1))
    assert newest(table) == 2
    assert table.keys_for_spark() == ["a"]


def test_a_table_that_was_replaced_is_not_taken_for_the_former(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    other = Table(spark, table.schema, tmp_path / "other")
    for each, keys in ((table, "ab"), (other, "cd")):
        each.commit(0, each.written([keys[0]]), first=True)
        each.commit(1, each.written([keys[1]]))
    log = delta_log(spark, str(table.path))
    before = newest_snapshot(spark, log).metadata().id()
    shutil.rmtree(table.path)
    assert newest_snapshot(spark, log).version() == -1
    table.commit(0, table.written(["a"]), first=True)
    table.commit(1, table.written(["b"]))
    shutil.rmtree(table.path)
    other.path.rename(table.path)
    found = newest_snapshot(spark, log)
    assert found.version() == 1
    assert found.metadata().id() != before
    table.commit(2, table.written(["e"]), newest=(1, 1))
    assert table.keys() == table.keys_for_spark() == ["c", "d", "e"]
