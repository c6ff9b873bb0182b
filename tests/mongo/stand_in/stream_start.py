"""Where a change stream starts, and what the router does after the shards: the command of a client.

What is imitated, by the names of the server's source:

* `getStartTimeForNewStream`: without a start, all shards begin one tick after the newest cluster
  time that the router knows. A shard may not have reached it.
* `DocumentSourceChangeStreamAddPostImage`: `updateLookup` is a read by the router, after the merge.
  The client's stages follow it.

Not imitated is the check that the event of `resumeAfter` or `startAfter` still exists. Shards that
are not asked by a mongos would look for it on each of them. So they start at its time, and the
router leaves out what is not after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.model import resume_token
from tests.mongo.stand_in.cursors import Cursors
from tests.mongo.stand_in.literals import aggregate_literals
from tests.mongo.stand_in.reads import find
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.wire import Document

_STARTS = ("resumeAfter", "startAfter", "startAtOperationTime")
_LOOKUP = "updateLookup"


def is_change_stream(command: Mapping[str, Any]) -> bool:
    pipeline = command.get("pipeline", ())
    return bool(pipeline) and "$changeStream" in pipeline[0]


@dataclass(frozen=True)
class StreamCommand:
    """The command of a merged stream.

    Attributes:
        of_shards: the command that each shard gets.
        after: the token after which the client starts; None if it starts at a time.
        stages: the client's stages that the router runs; None if the shards run them.
    """

    of_shards: Document
    after: RawBSONDocument | None
    stages: list[Any] | None

    @classmethod
    def of(cls, command: Mapping[str, Any], since: Timestamp) -> Self:
        """The command of a client; `since` is where it starts if it names no start."""
        stage, *stages = command["pipeline"]
        given = dict(stage["$changeStream"])
        after = given.pop("resumeAfter", None) or given.pop("startAfter", None)
        if after is not None:
            given["startAtOperationTime"] = resume_token.time_of(after["_data"])
        given.setdefault("startAtOperationTime", since)
        is_lookup = given.get("fullDocument") == _LOOKUP
        if is_lookup:
            del given["fullDocument"]
        of_shards = {
            **command,
            "pipeline": [{"$changeStream": given}, *stages[: 0 if is_lookup else None]],
        }
        return cls(of_shards, after, stages if is_lookup else None)

    def starting(self, **start: Any) -> StreamCommand:
        """The same command with another start for the shards."""
        stage, *stages = self.of_shards["pipeline"]
        rest = {
            name: value for name, value in stage["$changeStream"].items() if name not in _STARTS
        }
        pipeline = [{"$changeStream": {**rest, **start}}, *stages]
        return replace(self, of_shards={**self.of_shards, "pipeline": pipeline})

    async def finish(self, request: Request, event: RawBSONDocument) -> RawBSONDocument | None:
        """Return what the client gets of an event; None if its own stages leave it out."""
        if self.stages is None:
            return event
        document = dict(event.items())
        if event["operationType"] == "update":
            document["fullDocument"] = await _look_up(request, event)
        finished = await aggregate_literals(request, [document], self.stages)
        found = await finished.next_batch(request, None)
        return found[0] if found else None


async def _look_up(request: Request, event: RawBSONDocument) -> RawBSONDocument | None:
    """Return the document of an update as it is now, from whichever shard owns it."""
    concern = {"level": "majority", "afterClusterTime": event["clusterTime"]}
    command = {
        "find": event["ns"]["coll"],
        "filter": event["documentKey"],
        "readConcern": concern,
        "singleBatch": True,
        "$db": event["ns"]["db"],
    }
    reply = await find(request.part(command), Cursors())
    found = reply["cursor"]["firstBatch"]
    return found[0] if found else None
