"""Aggregations over documents that the router has: a real server runs the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import bson

from tests.mongo.stand_in.cursors import Interleaved, Remote
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.routing import Target
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.wire import RAW

# A collection of any server that has a document.
_SOME = "system.version"
_LARGEST = 12 * 2**20


async def aggregate_literals(
    request: Request, documents: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]]
) -> Interleaved:
    """Return a cursor on what these stages make of these documents. Raises Refused.

    The documents are sent as literals, so all of them have to fit into one command.
    """
    if len(bson.encode({"": documents}, codec_options=RAW)) > _LARGEST:
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
