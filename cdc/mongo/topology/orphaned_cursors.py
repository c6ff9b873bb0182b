"""Orphaned cursors: closing those that a killed process left open.

Spark kills its Python processes. It kills the process that plans a stream at each stop of the
query. The server's `cursorTimeoutMillis` does not apply to their cursors, which belong to sessions.
The server closes them with their sessions, half an hour later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pymongo
import pymongo.errors

from cdc.errors import CdcError
from cdc.mongo.connection import Client
from cdc.mongo.topology.source import Source

_log = logging.getLogger(__name__)
# A stop waits at most this long for a source that is down.
_PATIENCE_SECONDS, _MEMBER_SECONDS = 3.0, 1.5


def end_cursors(open_source: Callable[[], Source], comment: str) -> None:
    """Close the user's cursors that carry a comment, on all members that answer within 1.5 s.

    Takes at most about 3 s. Failures are only logged: the servers close the remaining cursors.
    """
    with pymongo.timeout(_PATIENCE_SECONDS):
        try:
            for _, member in open_source().each_member():
                _end_on(member, comment)
        except (CdcError, pymongo.errors.PyMongoError) as error:
            _log.info("open cursors are left for the servers to close: %s", type(error).__name__)


def _end_on(member: Client, comment: str) -> None:
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"idleCursors": True}},
        {"$match": {"cursor.originatingCommand.comment": comment}},
    ]
    try:
        with pymongo.timeout(_MEMBER_SECONDS):
            for operation in list(member.admin.aggregate(stages)):
                db, _, coll = operation["ns"].partition(".")
                cursor = operation["cursor"]
                coll = cursor["originatingCommand"].get("collection", coll)
                member[db].command({"killCursors": coll, "cursors": [cursor["cursorId"]]})
    except pymongo.errors.PyMongoError as error:
        _log.info("open cursors are left for a member to close: %s", type(error).__name__)
