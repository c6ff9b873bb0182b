"""Program `replicate`: copy collections into Delta tables, then follow their changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.cli.commands import log_level_option, pipeline_options, run_as_command
from cdc.cli.starting import start_session
from cdc.errors import BadOption
from cdc.monitoring import Display, Limits
from cdc.options import MODES
from cdc.pipeline import Config, Replication, starting
from cdc.pipeline import config as configuration
from cdc.shutdown import Stop, end, has_jvm_ended
from cdc.terminal import Terminal

if TYPE_CHECKING:
    from cdc.monitoring.prometheus import Exporter

_POLL_SECONDS = 0.2


def run(
    config: Config, available_now: bool, console: Console, exporter: Exporter | None = None
) -> int:
    """Replicate until the query ends, or until SIGTERM or Ctrl-C stops it (see `Stop`).

    Returns the exit code. Exits the process with code 0 if a batch could not be written in time.
    """
    with Stop() as stop:
        return _run(config, available_now, console, stop, exporter)


def _run(
    config: Config, available_now: bool, console: Console, stop: Stop, exporter: Exporter | None
) -> int:
    start = partial(start_session, "mongodb-cdc replicate", config)
    with starting(config, start) as (spark, collections):
        limits = Limits(config.options.oplog_window_warn, config.backlog_warn)
        display = Display(console, collections, limits=limits, stop_seconds=config.stop_seconds)
        with display:
            stop.defer(display.acknowledge_stop)
            has_ended = _follow(spark, config, available_now, display, stop, exporter)
        if not has_ended:
            display.conclude("stopped with work left, which the next run repeats")
            end(0)  # before the lock is released and another job can start
        display.conclude("stopped" if stop.is_signalled else "complete")
    return 0


def _follow(
    spark: SparkSession,
    config: Config,
    available_now: bool,
    display: Display,
    stop: Stop,
    exporter: Exporter | None,
) -> bool:
    """Run until the query ends or a signal stops it; False if it was stopped during a batch."""
    try:
        replication = Replication(spark, config, available_now, display.show_batch)
        while replication.is_active() and not stop.wait(_POLL_SECONDS):
            status = replication.status()
            display.show_status(status)
            if exporter is not None:
                exporter.show(status, display.copies())
        has_ended = replication.stop(config.stop_seconds)
        if has_ended:
            display.show_status(replication.status())
        return has_ended
    except Exception:
        # A service manager often signals all processes at once. The JVM then ends during a batch.
        if stop.wait(_POLL_SECONDS) and has_jvm_ended():
            return False
        raise


def _export(name: str, address: str, port: int | None) -> AbstractContextManager[Exporter | None]:
    """Serve metrics while a `with` block runs, if there is a port; the block gets the exporter."""
    if port is None:
        return nullcontext()
    try:
        from cdc.monitoring import prometheus
    except ImportError as error:
        raise BadOption(
            "--metrics-port needs prometheus_client, which is not installed.",
            "Install it: pip install 'mongodb-cdc-spark[prometheus]'.",
        ) from error
    return prometheus.serve(name, address, port)


@click.command()
@pipeline_options
@click.option("--mode", type=click.Choice(MODES), help="Where a run without a checkpoint begins.")
@click.option("--start", help="ISO-8601 or t:i with --mode timestamp; a token with --mode token.")
@click.option("--available-now", is_flag=True, help="Stop after all present data is written.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="Serve metrics to Prometheus on this port.",
)
@click.option(
    "--metrics-address",
    default="127.0.0.1",
    show_default=True,
    help="The address of this machine to serve them on; 0.0.0.0 for all.",
)
@log_level_option()
@run_as_command
def main(
    path: str | None,
    mode: str | None,
    start: str | None,
    available_now: bool,
    metrics_port: int | None,
    metrics_address: str,
    overrides: tuple[str, ...],
) -> int:
    """Copy collections into Delta tables, then follow their changes.

    Example: mongodb-cdc replicate --config conf/local.toml --mode initial
    """
    extra = [f"mode={mode}"] if mode else []
    extra += [f"start={start}"] if start else []
    config = configuration.load(path, [*overrides, *extra])
    available_now |= config.source.get("mode") == "snapshot"  # otherwise it would never end
    with _export(config.name, metrics_address, metrics_port) as exporter:
        return run(config, available_now, Terminal(stderr=True), exporter)


if __name__ == "__main__":
    main()
