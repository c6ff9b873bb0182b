"""A lock on a folder, exclusive among the processes of one machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a folder for the duration of the block; wait for another process that has the lock.

    The folder must exist. Only processes of this machine that use this module respect the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder like `lock`, without waiting; yield False if another process has the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
