"""Repeating a write that another writer of the same table got in the way of: OPTIMIZE, a backfill,
a statement of the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import tenacity
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)

from cdc.delta.target import Target
from cdc.errors import ConflictsUnresolved

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 300.0
# In Scala the last is the base of all others; in Python it is not.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
    DeltaConcurrentModificationException,
)


def repeated(write: Callable[[], T], target: Target) -> T:
    """What the write returns, made anew whenever it meets another one. It has to read the table
    anew each time, and may have been done already when it is made again.

    Raises ConflictsUnresolved if it is met for five minutes on end.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_CONFLICTS),
        stop=tenacity.stop_after_delay(_PATIENCE_SECONDS),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10),
        before_sleep=lambda state: _log.warning("%s was changed meanwhile, trying again", target),
    )
    try:
        return attempts(write)
    except tenacity.RetryError as error:
        raise ConflictsUnresolved(
            f"Others changed the table at '{target}' each time that it was to be written.",
            "Let what else writes it (OPTIMIZE, a backfill) run at another time.",
        ) from error
