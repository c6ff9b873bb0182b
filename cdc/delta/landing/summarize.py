"""The summary of a batch, from its rows grouped by namespace and operation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from cdc.delta.landing.batch_summary import NO_EVENTS, UNSTORED, BatchSummary, Bounds, Happened
from cdc.delta.landing.placeholder import is_placeholder
from cdc.delta.log import settings
from cdc.errors import BadOption
from cdc.model import (
    GAP,
    MARKING,
    VOID,
    VOIDING,
    WATERMARK,
    Namespace,
    NamespaceEvent,
    Timestamp,
    Watermark,
    marks_of_row,
)
from cdc.tasks import Group, Mark, merge

_ONE_REDUCER = {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}


def read_summary(batch: DataFrame) -> BatchSummary | None:
    """Summarize rows of the source with one Spark job; see `summary_of`."""
    return summary_of(read_groups(batch))


def read_groups(rows: DataFrame) -> list[Group]:
    """Group rows of the source by namespace and operation with one Spark job."""
    # Few groups whatever the rows are: more than one reducer would be empty tasks only.
    with settings(rows.sparkSession, _ONE_REDUCER):
        return [_group(row) for row in _groups(rows).collect()]


def summary_of(groups: Sequence[Group]) -> BatchSummary | None:
    """Return the summary of a batch from its groups, one for each namespace and operation.

    None for a batch without any row. Raises BadOption if the watermark row is missing.
    """
    if not groups:
        return None
    watermark = next((row for row in groups if row.op == WATERMARK), None)
    if watermark is None:
        raise BadOption(
            "The batch holds no watermark row, so nothing says up to when it is complete.",
            "Read the source with its watermark rows switched on.",
        )
    progress = Watermark.parse(_description(watermark.marks[0]))
    own = [row for row in groups if row.op not in UNSTORED]
    has_gap = any(row.op == GAP for row in own)
    void = {_namespace(row) for row in groups if row.op == VOID}
    return BatchSummary(
        progress=progress,
        # A batch with a gap has read nothing.
        copied=frozenset() if has_gap else progress.copied - void,
        torn=frozenset(_begun(progress) if has_gap else ()),
        counts=_counts(own),
        keys=_keys(own),
        exact_from=_exact_from(own),
        inexact=_sum(own, "inexact"),
        unmappable=_sum(own, "unmappable"),
        departures=frozenset(
            _namespace(row) for row in own if row.op == "delete" and row.across_shards
        ),
        namespace_events=tuple(
            event
            for row in own
            if row.op in MARKING
            for event in _namespace_events(row.op, row.db, row.coll, row.marks)
        ),
        shared=frozenset(_shared(own)),
        happened=_happened(own),
        groups=tuple(groups),
    )


def join_summaries(batches: Sequence[BatchSummary]) -> BatchSummary:
    """Join the summaries of successive batches into one, which ends where the last one ends."""
    if len(batches) == 1:
        return batches[0]
    groups = merge(
        group for summary in batches for group in summary.groups if group.op != WATERMARK
    )
    last = batches[-1].groups
    joined = summary_of([*groups, *(group for group in last if group.op == WATERMARK)])
    assert joined is not None, "each batch has a watermark"
    return replace(joined, steps=tuple(batches))


def _begun(progress: Watermark) -> Iterator[Namespace]:
    return (name for name, at in progress.copying.items() if at["below"] is not None)


def voiding_events(rows: DataFrame) -> list[NamespaceEvent]:
    """The events that make earlier rows void, in any rows of the source. One job."""
    marks = F.collect_list(_mark_columns()).alias("marks")
    ddl = rows.where(F.col("op").isin(*VOIDING)).groupBy("db", "coll", "op").agg(marks)
    return [
        event
        for row in ddl.collect()
        for event in _namespace_events(row.op, row.db, row.coll, map(_mark, row.marks))
    ]


def _groups(batch: DataFrame) -> DataFrame:
    marks = F.when(F.col("op").isin(WATERMARK, *MARKING), _mark_columns())
    exact_from = F.when(~F.col("exact"), F.get_json_object("description", "$.exactFrom"))
    seconds, increment = (F.split_part(exact_from, F.lit(":"), F.lit(n)) for n in (1, 2))
    kind = batch.schema["after"].dataType.simpleString()
    stand_ins = [is_placeholder(F.col(image), kind) for image in ("before", "after")]
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
        F.collect_list(marks).alias("marks"),
        # As numbers: "9:10" is after "9:9", and text says otherwise.
        F.max(
            F.when(
                exact_from.isNotNull(),
                F.struct(seconds.cast("long").alias("time"), increment.cast("long").alias("inc")),
            )
        ).alias("exact_from"),
    )


def _mark_columns() -> Column:
    second = F.unix_seconds("cluster_time").alias("second")
    return F.struct("position", "description", second, "cluster_inc")


def _group(row: Row) -> Group:
    return Group(
        row.db,
        row.coll,
        row.op,
        row.rows,
        row.least,
        row.greatest,
        row.across_shards,
        row.inexact,
        row.unmappable,
        row.oldest,
        row.newest,
        None if row.exact_from is None else Timestamp(*row.exact_from),
        tuple(map(_mark, row.marks)),
    )


def _mark(row: Row) -> Mark:
    return Mark(row.position, row.description, row.second, row.cluster_inc)


def _description(mark: Mark) -> str:
    assert mark.description is not None, "the source describes such a row"
    return mark.description


def _counts(groups: Sequence[Group]) -> dict[Namespace, dict[str, int]]:
    counts: dict[Namespace, dict[str, int]] = {}
    for row in groups:
        if row.coll is not None:
            counts.setdefault(_namespace(row), {})[row.op] = row.rows
    return counts


def _keys(groups: Sequence[Group]) -> dict[Namespace, Bounds]:
    found: dict[Namespace, Bounds] = {}
    for row in groups:
        if row.least is not None and row.greatest is not None:
            namespace, own = _namespace(row), Bounds(row.least, row.greatest)
            known = found.get(namespace, own)
            found[namespace] = Bounds(min(known.least, own.least), max(known[1], own[1]))
    return found


def _exact_from(groups: Sequence[Group]) -> dict[Namespace, Timestamp]:
    latest: dict[Namespace, Timestamp] = {}
    for row in groups:
        if row.exact_from is not None and row.coll is not None:
            namespace = _namespace(row)
            latest[namespace] = max(row.exact_from, latest.get(namespace, row.exact_from))
    return latest


def _sum(groups: Sequence[Group], column: str) -> dict[Namespace, int]:
    """The sum of each namespace for which it is not 0."""
    counts = Counter[Namespace]()
    for row in groups:
        if row.coll is not None:
            counts[_namespace(row)] += getattr(row, column)
    return {namespace: count for namespace, count in counts.items() if count}


def _happened(groups: Sequence[Group]) -> Happened | None:
    events = [row for row in groups if row.op not in NO_EVENTS]
    if not events:
        return None
    oldest, newest = min(row.oldest for row in events), max(row.newest for row in events)
    return Happened(oldest / 1e6, newest / 1e6)


def _namespace_events(
    op: str, db: str | None, coll: str | None, marks: Iterable[Mark]
) -> Iterator[NamespaceEvent]:
    for mark in marks:
        time = Timestamp(mark.time, mark.inc)
        yield from marks_of_row(op, db, coll, mark.position, time, mark.description)


def _shared(groups: Sequence[Group]) -> list[tuple[str | None, str | None]]:
    wide: list[tuple[str | None, str | None]] = [
        (row.db, None) for row in groups if row.coll is None
    ]
    return wide + [_target(ddl) for row in groups if row.op == "rename" for ddl in row.marks]


def _target(ddl: Mark) -> Namespace:
    to = json.loads(_description(ddl))["to"]
    return Namespace(to["db"], to["coll"])


def _namespace(group: Group) -> Namespace:
    assert group.db is not None, "a collection has a database"
    assert group.coll is not None, "such a row is of a collection"
    return Namespace(group.db, group.coll)
