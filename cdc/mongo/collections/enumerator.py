"""The split enumerator: list the selected collections, and cut one into ranges.

`cdc.mongo.collections.split_points` chooses the keys at which ranges meet.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import bson
import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import UnsuitableSource
from cdc.model import (
    INTERNAL_DATABASES,
    MAX_KEY,
    Copying,
    KeyRange,
    Namespace,
    Selection,
    merge_key,
)
from cdc.mongo.collections.split_points import cut_points
from cdc.mongo.connection import LONGEST_MS, Client, reply_time, term_of, translate_error

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collection:
    """One incarnation of a collection, as listCollections reports it."""

    namespace: Namespace
    uuid: bytes
    collation: bytes | None
    has_images: bool
    shard: str = ""

    @property
    def start_of_copy(self) -> Copying:
        """The start of its copy, before the first document."""
        return Copying(self.namespace, self.uuid, self.collation, shard=self.shard)


@dataclass(frozen=True, slots=True)
class Listing:
    """The selected collections, each as of some time from `since` to `time`.

    The primary of `term` listed them, and the majority may lag it. `term` is None if the primary
    changed meanwhile. The listing of a cluster has no term, but `parts`: one listing per shard.
    """

    collections: tuple[Collection, ...]
    since: Timestamp
    time: Timestamp
    term: int | None
    parts: tuple[tuple[str, Listing], ...] = ()

    def find(self, namespace: Namespace) -> Collection | None:
        return next((c for c in self.collections if c.namespace == namespace), None)


def list_collections(
    client: Client, selection: Selection, databases: Iterable[str] | None = None
) -> Listing:
    """Return the selected collections in the order of their full names.

    A view, time series or system collection that only matches a regular expression is left out,
    which is logged once at INFO. Raises UnsuitableSource if the selection names one exactly.

    Args:
        client: a client of the replica set.
        selection: the collections to capture.
        databases: the databases to list; all by default.
    """
    try:
        term = term_of(client)
        listing = list_once(client, selection, databases)
        return replace(listing, term=term if term == term_of(client) else None)
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, "Listing collections") from error


def list_once(
    client: Client, selection: Selection, databases: Iterable[str] | None = None
) -> Listing:
    """Return the listing of `list_collections` without its term: it may be rolled back.

    Raises the driver's errors, and UnsuitableSource.
    """
    collections: list[Collection] = []
    times: list[Timestamp] = []
    for db in databases or list_databases(client, selection, times):
        reply = client.get_database(db).command(
            "listCollections", cursor={"batchSize": 10**6}, maxTimeMS=LONGEST_MS
        )
        times.append(reply_time(reply))
        for info in _all_batches(client, db, reply):
            collections += _select(Namespace(db, info["name"]), info, selection)
    ordered = tuple(sorted(collections, key=lambda collection: str(collection.namespace)))
    return Listing(ordered, min(times), max(times), term=None)


def estimate_documents(client: Client, namespace: Namespace) -> int:
    """Return the count in the collection's metadata.

    That is quick, and wrong for a while after an unclean shutdown. Raises our errors for those of
    the server.
    """
    try:
        return int(client[namespace.db][namespace.coll].estimated_document_count())
    except pymongo.errors.PyMongoError as error:
        raise translate_error(error, f"Counting {namespace}") from error


def list_databases(client: Client, selection: Selection, times: list[Timestamp]) -> list[str]:
    """Return the databases that may have selected collections; append the times of replies.

    Raises the driver's errors.
    """
    if selection.databases is not None:
        return sorted(selection.databases)
    reply = client.admin.command("listDatabases", nameOnly=True, authorizedDatabases=True)
    times.append(reply_time(reply))
    there = {entry["name"] for entry in reply["databases"]} - INTERNAL_DATABASES
    return sorted(there | {name.db for name in selection.names})


def _all_batches(client: Client, db: str, reply: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor = reply["cursor"]
    yield from cursor["firstBatch"]
    while cursor["id"]:  # only beyond 16 MiB of names
        more = {"getMore": cursor["id"], "collection": "$cmd.listCollections"}
        cursor = client.get_database(db).command(more)["cursor"]
        yield from cursor["nextBatch"]


def _select(namespace: Namespace, info: dict[str, Any], selection: Selection) -> list[Collection]:
    if not selection.matches(namespace):
        return []
    system = namespace.coll.startswith("system.") or namespace.db in INTERNAL_DATABASES
    if info["type"] != "collection" or system:
        what = "system collection" if system else info["type"]
        if namespace in selection.names:
            raise UnsuitableSource(
                f"{namespace} is a {what}: it has no change stream of its own.",
                "Capture the underlying collection instead.",
            )
        _log_left_out(namespace, what)
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


@functools.lru_cache(maxsize=1024)  # a run lists its collections often
def _log_left_out(namespace: Namespace, what: str) -> None:
    _log.info("%s matches 'collections', but is left out: it is a %s", namespace, what)


# --- cutting one collection ----------------------------------------------------------------------


def ranges(
    client: Client,
    copying: Copying,
    most: int,
    split_bytes: int,
    shard: str = "",
) -> list[KeyRange]:
    """Return at most `most` adjacent ranges from the frontier on, each of about `split_bytes`.

    The last range ends at MaxKey if the rest of the collection fits; else it ends where the next
    call must begin. There is always a range. Raises our errors for those of the server.

    Args:
        client: a client of the replica set or of one shard.
        copying: the collection, and the frontier at which the first range begins.
        most: the greatest number of ranges.
        split_bytes: bytes of documents, uncompressed.
        shard: the name of the shard, for the log.
    """
    lower, cuts = copying.below, cut_points(client, copying, most, split_bytes, shard)
    # Several shards may have a document with the same _id.
    distinct = {merge_key(cut): cut for cut in cuts}
    keys = [lower, *(cut for cut in distinct.values() if cut not in (lower, MAX_KEY))]
    if len(cuts) < most or len(keys) == 1:
        keys.append(MAX_KEY)
    return [KeyRange(low, high) for low, high in itertools.pairwise(keys)]
