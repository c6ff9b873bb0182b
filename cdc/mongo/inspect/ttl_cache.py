"""Values cached for some seconds; failures are cached too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import bson.errors
import pymongo.errors

from cdc.errors import CdcError

_log = logging.getLogger(__name__)
T = TypeVar("T")
# So the calls take at most two percent of the time, however large or slow the source is.
_COST_FACTOR = 50


def value_or_none(query: Callable[[], T], what: str) -> T | None:
    """Return what `query` returns, or None if the source refuses or does not answer now.

    The caller must limit the waiting time (`pymongo.timeout`). `what` names the value in the log.
    """
    try:
        return query()
    except (pymongo.errors.PyMongoError, bson.errors.BSONError, CdcError) as error:
        # If the problem lasts, the next batch meets it too, and reports what it means.
        _log.debug("reading %s: %s", what, type(error).__name__)
        return None


@dataclass(slots=True)
class CachedValue(Generic[T]):
    """A value that is cached, like a failure (None), until it expires or its subject changes.

    Attributes:
        what: names the value in the log.
        seconds: how long the value is cached at least.
        cost_factor: it is cached at least for this multiple of the time that reading it took.
    """

    what: str
    seconds: float
    cost_factor: float = _COST_FACTOR
    _value: T | None = None
    _subject: object = None
    _expires: float = 0.0

    def get(self, query: Callable[[], T], about: object = None) -> T | None:
        """Return the cached value; that of `query` if it expired or `about` is another subject."""
        began = time.monotonic()
        if began >= self._expires or about != self._subject:
            self._value, self._subject = value_or_none(query, self.what), about
            now = time.monotonic()
            self._expires = now + max(self.seconds, self.cost_factor * (now - began))
        return self._value
