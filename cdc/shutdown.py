"""How a program ends: SIGTERM, Ctrl-C, and the processes that it started.

Before the streaming query exists, a signal ends the program at once. Afterwards it ends after the
batch that is being written, and no later than the configuration allows. No end loses data: the
next run plans a batch that is not in all its changelogs again, with the same content.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from cdc.logs import format_line

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# The longest time that a JVM needs for all of Spark's shutdown hooks.
_JVM_SECONDS = 10.0
# The longest time for the cleanup after Ctrl-C. The demo stops servers in it.
_CLEANUP_SECONDS = 30.0
_STDERR = 2
STOPPING = "stopping after the current batch; a second signal ends it at once"
# A progress bar hides the cursor, and would show it again only after stderr is silenced.
_SHOW_CURSOR = b"\x1b[?25h"


class Stop:
    """Handles SIGTERM and SIGINT of this process within its block.

    The first signal ends the program with code 0, unless `defer` was called. The second signal
    ends it at once, with code 128 plus the number of the signal. The first one is acknowledged at
    once, whatever the program waits for.

    Attributes:
        is_signalled: whether a signal has arrived.
    """

    def __init__(self) -> None:
        # Not an Event: the thread that the signal interrupts may own the lock of the Event.
        self.is_signalled = False
        self._acknowledge: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = _install(_SIGNALS, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    def defer(self, acknowledge: Callable[[], None] | None = None) -> None:
        """From now on the first signal does not end the program; it makes `wait` return True.

        `acknowledge` is called in the signal handler: it must not wait for a lock. By default a
        line is printed.
        """
        self._acknowledge = acknowledge or (lambda: print_at_once(STOPPING))

    def wait(self, seconds: float) -> bool:
        """Sleep, then return whether a signal has arrived; do not sleep if it arrived before."""
        if not self.is_signalled:
            time.sleep(seconds)
        return self.is_signalled

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_signalled:
            end(128 + number)
        self.is_signalled = True
        if self._acknowledge is None:
            print_at_once("stopped before the first batch")
            sys.exit(0)
        self._acknowledge()


class Interrupt:
    """Ends the program with code 130 at Ctrl-C within its block.

    The first Ctrl-C ends the JVM, then raises KeyboardInterrupt in the block. The JVM goes first:
    cleanup code would wait for the call that runs in it, or read the reply to that call as the
    reply to its own. Errors during this end are ignored. The second Ctrl-C ends the program at
    once, and so does a cleanup that takes long: it may wait for a thread that waits for a server.
    """

    def __init__(self) -> None:
        self._is_signalled = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._before = _install([signal.SIGINT], self._handle)

    def __exit__(self, *_: object) -> None:
        if self._is_signalled:
            end(128 + signal.SIGINT)
        _restore(self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_signalled:
            end(128 + number)
        self._is_signalled = True
        silence()
        if (process := _jvm()) is not None:
            process.terminate()  # not kill: the JVM deletes its temporary files
            has_jvm_ended()  # waits for it
        # Not `threading.Timer`: the interrupted code may own the locks of `threading`.
        start_new_thread(_end_after, (_CLEANUP_SECONDS, 128 + number))
        raise KeyboardInterrupt


def _end_after(seconds: float, code: int) -> None:
    time.sleep(seconds)
    end(code)


def print_at_once(text: str) -> None:
    """Print a line to stderr from a signal handler.

    Not by `print` or `logging`, which the interrupted code may be using.
    """
    with suppress(OSError):  # for instance a closed pipe
        os.write(_STDERR, f"{format_line('cdc.shutdown', text)}\n".encode())


def silence() -> None:
    """Discard stderr: Java, and threads and processes that are connected to it, report their end
    with stack traces."""
    if os.isatty(_STDERR):
        os.write(_STDERR, _SHOW_CURSOR)
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)


def _install(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> dict[int, Any]:
    """Set the handler of these signals and return the previous ones.

    Does nothing outside the main thread, where Python refuses to set a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {each: signal.signal(each, handler) for each in numbers}


def _restore(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def has_jvm_ended() -> bool:
    """Whether the JVM that this process started has ended, or ends within ten seconds.

    False if this process has not started a JVM.
    """
    process = _jvm()
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(_JVM_SECONDS)
    return process.poll() is not None


def end(code: int) -> None:
    """End this process, the JVM that it started and that JVM's children, whatever they do."""
    process = _jvm()
    # The pid of a process that has ended may belong to another process by now.
    if process is not None and process.poll() is None:
        # Listed before the kill: orphans get another parent.
        started = [*descendants(process.pid)]
        process.kill()
        for each in started:
            kill(each)
    sys.stderr.flush()
    os._exit(code)


def _jvm() -> subprocess.Popen[bytes] | None:
    """The JVM that this process started.

    None before the first use of Spark, and under spark-submit, where the JVM started this process.
    """
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None)


def descendants(process: int) -> Iterator[int]:
    """The pids of a process's children, their children and so on, from Linux's /proc.

    Empty on other systems; there the children end when they notice that their parent has ended.
    """
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread has just ended
            for child in map(int, children.read_text().split()):
                yield child
                yield from descendants(child)


def kill(process: int) -> None:
    """Kill a process; no effect if it has ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def kill_children_on_error() -> Iterator[None]:
    """Kill the processes that the block started if it raises, also at Ctrl-C.

    Without this, a half-started JVM that no variable refers to could wait for this process forever.
    """
    before = {*descendants(os.getpid())}
    try:
        yield
    except BaseException:
        for each in {*descendants(os.getpid())} - before:
            kill(each)
        raise
