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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from jobs.processes import descendants, kill

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# What a JVM takes at most that does all that Spark does at its end.
_JVM_SECONDS = 10.0
_STDERR = 2
# What draws a bar there has hidden it, and would show it again behind the silence.
_SHOW_CURSOR = b"\x1b[?25h"


class Stop:
    """Within its block, the signals of this process. The first, while nothing `waits` for it, ends
    the program with code 0; the second ends it at once, with 128 and the signal's number."""

    def __init__(self) -> None:
        # No Event: its lock may be held by the very thread that the signal interrupts.
        self._is_told = self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = _taken(_SIGNALS, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        _put_back(self._before)

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


class Interrupt:
    """Within its block Ctrl-C ends the program with code 130: its JVM first, because whoever cleans
    up behind it would wait for what that does, or take the answer to one question for that to
    another; then the block, as by any exception. What goes wrong meanwhile is nobody's concern.
    The second Ctrl-C waits for nothing."""

    def __init__(self) -> None:
        self._is_told = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._before = _taken([signal.SIGINT], self._handle)

    def __exit__(self, *_: object) -> None:
        if self._is_told:
            end(128 + signal.SIGINT)
        _put_back(self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_told:
            end(128 + number)
        self._is_told = True
        _silence()
        if (process := _jvm()) is not None:
            process.terminate()  # it deletes its files
            has_no_jvm()
        raise KeyboardInterrupt


def _silence() -> None:
    """On stderr. What Java, and threads that listened to it, say of their end is no news."""
    if os.isatty(_STDERR):
        os.write(_STDERR, _SHOW_CURSOR)
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)


def _taken(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> dict[int, Any]:
    """The handlers that these signals had; those of a program are its main thread's."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {each: signal.signal(each, handler) for each in numbers}


def _put_back(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
        started = [*descendants(process.pid)]  # whose parent is another one when it has ended
        process.kill()
        for each in started:
            kill(each)
    sys.stderr.flush()
    os._exit(code)


def _jvm() -> subprocess.Popen[bytes] | None:
    """None under spark-submit, which started this process, and as long as nobody needed Spark."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None)
