"""Concurrent writes: several tables at once, and a table that others write to as well."""

from __future__ import annotations

import logging
import time
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

from cdc.delta.log.target import Target
from cdc.errors import ConflictsUnresolved

T = TypeVar("T")


class Outdated(Exception):
    """The state of a table that this process knows is outdated; `repeated` tries again."""


_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
# A write is tried for that long, and at least so often: it may itself take longer.
_PATIENCE_SECONDS, _LEAST_ATTEMPTS = 300.0, 3
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
    """Return the result of a write, and repeat it after each conflict with another writer.

    The write must read the table anew each time. It may have been done already when it is repeated.

    Raises ConflictsUnresolved after five minutes and three attempts with nothing but conflicts.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_CONFLICTS),
        stop=tenacity.stop_all(
            tenacity.stop_after_delay(_PATIENCE_SECONDS),
            tenacity.stop_after_attempt(_LEAST_ATTEMPTS),
        ),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
        before_sleep=lambda state: _log.warning("%s was changed meanwhile, trying again", target),
    )
    try:
        return attempts(write)
    except tenacity.RetryError as error:
        raise ConflictsUnresolved(
            f"Others changed the table at '{target}' each time that it was to be written.",
            "Use `mongodb-cdc maintain` instead of an OPTIMIZE of yours: the job waits for it. Or"
            " let what else writes the table run at another time.",
        ) from error


class CommitGaps:
    """Lets a batch wait before it commits.

    Args:
        wanted: returns how many seconds there are to be between two commits; 0 for none.
    """

    def __init__(self, wanted: Callable[[], float]) -> None:
        self._wanted = wanted
        self._committed = self._looked = time.monotonic()
        self._gap = 0.0

    def committed(self) -> None:
        """Note that a batch has committed: the gap begins."""
        self._committed = time.monotonic()

    def wait(self) -> None:
        """Wait until the gap is over, or is not wanted any more."""
        while (left := self._committed + self._find_gap() - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def _find_gap(self) -> float:
        """The gap, read once a second at most: a store takes a while to answer."""
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._gap, self._looked = self._wanted(), time.monotonic()
        return self._gap


# Much of a small write is waiting: for the table's log, and for Spark to plan.
_THREADS = 4


def at_once(
    spark: SparkSession, write: Callable[[SparkSession, T], None], tables: Sequence[T]
) -> None:
    """Call `write` for each table, in parallel, each with a session of its own.

    MERGE takes its transaction from the settings of the session. Returns when all calls have ended;
    raises the error of the first call that failed, in the order of `tables`.
    """
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
    """A session with the same settings, views and cached frames, whose settings are its own."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
