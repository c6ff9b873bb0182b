"""What is checked before a pipeline starts, and the lock that it holds while it runs.

All of it is checked before Spark's JVM starts, if checkpoint and tables are on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

from pyspark.sql import SparkSession

from cdc.checkpoint import (
    OFFSETS,
    Folder,
    lock_checkpoint,
    require_whole,
    require_writable,
)
from cdc.delta.followers import KINDS, has_followers
from cdc.delta.landing import CHANGELOG
from cdc.delta.log import LocalReader, NeedsSpark, TableReader
from cdc.delta.tables import KnownTable, Table, identity, present, require_ours
from cdc.errors import NotComparable
from cdc.model import Namespace, Offset
from cdc.mongo.inspect import CopyProgress
from cdc.pipeline.access import Access, access_by_spark, access_locally
from cdc.pipeline.config import Config
from cdc.pipeline.table_commits import require_new
from cdc.source import preflight, query_status, row_schema
from cdc.tasks import DELTA_LOG, is_remote, local_path

# Tables with images, whose form and columns the configuration decides.
_OF_IMAGES = (CHANGELOG, *KINDS)


@contextmanager
def starting(
    config: Config,
    start_spark: Callable[[str | None], SparkSession],
    spark: SparkSession | None = None,
) -> Iterator[tuple[SparkSession, list[CopyProgress]]]:
    """Lock the checkpoint for the duration of the block, and check all that may prevent a start.

    Yields the session, the captured collections, and how far earlier runs copied them.

    Args:
        config: The pipeline.
        start_spark: Returns the session. Called after the checks with None; called before them,
            with the reason, if they need Spark.
        spark: The session if there is one. It makes all checks then: its settings may name another
            file system than the local one.

    Raises CdcError.
    """
    with ExitStack() as lock:
        try:
            if spark is not None:
                raise NeedsSpark("Spark runs already")
            found = lock.enter_context(_lock_and_check(access_locally(config), config))
        except NeedsSpark as reason:
            spark = spark or start_spark(str(reason))
            found = lock.enter_context(_lock_and_check(access_by_spark(spark), config))
        yield spark or start_spark(None), found


@contextmanager
def _lock_and_check(access: Access, config: Config) -> Iterator[list[CopyProgress]]:
    """Lock the checkpoint for the duration of the block, and check it, the source and the tables.

    A missing folder is created and locked after the checks: a first run that fails a check leaves
    no folder. Raises CdcError, and NeedsSpark if only Spark can check something.
    """
    folder = Folder(access.files, config.checkpoint)
    with ExitStack() as lock:
        has_folder = folder.exists(".")
        if has_folder:
            lock.enter_context(lock_checkpoint(config.checkpoint))
        collections = _check(access, config, folder)
        if not has_folder:
            lock.enter_context(lock_checkpoint(config.checkpoint))
        yield collections


def check_reading(
    access: Access, config: Config, kinds: Iterable[str], names: Iterable[Namespace]
) -> None:
    """Check the source, and that the tables of some kinds of these collections exist.

    For programs that read both. Raises NotComparable if a table is missing, and CdcError.
    """
    for kind, name in product(kinds, list(names)):
        table = config.table(kind, name)
        if table is not None:
            target = table.target.settle(access.tables.exists)
            if not access.tables.exists(target):
                raise NotComparable(
                    f"The {kind} of {name} at {target} contains no batch yet.",
                    "Run replicate first. If it is running, call this program again later.",
                )
    preflight(config.options, is_new=False)


def _check(access: Access, config: Config, folder: Folder) -> list[CopyProgress]:
    """Raise the error that prevents a start, if any. Return what `starting` yields."""
    config.options.require_stream()
    for path, owner in ((config.checkpoint, "of the checkpoint"), (config.base, "of the tables")):
        if not is_remote(path):
            require_writable(Path(local_path(path)), owner)
    require_whole(folder)
    at = _last_offset(folder)
    captured = preflight(
        config.options, is_new=at is None, at=at, has_mirrors=has_followers(config.layout)
    )
    pipeline = folder.pipeline()
    # Tables of a collection that does not exist yet count too.
    named = config.options.selection.names
    names = list(dict.fromkeys([*(each.namespace for each in captured), *named]))
    if at is None:
        require_new(access.tables, config, names, pipeline)
    # Spark would take 0.1 s for each table, and the first batch checks them again.
    if pipeline is not None and isinstance(access.tables, LocalReader):
        _require_fitting(access.tables, config, names, pipeline)
    following = folder.next_batch()
    last = folder.read_plan(following - 1) if following else None
    return captured if last is None else query_status(config.options, last.offset, None).collections


def check_tables(config: Config, names: Iterable[Namespace]) -> None:
    """Check that existing tables of these collections fit the configuration.

    Does nothing if only Spark can read them: a run checks them too. Raises BadOption.
    """
    try:
        access = access_locally(config)
        pipeline = Folder(access.files, config.checkpoint).pipeline()
        if pipeline is not None:
            _require_fitting(access.tables, config, names, pipeline)
    except NeedsSpark:
        return


def _last_offset(folder: Folder) -> Offset | None:
    """The end of the last planned batch, after `require_whole`; None if there is no batch."""
    planned = folder.numbers(OFFSETS)
    plan = folder.read_plan(planned[-1]) if planned else None
    return plan.offset if plan else None


def _require_fitting(
    reader: TableReader, config: Config, names: Iterable[Namespace], pipeline: str
) -> None:
    """Raise an error unless this pipeline can write the tables of these collections.

    Raises TableOwnedElsewhere if a table belongs to somebody else, and BadOption if it cannot be
    written, or if its form, its columns or its type of images differ from the configuration.
    """
    document = row_schema(config.options.document_format)["after"].dataType.simpleString()
    captured = list(names)
    for kind in _OF_IMAGES:
        tables = [table for name in captured if (table := config.table(kind.name, name))]
        for table, properties in present(reader, config.layout, kind.name, tables):
            require_ours(table, identity(pipeline, kind.name, table), properties)
            known = KnownTable.of_schema(kind, table, properties, reader.schema(table.target))
            known.require_configured(kind, table, document)
            _require_writable_table(table)


def _require_writable_table(table: Table) -> None:
    folder = Path(local_path(table.target.address))
    for path in (folder, folder / DELTA_LOG):
        require_writable(path, "of a table")
