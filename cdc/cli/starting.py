"""Program `prepare`, and the start of Spark in other programs: announced, where it is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import click
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdc.cli.commands import run_as_command
from cdc.logs import format_line
from cdc.pipeline import (
    Access,
    Config,
    NeedsSpark,
    access_locally,
    prepare,
    session,
    skip_discovery,
    under_spark_submit,
)
from cdc.terminal import Terminal

T = TypeVar("T")


def run_locally(local: Callable[[], T], by_spark: Callable[[], T]) -> T:
    """Return the result of `local`; if it raises NeedsSpark, state why and return `by_spark`'s."""
    try:
        return local()
    except NeedsSpark as reason:
        _report_need(str(reason))
    return by_spark()


def check_locally(config: Config, check: Callable[[Access], object]) -> None:
    """Check something without Spark if possible; otherwise the program itself finds it out."""
    with suppress(NeedsSpark):
        check(access_locally(config))


def start_session(
    program: str,
    config: Config,
    reason: str | None = None,
) -> SparkSession:
    """Return Spark's session, and report the start of Spark before and after it.

    `reason` says why Spark is needed now, if that is not obvious; it is reported too.
    """
    if _is_running():
        return session(program, config=config)
    if reason is not None:
        _report_need(reason)
    report("starting Spark")
    began = time.monotonic()
    spark = session(program, config=config)
    skip_discovery(spark)
    report(f"Spark started in {time.monotonic() - began:.1f} s")
    return spark


def report(text: str) -> None:
    """Print what a program does now: a line on a terminal, otherwise a line of the log."""
    console = Terminal(stderr=True)
    console.print(text if console.is_terminal else format_line("cdc.cli", text), soft_wrap=True)


def _report_need(reason: str) -> None:
    if not _is_running():
        report(f"Spark is needed: {reason}")


def _is_running() -> bool:
    """Whether the JVM runs already: under spark-submit, and after the first session."""
    return under_spark_submit() or SparkContext._active_spark_context is not None


@click.command("prepare")
@run_as_command
def prepare_machine() -> int:
    """Download Delta's jars, compile the encoders and store Spark's classes.

    Run it once per machine, or while the image of a container is built. Programs that start Spark
    themselves start faster then; nothing else changes.

    Example: mongodb-cdc prepare
    """
    prepare(Terminal(stderr=True).print)
    return 0
