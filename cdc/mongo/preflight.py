"""What can be known before a run begins: whether it could succeed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import (
    BadOption,
    CdcError,
    ImagesMissing,
    UnsuitableSource,
)
from cdc.model import timestamp
from cdc.model.selection import Selection
from cdc.mongo.client import Client, translated
from cdc.mongo.enumerator import Listing, listing
from cdc.mongo.privileges import named
from cdc.mongo.topology import ReplicaSet


class Wanted(NamedTuple):
    """What a run asks for. Without `follows` it reads no changes; without `copies` nothing else;
    `start` is the first moment to read changes of, or None."""

    selection: Selection
    images_required: bool = False
    is_new: bool = True
    follows: bool = True
    copies: bool = True
    start: Timestamp | None = None


def check(source: ReplicaSet, wanted: Wanted) -> Listing:
    """The collections that a run finds. With a checkpoint (`is_new` False) a collection may be
    gone, or not be there yet, for good reason.

    Raises NotPermitted, which names what the user lacks; ImagesMissing; UnsuitableSource if a
    collection is missing that a new run begins with; BadOption or HistoryLost for `start`.
    """
    with named(source.client, wanted.selection):
        found = listing(source.client, wanted.selection)
    for problem in _problems(source, wanted, found):
        raise problem
    return found


def _problems(source: ReplicaSet, wanted: Wanted, found: Listing) -> Iterator[CdcError]:
    if wanted.is_new:
        yield from _absent(wanted.selection, found)
    without = [c.namespace for c in found.collections if not c.has_images]
    if wanted.images_required and without:
        yield ImagesMissing(
            f"{', '.join(map(str, without))} does not record pre- and post-images.",
            f"Run db.getSiblingDB('{without[0].db}').runCommand({{collMod: '{without[0].coll}',"
            " changeStreamPreAndPostImages: {enabled: true}}), or set images to auto.",
        )
    if wanted.follows:
        yield from _unfollowable(source, wanted, found.time)


def _absent(selection: Selection, found: Listing) -> Iterator[CdcError]:
    missing = [str(name) for name in selection.names if found.find(name) is None]
    if missing:
        yield UnsuitableSource(
            f"There is no collection {', '.join(missing)}.",
            "Check 'collections', and that the user may list it; create it if it comes later.",
        )
    if not missing and not found.collections:
        yield UnsuitableSource(
            f"No collection matches '{selection.text}'.", "The expression has to match db.coll."
        )


def _unfollowable(source: ReplicaSet, wanted: Wanted, seen: Timestamp) -> Iterator[CdcError]:
    start = wanted.start
    if start is not None and start > source.live_edge(seen):
        yield BadOption("Option 'start' lies in the future of the server.", "Set it back.")
        return
    try:
        with named(source.client, wanted.selection):
            _open_stream(source.client, wanted.selection, start)
    except CdcError as error:
        yield error


def _open_stream(client: Client, selection: Selection, start: Timestamp | None) -> None:
    """Opens a stream as a run would. One in the past is asked for an event at once: the server
    looks only then whether its oplog reaches back so far."""
    scope = client if selection.database is None else client[selection.database]
    since = None if start is None else timestamp.before(start)
    try:
        scope.watch(start_at_operation_time=since, batch_size=1).close()
    except pymongo.errors.PyMongoError as error:
        where = f"database {selection.database}" if selection.database else "the deployment"
        raise translated(error, f"Reading changes of {where}") from error
