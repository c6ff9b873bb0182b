"""The whole job in the test's own process, and how long it is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from cdc.delta.sink import BatchReport
from cdc.pipeline import Config, Replication

STALL_SECONDS = 120
_MOST_BATCHES = 40

# Some dozens of writes in each batch: more would only be more work for everyone.
WRITERS_PAUSE = 0.02


def replicated(spark: SparkSession, config: Config) -> None:
    """All that is there."""
    replication = Replication(spark, config, available_now=True)
    replication.query.awaitTermination(2 * STALL_SECONDS)
    replication.stop()


def wait_until(
    condition: Callable[[], bool], replication: Replication, reports: list[BatchReport]
) -> None:
    """Waits as long as one batch comes after the other, but not for ever."""
    first, batches, deadline = len(reports), -1, 0.0
    while not condition():
        if not replication.query.isActive:
            replication.stop()  # raises the error that ended it
        if len(reports) > batches:
            batches, deadline = len(reports), time.monotonic() + STALL_SECONDS
        assert batches < first + _MOST_BATCHES, "the replication went past what was waited for"
        assert time.monotonic() < deadline, "no batch came"
        time.sleep(0.05)
