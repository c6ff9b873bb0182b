"""Two jobs, each with a checkpoint of its own, at work in one lakehouse at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database
from pyspark.sql import SparkSession

from cdc.demo import ReplicaSet, Writers, load_orders
from cdc.model import Namespace
from cdc.pipeline import Config
from tests.end_to_end.in_process import WRITERS_PAUSE
from tests.end_to_end.job import Job
from tests.end_to_end.oracle import Checkpoint, OfReplicaSet, lag, violations


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_jobs_fill_one_lakehouse_and_a_third_that_wants_a_table_of_theirs_is_refused(
    mongod: ReplicaSet,
    database: Database[dict[str, Any]],
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    names = [Namespace(database.name, coll) for coll in ("orders", "others")]

    def configured(job: str, namespace: Namespace) -> tuple[Config, Checkpoint, Path]:
        folder = tmp_path / job
        folder.mkdir()
        config = pipeline(str(namespace), f"sink.checkpoint={folder / 'checkpoint'}")
        return config, Checkpoint(config), folder

    for namespace in names:
        load_orders(mongod.uri, namespace, 1_000, must_be_new=True)
    pipelines = [configured(namespace.coll, namespace) for namespace in names]
    jobs = list[Job]()
    pause = WRITERS_PAUSE
    with Writers(mongod.uri, names[0], 1, pause), Writers(mongod.uri, names[1], 1, pause):
        try:
            jobs += [
                Job(config, folder, "sink.stop.seconds=120") for config, _, folder in pipelines
            ]
            jobs[0].wait_for(pipelines[0][1], lambda seen: len(seen) >= 2)
            config, _, folder = configured("third", names[0])
            jobs.append(Job(config, folder))
            code, said = jobs[-1].ended()
            for job, (_, checkpoint, _) in zip(jobs, pipelines, strict=False):
                job.wait_for(checkpoint, lambda seen: len(seen) >= 4 and not seen[-2].copying)
            for job in jobs[:2]:
                job.process.terminate()
            assert [job.ended()[0] for job in jobs[:2]] == [0, 0]
        finally:
            for job in jobs:
                if job.process.poll() is None:
                    job.kill()
    assert code == 1, said
    assert f"pipeline '{pipeline_of(pipelines[0][0])}'" in said
    assert "Choose another path" in said
    truth = OfReplicaSet(database.client)
    for namespace, (config, checkpoint, _) in zip(names, pipelines, strict=True):
        assert checkpoint.committed() >= 2
        assert violations(spark, truth, config, checkpoint, namespace)[:20] == []
        assert lag(config, namespace) == 0


def pipeline_of(config: Config) -> str:
    """The query's id in the checkpoint."""
    return (Path(config.checkpoint) / "metadata").read_text().split('"')[3]
