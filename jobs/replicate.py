"""Replicate: copy the selected collections into Delta, then follow their changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import click
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from rich.console import Console

from cdc import options as declared
from cdc.delta import mirror
from cdc.options import MODES
from cdc.source.inquiry import Captured, preflight
from jobs import config as configuration
from jobs.checkpoint import alone
from jobs.checkpoint_folder import OFFSETS, Folder
from jobs.config import Config
from jobs.gauges import Gauges, served
from jobs.holdings import require_new
from jobs.progress import Display
from jobs.recovery import require_whole
from jobs.replication import Replication
from jobs.result import told
from jobs.session import session
from jobs.stop import Stop, end, has_no_jvm
from jobs.terminal import Terminal

_POLL_SECONDS = 0.2


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
        named = declared.parse(config.source).selection.names  # be they there or not
        names = dict.fromkeys([*(each.namespace for each in captured), *named])
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
