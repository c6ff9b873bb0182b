"""Writing several tables at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

T = TypeVar("T")
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
