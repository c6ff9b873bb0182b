"""Files by which a program that rewrites tables lets the job of their pipeline make room for it.

A write that reads much of a table (OPTIMIZE, the repair of a mirror) fails if a follower commits to
the table meanwhile, and a follower may do so every second. So it takes a *hold*: followers wait
while it lasts.

Nothing waits with the commits to a changelog, and they do not conflict with an OPTIMIZE. But Delta
lists the whole log after each attempt that came too late for its version. If that takes longer than
the job takes from commit to commit, OPTIMIZE is always late. So it lets the job leave *gaps*.

Each is a file in the checkpoint's folder that says until when it counts. It is renewed while it
lasts, and removed at its end. After a crash it expires.

No result depends on these files, because Delta refuses one of two commits that conflict. Without
them the longer write has to be repeated.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError

from cdc.checkpoint.checkpoint import parse_json
from cdc.checkpoint.folder import Folder

_log = logging.getLogger(__name__)
_HOLD, _GAPS = "hold", "gaps"
_SECONDS, _RENEWAL_SECONDS = 60.0, 15.0
# The clocks of two machines differ by less. A file that states a later time is ignored.
_MOST_SECONDS = 2 * _SECONDS
# Longer gaps would delay changes more than a table that is not compacted.
_LONGEST_GAP = 10.0


@contextmanager
def hold(folder: Folder) -> Iterator[None]:
    """Let the followers of a pipeline wait until the block ends.

    A follower that is writing completes its commit first. Without a checkpoint there is none.
    """
    with _kept(folder, _HOLD, {}):
        yield


def is_held(folder: Folder) -> bool:
    """Whether the followers of a pipeline are to wait."""
    return _read(folder, _HOLD) is not None


@contextmanager
def leave_gaps(folder: Folder, seconds: float) -> Iterator[None]:
    """Let the job of a pipeline wait that long between two commits of changelogs, at most ten
    seconds, until the block ends."""
    with _kept(folder, _GAPS, {"seconds": min(seconds, _LONGEST_GAP)}):
        yield


def gap(folder: Folder) -> float:
    """How many seconds the job of a pipeline is to wait between two commits of changelogs."""
    seconds = (_read(folder, _GAPS) or {}).get("seconds")
    return seconds if isinstance(seconds, float) and 0 < seconds <= _LONGEST_GAP else 0.0


@contextmanager
def _kept(folder: Folder, name: str, state: Mapping[str, Any]) -> Iterator[None]:
    if not (folder.exists(".") and _renew(folder, name, state)):
        yield
        return
    has_ended = threading.Event()

    def run() -> None:
        while not has_ended.wait(_RENEWAL_SECONDS) and _renew(folder, name, state):
            pass

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        _release(folder, name)


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    """The state in a file; None if it does not count now, or cannot be read."""
    try:
        state = parse_json(folder.read_text(name))
    except (OSError, Py4JError) as error:
        # Not worth the end of a run.
        _log.warning("the job makes no room, because %s cannot be read: %s", folder.path, error)
        return None
    until = state.get("until") if isinstance(state, dict) else None
    counts = isinstance(until, float) and 0 < until - time.time() <= _MOST_SECONDS
    return state if counts else None


def _renew(folder: Folder, name: str, state: Mapping[str, Any]) -> bool:
    try:
        folder.write_text(name, json.dumps({**state, "until": time.time() + _SECONDS}))
        return True
    except (OSError, Py4JError) as error:
        _log.warning("the job makes no room, because %s cannot be written: %s", folder.path, error)
        return False


def _release(folder: Folder, name: str) -> None:
    try:
        folder.remove(name)
    except (OSError, Py4JError) as error:
        _log.warning("the job makes room for another minute, because of %s", error)
