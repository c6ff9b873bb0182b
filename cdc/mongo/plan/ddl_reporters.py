"""DDL reporters: one shard reports each DDL event that several shards see.

A split cannot know what other shards report, or reported in an earlier batch. So the planner
decides for each shard whether it reports all DDL of the batch's time or none. The offset records
the decision, so a replay reports the same, whichever shard is the primary one by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bson.timestamp import Timestamp

from cdc.model import Offset, advance, timestamp
from cdc.mongo.topology import Source

# The name of a shard, and a DDL event that it reports.
ReportedDdl = tuple[str, Mapping[str, Any]]
# A projection to the fields of an event that this module needs.
EVENT_FIELDS = dict.fromkeys(("ns", "to", "operationType", "clusterTime", "collectionUUID"), 1)


def assign_reporters(
    source: Source, start: Offset, end: Offset, reported: Iterable[ReportedDdl]
) -> Offset:
    """Return the end of a batch, with the shards that do not report DDL in it (`silent`).

    The batch is made shorter if a shard would have to report only some of its DDL: the primary
    shards of two databases may differ.

    Args:
        source: decides which shard reports an event.
        start: the offset at the start of the batch.
        end: the planned offset at its end.
        reported: at least all DDL events of the batch.
    """
    decisions: dict[str, bool] = {}
    inside = [event for event in reported if _time(event) <= end.time]
    for time, simultaneous in itertools.groupby(sorted(inside, key=_time), _time):
        now: dict[str, bool] = {}
        for shard, event in simultaneous:
            now[shard] = source.reports_ddl(shard, event) or now.get(shard, False)
        if any(decisions.get(shard, reports) != reports for shard, reports in now.items()):
            end = advance(start, timestamp.before(time))
            break
        decisions |= now
    silent = tuple(shard for shard, reports in decisions.items() if not reports)
    # An end that is the start stays as it is: it still lists the silent shards of the batch before.
    return replace(end, silent=silent) if silent else end


def _time(reported: ReportedDdl) -> Timestamp:
    time: Timestamp = reported[1]["clusterTime"]
    return time
