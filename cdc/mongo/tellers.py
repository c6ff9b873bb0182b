"""DDL that several shards report is told by one of them.

A split cannot know what other shards report, or have reported in an earlier batch. So when a
batch is planned, it is decided for each shard whether it tells of all DDL of that time or of none,
and the offset keeps the decision: a replay tells the same, whoever is the primary shard by then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bson.timestamp import Timestamp

from cdc.model import timestamp
from cdc.model.hand_over import advance
from cdc.model.offset import Offset
from cdc.mongo.cluster import Source

Told = tuple[str, Mapping[str, Any]]  # an event of DDL, and the shard that reports it
# What has to be known of an event.
SLIM = dict.fromkeys(("ns", "to", "operationType", "clusterTime", "collectionUUID"), 1)


def told_once(source: Source, start: Offset, end: Offset, reported: Iterable[Told]) -> Offset:
    """The end of a batch with the shards that are silent in it; or the end of a shorter one, if a
    shard has to tell of some and not of all: the primary shards of two databases may differ.

    `reported`: at least all DDL of the batch.
    """
    tells: dict[str, bool] = {}
    inside = [told for told in reported if _time(told) <= end.time]
    for time, at_once in itertools.groupby(sorted(inside, key=_time), _time):
        now: dict[str, bool] = {}
        for shard, event in at_once:
            now[shard] = source.tells(shard, event) or now.get(shard, False)
        if any(tells.get(shard, is_told) != is_told for shard, is_told in now.items()):
            end = advance(start, timestamp.before(time))
            break
        tells |= now
    silent = tuple(shard for shard, is_told in tells.items() if not is_told)
    # An end that is the start still says who was silent, and what was copied, before it.
    return replace(end, silent=silent) if silent else end


def _time(told: Told) -> Timestamp:
    time: Timestamp = told[1]["clusterTime"]
    return time
