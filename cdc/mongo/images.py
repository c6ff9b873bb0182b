"""What a change is told with: the images that were recorded, or what stands in for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pymongo.errors
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model.excerpt import Excerpt, passes
from cdc.model.key import merge_key
from cdc.model.split import key_of
from cdc.mongo import excerpts, oversize
from cdc.mongo.client import CONFIRM_MS, Member, time_told
from cdc.mongo.codes import TIME_UNREADABLE, TOO_LARGE, TOOK_TOO_LONG
from cdc.mongo.oversize import Raw

# Refusals of the server.
_NO_BEFORE_IMAGES = 40415  # before 4.4: fullDocumentBeforeChange is an unknown field
_NO_AFTER_IMAGES = frozenset({2, 40575})  # before 6.0: whenAvailable is no value of fullDocument
WITH_AFTER = ("insert", "update", "replace")


@dataclass(frozen=True, slots=True)
class Images:
    """What a change stream is asked for. `look_up`: a missing post-image is read by key instead.

    `on_oversize`: whether one that the server cannot give, because its event is too large, is read
    by key too (`lookup`), or ends the read (`fail`).
    """

    before: str
    after: str
    look_up: bool
    on_oversize: str = "lookup"

    @property
    def expects_before(self) -> bool:
        return self.before != "off"


_WHEN_AVAILABLE = "whenAvailable"
IMAGES = {
    "auto": Images(_WHEN_AVAILABLE, _WHEN_AVAILABLE, look_up=True),
    # Enforced when the run starts. The server's own `required` (code 47) would end the stream at
    # the first image that has expired.
    "required": Images(_WHEN_AVAILABLE, _WHEN_AVAILABLE, look_up=True),
    "when_available": Images(_WHEN_AVAILABLE, _WHEN_AVAILABLE, look_up=False),
    "update_lookup": Images("off", "updateLookup", look_up=False),
    "off": Images("off", "default", look_up=False),
}
# For the reader of the past alone: an event without its after-image is never too large.
BEFORE_IMAGES = Images(_WHEN_AVAILABLE, "default", look_up=False)


def fewer(images: Images, error: pymongo.errors.OperationFailure) -> Images | None:
    """What to ask for after this refusal, if the images are the reason and are to be had in another
    way or not at all."""
    code = error.code
    if images.expects_before and code == _NO_BEFORE_IMAGES:
        return replace(images, before="off")
    # One of the codes is that of any bad value: of the filter's for some document, too.
    is_unknown = code in _NO_AFTER_IMAGES and "fullDocument" in str(error)
    if images.after == _WHEN_AVAILABLE and is_unknown:
        return replace(images, after="default")
    if images.after == "updateLookup" and code == TOO_LARGE:
        return replace(images, after="default", look_up=True)
    return None


class Event(NamedTuple):
    """One change event. `after` is its post-image or its stand-in, None if there is none.

    `exact` is False when an image that was asked for is missing or `after` is not as of the event;
    then, if `after` is set, it is a state between the event and `exact_from`.
    """

    raw: Raw
    after: bytes | None
    exact: bool
    exact_from: Timestamp | None = None

    @property
    def position(self) -> str:
        return str(self.raw["_id"]["_data"])

    def is_missing(self, images: Images) -> bool:
        """Whether it was looked up, by us or by the server, and not found."""
        looked_up = images.look_up or images.after == "updateLookup" or oversize.MARK in self.raw
        is_told = self.after is not None or passes(self.raw).after is False
        return looked_up and not is_told and self.raw["operationType"] in WITH_AFTER


def told(
    member: Member,
    raw: Raw,
    asked: Images,
    used: Images,
    operation_time: Timestamp,
    excerpt: Excerpt,
) -> Event:
    """The event of a reply of that time: `asked` says what it should have, `used` what the server
    was asked for. An image that does not pass the filter is known, and not told."""
    operation = raw["operationType"]
    if operation not in WITH_AFTER and operation != "delete":
        return Event(raw, None, exact=True)
    after, exact, exact_from = _bytes(raw.get("fullDocument")), True, None
    known = passes(raw)
    if operation != "insert" and asked.expects_before:
        exact = raw.get("fullDocumentBeforeChange") is not None or known.before is False
    if operation in WITH_AFTER and after is None and known.after is not False:
        exact = False
        if used.look_up or oversize.MARK in raw:
            after, exact_from = _looked_up_on(member, raw, excerpt)
    elif operation == "update" and used.after == "updateLookup":
        exact, exact_from = False, operation_time
    return Event(raw, after, exact, exact_from)


def _looked_up_on(
    member: Member, raw: Raw, excerpt: Excerpt
) -> tuple[bytes | None, Timestamp | None]:
    """Of a collection that was dropped a read at majority finds nothing, though the drop may be
    rolled back: so nothing is believed only behind all that the member has shown."""
    find = partial(_find, member, raw["ns"])
    found = looked_up(find, raw, _majority(raw["clusterTime"]), excerpt)
    if found[0] is None and not _is_there(find, raw):
        found = looked_up(find, raw, _majority(member.newest_known()), excerpt)
    return found


def _is_there(find: Callable[[dict[str, Any]], RawBSONDocument], raw: Raw) -> bool:
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
        # The catalog changes; or a majority is not known to have what the member has.
        if error.code not in TIME_UNREADABLE and error.code != TOOK_TOO_LONG:
            raise
        raise TransientError(
            f"Looking up a document of {ns['db']}.{ns['coll']}: not possible now"
            f" (code {error.code}).",
            "Check that a majority of the replica set is up.",
        ) from error


def looked_up(
    find: Callable[[dict[str, Any]], RawBSONDocument],
    raw: Raw,
    concern: dict[str, Any],
    excerpt: Excerpt,
) -> tuple[bytes | None, Timestamp | None]:
    """The document of an event as a read finds it, and a time by which it was in that state; with a
    filter, also by which there was none that passes it.

    `find` sends one on the event's collection.
    """
    reply = find(
        {
            **excerpts.of_find(excerpt, {"_id": {"$eq": raw["documentKey"]["_id"]}}),
            # As the change stream filters, whatever the collection's own collation is.
            **({"collation": {"locale": "simple"}} if excerpt.condition else {}),
            "limit": 1,
            "singleBatch": True,
            "readConcern": concern,
        }
    )
    found = [bytes(document.raw) for document in reply["cursor"]["firstBatch"]]
    # Under a collation, a document of another key may answer to this one.
    if not found or merge_key(key_of(found[0])) != merge_key(key_of(bytes(raw["documentKey"].raw))):
        return None, time_told(reply) if excerpt.condition else None
    return found[0], time_told(reply)


def _bytes(document: Any) -> bytes | None:
    return None if document is None else bytes(document.raw)
