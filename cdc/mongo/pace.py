"""How fast a task reads: the servers are asked for more only as fast as they may be."""

from __future__ import annotations

import threading
import time


class Ended(Exception):
    """To one who waits for more: nobody wants it any more."""


class Pace:
    """Of one task, whichever members it reads and however often it begins anew.

    From its first reply to the end of a `wait` behind its last, no more than `bytes_per_second`
    have come on average; at any moment before, up to one reply more, 16 MiB. None is no limit.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._ended = threading.Event()

    def wait(self) -> None:
        """Until more may be asked for. Raises Ended."""
        if self._rate is not None and self._ended.wait(max(0.0, self._free_at - time.monotonic())):
            raise Ended

    def end(self) -> None:
        """For another thread, whose reader may be waiting for hours: it asks for no more."""
        self._ended.set()

    def came(self, size: int) -> None:
        """A reply of so many bytes. What was not made use of before is not saved up."""
        if self._rate is not None:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate


UNLIMITED = Pace(None)
