"""What the sinks have to know about a batch before they write: counts, DDL, watermark. One job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from cdc.delta.commit import settings
from cdc.errors import BadOption
from cdc.model import timestamp
from cdc.model.change import GAP, RESYNC, WATERMARK
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp

ROW_OPS = ("read", "insert", "update", "replace", "delete")
# What the source says by itself: all other rows are events, and happened at a time of their own.
NO_EVENTS = ("read", WATERMARK, RESYNC, GAP)


# Why a namespace's rows are void. What replaces them is told anew.
DROPPED, RENAMED, REPLACED = "dropped", "renamed", "replaced"
_REASONS = {"drop": DROPPED, "dropDatabase": DROPPED, "rename": RENAMED, RESYNC: REPLACED}


@dataclass(frozen=True, slots=True)
class Emptied:
    """A row that left a namespace empty; `coll` None is every collection of `db`, and `db` None is
    every one that there is."""

    db: str | None
    coll: str | None
    position: str
    reason: str

    def concerns(self, namespace: Namespace) -> bool:
        return self.db in (None, namespace.db) and self.coll in (None, namespace.coll)


class Bounds(NamedTuple):
    """The least and the greatest key of some rows."""

    least: str
    greatest: str


class Happened(NamedTuple):
    """When the oldest and the newest event of a batch were committed, in seconds of the server's
    clock; whole ones where the server tells no wall time (before 6.0)."""

    oldest: float
    newest: float


@dataclass(frozen=True, slots=True)
class Facts:
    """One batch. `counts` is rows per namespace and op, without the watermark row.

    `shared` lists what is told to more tables than its own: (db, None) for rows without a
    collection, (None, None) for those without a database, (db, coll) for the target of a rename.
    `keys` bounds those of each namespace that has any.
    `exact_from` holds the greatest time at which some row's image was taken, per namespace.
    `inexact` counts those that are not exact: an image that was asked for is missing, or was taken
    later.
    `departures` are the namespaces with a delete in a transaction of a cluster: it may be half of a
    move to another shard. `happened` is None where the batch holds no event.
    """

    watermark: Timestamp
    copying: Mapping[Namespace, Any]
    counts: Mapping[Namespace, Mapping[str, int]]
    keys: Mapping[Namespace, Bounds]
    exact_from: Mapping[Namespace, Timestamp]
    inexact: Mapping[Namespace, int]
    departures: frozenset[Namespace]
    emptied: tuple[Emptied, ...]
    shared: frozenset[tuple[str | None, str | None]]
    happened: Happened | None

    def rows(self, namespace: Namespace) -> int:
        """How many of the namespace's rows are about a document."""
        counts = self.counts.get(namespace, {})
        return sum(counts.get(op, 0) for op in ROW_OPS)

    def shares_with(self, namespace: Namespace) -> bool:
        """Whether the batch holds rows that the namespace's changelog gets besides its own."""
        db, coll = namespace
        return not self.shared.isdisjoint({(db, coll), (db, None), (None, None)})


def read_facts(batch: DataFrame) -> Facts | None:
    """None for a batch without any row. Raises BadOption if the watermark row is missing."""
    # Few groups whatever the batch holds: more than one reducer would be empty tasks only.
    with settings(batch.sparkSession, {"spark.sql.shuffle.partitions": "1"}):
        groups = _groups(batch).collect()
    if not groups:
        return None
    watermark = next((row for row in groups if row.op == WATERMARK), None)
    if watermark is None:
        raise BadOption(
            "The batch holds no watermark row, so nothing says up to when it is complete.",
            "Read the source with its watermark rows switched on.",
        )
    said = json.loads(watermark.told[0].description)
    own = [row for row in groups if row.op != WATERMARK]
    return Facts(
        watermark=timestamp.parse(said["time"]),
        copying={Namespace.parse(name): at for name, at in said.get("copying", {}).items()},
        counts=_counts(own),
        keys=_keys(own),
        exact_from=_exact_from(own),
        inexact=_inexact(own),
        departures=frozenset(
            Namespace(row.db, row.coll) for row in own if row.op == "delete" and row.across_shards
        ),
        emptied=tuple(ddl for row in own if row.op in _REASONS for ddl in _emptied(row)),
        shared=frozenset(_shared(own)),
        happened=_happened(own),
    )


def _groups(batch: DataFrame) -> DataFrame:
    told = F.when(F.col("op").isin(WATERMARK, *_REASONS), F.struct("position", "description"))
    exact_from = F.when(~F.col("exact"), F.get_json_object("description", "$.exactFrom"))
    seconds, increment = (F.split_part(exact_from, F.lit(":"), F.lit(n)) for n in (1, 2))
    # As a number: a timestamp would be collected in the time zone of this process.
    committed = F.unix_micros(F.coalesce("wall_time", "cluster_time"))
    return batch.groupBy("db", "coll", "op").agg(
        F.count(F.lit(1)).alias("rows"),
        F.min("key").alias("least"),
        F.max("key").alias("greatest"),
        F.count("txn.shard").alias("across_shards"),
        F.count(F.when(~F.col("exact"), 1)).alias("inexact"),
        F.min(committed).alias("oldest"),
        F.max(committed).alias("newest"),
        F.collect_list(told).alias("told"),
        # As numbers: "9:10" is after "9:9", and text says otherwise.
        F.max(
            F.when(
                exact_from.isNotNull(),
                F.struct(seconds.cast("long").alias("time"), increment.cast("long").alias("inc")),
            )
        ).alias("exact_from"),
    )


def _counts(groups: list[Row]) -> dict[Namespace, dict[str, int]]:
    counts: dict[Namespace, dict[str, int]] = {}
    for row in groups:
        if row.coll is not None:
            counts.setdefault(Namespace(row.db, row.coll), {})[row.op] = row.rows
    return counts


def _keys(groups: list[Row]) -> dict[Namespace, Bounds]:
    found: dict[Namespace, Bounds] = {}
    for row in groups:
        if row.least is not None:
            namespace, own = Namespace(row.db, row.coll), Bounds(row.least, row.greatest)
            known = found.get(namespace, own)
            found[namespace] = Bounds(min(known.least, own.least), max(known[1], own[1]))
    return found


def _exact_from(groups: list[Row]) -> dict[Namespace, Timestamp]:
    latest: dict[Namespace, Timestamp] = {}
    for row in groups:
        if row.exact_from is not None and row.coll is not None:
            namespace, time = Namespace(row.db, row.coll), Timestamp(*row.exact_from)
            latest[namespace] = max(time, latest.get(namespace, time))
    return latest


def _inexact(groups: list[Row]) -> dict[Namespace, int]:
    counts = Counter[Namespace]()
    for row in groups:
        if row.inexact and row.coll is not None:
            counts[Namespace(row.db, row.coll)] += row.inexact
    return dict(counts)


def _happened(groups: list[Row]) -> Happened | None:
    events = [row for row in groups if row.op not in NO_EVENTS]
    if not events:
        return None
    oldest, newest = min(row.oldest for row in events), max(row.newest for row in events)
    return Happened(oldest / 1e6, newest / 1e6)


def _emptied(group: Row) -> list[Emptied]:
    reason = _REASONS[group.op]
    emptied = [Emptied(group.db, group.coll, ddl.position, reason) for ddl in group.told]
    if group.op == "rename":
        # What stood at the new name is gone; what stands there now comes as read rows later.
        emptied += [Emptied(*_target(ddl), ddl.position, REPLACED) for ddl in group.told]
    return emptied


def _shared(groups: list[Row]) -> list[tuple[str | None, str | None]]:
    wide: list[tuple[str | None, str | None]] = [
        (row.db, None) for row in groups if row.coll is None
    ]
    return wide + [_target(ddl) for row in groups if row.op == "rename" for ddl in row.told]


def _target(ddl: Row) -> Namespace:
    to = json.loads(ddl.description)["to"]
    return Namespace(to["db"], to["coll"])
