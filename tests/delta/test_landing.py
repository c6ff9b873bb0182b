"""Batches whose rows tasks have written to data files: the same summary, rows and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from delta.exceptions import ConcurrentTransactionException
from delta.tables import DeltaTable
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.followers import mirror
from cdc.delta.landing import Destinations, LandedBatch, read_summary
from cdc.delta.log import Commit, Target, transaction
from cdc.delta.log.snapshot import delta_log
from cdc.delta.sink import Sink
from cdc.delta.tables import Layout, writes
from cdc.errors import DataFileLost
from cdc.model import Namespace
from cdc.tasks import MANIFEST, Part, Storage, land
from tests.delta import delta_rs
from tests.delta.batches import batch, change, commits, content, landed_by_tasks, ops, sink
from tests.delta.test_dead_letters import BROKEN, images
from tests.delta.test_followers import caught_up, lagging
from tests.slow import slow_but

LOG, MIRROR = "shop/orders/changelog", "shop/orders/mirror"
HISTORY = "{db}/{coll}/history"
ORDERS, OTHER = ("shop", "orders"), ("shop", "other")


def data_files(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("*.parquet")}


def rename(time: int, ns: tuple[str, str], to: tuple[str, str]) -> dict[str, Any]:
    description = {"to": {"db": to[0], "coll": to[1]}}
    return change("rename", None, time=time, ns=ns, description=description)


def of_all_kinds() -> list[dict[str, Any]]:
    across = {"lsid": "ab", "number": 7, "shard": "s1"}
    late, later = ({"exactFrom": text} for text in ("20:9", "20:10"))
    wall = datetime.fromtimestamp(12.25, UTC)
    return [
        *(change("read", key, {"n": 1}, time=9) for key in "fab"),
        change("read", "g", {"n": 1}, time=9, description=late),
        change("read", "h", {"n": 1}, time=9, description=later),
        {**change("update", "c", {"n": 2}, time=12), "wall_time": wall},
        {**change("delete", "d", time=13, ns=OTHER), "txn": across},
        {**change("delete", "e", time=13, ns=OTHER), "txn": {**across, "shard": None}},
        {**change("insert", "e", None, time=14, ns=OTHER), "exact": False},
        change("insert", "like", {"$unmappable": "x", "$bson": "y"}, time=15, ns=OTHER),
        change("insert", "bad", {}, time=15, event=2, ns=OTHER),
        change("create", None, time=16, ns=("shop", "new")),
        change("modify", None, time=16, event=2, description={"index": 1}),
        change("drop", None, time=17, ns=OTHER),
        change("dropDatabase", None, time=18, ns=("gone", None)),
        rename(19, ORDERS, OTHER),
        change("resync", None, time=21, ns=(None, None)),
        change("void", None, time=21, ns=("shop", "void")),
        change("gap", None, time=22, ns=(None, None), description={"from": "1:1", "to": "22:1"}),
    ]


@pytest.mark.parametrize("document", ["variant", "string", "binary"])
def test_the_summary_of_tasks_is_that_which_spark_counts(
    spark: SparkSession, tmp_path: Path, document: str
) -> None:
    """Guards: two summaries of one batch, of which a table gets the wrong one."""
    rows = of_all_kinds()
    frame = batch(spark, rows, until=23, copied=["shop.orders"], document=document)
    if document != "binary":
        [bad] = [row["position"] for row in rows if row["key"] == "bad"]
        frame = images(
            frame, "variant" if document == "variant" else "json", {(bad, "after"): BROKEN}
        )
    layout = Layout.parse(str(tmp_path), {})
    found = LandedBatch.collect(
        landed_by_tasks(frame, Destinations.discover(spark, layout, True)), 0, Storage()
    )
    summary, expected = found.summary(), read_summary(frame)
    assert summary is not None
    assert expected is not None
    for name in expected.__dataclass_fields__:
        mine, theirs = getattr(summary, name), getattr(expected, name)
        if name in ("namespace_events", "groups"):
            mine, theirs = sorted(map(repr, mine)), sorted(map(repr, theirs))
        assert mine == theirs, name
    assert sum(summary.unmappable.values()) == (0 if document == "binary" else 1)


def test_each_changelog_gets_its_rows_and_those_that_concern_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: the rule by which the driver writes rows of a manifest, held to Spark's own."""
    first = [change("insert", "a", {}, time=1, ns=ns) for ns in (ORDERS, OTHER, ("gone", "x"))]
    found = []
    for by_spark in (False, True):
        base = tmp_path / str(by_spark)
        own = sink(base, with_mirror=False, by_spark=by_spark)
        own.write_batch(batch(spark, first, until=2), 0)
        own.write_batch(batch(spark, of_all_kinds(), until=23), 1)
        logs = sorted(base.rglob("changelog"))
        found.append({str(log.relative_to(base)): ops(log) for log in logs})
    assert found[0] == found[1]
    assert {"shop/orders/changelog", "gone/x/changelog"} < found[0].keys()
    assert ("dropDatabase", None) in found[0]["gone/x/changelog"]


def test_a_batch_that_is_replayed_adds_no_row_and_leaves_no_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [change("insert", "a", {"n": 1}, time=1), change("drop", None, time=2)]
    sink(tmp_path).write_batch(batch(spark, rows, until=3), 0)
    before = data_files(tmp_path / LOG)
    report = sink(tmp_path).write_batch(batch(spark, rows, until=3), 0)
    assert report.counts[Namespace(*ORDERS)] == {"insert": 1, "drop": 1}
    assert ops(tmp_path / LOG) == [("insert", "a"), ("drop", None)]
    assert data_files(tmp_path / LOG) == before


def test_the_batch_after_a_repeated_one_does_not_look_through_the_whole_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: seconds after each kill, the more the longer the log is."""
    steps = [
        batch(spark, [change("insert", key, {}, time=time)], until=time)
        for time, key in enumerate("abc", 1)
    ]
    own = sink(tmp_path, with_mirror=False)
    for number in range(2):
        own.write_batch(steps[number], number)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # as in a new process
    own = sink(tmp_path, with_mirror=False)
    own.write_batch(steps[1], 1)
    known = delta_log(spark, str(tmp_path / LOG)).unsafeVolatileSnapshot()
    own.write_batch(steps[2], 2)
    assert not known.stateReconstructionTriggered()
    assert ops(tmp_path / LOG) == [("insert", key) for key in "abc"]


def test_the_rows_of_a_batch_are_read_and_written_by_one_run_of_each_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a second action on the manifest, which reads MongoDB and writes all files again; a
    row of an attempt that failed, or that another one overtook."""
    (tmp_path / "runs").mkdir()
    base, runs = tmp_path / "lake", tmp_path / "runs"
    layout = Layout.parse(str(base), {})
    text = Destinations.discover(spark, layout, True).text()

    def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (runs / f"{context.partitionId()}-{uuid4()}").touch()
        divide, given = partial(Destinations.parse(text).divide, 0), list(rows)
        for last in (False, True):  # as the driver gets the manifest of one attempt
            manifest = land(given, divide, 2**27, Storage()).to_arrow(0, context.partitionId())
            if last:
                yield manifest

    rows = [change("read", key, {"n": 1}, time=1) for key in "abcd"]
    frame = batch(spark, rows, until=1)
    own = Sink("one", layout, clock=lambda: None, rows=frame.schema)
    own.write_batch(frame.mapInArrow(task, MANIFEST), 0)
    partitions = [each.name.partition("-")[0] for each in runs.iterdir()]
    assert len(partitions) == len(set(partitions)) == frame.rdd.getNumPartitions()
    assert ops(base / LOG) == [("read", key) for key in "abcd"]
    assert content(base / MIRROR) == {key: {"n": 1} for key in "abcd"}
    for table in (LOG, MIRROR):
        seen = spark.read.format("delta").load(str(base / table)).inputFiles()
        assert len(data_files(base / table)) == 2 * len(seen)


def test_the_files_of_a_commit_that_failed_after_it_was_made_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a clean-up that takes the rows of a commit whose answer was lost."""
    original = writes.commit_files

    def lost(*args: Any, **named: Any) -> bool:
        original(*args, **named)
        raise ConnectionError("the answer was lost")

    rows = [change("insert", "a", {"n": 1}, time=1), change("drop", None, time=2)]
    monkeypatch.setattr(writes, "commit_files", lost)
    with pytest.raises(ConnectionError):
        sink(tmp_path).write_batch(batch(spark, rows, until=3), 0)
    monkeypatch.setattr(writes, "commit_files", original)
    assert ops(tmp_path / LOG) == [("insert", "a"), ("drop", None)]
    sink(tmp_path).write_batch(batch(spark, rows, until=3), 0)
    assert ops(tmp_path / LOG) == [("insert", "a"), ("drop", None)]


def test_the_files_of_a_commit_that_is_found_made_by_its_repetition_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a commit whose answer is a conflict with itself, as a retransmitted rename gives."""
    original = transaction._Delta.commit

    def conflicting(*args: Any) -> None:
        original(*args)
        raise ConcurrentTransactionException("with itself")

    own = sink(tmp_path)
    own.write_batch(batch(spark, [change("read", "a", {"n": 1}, time=1)], until=1), 0)
    monkeypatch.setattr(transaction._Delta, "commit", conflicting)
    rows = [change("read", "b", {"n": 2}, time=2), change("modify", None, time=2, event=2)]
    own.write_batch(batch(spark, rows, until=2), 1)
    assert content(tmp_path / MIRROR) == {"a": {"n": 1}, "b": {"n": 2}}
    assert ops(tmp_path / LOG) == [("read", "a"), ("read", "b"), ("modify", None)]


@pytest.mark.parametrize("scheme", slow_but([], ["", "file:", "file://"], soak=["", "file:"]))
def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    """Guards: tasks, Delta and Spark's reader that each take a path for another one."""
    name = "a [1] {b} c* 100%25 #x?y é"
    base: Any = f"{scheme}{tmp_path}/{name}"
    sink(base).write_batch(batch(spark, [change("read", "a", {"n": 1}, time=1)], until=1), 0)
    # One of them with a history: the others merge into the same kind of path for less.
    others: dict[str, Any] = {"history": HISTORY} if scheme == "file:" else {"by_spark": True}
    own = sink(base, **others)
    own.write_batch(batch(spark, [change("update", "a", {"n": 2}, time=2)], until=2), 1)
    last = batch(spark, [change("update", "a", {"n": 3}, time=3)], until=3)
    sink(base).write_batch(last, 2)
    # delta-rs takes a folder with %25 in its name for another one.
    tables = [tmp_path / name / MIRROR]
    tables += [tmp_path / name / "shop/orders/history"] if "history" in others else []
    expected = ['{"n":3}', '{"n":2}']
    for table, text in zip(tables, expected, strict=False):
        rows = spark.read.format("delta").load(str(table))
        images = rows.select(F.to_json("document").alias("text")).collect()
        assert [row.text for row in images] == [text]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_file_that_is_not_where_readers_look_is_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a folder of another machine, and a VACUUM of files that wait for their commit."""
    original = writes.commit_files

    def without_file(*args: Any, **named: Any) -> bool:
        Path(args[2][0].path).unlink()
        return original(*args, **named)

    monkeypatch.setattr(writes, "commit_files", without_file)
    with pytest.raises(DataFileLost, match="there is none"):
        sink(tmp_path).write_batch(batch(spark, [change("read", "a", {}, time=1)], until=1), 0)
    monkeypatch.setattr(writes, "commit_files", original)
    sink(tmp_path).write_batch(batch(spark, [change("read", "a", {}, time=1)], until=1), 0)
    assert ops(tmp_path / LOG) == [("read", "a")]


@pytest.mark.slow
def test_settings_that_give_new_tables_more_properties_lose_no_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: physical names that only the table knows: rows of nothing but nulls."""
    setting = "spark.databricks.delta.properties.defaults.columnMapping.mode"
    spark.conf.set(setting, "name")
    try:
        own = sink(tmp_path)
        own.write_batch(batch(spark, [change("read", "a", {"n": 1}, time=1)], until=1), 0)
        own.write_batch(batch(spark, [change("read", "b", {"n": 1}, time=2)], until=2), 1)
    finally:
        spark.conf.unset(setting)
    assert ops(tmp_path / LOG) == [("read", "a"), ("read", "b")]
    assert content(tmp_path / MIRROR) == {"a": {"n": 1}, "b": {"n": 1}}


@pytest.mark.slow
def test_a_copy_made_again_into_a_mirror_that_is_not_there_makes_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: the files of the copy lie in the folder when the table is created for a MERGE."""
    rows = [change("resync", None, time=1), change("read", "a", {"n": 1}, time=1, event=2)]
    sink(tmp_path).write_batch(batch(spark, rows, until=1), 0)
    assert content(tmp_path / MIRROR) == {"a": {"n": 1}}
    # What a run leaves that is killed before its first commit, and goes on otherwise.
    left = tmp_path / "shop/other/mirror"
    left.mkdir(parents=True)
    (left / "cdc-0.parquet").write_bytes(b"")
    rows = [change("read", "a", {"n": 1}, time=1, ns=OTHER)]
    sink(tmp_path, by_spark=True).write_batch(batch(spark, rows, until=2), 1)
    assert content(left) == {"a": {"n": 1}}


@pytest.mark.slow
def test_a_copy_into_a_mirror_of_other_columns_loses_no_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a column that is configured while the copy goes on: its values would be nowhere."""
    rows = [change("read", "a", {"n": 1, "op": "delete"}, time=1)]
    options = {"history": "{db}/{coll}/history"}
    sink(tmp_path, columns={"n": "int"}, **options).write_batch(batch(spark, rows, until=1), 0)
    rows = [change("read", "b", {"n": 2, "op": "delete"}, time=2)]
    own = sink(tmp_path, columns={"n": "int", "op": "string"}, **options)
    own.write_batch(batch(spark, rows, until=2), 1)
    found = delta_rs.read(tmp_path / MIRROR, "SELECT key, n, op FROM t ORDER BY key")
    assert [tuple(row.values()) for row in found] == [("a", 1, None), ("b", 2, "delete")]
    assert set(delta_rs.by_key(tmp_path / "shop/orders/history", "key")) == {"a", "b"}


def test_columns_that_are_called_like_those_of_changes_are_no_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: rows of a mirror's files that a history takes for changes."""
    document = {"op": "delete", "db": "shop", "coll": "orders", "position": 7}
    columns = {"op": "string", "db": "string", "coll": "string", "position": "int"}
    own = sink(tmp_path, columns=columns, history="{db}/{coll}/history")
    own.write_batch(batch(spark, [change("read", "a", document, time=1)], until=1), 0)
    query = 'SELECT key, position, "__END_AT" AS until FROM t'
    [row] = delta_rs.read(tmp_path / "shop/orders/history", query)
    assert row == {"key": "a", "position": 7, "until": None}


@pytest.mark.slow
def test_a_table_that_demands_more_than_a_task_can_write_gets_its_rows_by_spark(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards: files without the physical names of column mapping: rows of nothing but nulls."""
    own = sink(tmp_path)
    own.write_batch(batch(spark, [change("insert", "a", {"n": 1}, time=1)], until=2), 0)
    spark.sql(
        f"ALTER TABLE delta.`{tmp_path / LOG}` SET TBLPROPERTIES"
        " ('delta.columnMapping.mode' = 'name')"
    )
    before = data_files(tmp_path / LOG)
    rows = [change("insert", "b", {"n": 2}, time=3), change("drop", None, time=4)]
    own.write_batch(batch(spark, rows, until=5), 1)
    assert ops(tmp_path / LOG) == [("insert", "a"), ("insert", "b"), ("drop", None)]
    assert "delta.columnMapping.mode = name" in caplog.text
    assert not [each for each in data_files(tmp_path / LOG) - before if each.startswith("cdc-")]


def test_a_folder_with_files_of_somebody_else_gets_no_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / LOG).mkdir(parents=True)
    (tmp_path / LOG / "mine.csv").write_text("1")
    rows = batch(spark, [change("insert", "a", {"n": 1}, time=1)], until=2)
    layout = Layout.parse(str(tmp_path), {})
    own = Sink("one", layout, clock=lambda: None, rows=rows.schema)
    with pytest.raises(PySparkException, match="holds files, and no Delta table"):
        own.write_batch(landed_by_tasks(rows, Destinations.discover(spark, layout, True)), 0)
    assert [each.name for each in (tmp_path / LOG).iterdir()] == ["mine.csv"]


def test_tasks_write_where_a_table_of_an_earlier_version_lies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a second table beside the one whose folder has the former spelling of a name."""
    layout = Layout.parse(str(tmp_path), {})
    name = Namespace("shop", "a b")
    table = layout.table("changelog", name)
    assert table is not None
    assert Destinations.discover(spark, layout, True).folder(name) == str(
        tmp_path / "shop/a!20b/changelog"
    )
    former = tmp_path / "shop/a%20b/changelog"
    spark.range(1).write.format("delta").save(str(former))
    found = Destinations.parse(Destinations.discover(spark, layout, True).text())
    assert found.folder(name) == str(former)
    assert found.folder(Namespace("shop", "c d")) == str(tmp_path / "shop/c!20d/changelog")


def test_each_collection_has_the_folder_that_the_layout_gives_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a task that reads the rule from its text, beside a driver that has the rule."""
    overrides = [
        {"match": "shop.one", "changelog": "_one"},
        {"match": "shop.none", "changelog": "", "mirror": ""},
        {"match": "shop.alone", "changelog": ""},
        {"match": "shop.past", "changelog": "", "mirror": "", "history": "_past"},
        {"match": "eu.*", "changelog": "_all/{db}"},
    ]
    layout = Layout.parse(str(tmp_path), {}, overrides)
    found = Destinations.parse(Destinations.discover(spark, layout, True).text())
    kinds = {"shop.alone": "mirror", "shop.past": "history"}
    for text in ("shop.one", "shop.none", "eu.a", "eu.b", "shop.x/../y", "us.ä", *kinds):
        name = Namespace.parse(text)
        table = layout.table(kinds.get(text, "changelog"), name)
        assert found.folder(name) == (table and table.target.address)


def test_a_mirror_gets_copies_and_changes_without_a_merge(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: two rows of one key, and a change that is applied to an image it is older than."""
    own = sink(tmp_path)
    first = [change("read", key, {"n": 1}, time=1) for key in "ab"]
    own.write_batch(batch(spark, first, until=1, copying={"shop.orders": {"below": "c"}}), 0)
    second = [change("read", key, {"n": 2}, time=2) for key in "cd"]
    own.write_batch(batch(spark, second, until=2, copying={"shop.orders": {"below": "e"}}), 1)
    # A copy that is made again without anything that empties the mirror, and changes of it.
    third = [
        *(change("read", key, {"n": 3}, time=3) for key in "cde"),
        change("update", "a", {"n": 3}, time=3),
        change("delete", "b", time=3),
        change("delete", "x", time=3),
    ]
    own.write_batch(batch(spark, third, until=3), 2)
    expected = {key: {"n": 3} for key in "acde"}
    assert content(tmp_path / MIRROR) == expected
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", *["STREAMING UPDATE"] * 3]
    # All rows of both copies are gone from their files: the files are no part of the table.
    assert len(DeltaTable.forPath(spark, str(tmp_path / MIRROR)).toDF().inputFiles()) == 1
    sink(tmp_path).write_batch(batch(spark, third, until=3), 2)
    assert content(tmp_path / MIRROR) == expected


def copying_batches(spark: SparkSession) -> list[DataFrame]:
    """A copy in three batches, of which the last two change what was copied before them."""
    begun = [change("read", key, {"n": 1}, time=1) for key in "abc"]
    going_on = [
        *(change("read", key, {"n": 2}, time=12) for key in "de"),
        change("update", "a", {"n": 2}, time=11),
        change("delete", "b", time=11, event=2),
    ]
    end = [
        change("read", "f", {"n": 3}, time=22),
        change("delete", "d", time=21),
        change("insert", "b", {"n": 3}, time=21, event=2),
    ]
    return [
        batch(spark, begun, until=1, copying={"shop.orders": {"below": "d"}}),
        batch(spark, going_on, until=12, copying={"shop.orders": {"below": "f"}}),
        batch(spark, end, until=22, copied=["shop.orders"]),
    ]


# The mirror after each batch.
STATES: list[tuple[dict[str, int], Any]] = [
    ({"a": 1, "b": 1, "c": 1}, {"below": "d"}),
    ({"a": 2, "c": 1, "d": 2, "e": 2}, {"below": "f"}),
    ({"a": 2, "b": 3, "c": 1, "e": 2, "f": 3}, None),
]


def state(spark: SparkSession, base: Path) -> tuple[dict[str, int], Any]:
    stated = mirror.state(spark, Target(str(base / MIRROR)), Namespace(*ORDERS))
    assert stated is not None
    found = {key: document["n"] for key, document in content(base / MIRROR).items()}
    return found, stated.copying


@pytest.mark.parametrize("is_killed", slow_but([True], [True, False]))
@pytest.mark.parametrize("loses", ["the commit", "the answer"])
def test_a_copy_among_changes_reaches_its_mirror_in_one_commit_whatever_is_lost(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loses: str,
    is_killed: bool,
) -> None:
    """Guards: documents that are copied twice or never, a deleted one that comes back, and files
    that are removed although a commit may name them."""
    steps = copying_batches(spark)
    own = lagging(tmp_path, 0, steps[0])
    own._followers.apply(spark)
    assert state(spark, tmp_path) == STATES[0]
    original = writes.commit_files

    def commits_files(*args: Any, **named: Any) -> None:
        if loses == "the answer":
            original(*args, **named)
        raise RuntimeError("the answer was lost")

    own = lagging(tmp_path, 1, steps[1])
    monkeypatch.setattr(writes, "commit_files", commits_files)
    with pytest.raises(RuntimeError):
        own._followers.apply(spark)
    monkeypatch.setattr(writes, "commit_files", original)
    assert state(spark, tmp_path) == STATES[loses == "the answer"]
    if is_killed:
        caught_up(spark, tmp_path, 2)
    else:
        own._followers.apply(spark)
    assert state(spark, tmp_path) == STATES[1]
    lagging(tmp_path, 2, steps[2])._followers.apply(spark)
    assert state(spark, tmp_path) == STATES[2]
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", *["STREAMING UPDATE"] * 3]


def test_copies_and_the_changes_after_them_are_applied_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a change of a document whose copy is in a file of the same commit."""
    first, *later = copying_batches(spark)
    own = lagging(tmp_path, 0, first)
    for number, step in enumerate(later, 1):
        own.write_batch(step, number)
    own._followers.apply(spark)
    assert state(spark, tmp_path) == STATES[2]
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", "STREAMING UPDATE"]


def test_a_document_copied_by_two_batches_is_in_its_mirror_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: two files of one commit that both contain a key."""
    steps = [
        batch(spark, [change("read", key, {"n": n}, time=n) for key in "ab"], until=n)
        for n in (1, 2)
    ]
    own = lagging(tmp_path, 0, steps[0])
    own.write_batch(steps[1], 1)
    own._followers.apply(spark)
    assert content(tmp_path / MIRROR) == {"a": {"n": 2}, "b": {"n": 2}}
    assert commits(tmp_path / MIRROR) == ["CREATE TABLE", "STREAMING UPDATE"]


def test_a_commit_of_the_release_before_that_lacks_its_copy_is_of_the_batch_before() -> None:
    """Guards: the half of a batch that a killed run of that release applied, taken for all of it:
    its copied documents would never come."""
    fields = {"watermark": "1:1", "batch": 6, "step": "changes"}
    found = Commit.parse(json.dumps(fields))
    assert found is not None
    assert found.batch == 6


def test_a_copy_that_is_replayed_is_in_its_mirror_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [change("read", key, {"n": 1}, time=1) for key in "ab"]
    for _ in range(2):
        sink(tmp_path).write_batch(batch(spark, rows, until=1), 0)
    assert content(tmp_path / MIRROR) == {"a": {"n": 1}, "b": {"n": 1}}
    assert len(data_files(tmp_path / MIRROR)) == len(data_files(tmp_path / LOG))


def test_a_row_that_comes_between_the_look_and_the_commit_stops_the_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: a backfill that writes a key of the copy while the copy is about to be added."""
    own = sink(tmp_path)
    own.write_batch(batch(spark, [change("read", "a", {"n": 1}, time=1)], until=1), 0)
    original, attempts = transaction._Delta.commit, []

    def late(*args: Any) -> Any:
        if args[1].readVersion() >= 0 and "mirror" in args[4].name:
            attempts.append(args)
            if len(attempts) == 1:
                table = spark.read.format("delta").load(str(tmp_path / MIRROR))
                row = table.limit(1).withColumn("key", F.lit("b"))
                row.write.format("delta").mode("append").save(str(tmp_path / MIRROR))
        return original(*args)

    monkeypatch.setattr(transaction._Delta, "commit", late)
    rows = [change("read", key, {"n": 2}, time=2) for key in "bc"]
    own.write_batch(batch(spark, rows, until=2), 1)
    assert len(attempts) == 2
    assert content(tmp_path / MIRROR) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 2}}


def test_a_typed_mirror_gets_from_tasks_what_spark_would_write(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: two encoders of typed columns, of which one decides by who writes."""
    columns = {
        "n": "bigint",
        "total": "decimal(9,2)",
        "day": "date from at",
        "tags": "array<string>",
        "names": "map<string, int>",
        "inner": "struct<a: int, b: string>",
        "whole": "variant from any",
    }
    documents = [
        {"n": 1, "total": 12.345, "tags": ["x", None], "names": {"a": 1}, "any": [1, {"b": 2}]},
        {"n": "no number", "inner": {"a": 1, "b": "c", "more": 2}, "other": None},
        {"at": "2020-01-01", "names": {"a": "b"}, "tags": "none", "any": None},
        {},
    ]
    rows = [change("read", str(n), document, time=1) for n, document in enumerate(documents)]
    found = []
    for by_spark in (False, True):
        base = tmp_path / str(by_spark)
        own = sink(base, by_spark=by_spark, columns=columns)
        own.write_batch(batch(spark, rows, until=1), 0)
        operation = "MERGE" if by_spark else "STREAMING UPDATE"
        assert operation in commits(base / MIRROR)
        schema = spark.read.format("delta").load(str(base / MIRROR)).schema
        found.append((schema, delta_rs.rows(base / MIRROR)))
    assert found[0] == found[1]


def test_a_task_that_fails_leaves_neither_a_file_nor_a_folder(tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([row("a")], schema=SCHEMA)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        land(rows(), lambda name, rows: [Part(str(tmp_path / "lake"), rows)], 1, Storage())
    assert list(tmp_path.iterdir()) == []


SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("op", "position", "db", "coll", "key", "description")),
        ("cluster_time", pa.timestamp("us", tz="UTC")),
        ("wall_time", pa.timestamp("us", tz="UTC")),
        ("cluster_inc", pa.int32()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("txn", pa.struct([("lsid", pa.string()), ("number", pa.int64()), ("shard", pa.string())])),
        ("exact", pa.bool_()),
    ]
)


def row(key: str, coll: str = "orders", after: str = "{}") -> dict[str, Any]:
    names = {"op": "insert", "position": "82", "db": "shop", "coll": coll, "key": key}
    time = datetime.fromtimestamp(1, UTC)
    return {**names, "cluster_time": time, "cluster_inc": 1, "after": after, "exact": True}


def test_files_roll_at_their_size_and_hold_each_row_once_in_its_table(tmp_path: Path) -> None:
    """Guards: many tables at once, more than files may be open, and files of any number."""
    text = json.dumps({"a": "x" * 2**18})
    batches = [
        pa.RecordBatch.from_pylist(
            [row(f"{number}/{coll}", f"c{coll}", text + str(number * coll)) for coll in range(70)],
            schema=SCHEMA,
        )
        for number in range(4)
    ]
    found = land(
        batches, lambda name, rows: [Part(str(tmp_path / name.coll), rows)], 2**10, Storage()
    )
    assert {file.folder for file in found.files} == {str(tmp_path / f"c{n}") for n in range(70)}
    assert len({file.name for file in found.files}) == len(found.files) > 70
    keys = [
        (Path(file.folder).name, key)
        for file in found.files
        for key in pa.parquet.read_table(file.path).column("key").to_pylist()
    ]
    assert sorted(keys) == sorted((f"c{c}", f"{n}/{c}") for n in range(4) for c in range(70))
    assert sum(group.rows for group in found.groups) == 280
