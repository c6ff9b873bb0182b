"""Changes with both images: into changelogs beside mongo-spark, into mirrors beside plain Spark,
and a backlog in one slice and in several."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.model import Namespace, StreamSplit
from cdc.pipeline import Config, Following, Replication
from cdc.pipeline import config as configuration
from cdc.source import WindowReader
from tests.bench import drains
from tests.bench.processes import SERVER
from tests.bench.result import Result
from tests.bench.stage import CHANGED, TASKS, Stage, Window
from tests.bench.timing import Figure, side_by_side

# What a batch holds by default, and so what is merged at once.
_PER_BATCH = 100_000
_SLICES = (1, 2, 4)
_NO_MIRROR, _BY_FOLLOW = "table.mirror=", "sink.follow.by=follow"
_BY_STREAM = "read.by=change_stream"
_EVENT = (
    "_id string, operationType string, clusterTime timestamp, wallTime timestamp, ns string,"
    " documentKey string, fullDocument string, fullDocumentBeforeChange string,"
    " updateDescription string"
)


def run(stage: Stage, runs: int) -> Iterator[Result]:
    backlog = stage.part
    slices = {each.window: _slices(each) for each in (stage, backlog)}
    parquet = stage.fresh("events.parquet")
    _ours_by_batch(backlog, parquet)
    landed = _stream(backlog, "landed", TASKS, _BY_FOLLOW)
    with drains.pool(TASKS) as workers:
        taken = side_by_side(
            runs,
            stage,
            {
                "changelog": lambda s: _stream(s, "log", TASKS, _NO_MIRROR),
                "by streams": lambda s: _stream(s, "log", TASKS, _NO_MIRROR, _BY_STREAM),
                "mongo-spark": lambda s: s.peers.run(
                    _theirs, s.server.uri, s.window, s.fresh("theirs")
                ),
                "drain": lambda s: _drained(s, slices[s.window], workers, drains.entries),
                "stream drain": lambda s: _drained(s, slices[s.window], workers, drains.events),
                **{f"{n} slices": lambda s, n=n: _stream(s, "log", n, _NO_MIRROR) for n in _SLICES},
                "mirror": lambda _: _followed(backlog, landed, stage.fresh("followed")),
                "merge": lambda _: stage.peers.run(
                    _plain_merge, backlog.window.count, parquet, stage.fresh("merged")
                ),
            },
        )
    of_part = {"mirror", "merge"}
    rate = {
        name: (backlog if name in of_part else stage).window.count / figure.median
        for name, figure in taken.items()
    }
    yield from _changelogs(rate, taken)
    yield _server_time(taken, stage.window.count)
    yield Result(
        "changelog to mirror, followers",
        "events/s",
        ours=rate["mirror"],
        peer=rate["merge"],
        goal="at least 0.9 x plain Spark that merges the same rows from Parquet",
        met=rate["mirror"] >= 0.9 * rate["merge"],
        cpu={name: taken[name].cpu for name in ("mirror", "merge")},
    )
    yield from _catch_up(rate)


def _slices(stage: Stage) -> list[StreamSplit]:
    parallel = {"stream_parallelism": str(TASKS)}
    return stage.splits(WindowReader, CHANGED, **parallel, **stage.window.options)


def _changelogs(rate: dict[str, float], taken: dict[str, Figure]) -> Iterator[Result]:
    """From the oplog, which is the default, and by change streams."""
    theirs = rate["mongo-spark"]
    for name, limit, times, kind in (
        ("changelog", "drain", 4, "changes with both images to changelog"),
        ("by streams", "stream drain", 1.2, "the same, with read.by = change_stream"),
    ):
        yield Result(
            kind,
            "events/s",
            ours=rate[name],
            peer=theirs,
            limit_ratio=rate[name] / rate[limit],
            goal=f"at least {times} x mongo-spark",
            met=rate[name] >= times * theirs,
            cpu={each: taken[each].cpu for each in (name, "mongo-spark")},
        )


def _server_time(taken: dict[str, Figure], count: int) -> Result:
    """What the server spends on an event, with both images, by either way to read it."""
    bulk, stream = (taken[each].cpu[SERVER] for each in ("drain", "stream drain"))
    return Result(
        "MongoDB's time for a change from the oplog, beside a change stream",
        "CPU us",
        ours=1e6 * bulk / count,
        peer=1e6 * stream / count,
        goal="at most 10 % of a change stream's",
        met=bulk <= 0.1 * stream,
    )


def _catch_up(rate: dict[str, float]) -> Iterator[Result]:
    one = rate[f"{_SLICES[0]} slices"]
    for n in _SLICES[1:]:
        yield Result(
            f"catch-up of a backlog in {n} slices",
            "events/s",
            ours=rate[f"{n} slices"],
            peer=one,
            goal="faster than in one",
            met=rate[f"{n} slices"] > one,
        )


def _drained(
    stage: Stage,
    slices: list[StreamSplit],
    workers: drains.Pool,
    drain: Callable[[str, list[StreamSplit], drains.Pool], int],
) -> None:
    found = drain(stage.server.uri, slices, workers)
    assert found == stage.window.count, f"{found} events drained"


def _config(stage: Stage, path: Path, slices: int, *options: str) -> Config:
    own = [f"stream.parallelism={slices}", f"max.events.per.batch={_PER_BATCH}", *options]
    return _config_of(stage, CHANGED, stage.window, path, own)


def _config_of(
    stage: Stage, collection: Namespace, window: Window, path: Path, own: Sequence[str]
) -> Config:
    given = [f"uri={stage.server.uri}", f"collections={collection}", "mode=timestamp"]
    given += [f"start={window.start}", f"sink.path={path}", *own]
    return configuration.load(None, given)


def _stream(stage: Stage, name: str, slices: int, *options: str) -> Path:
    """The job itself, from its start to its end; returns where its tables are."""
    path = stage.fresh(name)
    _replicate(stage, _config(stage, path, slices, *options), stage.window)
    return path


def land_changes(stage: Stage, collection: Namespace, window: Window, name: str) -> None:
    """Run the job on the changes of a collection, into its changelog alone."""
    config = _config_of(stage, collection, window, stage.fresh(name), ["table.mirror="])
    _replicate(stage, config, window)


def _replicate(stage: Stage, config: Config, window: Window) -> None:
    reports: list[int] = []
    replication = Replication(
        stage.spark,
        config,
        available_now=True,
        on_batch=lambda report: reports.append(
            sum(sum(ops.values()) for ops in report.counts.values())
        ),
    )
    replication.query.awaitTermination()
    replication.stop()
    assert sum(reports) == window.count, f"{sum(reports)} changes written"


def _followed(stage: Stage, landed: Path, path: Path) -> None:
    """Changelogs that were written before, applied to an empty mirror."""
    shutil.copytree(landed, path)
    following = Following(stage.spark, _config(stage, path, TASKS, _BY_FOLLOW))
    following.start()
    while not following.has_caught_up():
        time.sleep(0.02)
    following.stop(60.0)


def _theirs(spark: SparkSession, uri: str, window: Window, path: Path) -> None:
    options = {
        "connection.uri": uri,
        "database": CHANGED.db,
        "collection": CHANGED.coll,
        "change.stream.startup.mode": "timestamp",
        "change.stream.startup.mode.timestamp.start.at.operation.time": str(window.after.time + 1),
        "change.stream.publish.full.document.only": "false",
        "change.stream.lookup.full.document": "whenAvailable",
        "change.stream.lookup.full.document.before.change": "whenAvailable",
        "change.stream.micro.batch.max.partition.count": str(TASKS),
    }
    events = spark.readStream.format("mongodb").options(**options).schema(_EVENT).load()
    writer = events.writeStream.format("delta").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(path / "_checkpoint")).start(str(path / "t"))
    query.awaitTermination()
    reported = spark.read.format("delta").load(str(path / "t"))
    found = reported.where(F.col("operationType").isin("update", "replace")).count()
    assert found == window.count, f"mongo-spark: {found} events"


def _ours_by_batch(stage: Stage, path: Path) -> None:
    """The rows of our own read, in as many files as there are batches, by their order."""
    rows = stage.ours(CHANGED, **stage.window.options)
    batches = max(1, stage.window.count // _PER_BATCH)
    spread = rows.repartitionByRange(batches, "position")
    spread = spread.withColumn("batch", F.spark_partition_id())
    spread.write.partitionBy("batch").parquet(str(path))


def _plain_merge(spark: SparkSession, count: int, parquet: Path, path: Path) -> None:
    rows = spark.read.parquet(str(parquet))
    columns = rows.select("key", F.col("after").alias("document"), "position").schema
    table = DeltaTable.create(spark).location(str(path)).addColumns(columns)
    table = table.property("delta.enableDeletionVectors", "true").clusterBy("key").execute()
    for batch in range(max(1, count // _PER_BATCH)):
        change = F.struct("op", F.col("after").alias("document"), "position")
        last = rows.where(F.col("batch") == batch).groupBy("key")
        last = last.agg(F.max_by(change, "position").alias("change")).select("key", "change.*")
        image = {name: f"change.{name}" for name in ("key", "document", "position")}
        merge = table.alias("mirror").merge(last.alias("change"), "mirror.key = change.key")
        merge = merge.whenMatchedDelete("change.op = 'delete'")
        merge = merge.whenMatchedUpdate("change.position > mirror.position", image)
        merge.whenNotMatchedInsert("change.op <> 'delete'", image).execute()
