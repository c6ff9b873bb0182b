"""Cursors of a process that could not close them itself: Spark kills its Python processes, the one
that plans a stream with each stop of the query.

They belong to sessions, so the server's `cursorTimeoutMillis` does not hold for them: it ends them
with their sessions, half an hour later.
"""

from __future__ import annotations

import logging
from typing import Any

import pymongo
import pymongo.errors

from cdc.mongo.client import Client, each_member
from cdc.mongo.cluster import Cluster, Source

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 1.5


def end_cursors(source: Source, comment: str) -> None:
    """Ends the user's own cursors that bear a comment, on all members that answer at once; the rest
    is left to the servers."""
    parts = source.parts.values() if isinstance(source, Cluster) else [source]
    for part in parts:
        for member in each_member(part.client, part.uri):
            try:
                with pymongo.timeout(_PATIENCE_SECONDS):
                    _end(member, comment)
            except pymongo.errors.PyMongoError as error:
                _log.debug("ending cursors: %s", type(error).__name__)


def _end(member: Client, comment: str) -> None:
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"cursor.originatingCommand.comment": comment}},
    ]
    for found in list(member.admin.aggregate(stages)):
        db, _, coll = found["ns"].partition(".")
        coll = found["cursor"]["originatingCommand"].get("collection", coll)
        member[db].command({"killCursors": coll, "cursors": [found["cursor"]["cursorId"]]})
