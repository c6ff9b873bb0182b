"""Writers of the same moment: several tables written at once, and a table that others write too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tenacity
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from cdc.delta.tables.target import Target
from cdc.errors import ConflictsUnresolved

T = TypeVar("T")


class Outdated(Exception):
    """What this process knows of a table is no longer so: `repeated` tries again."""


_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 300.0
# In Scala the last is the base of all others; in Python it is not.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
    DeltaConcurrentModificationException,
    Outdated,
)


def repeated(write: Callable[[], T], target: Target) -> T:
    """What the write returns, made anew whenever it meets another one. It has to read the table
    anew each time, and may have been done already when it is made again.

    Raises ConflictsUnresolved if it is met for five minutes on end.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_CONFLICTS),
        stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
        before_sleep=lambda state: _log.warning("%s was changed meanwhile, trying again", target),
    )
    try:
        return attempts(write)
    except tenacity.RetryError as error:
        raise ConflictsUnresolved(
            f"Others changed the table at '{target}' each time that it was to be written.",
            "Let what else writes it (OPTIMIZE, a backfill) run at another time.",
        ) from error


# Much of a small write is waiting: for the table's log, and for Spark to plan.
_THREADS = 4


def at_once(
    spark: SparkSession, write: Callable[[SparkSession, T], None], tables: Sequence[T]
) -> None:
    """Call `write` for each table, with a session of its own: what MERGE is to do reaches it only
    through the session. Returns when all have ended; raises the error of the first that failed, in
    the order of `tables`."""
    if len(tables) == 1:
        write(spark, tables[0])
        return
    with ThreadPoolExecutor(_THREADS) as threads:
        ended = [
            # Made for each anew: all threads of one such target share its properties, and Spark
            # would take the jobs of one table for those of another, and keep them for ever.
            threads.submit(inheritable_thread_target(spark)(write), _clone(spark), table)
            for table in tables
        ]
    for each in ended:
        each.result()


def _clone(spark: SparkSession) -> SparkSession:
    """A session with the same settings, views and cached frames, and settings of its own."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
