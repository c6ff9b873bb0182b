"""The start of a change stream: what the shards are sent for the command of a client.

Without a start, all shards begin one tick after the newest cluster time that the router knows
(`getStartTimeForNewStream` of document_source_change_stream.cpp). A shard may not have reached it.

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
from tests.mongo.stand_in.wire import Document

_STARTS = ("resumeAfter", "startAfter", "startAtOperationTime")


def is_change_stream(command: Mapping[str, Any]) -> bool:
    pipeline = command.get("pipeline", ())
    return bool(pipeline) and "$changeStream" in pipeline[0]


@dataclass(frozen=True)
class StreamCommand:
    """The command of a merged stream.

    Attributes:
        of_shards: the command that each shard gets.
        after: the token after which the client starts; None if it starts at a time.
    """

    of_shards: Document
    after: RawBSONDocument | None

    @classmethod
    def of(cls, command: Mapping[str, Any], since: Timestamp) -> Self:
        """The command of a client; `since` is where it starts if it names no start."""
        stage, *stages = command["pipeline"]
        given = dict(stage["$changeStream"])
        after = given.pop("resumeAfter", None) or given.pop("startAfter", None)
        if after is not None:
            given["startAtOperationTime"] = resume_token.time_of(after["_data"])
        given.setdefault("startAtOperationTime", since)
        return cls({**command, "pipeline": [{"$changeStream": given}, *stages]}, after)

    def starting(self, **start: Any) -> StreamCommand:
        """The same command with another start for the shards."""
        stage, *stages = self.of_shards["pipeline"]
        rest = {
            name: value for name, value in stage["$changeStream"].items() if name not in _STARTS
        }
        pipeline = [{"$changeStream": {**rest, **start}}, *stages]
        return replace(self, of_shards={**self.of_shards, "pipeline": pipeline})
