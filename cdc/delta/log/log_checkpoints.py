"""Checkpoints of the logs of Delta, written by a thread of their own: no commit waits for one.

Delta writes a checkpoint within each commit whose version is a multiple of an interval. That took
twelve seconds on two cores, in which no change landed. So our tables have a long interval, and this
thread writes the checkpoints and cleans the log in between. If it fails, `backlog` grows, and Delta
itself writes one within the commit at the interval."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from pyspark.sql import SparkSession

from cdc.delta.log.snapshot import delta_log, listed_snapshot
from cdc.delta.log.target import Target

_log = logging.getLogger(__name__)
# Delta's own interval: the limit above which a commit has to wait all the same.
CHECKPOINT_INTERVAL = 1000
# How many commits of ours pass between two looks at a table's log.
_LOOK = 10
_MOST_SECONDS_TO_COMPLETE = 10.0


class LogCheckpoints:
    """The checkpoints of one pipeline's tables. `committed` may be called by any thread.

    A checkpoint is due after `commits` commits without one.
    """

    commits = 100

    def __init__(self) -> None:
        self._commits: dict[Target, int] = {}
        self._without: dict[Target, int] = {}
        self._lock = threading.Lock()
        self._due: queue.SimpleQueue[tuple[SparkSession, Target] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def committed(self, spark: SparkSession, target: Target) -> None:
        """Note a commit. Returns at once."""
        if target.is_name:  # Delta itself writes its checkpoints
            return
        with self._lock:
            count = self._commits[target] = self._commits.get(target, 0) + 1
            self._without[target] = self._without.get(target, 0) + 1
            # The first commit too: a run may be too short for a second look.
            if count % _LOOK != 1:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
                self._thread.start()
        self._due.put((spark, target))

    def backlog(self) -> int:
        """The greatest number of commits of a table after its last checkpoint.

        Commits of earlier runs count once the thread has looked at the table's log.
        """
        with self._lock:
            return max(self._without.values(), default=0)

    def close(self, seconds: float | None = None) -> None:
        """Look at no further commits.

        Waits until the checkpoints that are due are written, or else every short run could leave
        its own unfinished; but no longer than `seconds`, and ten at most. No reader sees an
        unfinished checkpoint.
        """
        self._is_closed.set()
        self._due.put(None)
        if self._thread is not None:
            limit = _MOST_SECONDS_TO_COMPLETE
            self._thread.join(limit if seconds is None else min(seconds, limit))

    def _run(self) -> None:
        while (due := self._due.get()) is not None:
            spark, target = due
            try:
                without = write_if_due(spark, target, self.commits)
                with self._lock:
                    self._without[target] = without
            except Exception as error:
                # A thread that ended here would write no checkpoint of any table any more. After
                # `close` the session may end at any moment, which is not worth a warning.
                level = logging.DEBUG if self._is_closed.is_set() else logging.WARNING
                reason = str(error).partition("\n\tat ")[0]  # without Java's trace
                _log.log(level, "the checkpoint of the log of %s failed: %s", target, reason)


def write_if_due(spark: SparkSession, target: Target, commits: int) -> int:
    """Write a checkpoint, and clean the log, if `commits` commits have none.

    Returns how many commits have none afterwards.
    """
    jvm: Any = spark._jvm
    log = delta_log(spark, target.address)
    snapshot = log.unsafeVolatileSnapshot()
    # A snapshot goes on naming the checkpoint that it was made of.
    written = log.readLastCheckpointFile()
    last = written.get().version() if written.isDefined() else -1
    without = int(snapshot.version()) - int(last)
    is_due = without >= commits
    if is_due:
        # A commit that began with the same object would wait until its state is computed: seconds.
        parts = snapshot.path(), snapshot.version(), snapshot.logSegment(), log
        own = jvm.org.apache.spark.sql.delta.Snapshot(*parts, snapshot.checksumOpt())
        try:
            log.checkpointAndCleanUpDeltaLog(own, jvm.scala.Option.empty())
        finally:
            own.uncache()
    if is_due or last > snapshot.logSegment().checkpointProvider().version():
        # From now on Delta's snapshots begin with the last checkpoint, whoever wrote it.
        listed_snapshot(spark, log)
    return 0 if is_due else without
