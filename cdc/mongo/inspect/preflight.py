"""Checks of a source before a run; `check` raises the first problem."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import BadOption, CdcError, HistoryLost, ImagesMissing, UnsuitableSource
from cdc.model import CaptureFilter, Namespace, Selection, resume_token, timestamp
from cdc.mongo.collections import Collection, Listing, names_incarnations
from cdc.mongo.connection import (
    Client,
    Need,
    is_transient,
    name_missing_needs,
    on_shards,
    privileges,
    translate_error,
)
from cdc.mongo.plan import Start, missing_collections
from cdc.mongo.query import projection
from cdc.mongo.read import fields_error, reads_at_a_time
from cdc.mongo.topology import Source, history_lost_error

_log = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """What a run requests from a source.

    Attributes:
        selection: the collections.
        images_required: each collection must record pre- and post-images.
        is_new: the run has no checkpoint.
        follows: the run reads changes.
        start: the start of the changes.
        capture: the capture filter and the projection.
        waits: the selected collections may be created later.
    """

    selection: Selection
    images_required: bool = False
    is_new: bool = True
    follows: bool = True
    start: Start = Start()
    capture: CaptureFilter = CaptureFilter()
    waits: bool = False


def check(source: Source, wanted: Wanted) -> Listing:
    """Return the selected collections that exist, or raise the first problem.

    A collection may be missing if the run has a checkpoint (`is_new` is False): it may have been
    dropped since, or not been created yet.

    Raises NotPermitted, which names the missing privileges; ImagesMissing; UnsuitableSource if a
    new run does not wait for a collection that is missing; BadOption or HistoryLost for `start`.
    """
    log_in(source)
    with name_missing_needs(source.clients, list_needs(source, wanted)):
        listing = source.list_collections(wanted.selection)
    for problem in find_problems(source, wanted, listing):
        raise problem
    if (
        wanted.is_new
        and wanted.follows
        and (awaited := missing_collections.missing_items(wanted.selection, listing))
    ):
        _log.info("to be captured once they are created: %s", ", ".join(awaited))
    return listing


def shards_of(source: Source, collection: Collection) -> tuple[str, ...]:
    """Return the shards that may contain documents of the collection."""
    return (collection.shard,) if collection.shard else source.shards


def log_in(source: Source) -> None:
    """Log in to each shard; the error names the shard.

    A shard may not know the user, or this machine may not know the shard's address.
    """
    for shard, client in source.clients.items():
        try:
            client.admin.command("ping")
        except pymongo.errors.PyMongoError as error:
            raise translate_error(error, f"Connecting to {shard or 'MongoDB'}") from error


def list_needs(source: Source, wanted: Wanted) -> list[Need]:
    """Return the privileges that the run needs."""
    return privileges.required_needs(wanted.selection, source.shards)


def record_images_command(namespace: Namespace) -> str:
    """Return the command for the shell that makes a server record images, from MongoDB 6.0 on."""
    db, coll = json.dumps(namespace.db), json.dumps(namespace.coll)
    return (
        f"db.getSiblingDB({db}).runCommand({{collMod: {coll},"
        " changeStreamPreAndPostImages: {enabled: true}})"
    )


def find_problems(source: Source, wanted: Wanted, found: Listing) -> Iterator[CdcError]:
    """Yield each problem of a run with this listing as an error.

    Raises the error of a find with the capture filter that fails for another reason than a refusal.
    """
    yield from _find_version_errors(source, wanted.selection)
    if wanted.start.copies and not source.reads_match_events:
        yield from _find_copy_errors(source, wanted)
    yield from _find_permission_errors(source, wanted)
    if wanted.is_new and not wanted.waits:
        yield from missing_collections.missing_errors(source, wanted.selection, found)
    without = [c.namespace for c in found.collections if not c.has_images]
    if wanted.images_required and without:
        yield ImagesMissing(
            f"{', '.join(map(str, without))} does not record pre- and post-images.",
            f"Run {record_images_command(without[0])}, or set images to auto.",
        )
    if wanted.capture.text:
        yield from _find_projection_errors(source, wanted.capture, found)
    if wanted.follows:
        yield from _find_stream_errors(source, wanted, found.time)


def _find_projection_errors(
    source: Source, capture: CaptureFilter, found: Listing
) -> Iterator[CdcError]:
    for collection in found.collections:
        if projection.has_other_collation(capture, collection.collation):
            yield projection.collation_error(collection.namespace)
    nothing = projection.find_arguments(capture, {"_id": {"$in": []}})
    for collection in found.collections[:1]:
        db, coll = collection.namespace
        try:
            list(source.clients[shards_of(source, collection)[0]][db][coll].find(**nothing))
        except pymongo.errors.PyMongoError as error:
            if is_transient(error) or not isinstance(error, pymongo.errors.OperationFailure):
                raise translate_error(
                    error, f"Trying option 'filter' on {collection.namespace}"
                ) from error
            yield BadOption(
                f"The server refuses option 'filter' or 'fields' (code {error.code}).",
                "Try both in mongosh, with find.",
            )


def _find_version_errors(source: Source, selection: Selection) -> Iterator[CdcError]:
    """Yield an error if documents move between shards that cannot read at a cluster time.

    Then there is no read in which each document is on exactly one shard.
    """
    if source.ownership is None:
        return
    probed = Namespace(selection.database or "cdc", "none")
    for shard in source.shards:
        if not _can_read_at_a_time(source, shard, probed):
            yield UnsuitableSource(
                f"Shard {shard} runs a version before 5.0; such a shard cannot be read directly.",
                "Upgrade the cluster to 5.0 or later.",
            )
            return


def _find_copy_errors(source: Source, wanted: Wanted) -> Iterator[CdcError]:
    """Yield what prevents a copy through a router."""
    if wanted.capture.fields:
        yield fields_error()
    for shard in source.shards:
        member = source.open(shard)
        try:
            names_them = names_incarnations(
                member, Namespace(wanted.selection.database or "cdc", "none")
            )
        except pymongo.errors.PyMongoError:
            names_them = True  # other checks report why
        finally:
            member.end()
        if not names_them:
            yield UnsuitableSource(
                "The cluster runs a version before 6.0, which cannot be copied through a router.",
                "Upgrade it, set mode to latest, or set shards.direct.",
            )


def _can_read_at_a_time(source: Source, shard: str, probed: Namespace) -> bool:
    """Whether a shard can read at a time; also true if that fails: other checks report why."""
    try:
        member = source.open(shard)
        try:
            return reads_at_a_time(member, probed)
        finally:
            member.end()
    except pymongo.errors.PyMongoError:
        return True


def _find_permission_errors(source: Source, wanted: Wanted) -> Iterator[CdcError]:
    """Yield an error if a privilege is missing that the run may use only later.

    Examples are the chunk history, and the list of collections on a shard that a database moves to.
    """
    needs = list_needs(source, wanted)
    try:
        with name_missing_needs(source.clients, needs):
            for need in needs:
                _try_need(source.clients[need.shard], need)
    except CdcError as error:
        yield error


def _try_need(client: Client, need: Need) -> None:
    try:
        if need.action == "listCollections":
            client[need.db or "admin"].command("listCollections", filter={"name": ""})
        elif need.action == "find" and need.coll:
            client[need.db][need.coll].find_one({}, {"_id": 1})
    except pymongo.errors.PyMongoError as error:
        raise translate_error(
            error, f"Checking the privilege {need}{on_shards([need.shard])}"
        ) from error


def _find_stream_errors(source: Source, wanted: Wanted, seen: Timestamp) -> Iterator[CdcError]:
    after, option = wanted.start.after, wanted.start.option
    if after is not None and after > source.live_edge(seen):
        yield BadOption(
            f"Option '{option}' is later than the server's time.", "Set it to an earlier time."
        )
        return
    if after is not None and after < source.topology_time:
        when = timestamp.text(source.topology_time)
        yield HistoryLost(
            f"Option '{option}' is before {when}, when a shard joined or left: which shards existed"
            " earlier is unknown.",
            "Start after that time, or with mode initial.",
        )
    for shard in source.shards:
        try:
            with name_missing_needs(source.clients, list_needs(source, wanted)):
                _open_stream(source.clients[shard], wanted.selection, wanted.start, shard)
        except CdcError as error:
            yield error


def _open_stream(client: Client, selection: Selection, start: Start, shard: str) -> None:
    """Open a change stream as a run would, and close it.

    For a start in the past, the first reply requests an event, because only then does the server
    check that its oplog reaches back to that time. The event is requested without its document.
    """
    scope = client if selection.database is None else client[selection.database]
    slim = [{"$project": {"operationType": 1}}]
    try:
        scope.watch(slim, start_at_operation_time=start.after, batch_size=1).close()
        if start.position:
            with scope.watch() as newest:
                _require_comparable(start.position, newest.resume_token)
    except pymongo.errors.PyMongoError as error:
        where = f"database {selection.database}" if selection.database else "the deployment"
        problem = translate_error(error, f"Reading changes of {where}{on_shards([shard])}")
        if isinstance(problem, HistoryLost) and start.after is not None:
            problem = history_lost_error(client, shard, start.option)
        raise problem from error


def _require_comparable(position: str, token: Mapping[str, Any] | None) -> None:
    """Raise UnsuitableSource if the position's token has another version than the server's.

    Within a transaction, tokens of different versions are not comparable.
    """
    if token is None:
        return
    given = resume_token.decode(position).version
    used = resume_token.decode(token["_data"]).version
    if given != used:
        raise UnsuitableSource(
            f"Option 'start' is a resume token of version {given}, but the server writes"
            f" version {used}.",
            "Set mode to timestamp, and start to"
            f" {timestamp.text(resume_token.time_of(position))}:"
            " all changes of that time are emitted.",
        )
