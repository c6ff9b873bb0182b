"""Aggregations through a router: the first stages on each shard, the others on what they return.

A mongos has the merging half run by a shard, with the shards' cursors for its input. Here that half
runs on a real server too, with the documents of the shards as literals. So the server's own stages
do all the work, and all documents have to fit into one command.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bson.raw_bson import RawBSONDocument

from tests.mongo.stand_in.change_stream import MergedStream
from tests.mongo.stand_in.cursors import FIRST_BATCH, Cursors, Interleaved, Merged
from tests.mongo.stand_in.faults import Faults
from tests.mongo.stand_in.reads import aggregate_literals, read_time
from tests.mongo.stand_in.request import Remote, Request, open_remotes
from tests.mongo.stand_in.routing import Target
from tests.mongo.stand_in.stream_start import is_change_stream
from tests.mongo.stand_in.wire import Document

# Stages that need one document at a time, and run where it is.
_OF_SHARDS = frozenset(
    {
        *("$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith"),
        *("$unwind", "$redact", "$collStats", "$indexStats"),
    }
)


async def aggregate(request: Request, cursors: Cursors, faults: Faults) -> Document:
    command = request.command
    if is_change_stream(command):
        return await _reply(request, cursors, await MergedStream.open(request, faults))
    first = next(iter(command["pipeline"][0]), "") if command["pipeline"] else ""
    if first == "$currentOp":
        return await _current_op(request, cursors)
    return await request.until_routed(_collection(request), partial(_aggregate, request, cursors))


def _collection(request: Request) -> str:
    value = request.command[request.name]
    return value if isinstance(value, str) else "$cmd.aggregate"


async def _reply(request: Request, cursors: Cursors, merged: Merged) -> Document:
    size = int(dict(request.command.get("cursor", {})).get("batchSize", FIRST_BATCH))
    namespace = f"{request.db}.{_collection(request)}"
    return await cursors.first_reply(request, merged, namespace, size, False)


async def _aggregate(request: Request, cursors: Cursors) -> Document:
    command, coll = dict(request.command), _collection(request)
    at = read_time(request, command)
    targets = await request.topology.targets(request.db, coll, at)
    pipeline = list(command["pipeline"])
    of_shards, of_router = (pipeline, []) if len(targets) < 2 else _split(pipeline)
    command["pipeline"] = of_shards
    remotes, _ = await open_remotes(request, targets, partial(_command_of, command))
    if of_router:
        drained = await _drain(request, remotes)
        documents = await _merge(request, targets, drained, of_router)
        merged = await aggregate_literals(request, documents, of_router)
        return await _reply(request, cursors, merged)
    fields = {} if at is None else {"atClusterTime": at}
    return await _reply(request, cursors, Interleaved(remotes, fields=fields))


def _command_of(command: Mapping[str, Any], target: Target) -> Document:
    """The command of one shard: its statistics name it."""
    pipeline = command["pipeline"]
    if pipeline and next(iter(pipeline[0])) in ("$collStats", "$indexStats"):
        named = {"$addFields": {"shard": target.shard}}
        pipeline = [pipeline[0], named, *pipeline[1:]]
    return {**command, "pipeline": pipeline}


def _split(pipeline: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Return the stages of the shards, and those of the router.

    A limit and a sample are taken by both: of each shard, and of all of them together.
    """
    for number, stage in enumerate(pipeline):
        name = next(iter(stage))
        if name not in _OF_SHARDS:
            is_both = name in ("$limit", "$sample")
            return list(pipeline[: number + is_both]), list(pipeline[number:])
    return list(pipeline), []


async def _drain(request: Request, remotes: list[Remote]) -> list[list[RawBSONDocument]]:
    async def drain(remote: Remote) -> list[RawBSONDocument]:
        while not remote.is_exhausted:
            await remote.more(request)
        return list(remote.documents)

    return await asyncio.gather(*map(drain, remotes))


async def _merge(
    request: Request,
    targets: list[Target],
    of_shards: list[list[RawBSONDocument]],
    of_router: list[Document],
) -> list[RawBSONDocument]:
    """Return the documents of all shards; a sample of their samples."""
    if next(iter(of_router[0])) != "$sample":
        return [document for each in of_shards for document in each]
    answers = await request.ask(targets, {"count": _collection(request), **request.session})
    sizes = [int(answer.reply["n"]) for answer in answers]
    drawn = [
        (value, number, document)
        for number, (size, documents) in enumerate(zip(sizes, of_shards, strict=True))
        for value, document in zip(_random_values(size), documents, strict=False)
    ]
    drawn.sort(key=lambda each: each[0], reverse=True)
    return [document for _, _, document in drawn[: int(of_router.pop(0)["$sample"]["size"])]]


def _random_values(size: int) -> Iterator[float]:
    """Yield the greatest of `size` random numbers, the next, and so on.

    So a large shard gets more of the merged sample than a small one
    (document_source_sample_from_random_cursor.cpp).
    """
    value = 1.0
    for left in itertools.chain(range(size, 0, -1), itertools.repeat(1)):
        value *= random.random() ** (1 / left)
        yield value


async def _current_op(request: Request, cursors: Cursors) -> Document:
    """The operations of all shards, each with its shard; those of the router with `localOps`."""
    stage = request.command["pipeline"][0]["$currentOp"]
    if not stage.get("localOps"):
        shards = await request.topology.shards()
        targets = [Target(name, servers, {}) for name, servers in shards.items()]
        remotes, _ = await open_remotes(request, targets, partial(_with_shard, request.command))
        return await _reply(request, cursors, Interleaved(remotes))
    idle = cursors.describe() if stage.get("idleCursors") else []
    merged = await aggregate_literals(request, idle, request.command["pipeline"][1:])
    return await _reply(request, cursors, merged)


def _with_shard(command: Mapping[str, Any], target: Target) -> Document:
    named = {"$addFields": {"shard": target.shard}}
    return {**command, "pipeline": [command["pipeline"][0], named, *command["pipeline"][1:]]}
