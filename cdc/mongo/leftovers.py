"""Cursors of a process that could not close them itself: Spark kills its Python processes, the one
that plans a stream with each stop of the query.

They belong to sessions, so the server's `cursorTimeoutMillis` does not hold for them: it ends them
with their sessions, half an hour later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pymongo
import pymongo.errors

from cdc.errors import CdcError
from cdc.mongo.client import Client, each_member
from cdc.mongo.cluster import Cluster, Source

_log = logging.getLogger(__name__)
# A source that is down has a stop wait for so long, and no longer.
_PATIENCE_SECONDS, _OF_A_MEMBER = 3.0, 1.5


def end_cursors(open_source: Callable[[], Source], comment: str) -> None:
    """Ends the user's own cursors that bear a comment, on all members that answer at once; the rest
    is left to the servers."""
    with pymongo.timeout(_PATIENCE_SECONDS):
        try:
            source = open_source()
            parts = source.parts.values() if isinstance(source, Cluster) else [source]
            for part in parts:
                for member in each_member(part.client, part.uri):
                    _end(member, comment)
        except (CdcError, pymongo.errors.PyMongoError) as error:
            _log.info("cursors are left to the server: %s", type(error).__name__)


def _end(member: Client, comment: str) -> None:
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"cursor.originatingCommand.comment": comment}},
    ]
    try:
        with pymongo.timeout(_OF_A_MEMBER):
            for found in list(member.admin.aggregate(stages)):
                db, _, coll = found["ns"].partition(".")
                coll = found["cursor"]["originatingCommand"].get("collection", coll)
                member[db].command({"killCursors": coll, "cursors": [found["cursor"]["cursorId"]]})
    except pymongo.errors.PyMongoError as error:
        _log.info("cursors are left to a member: %s", type(error).__name__)
