"""Where the documents of a server's reply lie, and whether there are enough of them to compile for.

This module and `loading` are plain Python; nothing is compiled or loaded for a small reply.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.errors import UnmappableValue
from cdc.kernel import loading
from cdc.kernel.event_columns import COUNT, Events
from cdc.kernel.places import Places
from cdc.model.bson import DOCUMENT, elements

# Of less, plain Python is done before the compiled functions are loaded for the first time.
WORTH: Final = 2**18
# An element has a type, a name of one digit with its end, and a document of five bytes.
_LEAST: Final = 8
# The names of its fields take more.
_LEAST_EVENT: Final = 64


def documents(data: bytes, start: int, stop: int) -> Places:
    """The documents of the array that fills `data[start:stop]`. Raises UnmappableValue if that is
    none, or holds anything else."""
    if stop - start < WORTH:
        return _found(data, start, stop)
    starts = np.empty((stop - start) // _LEAST, np.int64)
    stops = np.empty_like(starts)
    view = np.frombuffer(data, np.uint8)
    count = loading.columns().places(view, start, stop, starts, stops)
    if count < 0:
        return _found(data, start, stop)
    return Places(data, starts[:count], stops[:count])


def events(data: bytes, start: int, stop: int) -> Events | None:
    """A row for each change event of that array; None if there are few, or it holds
    something else."""
    if stop - start < WORTH:
        return None
    found = np.empty(((stop - start) // _LEAST_EVENT, COUNT), np.int64)
    count = loading.columns().change_events.locate(
        np.frombuffer(data, np.uint8), start, stop, found
    )
    return found[:count].copy() if count > 0 else None


def _found(data: bytes, start: int, stop: int) -> Places:
    found = elements(data, start, stop)
    if any(each.kind != DOCUMENT for each in found):
        raise UnmappableValue("a reply with something else than documents")
    places = np.array([(each.start, each.stop) for each in found], np.int64).reshape(-1, 2)
    return Places(data, places[:, 0].copy(), places[:, 1].copy())
