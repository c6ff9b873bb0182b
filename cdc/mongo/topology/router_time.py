"""The live edge of a cluster that is read through a router, by the tokens of its change stream."""

from __future__ import annotations

import time
from typing import Final

import pymongo
import pymongo.errors
from bson.timestamp import Timestamp

from cdc.errors import TransientError
from cdc.model import NEVER, resume_token, timestamp
from cdc.mongo.connection import CursorBatch, RouterMember

# How long a stream is waited for that advances at once where all shards are healthy.
_AWAIT_MS, _PATIENCE_SECONDS = 50, 1.0
# Where a shard lags, its stream is opened this long before the newest time.
_LAG_SECONDS = 60
# How long all shards are waited for to reach the time at which `present` was asked.
_PRESENT_SECONDS = 10.0
LAGGING_REMEDY: Final = (
    "Check that a majority of each shard's members is up, and that each shard's"
    " periodicNoopIntervalSecs is small."
)


def live_edge(member: RouterMember, database: str | None, floor: Timestamp) -> Timestamp:
    """Return a time up to which each shard has a majority for all of its events.

    It is one increment before the post-batch token of a new stream over all shards: more events may
    have the time of the token itself. The token of the opening reply is only the time at which the
    stream was opened. So a token counts if it is later than that.

    The stream is opened at the newest time of all shards, with a read concern that makes those
    without writes advance to it. A shard that does not reach it in a second lags. Then the stream
    is opened a minute earlier, and the slowest shard decides. The result is `floor` if no shard
    reports a later time in a second, also if `floor` is NEVER.
    """
    newest = _newest(member, database)
    if newest <= floor:
        return floor
    try:
        after = max(floor, timestamp.before(newest))
        return _frontier(member, database, after, newest) or floor
    except pymongo.errors.ExecutionTimeout:
        earlier = Timestamp(max(0, newest.time - _LAG_SECONDS), 0)
        return _frontier(member, database, max(floor, earlier), None) or floor


def present(member: RouterMember, database: str | None) -> Timestamp:
    """Return a live edge at or after the newest time that any shard knows now.

    A single live edge is not enough. In an idle cluster it is before the last write, and it is
    NEVER if a busy shard does not answer in time.

    Raises TransientError if a shard does not reach that time in 10 s.
    """
    newest, deadline = _newest(member, database), time.monotonic() + _PRESENT_SECONDS
    while (edge := live_edge(member, database, NEVER)) < newest:
        if time.monotonic() > deadline:
            raise TransientError("Not every shard has reached the present time.", LAGGING_REMEDY)
        member.advance_shards(database or "admin")
    return edge


def _newest(member: RouterMember, database: str | None) -> Timestamp:
    """Return the newest time that any shard knows.

    Until it has asked a shard, the router does not know what other routers wrote.
    """
    with member.open_stream(database, None):
        return member.newest_known()


def _frontier(
    member: RouterMember, database: str | None, after: Timestamp, reached: Timestamp | None
) -> Timestamp | None:
    """Return a time from `after` on that all shards have passed; None if it is not reported.

    With `reached`, each shard first has to reach that time; else ExecutionTimeout is raised.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with member.open_stream(database, after, reached) as (cursor, name):
        db, _, coll = name.partition(".")
        more = {"collection": coll, "batchSize": 1, "maxTimeMS": _AWAIT_MS}
        is_open = True
        while is_open and time.monotonic() < deadline:
            # The driver would replace `maxTimeMS` by all that is left of a caller's timeout, and
            # the reply to an idle stream would come just when the driver stops to wait for it.
            with pymongo.timeout(None):
                batch = CursorBatch.of(member.command(db, {"getMore": cursor, **more}))
            token = resume_token.time_of(batch.document(b"postBatchResumeToken")["_data"])
            if token > after:
                return timestamp.before(token)
            is_open = batch.cursor != 0
    return None
