"""Repeating a read on another member: when, how long, and what is raised in the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pymongo.errors
import tenacity

from cdc.mongo.client import is_transient, translated

_log = logging.getLogger(__name__)


class Progress:
    """When a read last moved on. Patience counts from there, not from the start of a long read."""

    def __init__(self) -> None:
        self.made()

    def made(self) -> None:
        self._last = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._last


def retrying(
    progress: Progress, seconds: float, attempted: str
) -> Iterator[tenacity.AttemptManager]:
    """Attempts (`for attempt in …: with attempt: …`) until one succeeds.

    Only errors for which repeating is safe and may help are tried again, for `seconds` without
    progress. A driver's error leaves as ours (`attempted` in its text), others as they are.
    """

    def give_up(state: tenacity.RetryCallState) -> bool:
        return progress.idle_seconds > seconds

    def log(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.warning("%s: %s, trying again", attempted, type(error).__name__)

    def raised(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None
        if isinstance(error, pymongo.errors.PyMongoError):
            raise translated(error, attempted) from error
        raise error

    def again(error: BaseException) -> bool:
        return is_transient(error)

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(again),
        stop=give_up,
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        before_sleep=log,
        retry_error_callback=raised,
    )
    try:
        yield from attempts
    except pymongo.errors.PyMongoError as error:
        raise translated(error, attempted) from error
