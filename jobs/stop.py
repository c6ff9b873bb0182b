"""Being told to stop, by SIGTERM or Ctrl-C: at once before there is a query, behind its batch
afterwards, and in no case later than the job has said.

Nothing has to be done for that but to end: a batch that is not written to all its tables is planned
again, as it was, by the next run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from pyspark import SparkContext

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# What a JVM takes at most that does all that Spark does at its end.
_JVM_SECONDS = 10.0


class Stop:
    """Within its block, the signals of this process. The first, while nothing `waits` for it, ends
    the program with code 0; the second ends it at once, with 128 and the signal's number."""

    def __init__(self) -> None:
        # No Event: its lock may be held by the very thread that the signal interrupts.
        self._is_told = self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = self._taken()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def again(self) -> None:
        """Behind the start of Spark, whose context takes Ctrl-C for itself."""
        self._taken()

    def _taken(self) -> dict[int, Any]:
        """From whoever had them."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {each: signal.signal(each, self._handle) for each in _SIGNALS}

    def waits(self) -> None:
        """From now on the first signal only lets `within` return True."""
        self._waits = True

    def within(self, seconds: float) -> bool:
        """Whether there has been one, so many seconds from now; at once if there was before."""
        if not self._is_told:
            time.sleep(seconds)
        return self._is_told

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_told:
            end(128 + number)
        self._is_told = True
        if not self._waits:
            sys.exit(0)


def has_no_jvm() -> bool:
    """Whether the JVM that this process started has ended, or does so in a few seconds."""
    process = _jvm()
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(_JVM_SECONDS)
    return process.poll() is not None


def end(code: int) -> None:
    """Ends this process, the JVM that it started, and what that one started, whatever they do."""
    process = _jvm()
    if process is not None and process.poll() is None:  # else its number may be another's by now
        started = [*_descendants(process.pid)]  # whose parent is another one when it has ended
        process.kill()
        for each in started:
            _kill(each)
    sys.stderr.flush()
    os._exit(code)


def _jvm() -> subprocess.Popen[bytes] | None:
    """None under spark-submit, which started this process."""
    return getattr(SparkContext._gateway, "proc", None)


def _descendants(process: int) -> Iterator[int]:
    """As Linux tells them; elsewhere none, and they end when they see that their parent has."""
    for told in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has just ended
            for child in map(int, told.read_text().split()):
                yield child
                yield from _descendants(child)


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
