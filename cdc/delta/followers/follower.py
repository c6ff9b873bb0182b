"""The tables that follow changelogs: mirrors and histories.

A batch commits its rows to changelogs. The followers apply whole batches of a changelog to each
table later, any number of batches in one commit. That commit states the last batch that the table
contains, so a batch is never applied a second time, nor left out:

* A batch is known as pending once all its changelogs contain it. After a restart, `recover` reads
  the pending batches from the commits of the changelogs.
* A table is created before a changelog gets the first rows that concern it. Its properties state
  the batch before, so a table without any commit of ours is no exception.
* A table that a batch does not change gets a commit all the same if the batch is in a changelog
  that it follows. Otherwise its state could become older than the log of the changelog.
* Several processes may apply batches to one table. Delta accepts none whose last batch is in the
  table, and the process that loses reads again what the table contains. Batches that are applied
  again together with a newer one change nothing: of each key the greatest position counts.
* A table that was emptied gets everything that its changelogs contain; see `rebuild`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from cdc.delta.columns import Image
from cdc.delta.followers import rebuild
from cdc.delta.followers.follower_kind import FollowerKind
from cdc.delta.followers.pending import Pending
from cdc.delta.followers.pending_batches import PendingBatches, feeds
from cdc.delta.followers.sql_view import SqlViews
from cdc.delta.followers.table_writer import TableWriter, contains
from cdc.delta.landing import Batch
from cdc.delta.log import NO_BATCH, Commit, LogCheckpoints, NewTable, Target, at_once
from cdc.delta.tables import BEFORE_ALL, Begin, Kind, Table, Tables, writes


class Backlog(NamedTuple):
    """How far the followers lag: batches not applied yet, and seconds since the oldest of them.

    A table that is to be rebuilt counts as a batch. `first` is the number of the oldest batch; None
    if there is none, or a table is to be rebuilt.
    """

    batches: int
    seconds: float
    first: int | None = None


@dataclass(slots=True)
class Followers:
    """The mirrors and histories of one pipeline.

    One thread calls `recover`, `create`, `empty` and `add`; any thread may call the other methods.

    Args:
        kinds: the tables of each kind.
        changelogs: the changelogs that they follow.
        checkpoints: who writes the checkpoints of their logs.
        by_files: whether the folders of the tables can be reached without Spark.
        leaves: whether a table is left alone, because each batch is written to it.
    """

    kinds: Mapping[FollowerKind, Tables]
    changelogs: Tables
    checkpoints: LogCheckpoints
    by_files: bool
    leaves: Callable[[Table], bool] = lambda _: False
    _columns: StructType = field(default_factory=StructType)
    _writers: list[TableWriter] = field(init=False)
    _pending: PendingBatches = field(default_factory=PendingBatches)
    _views: SqlViews = field(default_factory=SqlViews)
    _emptied: int = 0
    _applying: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._writers = [
            TableWriter(kind, tables, self.checkpoints, self.by_files)
            for kind, tables in self.kinds.items()
        ]

    def recover(self, spark: SparkSession, before: int, columns: StructType) -> None:
        """Find the batches before that one which tables do not contain yet.

        Call it after all tables were discovered. A process that writes no changelogs calls it again
        for the batches that another one writes. `columns` are those of the source's rows. Raises
        ChangelogTooShort if the log of a changelog does not reach back to the batches.
        """
        is_first = self._pending.last == NO_BATCH
        # The last commit of each changelog is known from its discovery just now.
        known = {table.target: self.changelogs.last(table) for table in self.changelogs.known()}
        self.begin(before, columns)
        every = [(tables, table) for tables in self.kinds.values() for table in tables.known()]
        self._find(spark, every, known if is_first else {})
        self._count_emptied()
        self.renew_views(spark, {kind: tables.known() for kind, tables in self.kinds.items()})

    def renew_views(self, spark: SparkSession, found: Mapping[Kind, Sequence[Table]]) -> None:
        """Let the SQL views of tables begin at the versions that are known of these."""
        for kind, tables in self.kinds.items():
            if kind.has_view:
                views = [table for table in found[kind] if table.target.is_name]
                at_once(spark, partial(self._renew_view, tables), views)

    def _renew_view(self, tables: Tables, spark: SparkSession, table: Table) -> None:
        self._views.renew(spark, table, tables, self.changelogs)

    def begin(self, before: int, columns: StructType) -> None:
        """Take note that the changelogs contain the batches before that one, as `recover` does."""
        self._columns, self._pending.last = columns, max(self._pending.last, before - 1)

    def _find(
        self,
        spark: SparkSession,
        lacking: Iterable[tuple[Tables, Table]],
        known: Mapping[Target, Commit | None],
    ) -> None:
        found = {
            table.target: (applied, feeds(table, tables, self.changelogs))
            for tables, table in lacking
            if not rebuild.is_emptied(table, tables)
            and not self.leaves(table)
            and (applied := tables.applied(table)) is not None
        }
        self._pending.find(spark, found, known)

    def create(
        self,
        spark: SparkSession,
        found: Mapping[Kind, Sequence[Table]],
        before: int | None,
        columns: StructType,
    ) -> None:
        """Create tables of each kind, unless they are there.

        `before` is the number of the batch after which they follow changelogs; None if they are
        written with each batch. `columns` are those of the source's rows.
        """
        document = columns["after"].dataType
        for kind, tables in self.kinds.items():
            for table in found[kind]:
                new = self._new(kind, table, tables.image(table), document, before)
                writes.create(spark, table, tables, new)

    def _new(
        self, kind: FollowerKind, table: Table, image: Image, document: DataType, before: int | None
    ) -> NewTable:
        begin = None
        if before is not None:
            own = table.namespace and self.changelogs.of(table.namespace)
            begin = Begin(before, own.target.relative_to(table.target) if own else None)
        schema, key = kind.schema(document, table, image), kind.key(table)
        return self.kinds[kind].describe_new(table, schema, document.simpleString(), key, begin)

    def add(self, pending: Pending | None) -> None:
        """Note a batch that the changelogs contain. Call it in their order."""
        if pending is not None:
            self._pending.add(pending)

    def require_possible(self, spark: SparkSession, kind: FollowerKind, table: Table) -> None:
        """Raise RebuildRefused if changelogs cannot give what a table contains.

        Call it after `begin` or `recover`.
        """
        tables, last = self.kinds[kind], self._pending.last
        found = feeds(table, tables, self.changelogs)
        rebuild.require_possible(spark, kind, table, tables, self.changelogs, found, last)

    def empty(self, spark: SparkSession, kind: FollowerKind, table: Table) -> None:
        """Empty a table, or create it, so that `apply` gives it everything again.

        It gets the columns of the configuration. A process that is killed before it has them leaves
        a table that only another rebuild accepts. Call it after `require_possible`.
        """
        tables, document = self.kinds[kind], self._columns["after"].dataType
        image = kind.new_image(table.options)
        new = self._new(kind, table, image, document, BEFORE_ALL)
        writes.create(spark, table, tables, new)
        rebuild.empty(spark, table, tables)
        known = tables.state(table)
        if known is not None and not known.is_as_new(kind, table):
            writes.replace_columns(spark, table, tables, new)
        self._count_emptied()

    def _count_emptied(self) -> None:
        self._emptied = sum(
            rebuild.is_emptied(table, tables)
            for tables in self.kinds.values()
            for table in tables.known()
        )

    def backlog(self) -> Backlog:
        batches, seconds, first = self._pending.count()
        return Backlog(batches + self._emptied, seconds, None if self._emptied else first)

    def apply(self, spark: SparkSession) -> int:
        """Apply all pending batches; return to how many tables.

        May be repeated after any failure: a table that contains a batch already is passed over.
        """
        with self._applying:
            if not self.backlog().batches:
                return 0
            last = self._pending.last
            count = sum(self._apply(spark, writer, last) for writer in self._writers)
            pending = self._pending.up_to(last)
            _remove_leftovers(pending)
            self._pending.remove(pending)
            self._count_emptied()
            return count

    def _apply(self, spark: SparkSession, writer: TableWriter, last: int) -> int:
        tables, done, emptied = writer.tables, set[Table](), set[Table]()
        while work := self._work(writer, last, emptied):
            emptied |= {table for table, pending in work.items() if not pending}
            before = {table: tables.last(table) for table in work}
            at_once(spark, partial(self._bring, writer), [*work.items()])
            done |= work.keys()
            # Another process has emptied these meanwhile, and may have applied batches to them.
            lacking = [
                (tables, table)
                for table, pending in work.items()
                if pending and not contains(table, tables, pending[-1].batch)
            ]
            if not lacking:
                break
            for _, table in lacking:
                if tables.last(table) == before[table]:
                    raise RuntimeError(
                        f"Delta passes over the batches that '{table.target}' lacks."
                    )
                self._pending.forget(table.target)
            self._find(spark, lacking, {})
        return len(done)

    def write(
        self, spark: SparkSession, found: Mapping[Kind, Sequence[Table]], batch: Batch
    ) -> int:
        """Write a batch that is in no changelog to tables of each kind; return to how many.

        May be repeated after any failure.
        """
        for writer in self._writers:
            at_once(spark, partial(_write, writer, batch), found[writer.kind])
        return sum(len(found[writer.kind]) for writer in self._writers)

    def discard(self) -> None:
        """Remove the data files that no table needs. Pending batches are recovered by the next
        run."""
        _remove_leftovers(self._pending.up_to(self._pending.last))

    def _work(
        self, writer: TableWriter, last: int, tried: Container[Table]
    ) -> dict[Table, list[Pending]]:
        """The tables with the batches that they lack, up to `last`. For an emptied table, which
        gets everything, there is none in the list; those that were `tried` are left out."""
        tables, known = writer.tables, writer.tables.known()
        emptied = [table for table in known if rebuild.is_emptied(table, tables)]
        work: dict[Table, list[Pending]] = {table: [] for table in emptied if table not in tried}
        others = {each for each in known if not self.leaves(each)}.difference(emptied)
        for each in self._pending.up_to(last):
            concerned = dict.fromkeys(writer.kind.targets(each.summary, tables))
            concerned |= dict.fromkeys(self._quiet(tables, each))
            for table in concerned:
                applied = tables.applied(table)
                if table in others and (applied is None or applied < each.batch):
                    work.setdefault(table, []).append(each)
        return work

    def _bring(
        self, writer: TableWriter, spark: SparkSession, work: tuple[Table, list[Pending]]
    ) -> None:
        table, pending = work
        if pending:
            writer.apply(spark, table, pending, self._columns)
        else:
            found = feeds(table, writer.tables, self.changelogs)
            writer.rebuild(spark, table, found, self._pending.last, self._columns)
        if writer.kind.has_view:
            self._renew_view(writer.tables, spark, table)

    def _quiet(self, tables: Tables, pending: Pending) -> Iterator[Table]:
        """The tables that get a commit though the batch does not change them.

        Otherwise the next run would have to look for pending batches among all the commits that
        their changelogs got meanwhile, and these may be removed.
        """
        for table in tables.known():
            is_read = not pending.changelogs.isdisjoint(feeds(table, tables, self.changelogs))
            if is_read and tables.applied(table) is not None:
                yield table


def _write(writer: TableWriter, batch: Batch, spark: SparkSession, table: Table) -> None:
    if not writer.write(spark, table, batch):
        raise RuntimeError(f"Delta passes over batch {batch.number}, which '{table.target}' lacks.")


def _remove_leftovers(pending: Iterable[Pending]) -> None:
    for each in pending:
        if each.landed is not None:
            each.landed.remove_leftovers()
