"""Lookups of a change stream with `updateLookup`: the router's own work, with all that follows it.

What is imitated, by the names of the server's source:

* `DocumentSourceChangeStreamAddPostImage` never runs on a shard (`invariant(pipeState !=
  kSplitForShards)`). A shard alone would look only at its own documents, orphans included.
* `MongosProcessInterface::lookupSingleDocument`: a versioned find by the document key, with
  majority and after the event. Nothing is found of a collection with another UUID.
* `canSwapWithMatch`: a match before that does not need the document runs on the shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from cdc.model import resume_token
from tests.mongo.stand_in.reads import aggregate_literals
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.wire import RAW, Document

_IMAGE = b"fullDocument"
_NO_NAMESPACE = 26


class PostImages:
    """The half of a change stream that a router runs on each event of a shard.

    Attributes:
        of_shards: the pipeline of the shards.
    """

    def __init__(self, pipeline: Sequence[Mapping[str, Any]]) -> None:
        stage, *stages = pipeline
        given = dict(stage["$changeStream"])
        self._is_needed = given.pop("fullDocument", None) == "updateLookup"
        if not self._is_needed:
            self.of_shards, self._stages = list(pipeline), []
            return
        count = next((i for i, each in enumerate(stages) if not _is_early(each)), len(stages))
        self.of_shards = [{"$changeStream": given}, *stages[:count]]
        self._stages = stages[count:]

    async def complete(self, request: Request, event: RawBSONDocument) -> RawBSONDocument | None:
        """Return the event as the client gets it; None if a stage left it out. Raises Refused."""
        if not self._is_needed:
            return event
        completed: Document = dict(event)
        if completed["operationType"] == "update":
            completed["fullDocument"] = await _look_up(request, event)
        if not self._stages:
            return RawBSONDocument(bson.encode(completed, codec_options=RAW), RAW)
        merged = await aggregate_literals(request, [completed], self._stages)
        found = await merged.next_batch(request, None)
        return found[0] if found else None


def _is_early(stage: Mapping[str, Any]) -> bool:
    return "$match" in stage and _IMAGE not in bson.encode(stage, codec_options=RAW)


async def _look_up(request: Request, event: RawBSONDocument) -> RawBSONDocument | None:
    db, coll = event["ns"]["db"], event["ns"]["coll"]
    concern = {"level": "majority", "afterClusterTime": event["clusterTime"]}
    find = {
        "find": coll,
        "filter": event["documentKey"],
        "limit": 1,
        "singleBatch": True,
        "readConcern": concern,
        **request.session,
    }
    asking = Request({**find, "$db": db}, request.topology, request.clock)
    token = resume_token.decode(event["_id"]["_data"], bytes(event["_id"].get("_typeBits", b"")))

    async def attempt() -> RawBSONDocument | None:
        table = await asking.topology.table(db, coll)
        if table is not None and bytes(table.uuid) != (token.uuid and token.uuid.bytes):
            return None
        targets = await asking.topology.targets(db, coll)
        answers = await asking.ask(targets, asking.command)
        found = [each for answer in answers for each in answer.reply["cursor"]["firstBatch"]]
        assert len(found) < 2, "a document key names one document"
        return found[0] if found else None

    try:
        return await asking.until_routed(coll, attempt)
    except Refused as refused:
        if refused.code != _NO_NAMESPACE:
            raise
        return None
    finally:
        request.see({"operationTime": asking.operation_time})
