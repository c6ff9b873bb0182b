"""Writes to the tables of a pipeline: new tables, data files, new columns, commits without rows.

Each function reports to `Tables` what it has written. A writer that appends or merges rows through
Spark calls `Tables.committed` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.columns import TypedColumn
from cdc.delta.log import (
    ChangedFiles,
    Commit,
    NewTable,
    SparkReader,
    TableExists,
    commit_files,
    create_table,
    merging,
    replace_table,
)
from cdc.delta.tables.catalog_view import drop_view
from cdc.delta.tables.known_table import KnownTable
from cdc.delta.tables.layout import Table
from cdc.delta.tables.ownership import PIPELINE, occupied, require_ours, require_unoccupied
from cdc.delta.tables.pipeline_tables import Tables
from cdc.errors import TableOwnedElsewhere
from cdc.tasks import DataFile


def create(spark: SparkSession, table: Table, tables: Tables, new: NewTable) -> None:
    """Create the table unless it is known.

    `Tables.claim` must have passed. Raises TableOwnedElsewhere.
    """
    with tables.lock:
        if tables.state(table) is None:
            _create(spark, table, tables, new)
            tables.created(table, new)


def replace_columns(spark: SparkSession, table: Table, tables: Tables, new: NewTable) -> None:
    """Give a table without rows other columns, in a commit that states what its last one does."""
    last = tables.last(table)
    assert last is not None, "a commit has emptied it"
    if table.target.is_name:
        with merging(spark, {"userMetadata": last.text()}):
            table.target.create(spark, new.schema, new.properties, new.cluster, replaces=True)
    else:
        replace_table(spark, table.target, new, last)
    properties = table.target.properties(spark)
    tables.remember(KnownTable.read(spark, tables.kind, table, properties))


def _create(spark: SparkSession, table: Table, tables: Tables, new: NewTable) -> None:
    # Not "if not exists": a table that another pipeline made meanwhile has to fail here.
    if table.target.is_name:
        # The mirror of `orders_live` may have the name of the live view of `orders`.
        drop_view(spark, table.target, {PIPELINE: tables.pipeline})
        _create_by_spark(spark, table, tables, new)
        return
    require_unoccupied(SparkReader(spark), table, tables.identity(table))
    try:
        create_table(spark, table.target, new)
    except TableExists as error:
        raise _created_elsewhere(spark, table, tables) from error


def _create_by_spark(spark: SparkSession, table: Table, tables: Tables, new: NewTable) -> None:
    try:
        table.target.create(spark, new.schema, new.properties, new.cluster)
    except AnalysisException as error:
        # Delta says the same of a table and of a folder with any files.
        is_there = error.getCondition() == "TABLE_OR_VIEW_ALREADY_EXISTS"
        if is_there and not table.target.exists(spark):
            is_name = table.target.is_name
            if is_name and drop_view(spark, table.target, {PIPELINE: tables.pipeline}):
                # A follower has made its view again just now.
                _create_by_spark(spark, table, tables, new)
                return
            raise occupied(table, tables.identity(table)) from error
        _require_ours(spark, table, tables)
        raise


def _created_elsewhere(spark: SparkSession, table: Table, tables: Tables) -> TableOwnedElsewhere:
    """The error for a table that another program created just now."""
    _require_ours(spark, table, tables)
    return TableOwnedElsewhere(
        f"Another run of this pipeline created the table at '{table.target}' just now.",
        "Let one run at a time use a checkpoint; start this one again.",
    )


def _require_ours(spark: SparkSession, table: Table, tables: Tables) -> None:
    """Raise TableOwnedElsewhere if the table, which is there, belongs to somebody else."""
    require_ours(table, tables.identity(table), table.target.properties(spark))


def add_files(
    spark: SparkSession,
    table: Table,
    tables: Tables,
    files: Sequence[DataFile],
    commit: Commit,
    new: NewTable,
    before_commit: Callable[[], None],
    changed: ChangedFiles | None = None,
) -> bool:
    """Commit data files to the table; return False if its batch is in the table already.

    A table that is not known is created as `new` says. `Tables.claim` must
    have passed. See `commit_files`. Raises UnsuitableTable and TableOwnedElsewhere, both before a
    commit.
    """
    known = tables.state(table)
    if known is None:
        require_unoccupied(SparkReader(spark), table, tables.identity(table))
    try:
        version = commit_files(
            *(spark, table.target, files, tables.transaction_of(commit), commit),
            new.schema,
            new=None if known else new,
            before_commit=before_commit,
            changed=changed,
            newest=_newest(known, tables) if known else None,
        )
    except TableExists as error:
        raise _created_elsewhere(spark, table, tables) from error
    if known is None:
        tables.created(table, new)
    is_new = version is not None
    if known and known.last and known.last.batch == commit.batch:
        # Repeated: without its version the next commit would look through the whole log.
        version = known.version
    tables.committed(table, commit, version)
    return is_new


def _newest(known: KnownTable, tables: Tables) -> tuple[int, int] | None:
    """The version of the table, and that of the pipeline's last transaction in it, if both are
    known; a table without one has -1."""
    if known.version is None:
        return None
    return known.version, tables.transaction_of(known.last).version if known.last else -1


def commit_nothing(spark: SparkSession, table: Table, tables: Tables, commit: Commit) -> None:
    """A commit without rows, for what only its metadata says."""
    if table.target.is_name:
        nothing = table.target.read(spark).limit(0)
        table.target.append(nothing, tables.transaction(commit))
        tables.committed(table, commit)
        return
    own = tables.transaction_of(commit)
    version = commit_files(spark, table.target, [], own, commit, StructType(), new=None)
    if version is None:  # somebody else has made this commit or a later one
        tables.refresh(spark, table)
    else:
        tables.committed(table, commit, version)


def complete(spark: SparkSession, table: Table, tables: Tables, schema: StructType) -> None:
    """Add the columns of `schema` to a known table that an earlier release created without them.

    Its rows have null there.
    """
    known = tables.state(table)
    missing = [field for field in schema if known and field.name not in known.names]
    if known and missing:
        _append_columns(spark, table, StructType(missing))
        names = known.names | {field.name for field in missing}
        tables.remember(replace(known, names=names))


def add_columns(
    spark: SparkSession, table: Table, tables: Tables, more: Sequence[TypedColumn]
) -> None:
    """Add typed columns to a table that has some. Its rows keep in `_rescued` what they hold.

    A commit of its own, which says nothing; one that a crash leaves alone is harmless.
    """
    known = tables.state(table)
    assert known is not None
    assert known.columns is not None
    columns = known.columns.plus(more)
    _append_columns(spark, table, StructType([column.field() for column in more]))
    tables.remember(replace(known, image=replace(known.image, typed=columns)))


def _append_columns(spark: SparkSession, table: Table, fields: StructType) -> None:
    table.target.append(spark.createDataFrame([], fields), {"mergeSchema": "true"})
