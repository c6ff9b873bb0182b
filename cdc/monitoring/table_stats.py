"""Row counts and newest commits of Delta tables, read without Spark.

Read by delta-rs, not by the engine that writes the tables. It cannot read a table in a catalog,
because only the name of such a table is known. Nor can it read a table whose path contains a
percent sign: `path` in `[sink]` may contain one, and earlier versions made folders with one for
unusual names.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from cdc.delta.followers import Backlog
from cdc.delta.landing import ROW_OPS
from cdc.delta.log import (
    Commit,
    LogEntry,
    NeedsSpark,
    Target,
    find_contained,
    open_table,
    read_local_log,
)
from cdc.delta.tables import begin_of
from cdc.model import VOIDING, Namespace

_COMMITS = 200


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit of a pipeline.

    `version` is the table's version that it made, and `moment` its time in seconds since 1970.
    `rows` is the number of rows that it added or changed; None if the table does not record it.
    """

    commit: Commit
    version: int
    moment: float
    rows: int | None

    @property
    def lag_at_commit(self) -> float:
        """Seconds from T of the batch to the commit: how far the table lagged at that moment."""
        return max(0.0, self.moment - self.commit.watermark.time)


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of a table.

    `commits` are the newest ones of pipelines, newest first. `applied` is the last batch that the
    table contains; None if nothing states it.
    """

    rows: int
    commits: tuple[TableCommit, ...]
    applied: int | None = None

    @property
    def newest(self) -> TableCommit | None:
        return self.commits[0] if self.commits else None

    def backlog(self, changelog: TableStats, namespace: Namespace, now: float) -> Backlog | None:
        """The batches in a changelog that this table of the collection does not contain yet.

        Batches without effect on tables of documents do not count. Only the newest 200 commits of
        the changelog are known. None if it is not known what the table contains.
        """
        if (applied := self.applied) is None:
            return None
        lacking = [
            each
            for each in changelog.commits
            if each.commit.batch > applied and _has_effect(each.commit, namespace)
        ]
        if not lacking:
            return Backlog(0, 0.0)
        since = min(each.moment for each in lacking)
        first = min(each.commit.batch for each in lacking)
        if changelog.commits[-1].commit.batch > applied:  # there may be earlier ones
            first = applied + 1
        return Backlog(len(lacking), max(0.0, now - since), first)


def _has_effect(commit: Commit, namespace: Namespace) -> bool:
    """Whether the batch has documents of the collection, or an event that makes some void."""
    return any(
        group.op in VOIDING or (group.op in ROW_OPS and (group.db, group.coll) == namespace)
        for group in commit.groups
    )


def read_table_stats(target: Target) -> TableStats | None:
    """Read the statistics of a table; None if it does not exist yet or cannot be read.

    Raises TableRestored.
    """
    try:
        table = open_table(target)
    except (NeedsSpark, TableNotFoundError):
        return None
    log = read_local_log(table, _COMMITS)
    find_contained(target, log, dict)
    ours = [(commit, entry) for entry in log if (commit := Commit.parse(entry.metadata))]
    commits = tuple(_describe(*each) for each in ours if not each[0].is_empty)
    begin = begin_of(table.metadata().configuration)
    after = begin.after if begin else None
    return TableStats(_count_rows(table), commits, ours[0][0].batch if ours else after)


def _count_rows(table: DeltaTable) -> int:
    """Count the rows, without those that a deletion vector removes."""
    counted = QueryBuilder().register("t", table).execute("SELECT count(*) AS n FROM t").read_all()
    return int(counted["n"][0].as_py())


def _describe(commit: Commit, entry: LogEntry) -> TableCommit:
    count = entry.metrics.get("numSourceRows", entry.metrics.get("numOutputRows"))
    return TableCommit(commit, entry.version, entry.made, None if count is None else int(count))
