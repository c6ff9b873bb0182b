"""The end of a program: SIGTERM and Ctrl-C, and the processes that the program has started.

Before there is a query a signal ends the program at once; afterwards after the batch being written,
and in no case later than the configuration allows. Nothing is lost by ending at any moment: the
next run plans a batch that is not in all its tables again, as it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

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


def descendants(process: int) -> Iterator[int]:
    """As Linux tells them; elsewhere none, and they end when they see that their parent has."""
    for told in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has just ended
            for child in map(int, told.read_text().split()):
                yield child
                yield from descendants(child)


def kill(process: int) -> None:
    """No effect on one that has ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def started_whole() -> Iterator[None]:
    """What is started within the block is killed if the block ends with an exception, Ctrl-C too:
    nobody knows of it then, and it may wait for this process for ever."""
    before = {*descendants(os.getpid())}
    try:
        yield
    except BaseException:
        for each in {*descendants(os.getpid())} - before:
            kill(each)
        raise
