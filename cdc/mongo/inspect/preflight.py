"""Whether a run could succeed, as far as it can be known before: `check` raises the first problem
that it finds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import BadOption, CdcError, HistoryLost, ImagesMissing, UnsuitableSource
from cdc.model import Excerpt, Namespace, Selection, resume_token, timestamp
from cdc.mongo.collections import Collection, Listing
from cdc.mongo.connection import Client, Need, is_transient, named, on, privileges, translated
from cdc.mongo.plan import Start, missing_collections
from cdc.mongo.query import projection
from cdc.mongo.read import reads_at_a_time
from cdc.mongo.topology import Source, lost

_log = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """What a run asks for. Without `follows` it reads no changes; with `waits` what it selects need
    not be there."""

    selection: Selection
    images_required: bool = False
    is_new: bool = True
    follows: bool = True
    start: Start = Start()
    excerpt: Excerpt = Excerpt()
    waits: bool = False


def check(source: Source, wanted: Wanted) -> Listing:
    """The collections that a run finds. With a checkpoint (`is_new` False) a collection may be
    gone, or not be there yet, for good reason.

    Raises NotPermitted, which names what the user lacks; ImagesMissing; UnsuitableSource if a
    collection is missing that a new run begins with, and does not wait for; BadOption or
    HistoryLost for `start`.
    """
    log_in(source)
    with named(source.clients, required(source, wanted)):
        found = source.listing(wanted.selection)
    for problem in problems_of(source, wanted, found):
        raise problem
    if (
        wanted.is_new
        and wanted.follows
        and (awaited := missing_collections.missing(wanted.selection, found))
    ):
        _log.info("%s: not there yet, captured from birth", ", ".join(awaited))
    return found


def shards_of(source: Source, collection: Collection) -> tuple[str, ...]:
    """The shards that may hold some of it."""
    return (collection.shard,) if collection.shard else source.shards


def log_in(source: Source) -> None:
    """A user may be unknown to a shard, or its address to this machine: here it is said which."""
    for shard, client in source.clients.items():
        try:
            client.admin.command("ping")
        except pymongo.errors.PyMongoError as error:
            raise translated(error, f"Connecting to {shard or 'MongoDB'}") from error


def required(source: Source, wanted: Wanted) -> list[Need]:
    return privileges.required(wanted.selection, source.shards)


def problems_of(source: Source, wanted: Wanted, found: Listing) -> Iterator[CdcError]:
    yield from _outdated(source, wanted.selection)
    yield from _unreadable(source, wanted)
    if wanted.is_new and not wanted.waits:
        yield from missing_collections.problems(source, wanted.selection, found)
    without = [c.namespace for c in found.collections if not c.has_images]
    if wanted.images_required and without:
        yield ImagesMissing(
            f"{', '.join(map(str, without))} does not record pre- and post-images.",
            f"Run db.getSiblingDB('{without[0].db}').runCommand({{collMod: '{without[0].coll}',"
            " changeStreamPreAndPostImages: {enabled: true}}), or set images to auto.",
        )
    if wanted.excerpt.text:
        yield from _untellable(source, wanted.excerpt, found)
    if wanted.follows:
        yield from _unfollowable(source, wanted, found.time)


def _untellable(source: Source, excerpt: Excerpt, found: Listing) -> Iterator[CdcError]:
    for collection in found.collections:
        if projection.is_ambiguous(excerpt, collection.collation):
            yield projection.ambiguous(collection.namespace)
    nothing = projection.of_find(excerpt, {"_id": {"$in": []}})
    for collection in found.collections[:1]:
        db, coll = collection.namespace
        try:
            list(source.clients[shards_of(source, collection)[0]][db][coll].find(**nothing))
        except pymongo.errors.PyMongoError as error:
            if is_transient(error) or not isinstance(error, pymongo.errors.OperationFailure):
                raise translated(error, f"Asking {collection.namespace} by 'filter'") from error
            yield BadOption(
                f"The server refuses option 'filter' or 'fields' (code {error.code}).",
                "Try it in a find of your own.",
            )


def _outdated(source: Source, selection: Selection) -> Iterator[CdcError]:
    """Without reads at a time there is none at which each document is on one shard."""
    probed = Namespace(selection.database or "cdc", "none")
    for shard in filter(None, source.shards):
        if not _reads_at_a_time(source, shard, probed):
            yield UnsuitableSource(
                f"Shard {shard} is of a version before 5.0, whose shards cannot be read directly.",
                "Upgrade the cluster to 5.0 or later.",
            )
            return


def _reads_at_a_time(source: Source, shard: str, probed: Namespace) -> bool:
    """Or is not to be asked, which others say."""
    try:
        member = source.open(shard)
        try:
            return reads_at_a_time(member, probed)
        finally:
            member.end()
    except pymongo.errors.PyMongoError:
        return True


def _unreadable(source: Source, wanted: Wanted) -> Iterator[CdcError]:
    """Asks for what a run may come to only later: the history of the chunks, or the list of a
    shard that a database moves to."""
    needs = required(source, wanted)
    try:
        with named(source.clients, needs):
            for need in needs:
                _ask(source.clients[need.shard], need)
    except CdcError as error:
        yield error


def _ask(client: Client, need: Need) -> None:
    try:
        if need.action == "listCollections":
            client[need.db or "admin"].command("listCollections", filter={"name": ""})
        elif need.action == "find" and need.coll:
            client[need.db][need.coll].find_one({}, {"_id": 1})
    except pymongo.errors.PyMongoError as error:
        raise translated(error, f"Asking for {need}{on([need.shard])}") from error


def _unfollowable(source: Source, wanted: Wanted, seen: Timestamp) -> Iterator[CdcError]:
    after, option = wanted.start.after, wanted.start.option
    if after is not None and after > source.live_edge(seen):
        yield BadOption(f"Option '{option}' lies in the future of the server.", "Set it back.")
        return
    if after is not None and after < source.topology_time:
        when = timestamp.text(source.topology_time)
        yield HistoryLost(
            f"Option '{option}' lies before {when}, when a shard joined or left: nobody knows any"
            " more whose changes there were before.",
            "Start behind that time, or with mode initial.",
        )
    for shard in source.shards:
        try:
            with named(source.clients, required(source, wanted)):
                _open_stream(source.clients[shard], wanted.selection, wanted.start, shard)
        except CdcError as error:
            yield error


def _open_stream(client: Client, selection: Selection, start: Start, shard: str) -> None:
    """Opens a stream as a run would. One in the past is asked for an event at once, but not for its
    document: the server looks only then whether its oplog reaches back so far."""
    scope = client if selection.database is None else client[selection.database]
    slim = [{"$project": {"operationType": 1}}]
    try:
        scope.watch(slim, start_at_operation_time=start.after, batch_size=1).close()
        if start.position:
            with scope.watch() as newest:
                _require_comparable(start.position, newest.resume_token)
    except pymongo.errors.PyMongoError as error:
        where = f"database {selection.database}" if selection.database else "the deployment"
        problem = translated(error, f"Reading changes of {where}{on([shard])}")
        if isinstance(problem, HistoryLost) and start.after is not None:
            problem = lost(client, shard, start.option)
        raise problem from error


def _require_comparable(position: str, own: Mapping[str, Any] | None) -> None:
    """Tokens of different versions lie in no order within a transaction."""
    if own is None:
        return
    given, told = resume_token.decode(position).version, resume_token.decode(own["_data"]).version
    if given != told:
        raise UnsuitableSource(
            f"Option 'start' is a resume token of version {given}, and the server's are of {told}.",
            "Set mode to timestamp, and start to"
            f" {timestamp.text(resume_token.time_of(position))}:"
            " all changes of that time are emitted.",
        )
