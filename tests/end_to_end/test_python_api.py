"""`cdc.Pipeline` does from Python what the commands do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc import Pipeline
from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet
from cdc.errors import BadOption, CheckpointInUse, NotCovered
from cdc.pipeline import Config
from tests.documents import code

_NEEDED = {"uri": "mongodb://h", "collections": "shop.orders", "sink.path": "/lake"}


@pytest.mark.slow
def test_a_pipeline_is_planned_run_verified_backfilled_read_and_restored(
    spark: SparkSession,
    database: Database[dict[str, Any]],
    mongod: ReplicaSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = f"{database.name}.orders"
    images = {"changeStreamPreAndPostImages": {"enabled": True}}
    source = database.create_collection("orders", **images)
    source.insert_many([{"_id": number, "n": 0} for number in range(20)])
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[source]\nuri = "{mongod.uri}"\ncollections = "{orders}"\n'
        f'[sink]\npath = "{tmp_path}/lakehouse"\nmirror.interval = 0\n'
    )
    pipeline = Pipeline.from_toml(str(file), spark=spark)
    assert pipeline.plan().problems == []
    assert pipeline.status().metrics.time is None
    assert pipeline.commits("mirror", orders) == []

    [example] = code("A pipeline", "python")
    for written, here in (
        ('"pipeline.toml"', repr(str(file))),
        ("shop.orders", orders),
        ('"2026-01-31T12:00:00Z"', f"pipeline.mirrored_until('{orders}')"),
    ):
        assert written in example
        example = example.replace(written, here)
    exec(example, {})
    assert capsys.readouterr().out.splitlines()[0] == "True 20"
    copied_until = pipeline.mirrored_until(orders)
    assert copied_until is not None

    source.update_many({"_id": {"$lt": 5}}, {"$set": {"n": 1}})
    source.delete_one({"_id": 19})
    reports = list[BatchReport]()
    with pipeline.run(available_now=True, on_batch=reports.append) as replication:
        with pytest.raises(CheckpointInUse), pipeline.run():
            pass
        assert replication.wait(0.0) is False
        assert replication.wait() is True
    assert sum(each.changes for each in reports) == 6
    assert sum(each.copied for each in reports) == 0

    assert pipeline.live(orders).count() == 19
    assert pipeline.as_of(orders, copied_until).count() == 20
    with pytest.raises(NotCovered):
        pipeline.as_of(orders, datetime(2020, 1, 1, tzinfo=UTC))

    commits = pipeline.commits("mirror", orders)
    assert [each.version for each in commits] == sorted(each.version for each in commits)
    assert commits[-1].commit.watermark == pipeline.mirrored_until(orders)
    assert pipeline.status().metrics.time == commits[-1].commit.watermark

    done = pipeline.backfill(orders, into=["changelog"], condition='{"n": 1}', is_dry=True)
    assert (done.missing, done.left, done.changelog_rows) == (0, 0, 5)

    restored = pipeline.restore(orders, copied_until, mongod.uri, f"{database.name}.before")
    assert (restored.documents, restored.left_out) == (20, 0)
    assert database["before"].count_documents({"n": 0}) == 20


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda of: of.table("changelogs", "shop.orders"), "changelogs"),
        (lambda of: of.table("mirror", "shop.items"), "shop.items"),
        (lambda of: of.as_of("shop.orders", datetime(2026, 1, 1)), "time zone"),
        (lambda of: of.backfill("shop.orders", into=["history"]), "history"),
        (lambda of: of.backfill("shop.orders", start="1:1", repair=True), "time window"),
        (lambda of: of.backfill("shop.orders", least="1", repair=True), "repair of a part"),
        (lambda of: of.backfill("shop.orders", at="1:1"), "own time"),
        (lambda of: of.verify("shop.items"), "shop.items"),
    ],
)
def test_a_mistaken_argument_is_refused_by_name_without_spark(
    call: Callable[[Pipeline], object], names: str
) -> None:
    with pytest.raises(BadOption, match=names):
        call(Pipeline.from_options(_NEEDED))


def test_options_may_be_numbers_lists_and_truth_values() -> None:
    given = {**_NEEDED, "collections": ["a.b", "c.d"], "split.size.mb": 8}
    config: Config = Pipeline.from_options(given | {"storage.anonymous": True}).config
    assert config.options.split_size_mb == 8
    assert sorted(config.options.selection.names) == [("a", "b"), ("c", "d")]
    assert config.storage.is_anonymous
