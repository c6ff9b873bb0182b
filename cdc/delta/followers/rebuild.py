"""Rebuild of a mirror or a history from its changelogs alone.

One commit empties the table and states the batch before the first one. The next run of the
followers, in whatever process, then applies all batches in one commit. So a rebuild that is killed
is completed by the next `follow` or `replicate`.

Delta must accept the batches a second time, and must refuse those of a process that does not know
of the rebuild yet: on the emptied table they would be taken for all there is. So a rebuild has a
transaction id of its own, and the commit that empties the table uses up all versions of the one
before. Delta passes over every later transaction of that id, and the process finds out.

What the log of a changelog says of its batches is read from the newest commit backwards, as far as
Delta retains it. What is older is summarized from the rows. Rows without the number of a batch (of
a backfill, or of a release without the column) count by their position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.delta.columns import BATCH, with_after
from cdc.delta.followers.follower_kind import FollowerKind
from cdc.delta.followers.pending import COLUMNS, Pending
from cdc.delta.landing import ROW_OPS, Batch, BatchSummary, join_summaries, read_groups, summary_of
from cdc.delta.log import (
    NO_BATCH,
    Commit,
    State,
    Target,
    conflict,
    merging,
    newest_commit,
    read_log,
)
from cdc.delta.tables import BEFORE_ALL, Table, Tables
from cdc.errors import RebuildRefused
from cdc.model import WATERMARK, Namespace, Selection, Timestamp, Watermark, resume_token
from cdc.tasks import Group, Mark, merge

_BEGINNING = Timestamp(0, 0)
_ALL = Selection.parse(".+")
# The greatest version of a transaction.
_ALL_VERSIONS = 2**63 - 1


def is_emptied(table: Table, tables: Tables) -> bool:
    """Whether the table was emptied, or created, to be rebuilt, and has got no batch since."""
    known = tables.state(table)
    if known is None:
        return False
    if known.last is None:
        return known.begin is not None and known.begin.after == BEFORE_ALL
    return known.last.is_empty and known.undone is None


def empty(spark: SparkSession, table: Table, tables: Tables) -> None:
    """Empty a table in one commit, so that the followers apply everything to it again.

    May be repeated, and called by several processes at once: the table is emptied once. Raises
    ConflictsUnresolved.
    """
    tables.refresh(spark, table)
    last = tables.last(table)
    if last is not None and is_emptied(table, tables):
        return
    rebuilds = last.rebuilds if last else 0
    # A copy that ended with its collection's removal from the selection is in no later batch.
    unfinished = {
        name: State(copying=state.copying)
        for name, state in (last.states if last else {}).items()
        if state.copying is not None
    }
    follows = last.follows if last else frozenset()
    commit = Commit(NO_BATCH, _BEGINNING, unfinished, follows=follows, rebuilds=rebuilds + 1)
    before = tables.transaction_of(replace(commit, rebuilds=rebuilds))
    transaction = {
        "txnAppId": before.name,
        "txnVersion": _ALL_VERSIONS,
        "userMetadata": commit.text(),
    }

    def write() -> None:
        with merging(spark, transaction):
            table.target.delta(spark).delete()
        # Without effect if the DELETE was committed, which it is not if there were no rows.
        table.target.append(table.target.read(spark).limit(0), transaction)

    conflict.repeated(write, table.target)
    tables.refresh(spark, table)


def join_everything(
    spark: SparkSession, table: Table, feeds: Iterable[Target], last: int, columns: StructType
) -> Batch | None:
    """Join all batches of changelogs up to `last`: what a table gets that was emptied.

    `columns` are those of the source's rows. None if nothing states a time up to which the
    changelogs are complete: the log retains no commit of these batches. The next batch's will do.
    """
    feeds = frozenset(feed for feed in feeds if feed.exists(spark))
    found: dict[int, list[tuple[Target, Commit, int | None]]] = {}
    first: dict[Target, int] = {}
    ends: list[Commit] = []
    for feed in sorted(feeds):
        commits = [each for each in _commits(spark, feed) if each.batch <= last]
        ends += commits[:1]
        stated = _stated(commits)
        first[feed] = stated[-1].batch if stated else last + 1
        for commit in stated:
            found.setdefault(commit.batch, []).append((feed, commit, None))
    if not ends:
        return None
    end = max(ends, key=lambda commit: commit.batch)
    batches = [Pending.of(found[batch]) for batch in sorted(found)]
    steps = [each.summary for each in batches if each is not None]
    older = _summarize_older(spark, first, columns)
    if older or not steps:
        steps.insert(0, _as_step(older, end.watermark, steps))
    read = partial(_read_everything, feeds=sorted(feeds), last=end.batch)
    follows = frozenset(feed.relative_to(table.target) for feed in feeds)
    return Batch(end.batch, join_summaries(steps), columns, read, follows)


def _read_everything(spark: SparkSession, *, feeds: Sequence[Target], last: int) -> DataFrame:
    # Without a bound for rows of no batch: a backfill may be as of a time after the last commit of
    # a quiet changelog. It may also be as of a time that the job has yet to reach, which does no
    # harm: the job brings the same changes.
    is_in = F.col(BATCH).isNull() | (F.col(BATCH) <= last)
    frames = [_rows(spark, feed).where(is_in).select(*COLUMNS) for feed in feeds]
    return reduce(DataFrame.unionByName, frames)


def require_possible(
    spark: SparkSession,
    kind: FollowerKind,
    table: Table,
    tables: Tables,
    changelogs: Tables,
    feeds: Iterable[Target],
    last: int,
) -> None:
    """Raise RebuildRefused if the batches up to `last` cannot give what the table contains.

    They can if the configured `changelogs` cover all of the table's collections as of now. They
    also can if each row of the table was made by a row of its `feeds`, which may be former
    changelogs, unless a collection had no changelog for a while: deletes leave no row.
    """
    feeds = sorted(feed for feed in feeds if feed.exists(spark))
    if not feeds:
        raise RebuildRefused(
            f"The {kind.name} at '{table.target}' has no changelog to be rebuilt from.",
            "Copy the collection again: start anew with another path and checkpoint.",
        )
    if not any(each.batch <= last for feed in feeds for each in _commits(spark, feed)):
        raise RebuildRefused(
            f"No commit in the log of '{feeds[0]}' belongs to a batch that is complete.",
            "Start mongodb-cdc replicate, which completes the last batch; then try again.",
        )
    if not table.target.exists(spark):
        return
    own = {each.target for each in changelogs.known()}.intersection(feeds)
    uncovered = _find_uncovered(spark, table, tables, own)
    if not uncovered:
        return
    begin = tables.begin(table)
    begun = begin.after if begin else NO_BATCH
    for each in sorted(uncovered):
        if changelogs.layouts.has_lacked(changelogs.kind.name, each, begun, last + 1):
            raise RebuildRefused(
                f"The {kind.name} at '{table.target}' contains changes of {each} that are in no"
                " changelog: the configuration had none for it for a while.",
                "Repair the table as it is: mongodb-cdc backfill --into mirror --repair.",
            )
    there = kind.origins(table.target.read(spark), table)
    name = F.concat("db", F.lit("."), "coll").alias("_namespace")
    frames = [_rows(spark, feed).select(name, "key", "position") for feed in feeds]
    known = reduce(DataFrame.unionByName, frames)
    count = there.join(known, [*kind.key(table), "position"], "left_anti").count()
    if count:
        raise RebuildRefused(
            f"The {kind.name} at '{table.target}' contains {count:,} rows that its changelog does"
            " not give, and the changelog does not contain the whole collection: a rebuild would"
            " lose them.",
            "Add the collection to the changelog first: mongodb-cdc backfill --into changelog.",
        )


def _rows(spark: SparkSession, feed: Target) -> DataFrame:
    rows = with_after(feed.read(spark))
    # A release without the column wrote all of its rows.
    return rows if BATCH in rows.columns else rows.withColumn(BATCH, F.lit(None).cast("long"))


def _commits(spark: SparkSession, feed: Target) -> list[Commit]:
    """Our commits in the log of a changelog, the newest first; at least what is kept of that.

    Raises TableRestored.
    """
    newest = newest_commit(spark, feed)
    parsed = (Commit.parse(entry.metadata) for entry in read_log(spark, feed))
    if commits := [each for each in parsed if each is not None]:
        return commits
    return [newest.commit] if newest else []


def _stated(commits: Sequence[Commit]) -> list[Commit]:
    """The newest ones, up to one of a release that stated no rows."""
    silent = next((n for n, each in enumerate(commits) if not each.groups), len(commits))
    return [*commits[:silent]]


def _summarize_older(
    spark: SparkSession, first: dict[Target, int], columns: StructType
) -> list[Group]:
    """The summary of the rows that no commit states: of batches before the `first` one of each
    changelog, and of none."""
    found: list[Group] = []
    for feed, batch in sorted(first.items()):
        rows = _rows(spark, feed).where(F.col(BATCH).isNull() | (F.col(BATCH) < batch))
        if "before" not in rows.columns:  # a change feed
            rows = rows.withColumn("before", F.lit(None).cast(columns["after"].dataType))
        found += read_groups(rows)
    # A row that concerns several changelogs is in each of them.
    return [replace(each, marks=tuple(dict.fromkeys(each.marks))) for each in merge(found)]


def _as_step(older: Sequence[Group], end: Timestamp, later: Sequence[BatchSummary]) -> BatchSummary:
    """Summarize these rows. The first of the `later` batches states which copies were complete."""
    names = {
        Namespace(each.db, each.coll)
        for each in older
        if each.op in ROW_OPS and each.db is not None and each.coll is not None
    }
    progress = Watermark(
        time=later[0].watermark if later else end,
        copying={},
        copied=frozenset(n for n in names if later and later[0].progress.contains_changes(n)),
        selection=_ALL,
        following=_ALL,
        swept="",  # so it does not state that any collection is complete
        apart=frozenset(),
        offset=None,
    )
    position = resume_token.position_after(progress.time)
    mark = Mark(position, progress.text(), progress.time.time, progress.time.inc)
    summary = summary_of([*older, Group(None, None, WATERMARK, 1, marks=(mark,))])
    assert summary is not None, "it has a watermark"
    return summary


def _find_uncovered(
    spark: SparkSession, table: Table, tables: Tables, changelogs: Iterable[Target]
) -> set[Namespace]:
    """Return the table's collections that changelogs do not give as of their newest commits."""
    last = tables.last(table)
    names = {table.namespace} if table.namespace is not None else set(last.states if last else ())
    for changelog in changelogs:
        newest = newest_commit(spark, changelog)
        if newest is not None:
            now, states = newest.commit.watermark, newest.commit.states
            names -= {name for name, state in states.items() if state.whole.at(now, now)}
    return names
