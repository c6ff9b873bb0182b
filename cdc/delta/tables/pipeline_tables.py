"""The Delta tables of one pipeline: which exist, who owns them, and what their last commits state.

The properties of a table and its last commit are read once, and again only where another process
may have written to the table. Nothing is written here: `cdc.delta.tables.writes` does that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.columns import Image
from cdc.delta.log import Commit, NewTable, SparkReader, Target, Transaction, conflict, newest_entry
from cdc.delta.tables.catalog_view import is_foreign_view
from cdc.delta.tables.kind import Kind
from cdc.delta.tables.known_table import Begin, KnownTable, properties_of_new
from cdc.delta.tables.layout import Layout, Table
from cdc.delta.tables.layout_history import LayoutHistory
from cdc.delta.tables.ownership import PIPELINE, existing, identity, occupied, require_ours
from cdc.model import Namespace


@dataclass(slots=True)
class Tables:
    """All tables of one kind that one pipeline writes.

    Threads may share it if one at a time writes a table.

    Attributes:
        kind: their kind.
        layout: where the tables are.
        pipeline: identifies the checkpoint, not the job's name. Delta skips a (transaction id,
            version) that it has seen, and a new checkpoint counts its batches from 0 again.
        layouts: those of earlier runs, and this one.
        lock: held while a table is claimed or created, so that no two threads create tables at the
            same time.
    """

    kind: Kind
    layout: Layout
    pipeline: str
    layouts: LayoutHistory = field(default_factory=LayoutHistory)
    _spark: SparkSession | None = None
    _settled: dict[Target, Target] = field(default_factory=dict)
    _known: dict[Target, KnownTable] = field(default_factory=dict)
    _claimed: dict[Target, Table] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock, repr=False, compare=False)

    def transaction_of(self, commit: Commit) -> Transaction:
        """The id and version by which Delta accepts the commit once."""
        name, version = self.kind.transaction(commit.batch)
        # A rebuild applies all batches again, so it needs another id.
        again = f"/{commit.rebuilds}" if commit.rebuilds else ""
        return Transaction(f"mongodb-cdc/{self.pipeline}/{name}{again}", version)

    def transaction(self, commit: Commit) -> dict[str, Any]:
        """Options of Spark's writer for a commit that is made once, with its metadata."""
        name, version = self.transaction_of(commit)
        return {"txnAppId": name, "txnVersion": version, "userMetadata": commit.text()}

    def identity(self, table: Table) -> dict[str, str]:
        """The properties that identify the table as one of this pipeline."""
        return identity(self.pipeline, self.kind.name, table)

    def of(self, namespace: Namespace) -> Table | None:
        """The namespace's table, whether it exists or not; None if the layout has none.

        Call it after `discover` or `learn`.
        """
        table = self.layout.table(self.kind.name, namespace)
        if table is None or table.target.former is None:
            return table
        if table.target not in self._settled:
            assert self._spark is not None, "tables are looked for before they are asked for"
            self._settled[table.target] = table.target.settled(self._spark)
        return replace(table, target=self._settled[table.target])

    def known(self) -> list[Table]:
        """The existing tables of this pipeline. Complete after `discover`."""
        with self.lock:
            return [self._known[target].table for target in sorted(self._known)]

    def state(self, table: Table) -> KnownTable | None:
        """What is known of the table; None if it is not known to exist."""
        return self._known.get(table.target)

    def last(self, table: Table) -> Commit | None:
        """The last commit of this project to the table; None if there is none."""
        known = self.state(table)
        return known.last if known else None

    def version(self, table: Table) -> int | None:
        """A version of the table that contains exactly the batches up to `last`.

        The one that `last` made, or the newest one when `last` was read. None if it is not known;
        it is after `refresh` and `learn`.
        """
        known = self.state(table)
        return known.version if known else None

    def applied(self, table: Table) -> int | None:
        """The last batch that a mirror or history contains.

        None if it is not known: the table does not exist, or an earlier release created it and
        wrote nothing to it.
        """
        last, begin = self.last(table), self.begin(table)
        if last is not None:
            return last.batch
        return begin.after if begin else None

    def begin(self, table: Table) -> Begin | None:
        """Where the table began, if it was created to follow changelogs."""
        known = self.state(table)
        return known.begin if known else None

    def image(self, table: Table) -> Image:
        """How the table stores documents, or will store them."""
        known = self.state(table)
        return known.image if known else self.kind.new_image(table.options)

    def discover(self, spark: SparkSession) -> None:
        """Read the state of this pipeline's existing tables; tables of others are left out.

        Call it before the first batch. Costs about 0.03 s per table, once. Called again, it finds
        the tables that other programs created since.
        """
        self._spark = spark
        for table, properties in existing(
            SparkReader(spark), self.layout, self.kind.name, frozenset(self._known)
        ):
            if properties[PIPELINE] == self.pipeline:
                self._read(spark, table, properties)

    def learn(self, spark: SparkSession, namespace: Namespace) -> Table | None:
        """Read the state of one namespace's table; None if this pipeline has not created it.

        Raises TableRestored.
        """
        self._spark = spark
        table = self.of(namespace)
        if table is None or not table.target.exists(spark):
            return None
        properties = table.target.properties(spark)
        if properties.get(PIPELINE) != self.pipeline:
            return None
        self._read(spark, table, properties)
        self._known[table.target].require_whole()
        return table

    def require_whole(self, rebuilt: Collection[Table] = ()) -> None:
        """Raise TableRestored if a known table lacks its newest commit, as far as it was read.

        Those that are to be `rebuilt` may lack it. See `refresh`.
        """
        for known in self._known.values():
            if known.table not in rebuilt:
                known.require_whole()

    def require_not_ahead(self, now: Commit) -> None:
        """Raises ForeignOffset if a known table is ahead of the checkpoint. After `discover`."""
        for known in self._known.values():
            known.require_not_ahead(now)

    def require_configured(self, document: str, rebuilt: Collection[Table] = ()) -> None:
        """Raises BadOption if a known table has another form than the configuration demands.

        `document` is the SQL type of the images. Those that are to be `rebuilt` may have other
        columns.
        """
        for known in self._known.values():
            is_kept = known.table not in rebuilt
            known.require_configured(self.kind, known.table, document, with_columns=is_kept)

    def claim(self, spark: SparkSession, table: Table, document: str, now: Commit) -> None:
        """Make sure that this batch may go to the table, there or not. Writes nothing.

        `document` is the SQL type of the images. Raises TableOwnedElsewhere; BadOption if the table
        holds images of another type, in other columns, or in another form;
        ForeignOffset if it is ahead of the checkpoint.
        """
        with self.lock:
            self._claim(spark, table, document, now)

    def _claim(self, spark: SparkSession, table: Table, document: str, now: Commit) -> None:
        ours = self.identity(table)
        other = self._claimed.setdefault(table.target, table)
        require_ours(table, ours, self.identity(other))
        if table.target not in self._known:
            if not table.target.exists(spark):
                if is_foreign_view(spark, table.target, {PIPELINE: self.pipeline}):
                    raise occupied(table, ours)
                return
            properties = table.target.properties(spark)
            require_ours(table, ours, properties)
            self._read(spark, table, properties)
        known = self._known[table.target]
        known.require_configured(self.kind, table, document)
        known.require_not_ahead(now)

    def describe_new(
        self,
        table: Table,
        schema: StructType,
        document: str,
        cluster: Sequence[str],
        begin: Begin | None = None,
    ) -> NewTable:
        """How the table is to be created, clustered by some columns."""
        properties = properties_of_new(self.pipeline, self.kind, table, document, begin)
        return NewTable(schema, properties, cluster)

    def created(self, table: Table, new: NewTable) -> None:
        """To be called after the table was created."""
        known = KnownTable.of_schema(self.kind, table, new.properties, new.schema)
        self.remember(replace(known, version=0))

    def committed(self, table: Table, commit: Commit, version: int | None = None) -> None:
        """To be called after each commit, also after one that Delta skipped as already done."""
        with self.lock:
            known = self._known[table.target]
            self._known[table.target] = replace(known, last=commit, version=version)

    def refresh(self, spark: SparkSession, table: Table) -> None:
        """Read a known table's last commit and columns again, if somebody else has written it.

        Afterwards its `version` is known.
        """
        last, newest = self.last(table), newest_entry(spark, table.target)
        if last is None and newest.version == self.version(table):
            return
        if last is not None and newest.metadata == last.text():
            self.committed(table, last, newest.version)
            return
        properties = table.target.properties(spark)
        self.remember(KnownTable.read(spark, self.kind, table, properties))

    def require_contained(self, spark: SparkSession, table: Table) -> None:
        """Raise TableRestored if the table lacks its newest commit. It is read again, if known."""
        if self.state(table) is not None:
            self.refresh(spark, table)
            self._known[table.target].require_whole()

    def require_current_columns(self, table: Table, schema: StructType) -> None:
        """Raise Outdated unless a table of this schema stores documents as it is known."""
        if self.image(table) != self.kind.image(schema, table.options):
            raise conflict.Outdated

    def remember(self, known: KnownTable) -> None:
        """To be called after the state of a table has changed."""
        with self.lock:
            self._known[known.table.target] = known

    def _read(self, spark: SparkSession, table: Table, properties: Mapping[str, str]) -> None:
        self._claimed.setdefault(table.target, table)
        self.remember(KnownTable.read(spark, self.kind, table, properties))
