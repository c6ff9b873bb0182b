"""Replicate: copy the selected collections into Delta, then follow their changes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import cdc
from cdc import options as declared
from cdc.delta import mirror
from cdc.delta.sink import BatchReport, Sink, pipeline_of
from cdc.errors import TransientError
from cdc.mongo.clock import ServerClock
from cdc.options import MODES
from cdc.source import NAME
from cdc.source.inquiry import Captured, preflight
from cdc.task import source_of
from jobs import config as configuration
from jobs.checkpoint import alone
from jobs.checkpoint_folder import OFFSETS, Folder
from jobs.config import Config
from jobs.failure import told
from jobs.holdings import require_new
from jobs.metrics import Meter, Status
from jobs.progress import Display
from jobs.recovery import require_whole
from jobs.session import session

_POLL_SECONDS = 0.2


class Replication:
    """A running pipeline: its streaming query, started from its checkpoint if it has one.

    `on_batch` is called in the query's thread after each batch is in all its tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        available_now: bool = False,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        cdc.register(spark)
        self._config, self._on_batch = config, on_batch
        self._sink: Sink | None = None
        self._meter = Meter()
        self._writing, self._is_stopped = threading.Lock(), False
        options = {**config.source, "emit.watermark": "true"}
        rows = spark.readStream.format(NAME).options(**options).load()
        writer = rows.writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", config.checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=config.trigger)
        self.query: StreamingQuery = writer.start()

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        with self._writing:
            if self._is_stopped:
                # To return would tell Spark that the batch is written.
                raise TransientError("The replication was stopped before this batch was written.")
            if self._sink is None:
                self._sink = self._opened(pipeline_of(batch))
            report = self._sink.write_batch(batch, batch_id)
            self._meter.batch(report)
            if self._on_batch is not None:
                self._on_batch(report)

    def _opened(self, pipeline: str) -> Sink:
        clock = ServerClock(partial(source_of, declared.parse(self._config.source)))
        limit = self._config.dead_letters_limit
        return Sink(pipeline, self._config.layout, clock=clock.now, dead_letters_limit=limit)

    def stop(self) -> None:
        """Stops behind the batch being written, if there is one; raises the error that had ended
        the query before."""
        with self._writing:
            self._is_stopped, is_active = True, self.query.isActive
        # Not under the lock: Spark waits for the query's thread, and that may be about to write.
        if is_active:
            self.query.stop()
            return
        error = self.query.exception()
        if error is not None:
            raise error

    def status(self) -> Status:
        """How far it is, how fast, and how safe: as its last trigger and its last batch saw it."""
        return self._meter.status(self.query.lastProgress)


def run(config: Config, available_now: bool, console: Console) -> int:
    """The program: until the query ends, or SIGTERM or Ctrl-C stops it after its batch."""
    spark = session("mongodb-cdc replicate")
    folder = Folder(spark, config.checkpoint)
    require_whole(folder)
    began = bool(folder.numbers(OFFSETS))
    captured = preflight(config.source, is_new=not began)
    if not began:
        names = [each.namespace for each in captured]
        require_new(spark, config, names, folder.pipeline())
    expected = {each.namespace: each.documents for each in captured}
    with alone(config.checkpoint), Display(console, expected) as display:
        if began:
            for collection in captured:
                display.copied_before(collection.namespace, _mirrored(spark, config, collection))
        stop = _stop_on_signals()
        replication = Replication(spark, config, available_now, display.batch)
        while replication.query.isActive and not stop.wait(_POLL_SECONDS):
            display.status(replication.status())
        replication.stop()
    console.print(f"stopped after {display.rows:,} rows", highlight=False)
    return 0


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)
    return stop


def _mirrored(spark: SparkSession, config: Config, collection: Captured) -> int:
    """How many documents a run before this one has copied."""
    table = config.table("mirror", collection.namespace)
    if table is None or not table.target.exists(spark):
        return 0
    return mirror.documents(table.target.read(spark), table, collection.namespace).count()


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; conf/example.toml shows all.")
@click.option("--mode", type=click.Choice(MODES))
@click.option("--start", help="ISO-8601 or t:i with --mode timestamp; a token with --mode token.")
@click.option("--available-now", is_flag=True, help="Stop when all that is there now is written.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@told
def main(
    path: str | None,
    mode: str | None,
    start: str | None,
    available_now: bool,
    overrides: tuple[str, ...],
) -> int:
    """Copy collections into Delta tables, then follow their changes.

    Example: mongodb-cdc replicate --config conf/local.toml --mode initial
    """
    extra = [f"mode={mode}"] if mode else []
    extra += [f"start={start}"] if start else []
    config = configuration.load(path, [*overrides, *extra])
    available_now |= config.source.get("mode") == "snapshot"  # else it would wait for ever
    return run(config, available_now, Console(stderr=True))


if __name__ == "__main__":
    main()
