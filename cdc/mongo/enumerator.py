"""The split enumerator: which collections there are, and where to cut one.

Where the ranges meet is decided by `cdc.mongo.cuts`.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import bson
import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import UnsuitableSource
from cdc.model.offset import Copying
from cdc.model.selection import Namespace, Selection
from cdc.model.split import MAX_KEY, KeyRange
from cdc.mongo.client import LONGEST_MS, Client, term_of, time_told
from cdc.mongo.codes import translated
from cdc.mongo.cuts import cut_points

_log = logging.getLogger(__name__)
INTERNAL = frozenset({"admin", "config", "local"})


@dataclass(frozen=True, slots=True)
class Collection:
    """One incarnation of a collection, as listCollections tells it."""

    namespace: Namespace
    uuid: bytes
    collation: bytes | None
    has_images: bool
    shard: str = ""

    @property
    def begun(self) -> Copying:
        """Its copy before the first document."""
        return Copying(self.namespace, self.uuid, self.collation, shard=self.shard)


@dataclass(frozen=True, slots=True)
class Listing:
    """The selected collections, each as of some time from `since` to `time`, as the primary of
    `term` knew them (the majority may be behind it); `term` is None if the primary changed. That of
    a cluster has `parts`, by shard, and no term of its own."""

    collections: tuple[Collection, ...]
    since: Timestamp
    time: Timestamp
    term: int | None
    parts: tuple[tuple[str, Listing], ...] = ()

    def find(self, namespace: Namespace) -> Collection | None:
        return next((c for c in self.collections if c.namespace == namespace), None)


def listing(
    client: Client, selection: Selection, databases: Iterable[str] | None = None
) -> Listing:
    """The selected collections in the order of their full names; of these databases, or of all.

    A view, time series or system collection named exactly is refused (UnsuitableSource); one that
    only matches a regular expression is left out, and a line at INFO says so once.
    """
    found: list[Collection] = []
    times: list[Timestamp] = []
    try:
        term = term_of(client)
        for db in databases or _databases(client, selection, times):
            reply = client.get_database(db).command(
                "listCollections", cursor={"batchSize": 10**6}, maxTimeMS=LONGEST_MS
            )
            times.append(time_told(reply))
            for info in _all_batches(client, db, reply):
                found += _captured(Namespace(db, info["name"]), info, selection)
        term = term if term == term_of(client) else None
    except pymongo.errors.PyMongoError as error:
        raise translated(error, "Listing collections") from error
    ordered = tuple(sorted(found, key=lambda collection: str(collection.namespace)))
    return Listing(ordered, min(times), max(times), term)


def estimated_documents(client: Client, namespace: Namespace) -> int:
    """From the collection's metadata: quick, and wrong for a while after an unclean shutdown."""
    try:
        return int(client[namespace.db][namespace.coll].estimated_document_count())
    except pymongo.errors.PyMongoError as error:
        raise translated(error, f"Counting {namespace}") from error


def _databases(client: Client, selection: Selection, times: list[Timestamp]) -> list[str]:
    named = {name.db for name in selection.names}
    if selection.patterns:
        reply = client.admin.command("listDatabases", nameOnly=True, authorizedDatabases=True)
        times.append(time_told(reply))
        named |= {entry["name"] for entry in reply["databases"]} - INTERNAL
    return sorted(named)


def _all_batches(client: Client, db: str, reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor = reply["cursor"]
    yield from cursor["firstBatch"]
    while cursor["id"]:  # only beyond 16 MiB of names
        more = {"getMore": cursor["id"], "collection": "$cmd.listCollections"}
        cursor = client.get_database(db).command(more)["cursor"]
        yield from cursor["nextBatch"]


def _captured(namespace: Namespace, info: dict[str, Any], selection: Selection) -> list[Collection]:
    if not selection.matches(namespace):
        return []
    system = namespace.coll.startswith("system.") or namespace.db in INTERNAL
    if info["type"] != "collection" or system:
        what = "system collection" if system else info["type"]
        if namespace in selection.names:
            raise UnsuitableSource(
                f"{namespace} is a {what}: it has no change stream of its own.",
                "Capture the collection behind it instead.",
            )
        _tell_left_out(namespace, what)
        return []
    options = info.get("options", {})
    collation = options.get("collation")
    return [
        Collection(
            namespace,
            bytes(info["info"]["uuid"]),
            bson.encode(collation) if collation else None,
            bool(options.get("changeStreamPreAndPostImages", {}).get("enabled")),
        )
    ]


@functools.lru_cache(maxsize=1024)  # once, however often a run lists its collections
def _tell_left_out(namespace: Namespace, what: str) -> None:
    _log.info("%s matches 'collections', but is a %s, and is left out", namespace, what)


# --- cutting one collection ----------------------------------------------------------------------


def ranges(
    client: Client,
    namespace: Namespace,
    lower: bytes,
    most: int,
    split_bytes: int,
    shard: str = "",
) -> list[KeyRange]:
    """At most `most` adjacent ranges that begin at `lower`, each of about `split_bytes`; of what
    `shard` holds, where there are several.

    The last one ends at MaxKey if the rest of the collection fits, else where the next call should
    begin. Never empty. Transient errors of the server are raised as ours.
    """
    cuts = cut_points(client, namespace, lower, most, split_bytes, shard)
    keys = [lower, *(cut for cut in cuts if cut not in (lower, MAX_KEY))]
    if len(cuts) < most or len(keys) == 1:
        keys.append(MAX_KEY)
    return [KeyRange(low, high) for low, high in itertools.pairwise(keys)]
