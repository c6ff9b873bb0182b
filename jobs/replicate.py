"""Replicate: copy the selected collections into Delta, then follow their changes."""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import click
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

import cdc
from cdc import options as declared
from cdc.delta import mirror
from cdc.delta.sink import BatchReport, Sink, pipeline_of
from cdc.errors import TransientError
from cdc.mongo.clock import ServerClock
from cdc.mongo.leftovers import end_cursors
from cdc.options import MODES
from cdc.source import NAME
from cdc.source.inquiry import Captured, preflight
from cdc.task import source_of
from jobs import config as configuration
from jobs.checkpoint import alone, is_here
from jobs.checkpoint_folder import OFFSETS, Folder
from jobs.config import Config
from jobs.failure import told
from jobs.gauges import Gauges, served
from jobs.holdings import require_new
from jobs.metrics import Meter, Status
from jobs.progress import Display
from jobs.recovery import require_whole
from jobs.session import session
from jobs.stop import Stop, end, has_no_jvm
from jobs.terminal import Terminal

_POLL_SECONDS = 0.2
# How long a query may take to end that is given up, or has nothing to write.
GIVEN_UP_SECONDS = 5.0


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
        self._comment = _comment(config)
        self._end_leftovers()
        options = {**config.source, "emit.watermark": "true", "comment": self._comment}
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

    def stop(self, seconds: float | None = None) -> bool:
        """Stops behind the batch being written, if there is one; raises the error that had ended
        the query before. A batch that is not written within so many seconds is given up, and
        planned again by the next run.

        Returns whether the query has ended. One that has not, a few seconds later, is busy with
        what nobody can interrupt; this process should end.
        """
        is_between = self._writing.acquire(timeout=-1 if seconds is None else seconds)
        self._is_stopped, is_active = True, self.query.isActive
        if is_between:
            # Spark waits for the query's thread, and that may be about to write.
            self._writing.release()
        given_up = None if seconds is None else GIVEN_UP_SECONDS
        has_ended = not is_active or _is_done(self.query.stop, given_up)
        self._end_leftovers()
        error = None if is_active else self.query.exception()
        if error is not None:
            raise error
        return is_between and has_ended

    def _end_leftovers(self) -> None:
        """Of this process, which Spark's end of the planner leaves, and of one that was killed."""
        end_cursors(partial(source_of, declared.parse(self._config.source)), self._comment)

    def status(self) -> Status:
        """How far it is, how fast, and how safe: as its last trigger and its last batch saw it."""
        return self._meter.status(self.query.lastProgress)


def run(
    config: Config, available_now: bool, console: Console, metrics_port: int | None = None
) -> int:
    """The program: until the query ends, or SIGTERM or Ctrl-C stops it, see `Stop`."""
    extra = {} if metrics_port is None else served(metrics_port)
    with Stop() as stop:
        return _run(config, available_now, console, stop, extra)


def _run(
    config: Config, available_now: bool, console: Console, stop: Stop, extra: Mapping[str, str]
) -> int:
    spark = session("mongodb-cdc replicate", extra=extra)
    with _alone(spark, config) as (began, captured):
        expected = {each.namespace: each.documents for each in captured}
        with Display(console, expected) as display:
            if began:
                for each in captured:
                    display.copied_before(each.namespace, _mirrored(spark, config, each))
            stop.waits()
            has_ended = _follow(spark, config, available_now, display, stop)
        how = "stopped" if has_ended else "stopped within a batch, which the next run makes again,"
        console.print(f"{how} after {display.rows:,} rows")
        if not has_ended:
            end(0)  # while no other job can begin
    return 0


@contextmanager
def _alone(spark: SparkSession, config: Config) -> Iterator[tuple[bool, list[Captured]]]:
    """The only job on its checkpoint, which has been looked at by then, as have source and tables.
    Where there is no folder yet, one is made and locked last: no mistaken first run leaves one."""
    folder = Folder(spark, config.checkpoint)
    with ExitStack() as lock:
        is_there = folder.exists(".")
        if is_there:
            lock.enter_context(alone(config.checkpoint))
        found = _looked_at(spark, config, folder)
        if not is_there:
            lock.enter_context(alone(config.checkpoint))
        yield found


def _looked_at(spark: SparkSession, config: Config, folder: Folder) -> tuple[bool, list[Captured]]:
    """Whether there is a run to go on with, and what is captured; raises what forbids to."""
    require_whole(folder)
    began = bool(folder.numbers(OFFSETS))
    captured = preflight(config.source, is_new=not began)
    if not began:
        names = [each.namespace for each in captured]
        require_new(spark, config, names, folder.pipeline())
    return began, captured


def _follow(
    spark: SparkSession, config: Config, available_now: bool, display: Display, stop: Stop
) -> bool:
    """Runs until the query ends or is told to; False if it was given up in the midst of a batch."""
    gauges = Gauges(spark)
    try:
        replication = Replication(spark, config, available_now, display.batch)
        while replication.query.isActive and not stop.within(_POLL_SECONDS):
            status = replication.status()
            display.status(status)
            gauges.show(status)
        return replication.stop(config.stop_seconds)
    except Exception:
        # A service's processes are often told all at once, and the JVM does not wait for a batch.
        if stop.within(_POLL_SECONDS) and has_no_jvm():
            return False
        raise


def _is_done(call: Callable[[], object], seconds: float | None) -> bool:
    """Whether a call that nobody can interrupt returns within so many seconds; raises its error if
    it does. None: however long it takes."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()


def _comment(config: Config) -> str:
    """Of the cursors of the one job that may run on a checkpoint; a folder of that name on another
    machine, or in another directory, is another one."""
    name = config.checkpoint
    if is_here(name):
        name = f"{platform.node()}:{Path(name).resolve()}"
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{declared.parse(config.source)['comment']} {mark}"


def _mirrored(spark: SparkSession, config: Config, collection: Captured) -> int:
    """How many documents a run before this one has copied."""
    table = config.table("mirror", collection.namespace)
    if table is None or not table.target.exists(spark):
        return 0
    try:
        return mirror.documents(table.target.read(spark), table, collection.namespace).count()
    except AnalysisException:  # not the mirror that it is to be, which the first batch says
        return 0


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; conf/example.toml shows all.")
@click.option(
    "--mode", type=click.Choice(MODES), help="What a run without a checkpoint tells first."
)
@click.option("--start", help="ISO-8601 or t:i with --mode timestamp; a token with --mode token.")
@click.option("--available-now", is_flag=True, help="Stop when all that is there now is written.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="Serve metrics to Prometheus, and Spark's pages, on this port of 127.0.0.1.",
)
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@told
def main(
    path: str | None,
    mode: str | None,
    start: str | None,
    available_now: bool,
    metrics_port: int | None,
    overrides: tuple[str, ...],
) -> int:
    """Copy collections into Delta tables, then follow their changes.

    Example: mongodb-cdc replicate --config conf/local.toml --mode initial
    """
    extra = [f"mode={mode}"] if mode else []
    extra += [f"start={start}"] if start else []
    config = configuration.load(path, [*overrides, *extra])
    available_now |= config.source.get("mode") == "snapshot"  # else it would wait for ever
    return run(config, available_now, Terminal(stderr=True), metrics_port)


if __name__ == "__main__":
    main()
