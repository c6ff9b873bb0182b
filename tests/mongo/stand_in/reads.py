"""Reads of collections through a router: find, count, sizes, and other commands of one collection.

Each is sent to the shards that own chunks, with the version of each shard, and again with newer
metadata if a shard finds its version stale (cluster_find.cpp, cluster_commands_helpers.cpp). The
shard key is not looked at: all owners are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key, partial
from typing import Any

import bson
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model.keystring import keystring
from tests.mongo.stand_in.cursors import FIRST_BATCH, Cursors, Interleaved
from tests.mongo.stand_in.request import Remote, Request, open_remotes
from tests.mongo.stand_in.routing import Target
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.wire import RAW, Document

_SORT_KEY = "$sortKey"
# A collection of any server that has a document.
_SOME = "system.version"
_LARGEST_LITERALS = 12 * 2**20
_SUMMED = ("count", "size", "storageSize", "totalIndexSize", "totalSize", "numOrphanDocs")


async def find(request: Request, cursors: Cursors) -> Document:
    return await request.until_routed(request.coll, partial(_find, request, cursors))


async def _find(request: Request, cursors: Cursors) -> Document:
    command, namespace = dict(request.command), f"{request.db}.{request.coll}"
    at = read_time(request, command)
    targets = await request.topology.targets(request.db, request.coll, at)
    if not targets and "collectionUUID" in command:
        raise Refused.of(361, "CollectionUUIDMismatch", "Database does not exist")
    is_alone = len(targets) < 2
    sort = {} if is_alone else dict(command.get("sort", {}))
    sent = command if is_alone else _of_shards(command, sort)
    remotes, _ = await open_remotes(request, targets, lambda _: sent)
    merged = Interleaved(
        remotes,
        _sort_key(sort) if sort else None,
        _without_sort_key if sort else lambda document: document,
        0 if is_alone else int(command.get("skip", 0)),
        0 if is_alone else int(command.get("limit", 0)),
        {} if at is None else {"atClusterTime": at},
    )
    size, is_single = command.get("batchSize", FIRST_BATCH), bool(command.get("singleBatch"))
    return await cursors.first_reply(request, merged, namespace, size, is_single)


def read_time(request: Request, command: Document) -> Timestamp | None:
    """Return the time of a snapshot read; where it has none, the router chooses the newest."""
    concern = request.read_concern
    if concern.get("level") != "snapshot":
        return None
    at: Timestamp = concern.setdefault("atClusterTime", request.clock.time)
    command["readConcern"] = concern
    return at


def _of_shards(command: Mapping[str, Any], sort: Mapping[str, Any]) -> Document:
    """The find of each shard: it skips nothing, and returns what to sort by."""
    sent = {name: value for name, value in command.items() if name != "skip"}
    if command.get("limit"):
        sent["limit"] = Int64(command["limit"] + command.get("skip", 0))
    if sort:
        shown = dict(command.get("projection", {}))
        sent["projection"] = {**shown, _SORT_KEY: {"$meta": "sortKey"}}
    return sent


def _sort_key(sort: Mapping[str, Any]) -> Callable[[RawBSONDocument], Any]:
    """What to compare of a document: its values in the server's order, each in its direction."""
    directions = [int(each) for each in sort.values()]

    def compare(one: list[bytes], other: list[bytes]) -> int:
        for mine, its, direction in zip(one, other, directions, strict=True):
            if mine != its:
                return direction if mine > its else -direction
        return 0

    def key(document: RawBSONDocument) -> Any:
        values = document[_SORT_KEY]
        encoded = [keystring.encode(bson.encode({"": each}, codec_options=RAW)) for each in values]
        return cmp_to_key(compare)([each for each, _ in encoded])

    return key


def _without_sort_key(document: RawBSONDocument) -> RawBSONDocument:
    rest = {name: value for name, value in document.items() if name != _SORT_KEY}
    return RawBSONDocument(bson.encode(rest, codec_options=RAW), RAW)


async def count(request: Request) -> Document:
    command = dict(request.command)
    skip, limit = int(command.pop("skip", 0)), int(command.pop("limit", 0))
    if limit:
        command["limit"] = skip + limit
    replies = await _each(request, command)
    total = max(0, sum(int(reply["n"]) for reply in replies) - skip)
    return {"n": min(total, limit) if limit else total, "ok": 1.0}


async def coll_stats(request: Request) -> Document:
    """Sum up the shards' own figures (cluster_coll_stats_cmd.cpp)."""
    targets: list[Target] = []
    replies = await _each(request, request.command, targets)
    summed = {name: sum(int(reply.get(name, 0)) for reply in replies) for name in _SUMMED}
    table = await request.topology.table(request.db, request.coll)
    first = replies[0] if replies else {}
    return {
        "sharded": table is not None,
        "ns": f"{request.db}.{request.coll}",
        **({} if table is not None or not targets else {"primary": targets[0].shard}),
        **summed,
        "avgObjSize": summed["size"] / summed["count"] if summed["count"] else 0.0,
        "capped": first.get("capped", False),
        "nindexes": first.get("nindexes", 0),
        "nchunks": len(table.routing.chunks) if table else 1,
        "shards": {target.shard: reply for target, reply in zip(targets, replies, strict=True)},
        "ok": 1.0,
    }


async def _each(
    request: Request, command: Mapping[str, Any], asked: list[Target] | None = None
) -> list[Document]:
    """Return the replies of all owners; none if there is no database."""

    async def attempt() -> list[Document]:
        at = request.read_concern.get("atClusterTime")
        targets = await request.topology.targets(request.db, request.coll, at)
        answers = await request.ask(targets, command)
        if asked is not None:
            asked[:] = targets
        return [answer.reply for answer in answers]

    return await request.until_routed(request.coll, attempt)


async def split_vector(request: Request) -> Document:
    """Only for a collection that is not sharded (split_vector_cmd.cpp of mongos, before 7.0)."""
    db, _, coll = request.coll.partition(".")
    if db != request.db:
        message = "Performing splitVector across dbs isn't supported via mongos"
        raise Refused.of(20, "IllegalOperation", message)
    if await request.topology.table(db, coll) is not None:
        message = "can't do command: splitVector on sharded collection"
        raise Refused.of(20, "IllegalOperation", message)
    return await _on_one(request, coll)


async def on_unsharded(request: Request) -> Document:
    """Run any other command of a collection where it lies, unless it is sharded."""
    value = request.command[request.name]
    coll = value if isinstance(value, str) else "$cmd"
    if await request.topology.table(request.db, coll) is not None:
        message = f"the stand-in does not route '{request.name}' to several shards"
        raise Refused.of(59, "CommandNotFound", message)
    return await _on_one(request, coll)


async def list_indexes(request: Request, cursors: Cursors) -> Document:
    """Ask a shard that owns a part (`loadIndexesFromAuthoritativeShard`)."""
    return await on_first(request, cursors, request.coll, by_database=False)


async def list_collections(request: Request, cursors: Cursors, member: str | None) -> Document:
    """Ask the primary shard of the database, or the named member of any shard, if there is one.

    A database that does not exist has no collections (cluster_list_collections_cmd.cpp).
    """
    if member is None:
        return await on_first(request, cursors, "$cmd.listCollections", by_database=True)
    primary = await request.topology.primary(request.db)
    assert primary is not None
    loose = {**request.command, "$readPreference": {"mode": "primaryPreferred"}}
    answer = await primary.servers.ask(member, request.db, {**loose, **primary.versions})
    request.see(answer.reply)
    merged = Interleaved([Remote.of(primary, answer, request)])
    namespace = f"{request.db}.$cmd.listCollections"
    return await cursors.first_reply(request, merged, namespace, _batch_size(request), False)


async def on_first(request: Request, cursors: Cursors, coll: str, by_database: bool) -> Document:
    """Open a cursor on one server, which owns the collection or the database."""
    topology = request.topology

    async def attempt() -> Document:
        if by_database:
            primary = await topology.primary(request.db)
            targets = [primary] if primary else []
        else:
            targets = (await topology.targets(request.db, coll))[:1]
        remotes, _ = await open_remotes(request, targets, lambda _: request.command)
        namespace = remotes[0].namespace if remotes else f"{request.db}.{coll}"
        size = _batch_size(request)
        return await cursors.first_reply(request, Interleaved(remotes), namespace, size, False)

    return await request.until_routed(coll, attempt)


def _batch_size(request: Request) -> int | None:
    size: int | None = dict(request.command.get("cursor", {})).get("batchSize")
    return size


async def _on_one(request: Request, coll: str) -> Document:
    async def attempt() -> Document:
        targets = await request.topology.targets(request.db, coll)
        if not targets:
            raise Refused.of(26, "NamespaceNotFound", f"database {request.db} not found")
        command = {**request.command, **targets[0].versions}
        return (await request.run(targets[0].servers, command, False)).reply

    return await request.until_routed(coll, attempt)


async def aggregate_literals(
    request: Request, documents: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]]
) -> Interleaved:
    """Return a cursor on what these stages make of these documents. Raises Refused.

    The documents are sent as literals, so all of them have to fit into one command.
    """
    if len(bson.encode({"": documents}, codec_options=RAW)) > _LARGEST_LITERALS:
        raise Refused.of(20, "IllegalOperation", "the stand-in merges at most 12 MiB")
    pipeline = [
        {"$limit": 1},
        {"$project": {"_id": 0, "document": {"$literal": documents}}},
        {"$unwind": "$document"},
        {"$replaceRoot": {"newRoot": "$document"}},
        *stages,
    ]
    command = {"aggregate": _SOME, "pipeline": pipeline, "cursor": {}, **request.session}
    command |= {name: request.command[name] for name in ("collation",) if name in request.command}
    servers = request.topology.metadata
    answer = await servers.run("admin", command)
    return Interleaved([Remote.of(Target("config", servers, {}), answer, request)])
