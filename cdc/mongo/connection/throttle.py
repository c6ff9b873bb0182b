"""Throttling: a task requests data from servers at a limited rate."""

from __future__ import annotations

import threading
import time


class PaceEnded(Exception):
    """Raised to a reader that waits for its turn when its data is no longer needed."""


class Pace:
    """Limits the reads of one task, across all its members and attempts.

    Between the first reply and the end of a `wait` after the last one, the average rate is at most
    `bytes_per_second`. At any moment in between, up to one reply (16 MiB) more may have arrived.
    None means no limit.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._ended = threading.Event()

    def wait(self) -> None:
        """Wait until the next request is allowed. Raises PaceEnded after `end`."""
        if self._rate is not None and self._ended.wait(max(0.0, self._free_at - time.monotonic())):
            raise PaceEnded

    def end(self) -> None:
        """Stop a reader that waits in another thread, perhaps for hours."""
        self._ended.set()

    def record(self, size: int) -> None:
        """Count a reply of `size` bytes. A rate that was not used before is not saved up."""
        if self._rate is not None:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate


UNLIMITED = Pace(None)
