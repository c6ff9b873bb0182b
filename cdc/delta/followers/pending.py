"""A batch that changelogs contain and that the tables which follow them may lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.delta.columns import BATCH, with_after
from cdc.delta.landing import (
    ROW_OPS,
    Batch,
    Facts,
    LandedBatch,
    facts_of,
    join_facts,
    without_copy,
)
from cdc.delta.log import Commit, Target
from cdc.delta.tables import Table, Tables
from cdc.model import Namespace
from cdc.tasks import Group

# The columns of a changelog that a follower reads.
COLUMNS = (*("op", "position", "cluster_time", "cluster_inc", "db", "coll", "key", "after", "txn"),)


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that all its changelogs contain.

    Attributes:
        batch: its number in the checkpoint.
        facts: its summary.
        sources: the changelog that contains the rows of each namespace.
        changelogs: all changelogs that have a commit of the batch.
        landed: the data files of the batch, if this process wrote them.
    """

    batch: int
    facts: Facts
    sources: Mapping[Namespace, Target]
    changelogs: frozenset[Target]
    landed: LandedBatch | None = None

    @classmethod
    def of(
        cls, commits: Iterable[tuple[Target, Commit]], landed: LandedBatch | None = None
    ) -> Pending | None:
        """The batch of these commits, one for each of its changelogs.

        None if they state no rows: an earlier release, which wrote them, kept mirrors and histories
        up to date within the batch.
        """
        commits = [each for each in commits if each[1].groups]
        sources: dict[Namespace, Target] = {}
        for target, commit in commits:
            for group in commit.groups:
                if group.op in ROW_OPS and group.db is not None and group.coll is not None:
                    sources[Namespace(group.db, group.coll)] = target
        facts = facts_of(joined_groups(g for _, commit in commits for g in commit.groups))
        if facts is None:
            return None
        changelogs = frozenset(target for target, _ in commits)
        return cls(commits[0][1].batch, facts, sources, changelogs, landed)

    def joined(self, other: Pending) -> Pending:
        """This batch, as the commits state it that either of both was made of."""
        facts = facts_of(joined_groups([*self.facts.groups, *other.facts.groups]))
        assert facts is not None, "each of them has a watermark"
        sources = {**other.sources, **self.sources}
        changelogs = self.changelogs | other.changelogs
        return replace(self, facts=facts, sources=sources, changelogs=changelogs)


def joined_groups(groups: Iterable[Group]) -> list[Group]:
    """The summary of rows in several changelogs. Those that concern several are in each of them."""
    found: dict[tuple[str | None, str | None, str], Group] = {}
    for group in groups:
        name = group.db, group.coll, group.op
        marks = (*found[name].marks, *group.marks) if name in found else group.marks
        found[name] = replace(found.get(name, group), marks=tuple(dict.fromkeys(marks)))
    return [*found.values()]


def units(
    pending: Iterable[Pending], is_last: Callable[[Pending], bool]
) -> Iterator[list[Pending]]:
    """Divide batches into those that are applied together; `is_last` says where a unit ends."""
    unit: list[Pending] = []
    for each in pending:
        unit.append(each)
        if is_last(each):
            yield unit
            unit = []
    if unit:
        yield unit


def join(
    unit: Sequence[Pending],
    table: Table,
    tables: Tables,
    columns: StructType,
    lacks_copy: bool = False,
) -> Batch:
    """Return successive batches as one, with the rows that concern a table.

    Args:
        unit: the batches.
        table: a mirror or a history.
        tables: those of its kind.
        columns: those of the source's rows.
        lacks_copy: whether to leave out what the last batch copied of the table's collection.
    """
    sources = {
        target
        for each in unit
        for namespace, target in each.sources.items()
        if tables.of(namespace) == table
    }
    first, last = unit[0].batch, unit[-1].batch
    read = partial(
        _read_batches,
        sources=sources,
        first=first,
        last=last,
        copied=last if lacks_copy else None,
        columns=columns,
    )
    follows = frozenset(target.relative_to(table.target) for target in sources)
    steps = [each.facts for each in unit]
    if lacks_copy and table.namespace is not None:
        steps[-1] = without_copy(steps[-1], table.namespace)
    return Batch(last, join_facts(steps), columns, read, follows, lacks_copy)


def _read_batches(
    spark: SparkSession,
    *,
    sources: Iterable[Target],
    first: int,
    last: int,
    copied: int | None,
    columns: StructType,
) -> DataFrame:
    """The rows of whole batches in changelogs, without what the batch `copied` copied."""
    is_in = F.col(BATCH).between(first, last)
    if copied is not None:
        is_in &= (F.col(BATCH) != copied) | (F.col("op") != "read")
    frames = [
        with_after(source.read(spark)).where(is_in).select(*COLUMNS) for source in sorted(sources)
    ]
    if not frames:
        return spark.createDataFrame([], StructType([columns[name] for name in COLUMNS]))
    return reduce(DataFrame.unionByName, frames)
