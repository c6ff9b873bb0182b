"""What a run likes to know of its source and can do without: asked for seldom, and never in vain
for long."""

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
# Asking takes no more than two percent of the time, however large or slow the source is.
_RARITY = 50


def tried(ask: Callable[[], T], what: str) -> T | None:
    """The answer, or None where the source refuses it or does not answer now.

    What may be waited for is the caller's to limit (`pymongo.timeout`).
    """
    try:
        return ask()
    except (pymongo.errors.PyMongoError, bson.errors.BSONError, CdcError) as error:
        # The next batch will meet the same trouble if it lasts, and knows what it means.
        _log.debug("asking for %s: %s", what, type(error).__name__)
        return None


@dataclass(slots=True)
class Kept(Generic[T]):
    """An answer that is used for `seconds`, or for `rarity` times as long as it took to get, unless
    something else is asked `about`. A failure is kept like an answer."""

    what: str
    seconds: float
    rarity: float = _RARITY
    _value: T | None = None
    _about: object = None
    _next: float = 0.0

    def get(self, ask: Callable[[], T], about: object = None) -> T | None:
        began = time.monotonic()
        if began >= self._next or about != self._about:
            self._value, self._about = tried(ask, self.what), about
            now = time.monotonic()
            self._next = now + max(self.seconds, self.rarity * (now - began))
        return self._value
