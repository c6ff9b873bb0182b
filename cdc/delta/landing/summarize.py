"""How the facts of a batch are found: one job that groups its rows by namespace and op."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from operator import add

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from cdc.delta.landing.batch_summary import (
    DROPPED,
    NO_EVENTS,
    RENAMED,
    REPLACED,
    UNTOLD,
    Bounds,
    Emptied,
    Facts,
    Happened,
)
from cdc.delta.landing.placeholder import is_stand_in
from cdc.delta.tables import settings
from cdc.errors import BadOption
from cdc.model import (
    GAP,
    MARKING,
    RESYNC,
    VOID,
    WATERMARK,
    Happening,
    Namespace,
    Timestamp,
    Watermark,
    marks_of_row,
)

_ONE_REDUCER = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
_REASONS = {"drop": DROPPED, "dropDatabase": DROPPED, "rename": RENAMED, RESYNC: REPLACED}


def read_facts(batch: DataFrame) -> Facts | None:
    """None for a batch without any row. Raises BadOption if the watermark row is missing."""
    # Few groups whatever the batch holds: more than one reducer would be empty tasks only.
    with settings(batch.sparkSession, _ONE_REDUCER):
        groups = _groups(batch).collect()
    if not groups:
        return None
    watermark = next((row for row in groups if row.op == WATERMARK), None)
    if watermark is None:
        raise BadOption(
            "The batch holds no watermark row, so nothing says up to when it is complete.",
            "Read the source with its watermark rows switched on.",
        )
    said = Watermark.parse(watermark.told[0].description)
    own = [row for row in groups if row.op not in UNTOLD]
    has_gap = any(row.op == GAP for row in own)
    void = {Namespace(row.db, row.coll) for row in groups if row.op == VOID}
    return Facts(
        said=said,
        # A batch with a gap has read nothing.
        copied=frozenset() if has_gap else said.copied - void,
        torn=frozenset(_begun(said) if has_gap else ()),
        counts=_counts(own),
        keys=_keys(own),
        exact_from=_exact_from(own),
        inexact=_sum(own, "inexact"),
        unmappable=_sum(own, "unmappable"),
        departures=frozenset(
            Namespace(row.db, row.coll) for row in own if row.op == "delete" and row.across_shards
        ),
        emptied=tuple(ddl for row in own if row.op in _REASONS for ddl in _emptied(row)),
        happenings=tuple(each for row in own if row.op in MARKING for each in _happened_to(row)),
        shared=frozenset(_shared(own)),
        happened=_happened(own),
    )


def _begun(said: Watermark) -> Iterator[Namespace]:
    return (name for name, at in said.copying.items() if at["below"] is not None)


def emptied(rows: DataFrame) -> list[Emptied]:
    """What emptied namespaces in any rows of the source. One job."""
    told = F.collect_list(F.struct("position", "description")).alias("told")
    ddl = rows.where(F.col("op").isin(*_REASONS)).groupBy("db", "coll", "op").agg(told)
    return [each for group in ddl.collect() for each in _emptied(group)]


def _groups(batch: DataFrame) -> DataFrame:
    second = F.unix_seconds("cluster_time").alias("second")
    told = F.when(
        F.col("op").isin(WATERMARK, *MARKING),
        F.struct("position", "description", second, "cluster_inc"),
    )
    exact_from = F.when(~F.col("exact"), F.get_json_object("description", "$.exactFrom"))
    seconds, increment = (F.split_part(exact_from, F.lit(":"), F.lit(n)) for n in (1, 2))
    kind = batch.schema["after"].dataType.simpleString()
    stand_ins = [is_stand_in(F.col(image), kind) for image in ("before", "after")]
    # As a number: a timestamp would be collected in the time zone of this process.
    committed = F.unix_micros(F.coalesce("wall_time", "cluster_time"))
    return batch.groupBy("db", "coll", "op").agg(
        F.count(F.lit(1)).alias("rows"),
        F.min("key").alias("least"),
        F.max("key").alias("greatest"),
        F.count("txn.shard").alias("across_shards"),
        F.count(F.when(~F.col("exact"), 1)).alias("inexact"),
        reduce(add, (F.count(F.when(each, 1)) for each in stand_ins)).alias("unmappable"),
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


def _sum(groups: list[Row], column: str) -> dict[Namespace, int]:
    """Of each namespace for which it is not 0."""
    counts = Counter[Namespace]()
    for row in groups:
        if row[column] and row.coll is not None:
            counts[Namespace(row.db, row.coll)] += row[column]
    return dict(counts)


def _happened(groups: list[Row]) -> Happened | None:
    events = [row for row in groups if row.op not in NO_EVENTS]
    if not events:
        return None
    oldest, newest = min(row.oldest for row in events), max(row.newest for row in events)
    return Happened(oldest / 1e6, newest / 1e6)


def _emptied(group: Row) -> list[Emptied]:
    reason = _REASONS[group.op]
    own = (group.db, group.coll)
    if group.op != "rename":
        return [Emptied(*own, ddl.position, reason) for ddl in group.told]
    # What stood at the new name is gone; what stands there now comes as read rows later.
    emptied = [Emptied(*_target(ddl), ddl.position, REPLACED) for ddl in group.told]
    # A row whose source is not selected bears the target's name: that one was not renamed away.
    away = [ddl for ddl in group.told if _target(ddl) != own]
    return emptied + [Emptied(*own, ddl.position, reason) for ddl in away]


def _happened_to(group: Row) -> Iterator[Happening]:
    for row in group.told:
        time = Timestamp(row.second, row.cluster_inc)
        yield from marks_of_row(group.op, group.db, group.coll, row.position, time, row.description)


def _shared(groups: list[Row]) -> list[tuple[str | None, str | None]]:
    wide: list[tuple[str | None, str | None]] = [
        (row.db, None) for row in groups if row.coll is None
    ]
    return wide + [_target(ddl) for row in groups if row.op == "rename" for ddl in row.told]


def _target(ddl: Row) -> Namespace:
    to = json.loads(ddl.description)["to"]
    return Namespace(to["db"], to["coll"])
