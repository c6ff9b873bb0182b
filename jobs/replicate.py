"""Replicate: copy the selected collections into Delta, then follow their changes."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from types import FrameType

import click
from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import cdc
from cdc.delta.sink import BatchReport, Sink, pipeline_of
from cdc.source import NAME, Captured, preflight
from jobs import config as configuration
from jobs.config import Config
from jobs.failure import told
from jobs.progress import Display
from jobs.session import session

_POLL_SECONDS = 0.2


def start(
    spark: SparkSession,
    config: Config,
    available_now: bool = False,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> StreamingQuery:
    """Starts the streaming query of a pipeline, from its checkpoint if it has one.

    `on_batch` is called in the query's thread after each batch is in all its tables.
    """
    cdc.register(spark)
    sinks: list[Sink] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        if not sinks:
            pipeline = pipeline_of(batch)
            sinks.append(Sink(pipeline, changelog=config.changelog, mirror=config.mirror))
        report = sinks[0].write_batch(batch, batch_id)
        if on_batch is not None:
            on_batch(report)

    options = {**config.source, "emit.watermark": "true"}
    rows = spark.readStream.format(NAME).options(**options).load()
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", config.checkpoint)
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=config.trigger).start()


def run(config: Config, available_now: bool, console: Console) -> int:
    """The program: until the query ends, or SIGTERM or Ctrl-C stops it after its batch."""
    spark = session("mongodb-cdc replicate")
    began = has_begun(spark, config.checkpoint)
    captured = preflight(config.source, is_new=not began)
    with Display(console, {c.namespace: c.documents for c in captured}) as display:
        if began:
            for collection in captured:
                display.copied_before(collection.namespace, _mirrored(spark, config, collection))
        stop = _stop_on_signals()
        query = start(spark, config, available_now, display.batch)
        while query.isActive and not stop.wait(_POLL_SECONDS):
            display.lag(*times(query))
        end(query)
    console.print(f"stopped after {display.rows:,} rows", highlight=False)
    return 0


def has_begun(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a checkpoint holds an offset, on any file system that Spark knows."""
    jvm = spark._jvm
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(f"{checkpoint}/offsets/0")
    hadoop = spark._jsc.hadoopConfiguration()
    files = path.getFileSystem(hadoop)
    folder = path.getParent()
    return bool(files.exists(folder)) and len(files.listStatus(folder)) > 0


def end(query: StreamingQuery) -> None:
    """Stops a query, and raises the error if it had ended with one."""
    if query.isActive:
        query.stop()
    error = query.exception()
    if error is not None:
        raise error


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)
    return stop


def times(query: StreamingQuery) -> tuple[str | None, str | None]:
    """The tables' time and the server's newest, as the last batch saw them."""
    progress = query.lastProgress
    if progress is None or not progress.sources:
        return None, None
    source = progress.sources[0]
    return _time(source.endOffset), _time(source.latestOffset)


def _time(offset: str | None) -> str | None:
    return str(json.loads(offset)["time"]) if offset else None


def _mirrored(spark: SparkSession, config: Config, collection: Captured) -> int:
    """How many documents a run before this one has copied."""
    if config.mirror is None:
        return 0
    path = config.mirror.path(collection.namespace)
    if not DeltaTable.isDeltaTable(spark, path):
        return 0
    return spark.read.format("delta").load(path).count()


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; conf/example.toml shows all.")
@click.option("--mode", type=click.Choice(["initial", "latest", "timestamp"]))
@click.option("--start", "start_time", help="With --mode timestamp: ISO-8601 or t:i.")
@click.option("--available-now", is_flag=True, help="Stop when all that is there now is written.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@told
def main(
    path: str | None,
    mode: str | None,
    start_time: str | None,
    available_now: bool,
    overrides: tuple[str, ...],
) -> int:
    """Copy collections into Delta tables, then follow their changes.

    Example: mongodb-cdc replicate --config conf/local.toml --mode initial
    """
    extra = [f"mode={mode}"] if mode else []
    extra += [f"start={start_time}"] if start_time else []
    config = configuration.load(path, [*overrides, *extra])
    return run(config, available_now, Console(stderr=True))


if __name__ == "__main__":
    main()
