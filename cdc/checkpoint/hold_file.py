"""A hold on the mirrors and histories of a pipeline: their followers wait while it lasts.

A write that reads much of a table (OPTIMIZE, the repair of a mirror) fails if a follower commits to
the table meanwhile, and a follower may do so every second. So it takes a hold: a file in the
checkpoint's folder says until when followers wait. It is renewed while the hold lasts, and removed
at its end. After a crash it expires.

No result depends on a hold, because Delta refuses one of two commits that conflict. Without it the
longer write has to be repeated.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError

from cdc.checkpoint.checkpoint import parse_json
from cdc.checkpoint.folder import Folder

_log = logging.getLogger(__name__)
_NAME = "hold"
_SECONDS, _RENEWAL_SECONDS = 60.0, 15.0
# The clocks of two machines differ by less. A file that states a later time is ignored.
_MOST_SECONDS = 2 * _SECONDS


@contextmanager
def hold(folder: Folder) -> Iterator[None]:
    """Let the followers of a pipeline wait until the block ends.

    A follower that is writing completes its commit first. Without a checkpoint there is none.
    """
    if not (folder.exists(".") and _renew(folder)):
        yield
        return
    has_ended = threading.Event()

    def run() -> None:
        while not has_ended.wait(_RENEWAL_SECONDS) and _renew(folder):
            pass

    thread = threading.Thread(target=run, name="hold", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        _release(folder)


def is_held(folder: Folder) -> bool:
    """Whether the followers of a pipeline are to wait."""
    state = parse_json(folder.read_text(_NAME))
    until = state.get("until") if isinstance(state, dict) else None
    return isinstance(until, float) and 0 < until - time.time() <= _MOST_SECONDS


def _renew(folder: Folder) -> bool:
    try:
        folder.write_text(_NAME, json.dumps({"until": time.time() + _SECONDS}))
        return True
    except (OSError, Py4JError) as error:
        _log.warning("followers do not wait, because %s cannot be written: %s", folder.path, error)
        return False


def _release(folder: Folder) -> None:
    try:
        folder.remove(_NAME)
    except (OSError, Py4JError) as error:
        _log.warning("followers wait for another minute, because of %s", error)
