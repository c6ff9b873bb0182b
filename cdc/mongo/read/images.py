"""Before- and after-images of changes: recorded by the server, or looked up instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model import CaptureFilter, equal_to, filter_marks, key_of, merge_key
from cdc.mongo.connection import (
    CONFIRM_MS,
    TIME_UNREADABLE,
    TOO_LARGE,
    TOOK_TOO_LONG,
    Member,
    reply_time,
)
from cdc.mongo.query import projection
from cdc.mongo.read import oversize
from cdc.mongo.read.oversize import Raw

# Refusals of the server.
_NO_BEFORE_IMAGES = 40415  # before 4.4: fullDocumentBeforeChange is an unknown field
_NO_AFTER_IMAGES = frozenset({2, 40575})  # before 6.0: whenAvailable is no value of fullDocument
WITH_AFTER = ("insert", "update", "replace")


@dataclass(frozen=True, slots=True)
class Images:
    """The images that a change stream is opened with.

    Attributes:
        before: the value of `fullDocumentBeforeChange`.
        after: the value of `fullDocument`.
        look_up: a missing after-image is read by key instead.
        on_oversize: for an image that the server cannot return because its event is too large:
            `lookup` reads it by key, `fail` ends the read.
    """

    before: str
    after: str
    look_up: bool
    on_oversize: str = "lookup"

    @property
    def expects_before(self) -> bool:
        return self.before != "off"

    @property
    def are_recorded(self) -> bool:
        """Whether both images are those that the server recorded."""
        return self.before == self.after == _WHEN_AVAILABLE


_WHEN_AVAILABLE = "whenAvailable"
IMAGES = {
    "auto": Images(_WHEN_AVAILABLE, _WHEN_AVAILABLE, look_up=True),
    # The run checks at its start that images are recorded. The server's own `required` (code 47)
    # would end the stream at the first expired image.
    "required": Images(_WHEN_AVAILABLE, _WHEN_AVAILABLE, look_up=True),
    "when_available": Images(_WHEN_AVAILABLE, _WHEN_AVAILABLE, look_up=False),
    "update_lookup": Images("off", "updateLookup", look_up=False),
    "off": Images("off", "default", look_up=False),
}
# Only for the rewind: an event without its after-image is never too large.
BEFORE_IMAGES = Images(_WHEN_AVAILABLE, "default", look_up=False)


def reduce_images(images: Images, error: pymongo.errors.OperationFailure) -> Images | None:
    """Return the images for the next attempt after this refusal; None if images did not cause it.

    The refused image is requested in another way, or not at all.
    """
    code = error.code
    if images.expects_before and code == _NO_BEFORE_IMAGES:
        return replace(images, before="off")
    # Code 2 stands for any bad value, also for one that the capture filter meets in a document.
    is_unknown = code in _NO_AFTER_IMAGES and "fullDocument" in str(error)
    if images.after == _WHEN_AVAILABLE and is_unknown:
        return replace(images, after="default")
    if images.after == "updateLookup" and code == TOO_LARGE:
        return replace(images, after="default", look_up=True)
    return None


class Event(NamedTuple):
    """One change event with its images.

    Attributes:
        raw: the event as the server returned it.
        after: its after-image, or a document that was looked up instead; None if there is none.
        exact: False if a requested image is missing, or if `after` may be later than the event.
        exact_from: if not `exact` and the document was looked up, `after` is its state at some time
            between the event and this one; without an `after` there was no document then.
    """

    raw: Raw
    after: bytes | None
    exact: bool
    exact_from: Timestamp | None = None

    @property
    def position(self) -> str:
        return str(self.raw["_id"]["_data"])

    @property
    def size(self) -> int:
        """The bytes of its images."""
        before = self.raw.get("fullDocumentBeforeChange")
        # Not by its truth, which would decode it: a server takes bytes that a driver does not.
        size = 0 if before is None else len(before.raw)
        return size + len(self.after or b"")

    def is_missing(self, images: Images) -> bool:
        """Whether its document was looked up, by us or by the server, and not found."""
        is_looked_up = images.look_up or images.after == "updateLookup" or oversize.MARK in self.raw
        is_known = self.after is not None or filter_marks(self.raw).after is False
        return is_looked_up and not is_known and self.raw["operationType"] in WITH_AFTER


def complete_event(
    member: Member,
    raw: Raw,
    expected: Images,
    used: Images,
    operation_time: Timestamp,
    capture: CaptureFilter,
) -> Event:
    """Return an event with its images; look up a missing after-image if the images say so.

    An image that does not pass the capture filter is left out, but does not count as missing.

    Args:
        member: the member for a lookup.
        raw: the event as the server returned it.
        expected: the configured images.
        used: the images that the change stream was opened with.
        operation_time: the operation time of the reply with the event.
        capture: the capture filter.

    Raises TransientError if the lookup is not possible now.
    """
    operation = raw["operationType"]
    if operation not in WITH_AFTER and operation != "delete":
        return Event(raw, None, exact=True)
    after, exact, exact_from = _bytes(raw.get("fullDocument")), True, None
    known = filter_marks(raw)
    if operation != "insert" and expected.expects_before:
        exact = raw.get("fullDocumentBeforeChange") is not None or known.before is False
    is_missing = operation in WITH_AFTER and after is None and known.after is not False
    if is_missing and (used.look_up or oversize.MARK in raw):
        exact, (after, exact_from) = False, _look_up(member, raw, capture)
    elif operation == "update" and used.after == "updateLookup":
        exact, exact_from = False, operation_time
    elif is_missing:
        exact = False
    return Event(raw, after, exact, exact_from)


def _look_up(member: Member, raw: Raw, capture: CaptureFilter) -> tuple[bytes | None, Timestamp]:
    """Look up the document of an event on a member, see `look_up`.

    After a drop, a read with read concern majority finds nothing, even if the drop is rolled back
    later. So an empty collection is read again, as of a time after everything the member reported.
    """
    find = partial(_find, member, raw["ns"])
    # Another shard may have a document with this _id.
    names = list(raw["documentKey"]) if member.is_router else ["_id"]
    result = look_up(find, raw, _majority(raw["clusterTime"]), capture, names)
    if result[0] is None and not _has_documents(find, raw):
        result = look_up(find, raw, _majority(member.newest_known()), capture, names)
    return result


def _has_documents(find: Callable[[dict[str, Any]], RawBSONDocument], raw: Raw) -> bool:
    """Whether the collection shows any document: then it has not been dropped."""
    any_document = {"projection": {"_id": 1}, "limit": 1, "singleBatch": True}
    reply = find({**any_document, "readConcern": _majority(raw["clusterTime"])})
    return bool(reply["cursor"]["firstBatch"])


def _majority(after: Timestamp) -> dict[str, Any]:
    return {"level": "majority", "afterClusterTime": after}


def _find(member: Member, ns: Raw, command: dict[str, Any]) -> RawBSONDocument:
    try:
        find = {"find": ns["coll"], **command, "maxTimeMS": CONFIRM_MS}
        return member.command(ns["db"], find)
    except pymongo.errors.OperationFailure as error:
        # The catalog is changing, or no majority is known to have reached the time of the read.
        if error.code not in TIME_UNREADABLE and error.code != TOOK_TOO_LONG:
            raise
        raise TransientError(
            f"Looking up a document of {ns['db']}.{ns['coll']}: not possible now"
            f" (code {error.code}).",
            "Check that a majority of the replica set is up.",
        ) from error


def look_up(
    find: Callable[[dict[str, Any]], RawBSONDocument],
    raw: Raw,
    concern: dict[str, Any],
    capture: CaptureFilter,
    names: Sequence[str] = ("_id",),
) -> tuple[bytes | None, Timestamp]:
    """Return the document of an event as it is now, and a time at which it was in that state.

    None if there is no document with this key that passes the capture filter.

    Args:
        find: sends a find with these arguments to the event's collection.
        raw: the event.
        concern: the read concern.
        capture: the capture filter.
        names: the fields of the document key that identify the document.
    """
    document_key = bytes(raw["documentKey"].raw)
    keys = {name: equal_to(name, document_key) for name in names}
    reply = find(
        {
            **projection.find_arguments(capture, keys),
            # The change stream filters with this collation, whatever that of the collection is.
            **({"collation": {"locale": "simple"}} if capture.condition else {}),
            "limit": 1,
            "singleBatch": True,
            "readConcern": concern,
        }
    )
    documents = [bytes(document.raw) for document in reply["cursor"]["firstBatch"]]
    key = merge_key(key_of(document_key))
    # Under a collation, the find may return a document with another key.
    if not documents or merge_key(key_of(documents[0])) != key:
        return None, reply_time(reply)
    return documents[0], reply_time(reply)


def _bytes(document: Any) -> bytes | None:
    return None if document is None else bytes(document.raw)
