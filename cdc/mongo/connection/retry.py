"""Retries of reads: which errors, how long, and the final error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pymongo.errors
import tenacity

from cdc.errors import LoginRefused, SourceUnreachable
from cdc.mongo.connection.error_codes import CAPPED_POSITION_LOST, may_pass, translate_error

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Progress:
    """Measures for how long there have been only failures.

    The time counts from the first failure after the last progress. It counts neither from the start
    of a long read nor from the last progress: that may be long ago although nothing failed since.
    """

    def __init__(self) -> None:
        self.record_progress()

    def record_progress(self) -> None:
        self._failing_since: float | None = None

    def record_failure(self) -> float:
        """Record a failure; return the seconds since the first failure after the last progress."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since


def retry_call(
    call: Callable[[], T],
    seconds: float,
    attempted: str,
    but: tuple[type[Exception], ...] = (),
) -> T:
    """Return what the call returns, repeating it by the rules of `retry_attempts`."""
    for attempt in retry_attempts(Progress(), seconds, attempted, but):
        with attempt:
            return call()
    raise AssertionError("an attempt fails or returns")


def retry_first_call(call: Callable[[], T], seconds: float, attempted: str) -> T:
    """Return the result of the first call to a source, repeated by the rules of `retry_attempts`.

    SourceUnreachable and LoginRefused are raised at once, because `uri` may be wrong.
    """
    return retry_call(call, seconds, attempted, but=(SourceUnreachable, LoginRefused))


def retry_if_truncated(read: Callable[[], T]) -> T:
    """Return what a read of the oplog's own entries returns.

    The read is repeated, for at most 10 s, if the server removed the entry at its position (136).
    For a change stream the same code means that its history is lost.
    """
    is_truncated = tenacity.retry_if_exception(
        lambda error: getattr(error, "code", None) == CAPPED_POSITION_LOST
    )
    return tenacity.Retrying(retry=is_truncated, stop=tenacity.stop_after_delay(10), reraise=True)(
        read
    )


def retry_attempts(
    progress: Progress,
    seconds: float,
    attempted: str,
    but: tuple[type[Exception], ...] = (),
) -> Iterator[tenacity.AttemptManager]:
    """Yield attempts (`for attempt in …: with attempt: …`) until one succeeds.

    An attempt is repeated after an error that a repetition may cure (`may_pass`), until there have
    been only failures for `seconds`. A refused login is one of these errors: nobody can change a
    password on the server and in the file that `uri` names at the same moment. The caller must be
    able to start each attempt from its beginning.

    Args:
        progress: the caller calls `record_progress` only when an attempt got further than all
            before it.
        seconds: how long to repeat while there are only failures.
        attempted: what is attempted, as the first words of an error's message.
        but: errors that are raised at once.

    An error of the driver is raised as ours, with `attempted` in its text; others are unchanged.
    """

    def give_up(state: tenacity.RetryCallState) -> bool:
        return progress.record_failure() >= seconds

    def log(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.warning("%s: %s, trying again", attempted, type(error).__name__)

    def raise_last(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None
        if isinstance(error, pymongo.errors.PyMongoError):
            raise translate_error(error, attempted) from error
        raise error

    def is_retried(error: BaseException) -> bool:
        return may_pass(error) and not isinstance(error, but)

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_retried),
        stop=give_up,
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        before_sleep=log,
        retry_error_callback=raise_last,
    )
    try:
        yield from attempts
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, attempted) from error
