"""Places of the documents in a server's reply, by compiled functions if the reply is large.

This module and `loading` are plain Python. A small reply neither compiles nor loads anything.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.errors import UnmappableValue
from cdc.kernel import loading
from cdc.kernel.event_columns import COUNT, Events
from cdc.kernel.places import Places
from cdc.model.bson import DOCUMENT, elements

# For fewer bytes in all, plain Python takes less time than loading the compiled functions once.
WORTH: Final = 2**18
# An element has a type, a name of one digit with its end, and a document of five bytes.
_LEAST: Final = 8
# The names of an event's fields alone take more bytes.
_LEAST_EVENT: Final = 64


class Total:
    """The bytes of one kind that this process has had to do with."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, size: int) -> int:
        """Count more bytes, and return the number of all."""
        self._bytes += size
        return self._bytes


_read = Total()


def documents(data: bytes, start: int, stop: int) -> Places:
    """Return the places of the documents of the array that fills `data[start:stop]`.

    Raises UnmappableValue if that is not an array, or contains anything but documents.
    """
    if _read.add(stop - start) < WORTH:
        return _parse_documents(data, start, stop)
    starts = np.empty((stop - start) // _LEAST, np.int64)
    stops = np.empty_like(starts)
    view = np.frombuffer(data, np.uint8)
    count = loading.columns().places(view, start, stop, starts, stops)
    if count < 0:
        return _parse_documents(data, start, stop)
    return Places(data, starts[:count], stops[:count])


def events(data: bytes, start: int, stop: int) -> Events | None:
    """Return a row for each change event of the array that fills `data[start:stop]`.

    Returns None if the array is small, is empty, or contains anything else.
    """
    return None if stop - start < WORTH else locate_events(data, start, stop)


def locate_events(data: bytes, start: int, stop: int) -> Events | None:
    """Return the same as `events`, however small the array is."""
    table = np.empty(((stop - start) // _LEAST_EVENT, COUNT), np.int64)
    locate = loading.columns().change_events.locate
    count = locate(np.frombuffer(data, np.uint8), start, stop, table)
    return table[:count].copy() if count > 0 else None


def _parse_documents(data: bytes, start: int, stop: int) -> Places:
    items = elements(data, start, stop)
    if any(each.kind != DOCUMENT for each in items):
        raise UnmappableValue("a reply with something else than documents")
    places = np.array([(each.start, each.stop) for each in items], np.int64).reshape(-1, 2)
    return Places(data, places[:, 0].copy(), places[:, 1].copy())
