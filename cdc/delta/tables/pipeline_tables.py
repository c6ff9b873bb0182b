"""The Delta tables of one pipeline: which exist, who owns them, and what their last commits state.

The properties of a table and its last commit are read once, and again only where another process
may have written to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.columns import Columns, TypedColumn, of_table
from cdc.delta.log import (
    Commit,
    NewTable,
    TableExists,
    Target,
    Transaction,
    commit_files,
    conflict,
    create_table,
    newest_entry,
)
from cdc.delta.tables.catalog_view import drop_view, is_foreign_view
from cdc.delta.tables.known_table import (
    Begin,
    KnownTable,
    configured_columns,
    properties_of_new,
)
from cdc.delta.tables.layout import Layout, Table
from cdc.delta.tables.ownership import (
    PIPELINE,
    existing,
    identity,
    occupied,
    require_ours,
    require_unoccupied,
)
from cdc.errors import TableOwnedElsewhere
from cdc.model import Namespace
from cdc.tasks import DataFile


@dataclass(slots=True)
class Tables:
    """All tables of one kind that one pipeline writes.

    Threads may share it if one at a time writes a table.

    Attributes:
        kind: "changelog", "mirror", "history" or "dead_letters".
        layout: where the tables are.
        pipeline: identifies the checkpoint, not the job's name. Delta skips a (transaction id,
            version) that it has seen, and a new checkpoint counts its batches from 0 again.
    """

    kind: str
    layout: Layout
    pipeline: str
    _spark: SparkSession | None = None
    _settled: dict[Target, Target] = field(default_factory=dict)
    _known: dict[Target, KnownTable] = field(default_factory=dict)
    _claimed: dict[Target, Table] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock, repr=False, compare=False)

    def transaction_id(self, rebuilds: int = 0) -> str:
        """The id for Delta. A rebuild applies all batches again, so it needs another id."""
        # Versions of a mirror are no numbers of batches; those of earlier releases were.
        name = "mirror/steps" if self.kind == "mirror" else self.kind
        return f"mongodb-cdc/{self.pipeline}/{name}" + (f"/{rebuilds}" if rebuilds else "")

    def _transaction_of(self, commit: Commit) -> Transaction:
        version = commit.place if self.kind == "mirror" else commit.batch
        return Transaction(self.transaction_id(commit.rebuilds), version)

    def transaction(self, commit: Commit) -> dict[str, Any]:
        """Options of Spark's writer for a commit that is made once, with its metadata."""
        name, version = self._transaction_of(commit)
        return {"txnAppId": name, "txnVersion": version, "userMetadata": commit.text()}

    def of(self, namespace: Namespace) -> Table | None:
        """The namespace's table, whether it exists or not; None if the layout has none.

        Call it after `discover` or `learn`.
        """
        table = self.layout.table(self.kind, namespace)
        if table is None or table.target.former is None:
            return table
        if table.target not in self._settled:
            assert self._spark is not None, "tables are looked for before they are asked for"
            self._settled[table.target] = table.target.settled(self._spark)
        return replace(table, target=self._settled[table.target])

    def known(self) -> list[Table]:
        """The existing tables of this pipeline. Complete after `discover`."""
        with self._lock:
            return [self._known[target].table for target in sorted(self._known)]

    def last(self, table: Table) -> Commit | None:
        """The last commit of this project to the table; None if there is none."""
        known = self._known.get(table.target)
        return known.last if known else None

    def version(self, table: Table) -> int | None:
        """A version of the table that contains exactly the batches up to `last`.

        The one that `last` made, or the newest one when `last` was read. None if it is not known;
        it is after `refresh` and `learn`.
        """
        known = self._known.get(table.target)
        return known.version if known else None

    def applied(self, table: Table) -> int | None:
        """The last batch that a mirror or history contains.

        None if it is not known: the table does not exist, or an earlier release created it and
        wrote nothing to it.
        """
        last, begin = self.last(table), self.begin(table)
        if last is not None:
            return last.applied
        return begin.after if begin else None

    def begin(self, table: Table) -> Begin | None:
        """Where the table began, if it was created to follow changelogs."""
        known = self._known.get(table.target)
        return known.begin if known else None

    def columns(self, table: Table) -> Columns | None:
        """The typed columns of the table, or those it will get; None if it contains documents."""
        known = self._known.get(table.target)
        return known.columns if known else configured_columns(self.kind, table)

    def discover(self, spark: SparkSession) -> None:
        """Read the state of this pipeline's existing tables; tables of others are left out.

        Call it before the first batch. Costs about 0.03 s per table, once. Called again, it finds
        the tables that other programs created since.
        """
        self._spark = spark
        for table, properties in existing(spark, self.layout, self.kind, frozenset(self._known)):
            if properties[PIPELINE] == self.pipeline:
                self._remember(spark, table, properties)

    def learn(self, spark: SparkSession, namespace: Namespace) -> Table | None:
        """Read the state of one namespace's table; None if this pipeline has not created it."""
        self._spark = spark
        table = self.of(namespace)
        if table is None or not table.target.exists(spark):
            return None
        properties = table.target.properties(spark)
        if properties.get(PIPELINE) != self.pipeline:
            return None
        self._remember(spark, table, properties)
        return table

    def require_not_ahead(self, now: Commit) -> None:
        """Raises ForeignOffset if a known table is ahead of the checkpoint. After `discover`."""
        for known in self._known.values():
            known.require_not_ahead(now)

    def require_configured(self, document: str) -> None:
        """Raises BadOption if a known table has another form than the configuration demands.

        `document` is the SQL type of the images.
        """
        for known in self._known.values():
            known.require_configured(self.kind, known.table, document)

    def claim(self, spark: SparkSession, table: Table, document: str, now: Commit) -> None:
        """Make sure that this batch may go to the table, there or not. Writes nothing.

        `document` is the SQL type of the images. Raises TableOwnedElsewhere; BadOption if the table
        holds images of another type, in other columns, or in another form;
        ForeignOffset if it is ahead of the checkpoint.
        """
        with self._lock:
            self._claim(spark, table, document, now)

    def _claim(self, spark: SparkSession, table: Table, document: str, now: Commit) -> None:
        ours = self._identity(table)
        other = self._claimed.setdefault(table.target, table)
        require_ours(table, ours, self._identity(other))
        if table.target not in self._known:
            if not table.target.exists(spark):
                if is_foreign_view(spark, table.target, {PIPELINE: self.pipeline}):
                    raise occupied(table, ours)
                return
            properties = table.target.properties(spark)
            require_ours(table, ours, properties)
            self._remember(spark, table, properties)
        known = self._known[table.target]
        known.require_configured(self.kind, table, document)
        known.require_not_ahead(now)

    def create(
        self,
        spark: SparkSession,
        table: Table,
        schema: StructType,
        document: str,
        cluster: Sequence[str],
        begin: Begin | None = None,
    ) -> None:
        """Create the table, clustered by some columns, unless it is known. `claim` must have
        passed. Raises TableOwnedElsewhere."""
        with self._lock:
            if table.target not in self._known:
                new = self.describe_new(table, schema, document, cluster, begin)
                self._create(spark, table, new)
                self._remember_created(table, new)

    def _create(self, spark: SparkSession, table: Table, new: NewTable) -> None:
        # Not "if not exists": a table that another pipeline made meanwhile has to fail here.
        if table.target.is_name:
            # The mirror of `orders_live` may have the name of the live view of `orders`.
            drop_view(spark, table.target, {PIPELINE: self.pipeline})
            self._create_by_spark(spark, table, new)
            return
        require_unoccupied(spark, table, self._identity(table))
        try:
            create_table(spark, table.target, new)
        except TableExists as error:
            raise self.created_elsewhere(spark, table) from error

    def complete(self, spark: SparkSession, table: Table, schema: StructType) -> None:
        """Add the columns of `schema` to a known table that an earlier release created without
        them. Its rows have null there."""
        known = self._known.get(table.target)
        missing = [field for field in schema if known and field.name not in known.names]
        if known and missing:
            self._add_columns(spark, table, StructType(missing))
            names = known.names | {field.name for field in missing}
            self._known[table.target] = replace(self._known[table.target], names=names)

    def _create_by_spark(self, spark: SparkSession, table: Table, new: NewTable) -> None:
        try:
            table.target.create(spark, new.schema, new.properties, new.cluster)
        except AnalysisException as error:
            # Delta says the same of a table and of a folder with any files.
            is_there = error.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS"
            if is_there and not table.target.exists(spark):
                is_name = table.target.is_name
                if is_name and drop_view(spark, table.target, {PIPELINE: self.pipeline}):
                    # A follower has made its view again just now.
                    self._create_by_spark(spark, table, new)
                    return
                raise occupied(table, self._identity(table)) from error
            self.require_ours(spark, table)
            raise

    def add_files(
        self,
        spark: SparkSession,
        table: Table,
        files: Sequence[DataFile],
        commit: Commit,
        new: NewTable,
        before_commit: Callable[[], None],
        objection: Callable[[int], str | None] | None = None,
    ) -> bool:
        """Commit data files to the table; return False if its batch is in the table already.

        A table that is not known is created as `new` says; nothing objects then. `claim` must have
        passed. See `commit_files`. Raises UnsuitableTable and TableOwnedElsewhere, before a commit.
        """
        known = self._known.get(table.target)
        if known is None:
            require_unoccupied(spark, table, self._identity(table))
        try:
            version = commit_files(
                *(spark, table.target, files, self._transaction_of(commit), commit),
                new.schema,
                new=None if known else new,
                objection=objection if known else None,
                before_commit=before_commit,
                newest=self._newest(known) if known else None,
            )
        except TableExists as error:
            raise self.created_elsewhere(spark, table) from error
        if known is None:
            self._remember_created(table, new)
        self.committed(table, commit, version)
        return version is not None

    def _newest(self, known: KnownTable) -> tuple[int, int] | None:
        """The version of the last commit, and the version of its transaction, if both are known."""
        if known.last is None or known.version is None:
            return None
        return known.version, self._transaction_of(known.last).version

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

    def _remember_created(self, table: Table, new: NewTable) -> None:
        columns, names = configured_columns(self.kind, table), frozenset(new.schema.names)
        known = KnownTable.of(table, new.properties, None, columns, names)
        self._known[table.target] = known

    def created_elsewhere(self, spark: SparkSession, table: Table) -> TableOwnedElsewhere:
        """The error for a table that another program created just now."""
        self.require_ours(spark, table)
        return TableOwnedElsewhere(
            f"Another run of this pipeline created the table at '{table.target}' just now.",
            "Let one run at a time use a checkpoint; start this one again.",
        )

    def require_ours(self, spark: SparkSession, table: Table) -> None:
        """Raises TableOwnedElsewhere if the table, which is there, belongs to somebody else."""
        require_ours(table, self._identity(table), table.target.properties(spark))

    def grow(self, spark: SparkSession, table: Table, more: Sequence[TypedColumn]) -> None:
        """Add typed columns to a table that has some. Its rows keep in `_rescued` what they hold.

        A commit of its own, which says nothing; one that a crash leaves alone is harmless.
        """
        known = self._known[table.target]
        assert known.columns is not None
        columns = known.columns.plus(more)
        self._add_columns(spark, table, StructType([column.field() for column in more]))
        self._known[table.target] = replace(known, columns=columns)

    def _add_columns(self, spark: SparkSession, table: Table, fields: StructType) -> None:
        table.target.append(spark.createDataFrame([], fields), {"mergeSchema": "true"})

    def committed(self, table: Table, commit: Commit, version: int | None = None) -> None:
        """To be called after each commit, also after one that Delta skipped as already done."""
        with self._lock:
            known = self._known[table.target]
            self._known[table.target] = replace(known, last=commit, version=version)

    def refresh(self, spark: SparkSession, table: Table) -> None:
        """Read a known table's last commit and columns again, if somebody else has written it.

        Afterwards its `version` is known.
        """
        last, newest = self.last(table), newest_entry(spark, table.target)
        if last is not None and newest.metadata == last.text():
            self.committed(table, last, newest.version)
            return
        properties = table.target.properties(spark)
        read = KnownTable.read(spark, self.kind, table, properties)
        with self._lock:
            self._known[table.target] = read

    def require_current_columns(self, table: Table, schema: StructType) -> None:
        """Raise Outdated unless a table of this schema has the typed columns that are known."""
        if self.columns(table) != of_table(schema):
            raise conflict.Outdated

    def commit_nothing(self, spark: SparkSession, table: Table, commit: Commit) -> None:
        """A commit without rows, for what only its metadata says."""
        if table.target.is_name:
            nothing = table.target.read(spark).limit(0)
            table.target.append(nothing, self.transaction(commit))
        else:
            own = self._transaction_of(commit)
            commit_files(spark, table.target, [], own, commit, StructType(), new=None)
        self.committed(table, commit)

    def _identity(self, table: Table) -> dict[str, str]:
        return identity(self.pipeline, self.kind, table)

    def _remember(self, spark: SparkSession, table: Table, properties: Mapping[str, str]) -> None:
        self._claimed.setdefault(table.target, table)
        self._known[table.target] = KnownTable.read(spark, self.kind, table, properties)
