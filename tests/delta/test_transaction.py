"""The transaction by which data files become rows: its contract against the pinned Delta."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from delta.exceptions import ConcurrentTransactionException, MetadataChangedException
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cdc.delta.log import Commit, Target, UnsuitableTable, overwritten_commit, settings
from cdc.delta.log import transaction as module
from cdc.delta.log.conflict import Outdated
from cdc.delta.log.transaction import (
    NewTable,
    TableExists,
    Transaction,
    commit_files,
    create_table,
)
from cdc.model import Timestamp
from cdc.model.encoding import encoder
from cdc.tasks import DataFile, DataFiles, Part, Storage
from tests.delta import delta_rs

COLUMNS = "key string, cluster_time timestamp, count int, after variant, txn struct<number: bigint>"
CLUSTER = ("cluster_time", "key")


@pytest.fixture(scope="module")
def schema(spark: SparkSession) -> StructType:
    return spark.createDataFrame([], COLUMNS).schema


class Table:
    """A table at a path, filled by `commit_files` alone."""

    def __init__(self, spark: SparkSession, schema: StructType, path: Path) -> None:
        self.spark, self.schema, self.path = spark, schema, path
        self.target = Target(str(path))
        self.new = NewTable(schema, {"mongodb-cdc.pipeline": "one"}, CLUSTER)

    def written(self, keys: Sequence[str], second: int = 0) -> list[DataFile]:
        encode = encoder("variant")
        documents = [encode(bson.encode({"_id": key})) for key in keys]
        rows = [
            {
                "key": key,
                "cluster_time": datetime.fromtimestamp(second, UTC),
                "count": number,
                "after": dict(zip(("value", "metadata"), document, strict=True)),
                "txn": {"number": number} if number % 2 else None,
            }
            for number, (key, document) in enumerate(zip(keys, documents, strict=True))
        ]
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        files = DataFiles(2**27, Storage())
        files.add(Part(self.target.address, pa.RecordBatch.from_pylist(rows, schema=arrow)))
        return files.finish()

    def commit(
        self,
        batch: int,
        files: list[DataFile],
        *,
        first: bool = False,
        newest: tuple[int, int] | None = None,
    ) -> bool:
        commit = Commit(batch, Timestamp(batch + 1, 1))
        new = self.new if first else None
        own = Transaction("app/log", batch)
        given = (self.spark, self.target, files, own, commit, self.schema, new)
        return commit_files(*given, newest=newest) is not None

    def keys(self) -> list[str]:
        """By an engine without Spark, which reads in a tenth of the time."""
        return sorted(delta_rs.by_key(self.path, "key"))

    def keys_for_spark(self, where: str = "true") -> list[str]:
        rows = self.spark.read.format("delta").load(str(self.path)).where(where)
        return sorted(row.key for row in rows.select("key").collect())

    def log(self, version: int) -> list[dict[str, Any]]:
        file = self.path / f"_delta_log/{version:020}.json"
        return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def table(spark: SparkSession, schema: StructType, tmp_path: Path) -> Table:
    return Table(spark, schema, tmp_path / "log")


def test_a_table_is_created_by_the_commit_of_its_first_files(table: Table) -> None:
    """Guards: a table without rows, or a folder with files and no table, after a crash."""
    files = table.written(["a", "b"])
    assert table.commit(0, files, first=True)
    assert table.keys() == ["a", "b"]
    assert len(list((table.path / "_delta_log").glob("*.json"))) == 1
    detail = DeltaTable.forPath(table.spark, str(table.path)).detail().first()
    assert detail is not None
    assert detail.clusteringColumns == [*CLUSTER]
    assert detail.properties["mongodb-cdc.pipeline"] == "one"
    with pytest.raises(TableExists):
        table.commit(1, table.written(["c"]), first=True)
    assert table.keys() == ["a", "b"]


def test_a_commit_starts_no_spark_job_in_any_time_zone(spark: SparkSession, table: Table) -> None:
    """Guards: Delta's list of all files beside each commit, which takes ten times as long."""
    zone = "spark.sql.session.timeZone"
    files = [table.written([key]) for key in ("a", "b")]
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.nextJobId()
    with settings(spark, {zone: "Europe/Berlin"}):
        table.commit(0, files[0], first=True)
        table.commit(1, files[1], newest=(0, 0))
    assert scheduler.nextJobId() == before
    assert table.keys() == ["a", "b"]


def test_a_commit_is_a_blind_append_that_says_what_it_holds(table: Table) -> None:
    """Guards: rows without their statement, and figures of a commit that nobody could read."""
    table.commit(0, table.written(["a"]), first=True)
    files = table.written(["b", "c"])
    table.commit(7, files)
    newest = DeltaTable.forPath(table.spark, str(table.path)).history(1).first()
    assert newest is not None
    assert newest.operation == "STREAMING UPDATE"
    assert newest.isBlindAppend is True
    assert Commit.parse(newest.userMetadata) == Commit(7, Timestamp(8, 1))
    assert newest.operationMetrics["numOutputRows"] == "2"
    assert newest.operationMetrics["numOutputBytes"] == str(files[0].size)


def test_a_commit_that_another_process_overwrites_at_the_same_moment_is_made_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a batch that is gone. On a local disk two processes can make one version: Delta looks
    whether the file is there, and then renames its own to it.

    The other one comes at the last moment, when Delta believes in its own commit.
    """
    table.commit(0, table.written(["a"]), first=True)
    about = next(each for each in table.log(0) if "commitInfo" in each)
    about["commitInfo"]["txnId"] = "another"
    [file] = table.written(["b"])
    lines = "".join(json.dumps(each) + "\n" for each in (about, module.added(file)))
    aside, version = table.path / "aside", table.path / f"_delta_log/{1:020}.json"
    aside.write_text(lines)

    def overwrite(*arguments: Any) -> None:
        if aside.exists():
            table.target.snapshot(table.spark).setTransactions()
            moment = version.stat().st_mtime_ns
            os.utime(aside, ns=(moment, moment))
            aside.replace(version)
        overwritten_commit.require_found(*arguments)

    monkeypatch.setattr(module, "require_found", overwrite)
    files = table.written(["c"])
    with pytest.raises(Outdated):
        table.commit(1, files)
    # It says which transactions the version contains.
    assert not version.with_suffix(".crc").exists()
    assert table.commit(1, files)
    assert table.keys() == ["a", "b", "c"]
    assert {"txn"} <= {name for each in table.log(2) for name in each}


def test_a_table_that_another_process_creates_at_the_same_moment_belongs_to_that_one(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: two pipelines that both take a table on a local disk for theirs."""

    def overwrite(*arguments: Any) -> None:
        [about] = [each for each in table.log(0) if "commitInfo" in each]
        about["commitInfo"]["txnId"] = "another"
        (table.path / f"_delta_log/{0:020}.json").write_text(json.dumps(about))
        overwritten_commit.require_found(*arguments)

    monkeypatch.setattr(module, "require_found", overwrite)
    with pytest.raises(TableExists):
        create_table(table.spark, table.target, table.new)


def test_a_batch_is_committed_once_also_by_a_process_that_never_saw_the_table(
    table: Table,
) -> None:
    """Guards: a replay after a crash behind the commit, which would double the batch."""
    table.commit(0, table.written(["a"]), first=True)
    assert table.commit(1, table.written(["b"]))
    table.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert not table.commit(1, table.written(["b"]))
    assert not table.commit(0, table.written(["a"]))
    assert table.keys() == ["a", "b"]


def test_two_writers_of_one_batch_at_once_commit_it_once(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: `txn` is a conflict only for an id that the transaction asked for."""
    table.commit(0, table.written(["a"]), first=True)
    entered, may_go = threading.Event(), threading.Event()
    original = module._Delta.commit

    def late(*args: Any) -> None:
        entered.set()
        assert may_go.wait(60)
        original(*args)

    errors: list[BaseException] = []

    def write() -> None:
        try:
            table.commit(1, table.written(["b"]))
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(module._Delta, "commit", late)
    other = threading.Thread(target=write)
    other.start()
    assert entered.wait(60)
    monkeypatch.setattr(module._Delta, "commit", original)
    assert table.commit(1, table.written(["b"]))
    may_go.set()
    other.join()
    [error] = errors
    assert isinstance(error, ConcurrentTransactionException)
    assert table.keys() == ["a", "b"]


def test_a_writer_that_knows_the_last_batch_detects_another_one_all_the_same(table: Table) -> None:
    """Guards: a batch committed twice, because nobody asked Delta for the last one."""
    table.commit(0, table.written(["a"]), first=True)
    files, commit = table.written(["b"]), Commit(1, Timestamp(2, 1))
    own = Transaction("app/log", 1)
    given = (table.spark, table.target, files, own, commit, table.schema, None)
    assert commit_files(*given, newest=(0, 1)) is None
    other = table.written(["c"])
    with pytest.raises(ConcurrentTransactionException):
        commit_files(*given, newest=(0, 0), before_commit=lambda: table.commit(1, other))
    # What it knows is out of date by now.
    assert commit_files(*given, newest=(0, 0)) is None
    assert table.keys() == ["a", "c"]


def test_a_schema_that_changes_meanwhile_stops_the_commit(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: files of an old schema in a table of a new one."""
    table.commit(0, table.written(["a"]), first=True)
    original = module._Delta.commit

    def late(*args: Any) -> None:
        table.spark.sql(f"ALTER TABLE delta.`{table.path}` ADD COLUMN mine string")
        original(*args)

    monkeypatch.setattr(module._Delta, "commit", late)
    with pytest.raises(MetadataChangedException):
        table.commit(1, table.written(["b"]))
    monkeypatch.setattr(module._Delta, "commit", original)
    assert table.commit(1, table.written(["b"]))
    assert table.keys() == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ADD CONSTRAINT short CHECK (count < 100)",
        "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    ],
)
def test_a_table_that_demands_more_of_its_files_is_refused(table: Table, change: str) -> None:
    """Guards: rows that a reader could not find, or that break the table's own rule."""
    table.commit(0, table.written(["a"]), first=True)
    table.spark.sql(f"ALTER TABLE delta.`{table.path}` {change}")
    with pytest.raises(UnsuitableTable):
        table.commit(1, table.written(["b"]))
    assert table.commit(1, []), "a commit without files demands nothing"
    assert table.keys() == ["a"]


@pytest.mark.parametrize(
    "form",
    [
        "(key string, day int) USING delta PARTITIONED BY (day)",
        "(key string, day int GENERATED ALWAYS AS (length(key))) USING delta",
        "(key string NOT NULL) USING delta",
    ],
)
def test_a_table_of_a_form_that_tasks_do_not_write_is_refused(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` {form}")
    schema = spark.createDataFrame([], "key string").schema
    file = DataFile(f"{tmp_path}/t", "a.parquet", 1, 1, "{}", None)
    target, own, commit = Target(f"{tmp_path}/t"), Transaction("app", 0), Commit(0, Timestamp(1, 1))
    with pytest.raises(UnsuitableTable):
        commit_files(spark, target, [file], own, commit, schema, None)


def test_a_reader_sees_all_files_of_a_commit_or_none(table: Table) -> None:
    """Guards: half of a batch, in what is read while it is committed."""
    table.commit(0, [*table.written("ab"), *table.written("cd")], first=True)
    found, has_ended = list[int](), threading.Event()

    def read() -> None:
        while not has_ended.is_set():
            found.append(len(table.keys_for_spark()))

    reader = threading.Thread(target=read)
    reader.start()
    for batch in range(1, 6):
        table.commit(batch, [*table.written("ab"), *table.written("cd")])
    has_ended.set()
    reader.join()
    assert found == sorted(found)
    assert {count % 4 for count in found} == {0}


def test_a_table_without_one_of_the_columns_is_refused(table: Table, spark: SparkSession) -> None:
    table.commit(0, table.written(["a"]), first=True)
    files = table.written(["b"])
    table.schema = spark.createDataFrame([], f"{COLUMNS}, more string").schema
    with pytest.raises(UnsuitableTable, match="more string"):
        table.commit(1, files)


def test_files_whose_bounds_exclude_a_value_are_not_read(table: Table) -> None:
    table.commit(0, table.written(["a", "b"]), first=True)
    table.commit(1, table.written(["y", "z"], second=1000))
    rows = table.spark.read.format("delta").load(str(table.path))
    for where in ("key = 'z'", "cluster_time > timestamp_seconds(500)"):
        assert len(rows.where(where).inputFiles()) == 1
    assert table.keys_for_spark("key = 'z'") == ["z"]


@pytest.mark.slow
def test_the_table_is_maintained_changed_and_read_like_any_other(table: Table) -> None:
    """Guards: files that OPTIMIZE, deletion vectors, VACUUM or another engine trip over."""
    for batch in range(4):
        table.commit(batch, table.written([f"k{batch}", f"l{batch}"]), first=batch == 0)
    path = f"delta.`{table.path}`"
    spark = table.spark
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {path} WHERE key = 'k1'")
    assert len(table.keys()) == 7
    spark.sql(f"OPTIMIZE {path}").collect()
    with_setting = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(with_setting, "false")
    try:
        spark.sql(f"VACUUM {path} RETAIN 0 HOURS").collect()
    finally:
        spark.conf.unset(with_setting)
    table.commit(4, table.written(["m"]))
    assert table.keys_for_spark("try_variant_get(after, '$._id', 'string') = 'm'") == ["m"]
    old = spark.read.format("delta").option("versionAsOf", 0)
    assert old.load(str(table.path)).schema == table.schema
    assert table.keys() == table.keys_for_spark()
    assert len(table.keys()) == 8


def test_a_file_that_no_commit_names_is_never_seen(table: Table) -> None:
    table.commit(0, table.written(["a"]), first=True)
    [orphan] = table.written(["b"])
    assert Path(orphan.path).exists()
    assert table.keys_for_spark() == ["a"]
    table.commit(1, [orphan])
    assert table.keys_for_spark() == ["a", "b"]
