"""Looking after tables: nothing of the newest version is lost but old tombstones."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.cli.maintain import main
from cdc.delta.log import (
    LocalReader,
    NeedsSpark,
    Target,
    keep,
    list_unneeded,
    newest_commit,
    settings,
)
from cdc.delta.maintenance import mirror_repair, settle, table_maintenance, unfinished_uploads
from cdc.delta.tables import Layout
from cdc.model import Namespace, Timestamp
from cdc.pipeline import Config, forecast, maintain
from cdc.pipeline import config as configuration
from cdc.tasks import local_path
from tests.delta.batches import batch, change, commits, sink


@pytest.mark.slow
def test_a_dry_run_reports_and_a_run_does_and_the_job_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    now = int(datetime.now(UTC).timestamp())
    old = now - int(timedelta(days=31).total_seconds())
    batches = [
        [change("insert", key, {"n": 1}, time=old, event=n) for n, key in enumerate("abc", 1)],
        [change("delete", "a", time=old + 1), change("update", "c", {"n": 2}, time=now - 9)],
        [change("delete", "b", time=now - 5)],
    ]
    for number, rows in enumerate(batches):
        until = max(row["cluster_time"] for row in rows).timestamp()
        sink(tmp_path, delete="soft").write_batch(batch(spark, rows, until=int(until)), number)
    config = _configure(tmp_path, {"delete": "soft"})
    log, mirror = tmp_path / "shop/orders/changelog", tmp_path / "shop/orders/mirror"

    def rows() -> dict[str, Any]:
        found = spark.read.format("delta").load(str(mirror)).collect()
        return {row.key: row._deleted for row in found}

    before = commits(log), commits(mirror)
    reported = {each.table: each for each in maintain(spark, config, dry_run=True)}
    assert (commits(log), commits(mirror)) == before
    assert {each.table: each for each in forecast(LocalReader(), config)} == reported
    assert reported[str(mirror)].purged == 1
    assert rows() == {"a": True, "b": True, "c": False}

    files = len(spark.read.format("delta").load(str(log)).inputFiles())
    assert files >= len(batches)
    done = {each.table: each for each in maintain(spark, config)}
    assert rows() == {"b": True, "c": False}
    assert done[str(mirror)].purged == 1
    assert (done[str(log)].rewritten, done[str(log)].added) == (files, 1)
    assert spark.read.format("delta").load(str(log)).count() == 6
    rest = batch(spark, [change("update", "c", {"n": 3}, time=now)], until=now)
    sink(tmp_path, delete="soft").write_batch(rest, len(batches))
    assert spark.read.format("delta").load(str(log)).count() == 7


@pytest.mark.slow
def test_files_that_no_commit_names_are_counted_and_deleted_when_they_are_old(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: files of failed tasks that stay for ever, and those of a batch that is about to be
    committed."""
    keys = {"mirror": ""}
    rows = batch(spark, [change("insert", "a", {}, time=1)], until=1)
    sink(tmp_path, **keys).write_batch(rows, 0)
    log = tmp_path / "shop/orders/changelog"
    [own] = log.glob("cdc-*.parquet")
    old, new = log / "cdc-old.parquet", log / "cdc-new.parquet"
    for each in (old, new):
        each.write_bytes(own.read_bytes())
    ago = (datetime.now(UTC) - timedelta(days=10)).timestamp()
    os.utime(old, (ago, ago))
    os.utime(own, (ago, ago))
    config = _configure(tmp_path, keys)
    [expected] = maintain(spark, config, dry_run=True)
    assert forecast(LocalReader(), config) == [expected]
    assert (expected.vacuumed, old.exists()) == (1, True)
    [done] = maintain(spark, config)
    assert (done.vacuumed, old.exists()) == (1, False)
    assert new.exists()
    assert own.exists()


@pytest.mark.slow
def test_a_killed_repair_is_settled_by_the_next_one_of_its_collection_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a table of several collections, whose other repairs take it for settled."""
    orders, other = Namespace("shop", "orders"), Namespace("shop", "other")
    keys = {"changelog": "logs/{db}/{coll}", "mirror": "mirrors"}
    rows = [change("read", "x", {}, time=9, ns=name) for name in (orders, other)]
    sink(tmp_path, **keys).write_batch(batch(spark, rows, until=9), 0)
    gone = [change("delete", "a", None, time=11)]
    sink(tmp_path, **keys).write_batch(batch(spark, gone, until=12), 1)
    table = Layout.parse(str(tmp_path), keys).table("mirror", orders)
    assert table is not None
    late = batch(spark, [change("read", "a", {}, time=10)], until=10)
    mirror_repair._merge(spark, table, orders, late.where("key = 'a'"), Timestamp(9, 7))

    def held() -> set[tuple[str, str]]:
        return {(row._namespace, row.key) for row in table.target.read(spark).collect()}

    every = {(str(name), "x") for name in (orders, other)}
    assert held() == {*every, (str(orders), "a")}
    asked = list[Timestamp]()

    def changes(after: Timestamp, upto: Timestamp) -> DataFrame:
        asked.append(after)
        return batch(spark, gone, until=12)

    for name in (other, orders, orders):
        settle(spark, table, name, changes)
    assert asked == [Timestamp(9, 7)]


@pytest.mark.slow
def test_unneeded_files_are_listed_without_spark_as_vacuum_lists_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a dry run that counts files of deletion vectors, or of versions that are retained."""
    path, now = tmp_path / "a [b]%20 c", datetime.now(UTC).timestamp()
    target = Target(str(path))
    # Characters that end lines of text, but not of a log, in what a commit states of a file.
    rows = spark.range(8).repartition(2).withColumn("key", F.lit("a\u2028b\u0085c"))
    rows.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(path))
    table = target.delta(spark)
    table.delete("id = 1")
    table.delete("id < 4")
    rows.selectExpr("id + 10 AS id", "key").write.format("delta").mode("append").save(str(path))
    table.delete("id >= 10")
    lost = path / "part-lost.parquet", path / "_change_data/cdc-lost.parquet"
    for each in (*lost, path / "_hidden", path / ".hidden"):
        each.parent.mkdir(exist_ok=True)
        each.write_text("")

    def listed_by_spark() -> set[str]:
        with settings(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
            found = spark.sql(f"VACUUM {target.sql(spark)} RETAIN 0 HOURS DRY RUN").collect()
        paths = [Path(local_path(row.path)) for row in found]
        return {str(each.relative_to(path)) for each in paths if each.is_file()}

    unneeded = set(list_unneeded(target, now + 60))
    assert unneeded == listed_by_spark()
    assert {each.suffix for each in map(Path, unneeded)} == {".bin", ".parquet"}
    assert list_unneeded(target, now - 60) == []
    snapshot = target.snapshot(spark)
    snapshot.deltaLog().checkpoint(snapshot, spark._jvm.scala.Option.empty())
    for commit in (path / "_delta_log").glob("*.json"):
        if commit.name < f"{snapshot.version():020}.json":
            commit.unlink()
    assert set(list_unneeded(target, now + 60)) == unneeded == listed_by_spark()
    for checkpoint in (path / "_delta_log").glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    with pytest.raises(NeedsSpark, match="only Delta reads"):
        list_unneeded(target, now)


@pytest.mark.slow
def test_what_a_quiet_table_says_outlasts_its_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ns = ("it's", "${env:HOME}")
    keys = {"changelog": "", "mirror": "m", "history": ""}
    target = Target(str(tmp_path / "m"))
    rows = [change("read", "a", {}, time=3, ns=ns)]
    begun = batch(spark, rows, until=5, copying={".".join(ns): "x"})
    sink(tmp_path, **keys).write_batch(begun, 0)
    said = newest_commit(spark, target)
    keep(spark, target, table_maintenance.KEEP_AFTER)
    assert newest_commit(spark, target) == said, "what is young is not kept yet"
    monkeypatch.setattr(table_maintenance, "KEEP_AFTER", timedelta(0))
    maintain(spark, _configure(tmp_path, keys))
    assert target.properties(spark)["delta.checkpointInterval"] == "1000"
    target.set_property(spark, "delta.checkpointInterval", "1")
    target.set_property(spark, "user", "1")
    log = tmp_path / "m/_delta_log"
    checkpoint = max(log.glob("*.checkpoint.parquet"))
    for commit in log.glob("*.json"):
        if commit.name < checkpoint.name.replace("checkpoint.parquet", "json"):
            commit.unlink()
    kept = newest_commit(spark, target)
    assert LocalReader().newest_commit(target) == kept
    assert kept
    assert said
    assert kept[1] == said[1]
    assert kept[1].state(Namespace(*ns)).copying == "x"


@pytest.mark.parametrize("hours", ["0", "167.9", "-1"])
def test_a_retention_that_jobs_are_not_safe_with_is_refused(hours: str) -> None:
    required = ["uri=mongodb://h", "collections=a.b", "sink.path=/lake"]
    options = [argument for each in required for argument in ("-o", each)]
    result = CliRunner().invoke(main, [*options, "--retention-hours", hours])
    assert result.exit_code == 2


def _configure(folder: Path, table: dict[str, str]) -> Config:
    given = ["uri=mongodb://h", "collections=shop.orders", f"sink.path={folder}"]
    return configuration.load(None, [*given, *(f"table.{k}={v}" for k, v in table.items())])


def test_a_file_system_that_lists_no_uploads_is_reported_in_one_line(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: a crash after the tables were maintained; silence about what may be left there."""
    path = f"{tmp_path}/t"
    spark.range(1).write.format("delta").save(path)
    assert unfinished_uploads.abort_uploads(spark, Target(path), 168, False) == ()
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    configuration.set("fs.viewfs.mounttable.lake.link./t", f"file:{path}")
    with caplog.at_level("WARNING"):
        for _ in range(2):  # as for two tables
            target = Target("viewfs://lake/t")
            assert unfinished_uploads.abort_uploads(spark, target, 168, False) is None
    [line] = [each.getMessage() for each in caplog.records if "uploads" in each.getMessage()]
    assert line == (
        "unfinished uploads in viewfs://lake/ are left to the store:"
        " Hadoop's file system of viewfs:// does not list them"
    )
