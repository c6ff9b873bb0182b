"""The thread in which the followers of a pipeline run, beside the batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.delta.followers.follower import Followers
from cdc.errors import CdcError

_log = logging.getLogger(__name__)
# Spark gives each pool the same share of its cores, so that a MERGE does not delay the batches.
_POOL = "followers"
_ATTEMPTS = 5
_MOST_SECONDS_BETWEEN_ATTEMPTS = 30.0
# How often the thread looks for new batches: in this process, and in tables and the checkpoint.
_POLL_SECONDS, _FIND_SECONDS = 0.05, 0.5


class FollowerThread:
    """Applies pending batches, `interval` seconds after it began to apply the ones before.

    An attempt that fails is repeated; the batches go on meanwhile. After some failures in
    succession, or an error that does not go away by itself, the thread ends.

    Args:
        spark: the session; the thread uses a copy of it.
        followers: the tables.
        interval: seconds.
        find: finds the batches that another process has written, before they are applied. None:
            this process adds them.
        waits: whether the followers are to wait now, because another program writes their tables.
            At its end the thread asks no more.
    """

    def __init__(
        self,
        spark: SparkSession,
        followers: Followers,
        interval: float,
        find: Callable[[SparkSession], None] | None = None,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        # MERGE takes its transaction from the settings of the session.
        self._spark = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
        self._followers, self._interval = followers, interval
        self._find, self._waits = find, waits
        self._poll = _POLL_SECONDS if find is None else _FIND_SECONDS
        self._has_found = False
        self._is_ending = threading.Event()
        self._is_complete = False
        self._error: Exception | None = None
        # Not a thread that inherits properties of the query's: a stop of the query cancels the jobs
        # of its group.
        self._thread = threading.Thread(target=self._run, name="followers", daemon=True)
        self._thread.start()

    def require_running(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def has_caught_up(self) -> bool:
        """Whether all is applied that there was when the thread last looked for batches.

        Raises the error that ended the thread.
        """
        self.require_running()
        return self._has_found

    def end(self, seconds: float | None, is_complete: bool) -> bool:
        """End the thread after the commits that it is about to make.

        With `is_complete` it applies everything that is pending before. Returns whether it ended
        within `seconds`; None means no limit. Raises the error that ended it.
        """
        self._is_complete = is_complete
        self._is_ending.set()
        self._thread.join(seconds)
        self.require_running()
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        wait, failures = 0.0, 0
        while not self._is_ending.wait(max(wait, self._poll)):
            wait = 0.0
            if self._find is None and not self._followers.backlog().batches:
                continue
            began = time.monotonic()
            if self._apply(failures):
                failures, wait = 0, self._interval - (time.monotonic() - began)
            elif self._error is None:
                failures += 1
                wait = min(2.0**failures, _MOST_SECONDS_BETWEEN_ATTEMPTS)
            else:
                return
        if self._is_complete:
            self._apply(_ATTEMPTS)

    def _apply(self, failures: int) -> bool:
        """Whether the attempt succeeded. `failures`: how many failed before it."""
        try:
            if self._find is not None:
                self._find(self._spark)
            if self._is_ending.is_set() or not self._waits():
                self._followers.apply(self._spark)
                self._has_found = True
        except (CdcError, Py4JError, PySparkException) as error:
            if isinstance(error, CdcError) or failures + 1 >= _ATTEMPTS:
                self._error = error
            else:
                _log.warning("mirrors and histories could not be updated, trying again: %s", error)
            return False
        except Exception as error:
            self._error = error
            return False
        return True
