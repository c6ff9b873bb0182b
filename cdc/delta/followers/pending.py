"""A batch that changelogs contain and that the tables which follow them may lack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.delta.columns import BATCH, with_after
from cdc.delta.landing import (
    ROW_OPS,
    Batch,
    BatchFiles,
    BatchSummary,
    LandedBatch,
    join_summaries,
    summary_of,
)
from cdc.delta.log import Commit, Target, files_of_batches
from cdc.delta.tables import Table, Tables
from cdc.model import Namespace
from cdc.tasks import DataFile, Group, Storage

# The columns of a changelog that a follower reads.
COLUMNS = (*("op", "position", "cluster_time", "cluster_inc", "db", "coll", "key", "after", "txn"),)

# What is merged at once: rows of changes, and rows of copies, of which only the keys are read.
_MOST_CHANGES, _MOST_COPIED = 250_000, 4_000_000


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that all its changelogs contain.

    Attributes:
        batch: its number in the checkpoint.
        summary: of its rows.
        sources: the changelog that contains the rows of each namespace.
        changelogs: all changelogs that have a commit of the batch.
        landed: the data files of the batch, if this process wrote them.
        versions: the version of each changelog that the batch made, where it is known.
    """

    batch: int
    summary: BatchSummary
    sources: Mapping[Namespace, Target]
    changelogs: frozenset[Target]
    landed: LandedBatch | None = None
    versions: Mapping[Target, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, commits: Iterable[tuple[Target, Commit, int | None]], landed: LandedBatch | None = None
    ) -> Pending | None:
        """The batch of these commits, one for each of its changelogs, with their versions.

        None if they state no rows: an earlier release, which wrote them, kept mirrors and histories
        up to date within the batch.
        """
        commits = [each for each in commits if each[1].groups]
        sources: dict[Namespace, Target] = {}
        for target, commit, _ in commits:
            for group in commit.groups:
                if group.op in ROW_OPS and group.db is not None and group.coll is not None:
                    sources[Namespace(group.db, group.coll)] = target
        summary = summary_of(joined_groups(g for _, commit, _ in commits for g in commit.groups))
        if summary is None:
            return None
        changelogs = frozenset(target for target, _, _ in commits)
        versions = {target: version for target, _, version in commits if version is not None}
        return cls(commits[0][1].batch, summary, sources, changelogs, landed, versions)

    def joined(self, other: Pending) -> Pending:
        """Return this batch, joined with what `other` knows of it from other commits."""
        summary = summary_of(joined_groups([*self.summary.groups, *other.summary.groups]))
        assert summary is not None, "each of them has a watermark"
        sources = {**other.sources, **self.sources}
        changelogs = self.changelogs | other.changelogs
        versions = {**other.versions, **self.versions}
        return replace(
            self, summary=summary, sources=sources, changelogs=changelogs, versions=versions
        )


def joined_groups(groups: Iterable[Group]) -> list[Group]:
    """The summary of rows in several changelogs. Those that concern several are in each of them."""
    found: dict[tuple[str | None, str | None, str], Group] = {}
    for group in groups:
        name = group.db, group.coll, group.op
        marks = (*found[name].marks, *group.marks) if name in found else group.marks
        found[name] = replace(found.get(name, group), marks=tuple(dict.fromkeys(marks)))
    return [*found.values()]


def units(pending: Iterable[Pending]) -> Iterator[list[Pending]]:
    """Divide batches into those that are applied together: as many as fit into memory."""
    unit, changes, copied = list[Pending](), 0, 0
    for each in pending:
        own = sum(ops.get("read", 0) for ops in each.summary.counts.values())
        changes, copied = changes + each.summary.count - own, copied + own
        if unit and (changes > _MOST_CHANGES or copied > _MOST_COPIED):
            yield unit
            unit, changes, copied = [], each.summary.count - own, own
        unit.append(each)
    if unit:
        yield unit


def join(unit: Sequence[Pending], table: Table, tables: Tables, columns: StructType) -> Batch:
    """Return successive batches as one, with the rows that concern a table.

    Args:
        unit: the batches.
        table: a mirror or a history.
        tables: those of its kind.
        columns: those of the source's rows.
    """
    sources = {
        target
        for each in unit
        for namespace, target in each.sources.items()
        if tables.of(namespace) == table
    }
    first, last = unit[0].batch, unit[-1].batch
    read = partial(_read_batches, sources=sources, first=first, last=last, columns=columns)
    follows = frozenset(target.relative_to(table.target) for target in sources)
    summary = join_summaries([each.summary for each in unit])
    find_files = partial(_find_files, unit, sources, tables.layout.storage)
    return Batch(last, summary, columns, read, follows, find_files)


def _find_files(
    unit: Sequence[Pending], sources: Iterable[Target], storage: Storage, table: Table
) -> BatchFiles | None:
    """The data files that the commits of the batches name, and the copies of this process.

    None if a changelog does not contain the files any more as they were committed.
    """
    copies, copied = list[DataFile](), set[int]()
    for each in unit:
        counts = each.summary.counts.get(table.namespace, {}) if table.namespace else {}
        own = each.landed.copies_of(table.target.address) if each.landed else []
        if own and counts.get("read", 0) == sum(file.rows for file in own):
            copies += own
            copied.add(each.batch)
    changes = list[tuple[DataFile, bool]]()
    for target in sources:
        concerned = [each for each in unit if target in each.changelogs]
        versions = {e.batch: e.versions[target] for e in concerned if target in e.versions}
        if len(versions) < len(concerned):
            return None
        found = files_of_batches(target, versions, storage)
        if found is None:
            return None
        changes += [(file, batch in copied) for batch, files in found.items() for file in files]

    def mark_attempted(files: Sequence[DataFile]) -> None:
        for each in unit:
            if each.landed is not None:
                each.landed.mark_attempted(files)

    return BatchFiles(changes, copies, mark_attempted)


def _read_batches(
    spark: SparkSession, *, sources: Iterable[Target], first: int, last: int, columns: StructType
) -> DataFrame:
    """The rows of whole batches in changelogs."""
    is_in = F.col(BATCH).between(first, last)
    frames = [
        with_after(source.read(spark)).where(is_in).select(*COLUMNS) for source in sorted(sources)
    ]
    if not frames:
        return spark.createDataFrame([], StructType([columns[name] for name in COLUMNS]))
    return reduce(DataFrame.unionByName, frames)
