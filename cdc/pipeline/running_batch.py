"""The batch that is being written: since when, and how many of its tasks have finished."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that is being written.

    Attributes:
        batch: its number in the checkpoint.
        seconds: since its source was planned.
        tasks: the tasks of the Spark jobs that it runs now; 0 between two jobs.
        finished: those of them that have finished.
    """

    batch: int
    seconds: float
    tasks: int = 0
    finished: int = 0


class BatchClock:
    """Measures the batch of one query. Any thread may read it."""

    def __init__(self) -> None:
        self._running: tuple[int, float] | None = None

    @contextmanager
    def measure(self, batch: int) -> Iterator[None]:
        """The batch is being written until the block ends."""
        self._running = batch, time.monotonic()
        try:
            yield
        finally:
            self._running = None

    def read(self, spark: SparkSession, group: str) -> RunningBatch | None:
        """The batch that is being written now, if any.

        `group` is the group of the Spark jobs of the query: its run id.
        """
        running = self._running
        if running is None:
            return None
        batch, since = running
        return RunningBatch(batch, time.monotonic() - since, *_count_tasks(spark, group))


def _count_tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    """How many tasks the running jobs of a group have, and how many of them have finished.

    Jobs of other groups are those of the followers, for instance.
    """
    tasks = finished = 0
    context = spark.sparkContext
    try:
        store = context._jsc.sc().statusStore()
        for number in context.statusTracker().getActiveJobsIds():
            job = store.job(number)
            if job.jobGroup().isDefined() and job.jobGroup().get() == group:
                tasks += job.numTasks()
                finished += job.numCompletedTasks()
    except Py4JError:  # a job that has just ended is not in the store any more
        return 0, 0
    return tasks, finished
