"""Program `replicate`: copy collections into Delta tables, then follow their changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import click
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.checkpoint import OFFSETS, Folder, lock_checkpoint, require_whole
from cdc.cli.commands import run_as_command
from cdc.delta.followers import mirror
from cdc.monitoring import Display, Gauges, prometheus_settings
from cdc.options import MODES
from cdc.pipeline import Config, Replication, require_new, session
from cdc.pipeline import config as configuration
from cdc.shutdown import Stop, end, has_jvm_ended
from cdc.source import CapturedCollection, preflight
from cdc.terminal import Terminal

_POLL_SECONDS = 0.2


def run(
    config: Config, available_now: bool, console: Console, metrics_port: int | None = None
) -> int:
    """Replicate until the query ends, or until SIGTERM or Ctrl-C stops it (see `Stop`).

    Returns the exit code. Exits the process with code 0 if a batch could not be written in time.
    """
    extra = {} if metrics_port is None else prometheus_settings(metrics_port)
    with Stop() as stop:
        return _run(config, available_now, console, stop, extra)


def _run(
    config: Config, available_now: bool, console: Console, stop: Stop, extra: Mapping[str, str]
) -> int:
    spark = session("mongodb-cdc replicate", extra=extra, config=config)
    with _lock_and_check(spark, config) as (has_begun, captured):
        expected = {each.namespace: each.documents for each in captured}
        with Display(console, expected) as display:
            if has_begun:
                for each in captured:
                    display.resume_copy(each.namespace, _count_copied(spark, config, each))
            stop.defer()
            has_ended = _follow(spark, config, available_now, display, stop)
        how = "stopped" if has_ended else "stopped with work left, which the next run repeats,"
        console.print(f"{how} after {display.rows:,} rows")
        if not has_ended:
            end(0)  # before the lock is released and another job can start
    return 0


@contextmanager
def _lock_and_check(
    spark: SparkSession, config: Config
) -> Iterator[tuple[bool, list[CapturedCollection]]]:
    """Lock the checkpoint, and check it, the source and the tables.

    Yields the result of `_check_start`. A missing folder is created and locked after the checks: a
    first run that fails a check leaves no folder.
    """
    folder = Folder(spark, config.checkpoint)
    with ExitStack() as lock:
        has_folder = folder.exists(".")
        if has_folder:
            lock.enter_context(lock_checkpoint(config.checkpoint))
        start = _check_start(spark, config, folder)
        if not has_folder:
            lock.enter_context(lock_checkpoint(config.checkpoint))
        yield start


def _check_start(
    spark: SparkSession, config: Config, folder: Folder
) -> tuple[bool, list[CapturedCollection]]:
    """Raise the error that prevents a start, if any.

    Returns whether the checkpoint contains a batch to continue from, and the captured collections.
    """
    require_whole(folder)
    has_begun = bool(folder.numbers(OFFSETS))
    captured = preflight(config.options, is_new=not has_begun)
    if not has_begun:
        # Tables of a collection that does not exist yet count too.
        named = config.options.selection.names
        names = dict.fromkeys([*(each.namespace for each in captured), *named])
        require_new(spark, config, names, folder.pipeline())
    return has_begun, captured


def _follow(
    spark: SparkSession, config: Config, available_now: bool, display: Display, stop: Stop
) -> bool:
    """Run until the query ends or a signal stops it; False if it was stopped during a batch."""
    gauges = Gauges(spark)
    try:
        replication = Replication(spark, config, available_now, display.show_batch)
        while replication.is_active() and not stop.wait(_POLL_SECONDS):
            status = replication.status()
            display.show_status(status)
            gauges.show(status)
        has_ended = replication.stop(config.stop_seconds)
        if has_ended:
            display.show_status(replication.status())
        return has_ended
    except Exception:
        # A service manager often signals all processes at once. The JVM then ends during a batch.
        if stop.wait(_POLL_SECONDS) and has_jvm_ended():
            return False
        raise


def _count_copied(spark: SparkSession, config: Config, collection: CapturedCollection) -> int:
    """The number of documents that earlier runs copied."""
    table = config.table("mirror", collection.namespace)
    if table is None or not table.target.exists(spark):
        return 0
    try:
        return mirror.documents(table.target.read(spark), table, collection.namespace).count()
    except AnalysisException:  # not a valid mirror: the first batch reports that
        return 0


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; see conf/example.toml.")
@click.option("--mode", type=click.Choice(MODES), help="Where a run without a checkpoint begins.")
@click.option("--start", help="ISO-8601 or t:i with --mode timestamp; a token with --mode token.")
@click.option("--available-now", is_flag=True, help="Stop after all present data is written.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="Serve metrics to Prometheus, and Spark's UI, on this port of 127.0.0.1.",
)
@click.option("-o", "--option", "overrides", multiple=True, help="name=value; overrides the file.")
@run_as_command
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
    available_now |= config.source.get("mode") == "snapshot"  # otherwise it would never end
    return run(config, available_now, Terminal(stderr=True), metrics_port)


if __name__ == "__main__":
    main()
