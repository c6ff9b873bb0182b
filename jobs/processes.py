"""Processes that this one has started, and what becomes of them if it ends in the midst of that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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
