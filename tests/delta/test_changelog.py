"""The changelog: every row once, whatever is repeated, and nothing of anybody else's."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from bson.timestamp import Timestamp
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.landing import Happened, read_summary
from cdc.delta.log import Commit
from cdc.delta.sink import Latency
from cdc.errors import BadOption, ForeignOffset, TableOwnedElsewhere
from cdc.model import Namespace, Offset
from tests.delta import delta_rs
from tests.delta.batches import batch, change, commits, content, ops, sink

LOG, MIRROR = "shop/orders/changelog", "shop/orders/mirror"
OFFSETS = Path(__file__).parents[1] / "model/offsets"
log_sink = partial(sink, with_mirror=False)


def test_every_row_but_the_watermark_is_appended(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        change("read", "a", {"n": 1}, time=5),
        change("insert", "b", {"n": 1}, time=3),
        change("update", "b", None, time=4),
        change("delete", "b", time=5),
        change("modify", None, time=5, event=2, description={"index": 1}),
        change("gap", None, time=5, event=3),
        change("resync", None, time=5, event=4),
    ]
    report = sink(tmp_path).write_batch(batch(spark, rows, until=5), 0)
    assert ops(tmp_path / LOG) == [
        ("insert", "b"),
        ("update", "b"),
        ("read", "a"),
        ("delete", "b"),
        ("modify", None),
        ("gap", None),
        ("resync", None),
    ]
    assert report.counts[Namespace("shop", "orders")]["insert"] == 1
    assert report.tables == 2
    assert report.latency == Latency(newest=1000.5 - 5, oldest=1000.5 - 3)


def test_what_happened_when_is_reported_of_changes_by_the_servers_clock(
    spark: SparkSession,
) -> None:
    """Guards: latency. A copied document, or a control row, was not committed at its time."""
    reported = datetime.fromtimestamp(4.75, UTC)
    rows = [
        change("read", "a", {"n": 1}, time=1),
        change("gap", None, time=2, event=3, ns=(None, None)),
        {**change("update", "b", {"n": 2}, time=4, ns=("shop", "other")), "wall_time": reported},
        change("resync", None, time=6, event=4),
    ]
    summary = read_summary(batch(spark, [*rows, change("drop", None, time=3)], until=7))
    assert summary is not None
    assert summary.happened == Happened(oldest=3.0, newest=4.75)
    quiet = read_summary(batch(spark, [rows[0], rows[1], rows[3]], until=7))
    assert quiet is not None
    assert quiet.happened is None


AS_DELTA_RS_READS_IT = {
    "variant": {"n": [1, None]},
    "string": '{"n": [1, null]}',
    "binary": b'{"n": [1, null]}',
}


@pytest.mark.parametrize("document", AS_DELTA_RS_READS_IT)
def test_an_image_comes_back_in_the_format_it_was_given(
    spark: SparkSession, tmp_path: Path, document: str
) -> None:
    rows = [change("insert", "a", {"n": [1, None]}, time=3)]
    sink(tmp_path).write_batch(batch(spark, rows, until=5, document=document), 0)
    for table, column in (("changelog", "after"), ("mirror", "document")):
        frame = spark.read.format("delta").load(str(tmp_path / "shop/orders" / table))
        assert frame.schema[column].dataType.simpleString() == document
        if document == "variant":  # the form of which two engines have code of their own
            [row] = frame.select(F.to_json(column).alias("image")).collect()
            assert json.loads(row.image) == {"n": [1, None]}
        [elsewhere] = delta_rs.by_key(tmp_path / "shop/orders" / table, column).values()
        assert elsewhere == AS_DELTA_RS_READS_IT[document]


def test_a_commit_says_its_watermark_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    rows = [change("insert", "a", {}, time=3)]
    log_sink(tmp_path).write_batch(batch(spark, rows, until=5), 7)
    newest = DeltaTable.forPath(spark, str(tmp_path / LOG)).history(1).head()
    assert newest
    stated = json.loads(newest.userMetadata)
    groups = {(each["op"], each.get("coll")): each["rows"] for each in stated.pop("groups")}
    assert stated == {"watermark": "5:1", "batch": 7, "after": -1}
    assert groups == {("insert", "orders"): 1, ("watermark", None): 1}


def test_a_foreign_pipelines_table_is_refused_with_nothing_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    log_sink(tmp_path, "other").write_batch(
        batch(spark, [change("insert", "z", {}, time=1, ns=("shop", "zebras"))], until=2), 0
    )
    rows = [
        change("insert", "a", {}, time=3),
        change("insert", "z", {}, time=4, ns=("shop", "zebras")),
    ]
    with pytest.raises(TableOwnedElsewhere) as refused:
        log_sink(tmp_path, "one").write_batch(batch(spark, rows, until=5), 0)
    assert "other" in str(refused.value)
    assert refused.value.remedy
    assert not (tmp_path / "shop/orders").exists()
    assert ops(tmp_path / "shop/zebras/changelog") == [("insert", "z")]


def test_a_table_that_was_not_made_by_us_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / LOG))
    rows = [change("insert", "a", {}, time=3)]
    with pytest.raises(TableOwnedElsewhere):
        sink(tmp_path).write_batch(batch(spark, rows, until=5), 0)


def test_a_pipeline_leaves_its_neighbours_tables_alone(spark: SparkSession, tmp_path: Path) -> None:
    ns = ("shop", "zebras")
    unfinished = {"shop.zebras": "k"}
    first = batch(spark, [change("read", "z", {}, time=1, ns=ns)], until=2, copying=unfinished)
    sink(tmp_path, "other").write_batch(first, 0)
    dropped = change("dropDatabase", None, time=4, ns=("shop", None))
    rows = [change("insert", "a", {}, time=3), dropped]
    sink(tmp_path, "one").write_batch(batch(spark, rows, until=5), 0)
    assert ops(tmp_path / "shop/zebras/changelog") == [("read", "z")]
    assert content(tmp_path / "shop/zebras/mirror") == {"z": {}}


def test_a_table_whose_creation_has_not_made_its_first_version_is_no_table_yet(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a kill in the middle of a creation, and the creation by another job meanwhile. Delta
    makes the folder of the log before it writes the first commit there."""
    for table in (LOG, MIRROR, "shop/zebras/changelog", "shop/zebras/mirror"):
        (tmp_path / table / "_delta_log").mkdir(parents=True)
    sink(tmp_path).write_batch(batch(spark, [change("insert", "a", {}, time=3)], until=5), 0)
    sink(tmp_path).write_batch(batch(spark, [change("insert", "b", {}, time=6)], until=7), 1)
    assert ops(tmp_path / LOG) == [("insert", "a"), ("insert", "b")]
    assert content(tmp_path / MIRROR) == {"a": {}, "b": {}}


def test_a_new_checkpoint_is_refused_not_skipped(spark: SparkSession, tmp_path: Path) -> None:
    log_sink(tmp_path, "old").write_batch(
        batch(spark, [change("insert", "a", {}, time=3)], until=5), 0
    )
    fresh = batch(spark, [change("insert", "b", {}, time=6)], until=7)
    with pytest.raises(TableOwnedElsewhere):
        log_sink(tmp_path, "new").write_batch(fresh, 0)
    log_sink(tmp_path / "elsewhere", "new").write_batch(fresh, 0)
    assert ops(tmp_path / "elsewhere" / LOG) == [("insert", "b")]


@pytest.mark.parametrize("batch_id", [3, 2], ids=["same number, other rows", "lower number"])
def test_a_checkpoint_older_than_its_tables_is_refused_not_skipped(
    spark: SparkSession, tmp_path: Path, batch_id: int
) -> None:
    log_sink(tmp_path).write_batch(batch(spark, [change("insert", "a", {}, time=3)], until=5), 3)
    other = batch(spark, [change("insert", "b", {}, time=6)], until=9)
    with pytest.raises(ForeignOffset):
        log_sink(tmp_path).write_batch(other, batch_id)
    assert ops(tmp_path / LOG) == [("insert", "a")]


def test_a_checkpoint_older_than_a_table_is_refused_by_a_batch_that_has_nothing_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: a batch is written twice if others have made up the number of batches before."""
    log_sink(tmp_path).write_batch(batch(spark, [change("insert", "a", {}, time=3)], until=5), 3)
    lagging = log_sink(tmp_path)
    with pytest.raises(ForeignOffset):
        lagging.write_batch(batch(spark, [], until=4), 3)


@pytest.mark.parametrize("sample", ["streaming", "again_while_copying"])
def test_a_batch_that_an_earlier_release_has_written_is_the_same_batch(sample: str) -> None:
    """Guards: a table says where its batch ends, and the next release replays that batch."""
    old = json.loads((OFFSETS / f"v1_{sample}.json").read_text())
    end = Offset.from_json(old)
    written, now = (Commit(3, end.time, offset=offset) for offset in (old, end.to_json()))
    assert written.offset != now.offset
    assert written.is_of_the_same(now)
    other = replace(end, time=Timestamp(1, 1)).to_json()
    assert not written.is_of_the_same(replace(now, offset=other))
    assert not written.is_of_the_same(replace(now, offset={"of": "somebody else"}))


def test_another_document_format_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    log_sink(tmp_path).write_batch(batch(spark, [change("insert", "a", {}, time=3)], until=5), 0)
    strings = batch(spark, [change("insert", "b", {}, time=6)], until=7, document="string")
    with pytest.raises(BadOption):
        log_sink(tmp_path).write_batch(strings, 1)
    assert ops(tmp_path / LOG) == [("insert", "a")]


@pytest.mark.slow
def test_odd_names_are_written_and_found_again(spark: SparkSession, tmp_path: Path) -> None:
    """By files, and in one of them by Spark: no folder has other letters (tests of routing)."""
    names = [("shop", "a.b-c"), ("shop", "_x/../y z%"), ("магазин", "ж" * 120)]
    copying = {".".join(ns): {"below": 1} for ns in names}
    rows = [change("read", ns[1], {"n": 1}, time=5, ns=ns) for ns in names]
    sink(tmp_path).write_batch(batch(spark, rows, until=5, copying=copying), 0)
    rows = [change("update", ns[1], {"n": 2}, time=6, ns=ns) for ns in names]
    sink(tmp_path).write_batch(batch(spark, rows, until=7), 1)
    paths = {path.parent for path in tmp_path.glob("*/*/mirror/_delta_log")}
    assert [commits(path)[1:] for path in paths] == [["STREAMING UPDATE"] * 2] * len(names)
    found = [content(path) for path in paths]
    assert sorted(found, key=str) == sorted([{ns[1]: {"n": 2}} for ns in names], key=str)
    odd = names[1]
    rows = [change("update", odd[1], {"n": 3}, time=8, ns=odd)]
    sink(tmp_path, by_spark=True).write_batch(batch(spark, rows, until=9), 2)
    [merged] = [path for path in paths if commits(path)[-1] == "MERGE"]
    assert content(merged) == {odd[1]: {"n": 3}}
    assert {path.parent for path in tmp_path.glob("*/*/mirror/_delta_log")} == paths


def test_a_rename_is_reported_at_both_names_and_a_dropped_database_everywhere_in_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = log_sink(tmp_path)
    zebras, other = ("shop", "zebras"), ("club", "members")
    rows = [
        change("insert", "a", {}, time=1),
        change("insert", "z", {}, time=1, event=2, ns=zebras),
        change("insert", "m", {}, time=1, event=3, ns=other),
    ]
    target.write_batch(batch(spark, rows, until=2), 0)
    to = {"to": {"db": "shop", "coll": "zebras"}}
    target.write_batch(batch(spark, [change("rename", None, time=3, description=to)], until=3), 1)
    dropped = change("dropDatabase", None, time=4, ns=("shop", None))
    target.write_batch(batch(spark, [dropped], until=4), 2)
    ends = [("rename", None), ("dropDatabase", None)]
    assert ops(tmp_path / LOG) == [("insert", "a"), *ends]
    assert ops(tmp_path / "shop/zebras/changelog") == [("insert", "z"), *ends]
    assert ops(tmp_path / "club/members/changelog") == [("insert", "m")]


def test_ddl_of_a_kind_not_known_yet_is_kept_and_makes_no_mirror(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Guards: also one that names no collection, or no target."""
    target = sink(tmp_path)
    to = {"to": {"db": "shop", "coll": "zebras"}}
    frobnicated = change("frobnicate", None, time=1, description=to)
    target.write_batch(batch(spark, [frobnicated], until=1), 0)
    insert = change("insert", "a", {}, time=2)
    moved = change("movePrimary", None, time=3, ns=("shop", None), description={"to": "s2"})
    target.write_batch(batch(spark, [insert, moved], until=3), 1)
    expected = [("frobnicate", None), ("insert", "a"), ("movePrimary", None)]
    assert ops(tmp_path / LOG) == expected
    assert content(tmp_path / "shop/orders/mirror") == {"a": {}}
    assert not (tmp_path / "shop/zebras").exists()


def test_a_batch_without_a_watermark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = batch(spark, [change("insert", "a", {}, time=3)], until=5).where("op <> 'watermark'")
    with pytest.raises(BadOption):
        sink(tmp_path).write_batch(rows, 0)
    assert not list(tmp_path.iterdir())
