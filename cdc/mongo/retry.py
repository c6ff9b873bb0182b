"""Repeating a read on another member: when, how long, and what is raised in the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pymongo.errors
import tenacity

from cdc.errors import LoginRefused, SourceUnreachable
from cdc.mongo.codes import CAPPED_POSITION_LOST, may_pass, translated

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Progress:
    """Since when there have been nothing but failures.

    Patience counts from the first failure behind the last progress: neither from the start of a
    long read, nor from that progress, which may be long ago without anything having failed.
    """

    def __init__(self) -> None:
        self.made()

    def made(self) -> None:
        self._failing_since: float | None = None

    def failed(self) -> float:
        """To be called at each failure: for how many seconds there has been no progress since the
        first of them."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        return now - self._failing_since


def repeated(
    call: Callable[[], T],
    seconds: float,
    attempted: str,
    but: tuple[type[Exception], ...] = (),
) -> T:
    """What the call returns, made again as `retrying` says."""
    for attempt in retrying(Progress(), seconds, attempted, but):
        with attempt:
            return call()
    raise AssertionError("an attempt fails or returns")


def begun(call: Callable[[], T], seconds: float, attempted: str) -> T:
    """What the first question of all returns, made again as `retrying` says; but where no server is
    found, or none that knows the user, be it that `uri` is wrong, that is told at once."""
    return repeated(call, seconds, attempted, but=(SourceUnreachable, LoginRefused))


def uncut(read: Callable[[], T]) -> T:
    """What a read of the oplog's own entries returns, made again where the entry it stood at was
    thrown away meanwhile. (To a change stream the same code says that its history is lost.)"""
    is_cut = tenacity.retry_if_exception(
        lambda error: getattr(error, "code", None) == CAPPED_POSITION_LOST
    )
    return tenacity.Retrying(retry=is_cut, stop=tenacity.stop_after_delay(10), reraise=True)(read)


def retrying(
    progress: Progress,
    seconds: float,
    attempted: str,
    but: tuple[type[Exception], ...] = (),
) -> Iterator[tenacity.AttemptManager]:
    """Attempts (`for attempt in …: with attempt: …`) until one succeeds.

    Only errors after which repeating may help, `but` for these, are tried again, until there has
    been nothing but failures for `seconds`. What is attempted has to be safe to begin anew, and is
    to call it progress only when it got further than all attempts before. A login that is refused
    is tried again too: who changes a password cannot change it at the server and in the file behind
    `uri` at once. A driver's error leaves as ours (`attempted` in its text), others as they are.
    """

    def give_up(state: tenacity.RetryCallState) -> bool:
        return progress.failed() >= seconds

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
        return may_pass(error) and not isinstance(error, but)

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
