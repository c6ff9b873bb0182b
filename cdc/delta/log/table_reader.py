"""What programs ask about the tables at some places: by Spark, or without it on the local disk.

The reader of local tables is delta-rs, which starts no JVM.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.log import target as by_spark
from cdc.delta.log.commit_log import LogEntry, find_restored
from cdc.delta.log.newest_commit import NewestCommit, find_contained, newest_commit
from cdc.delta.log.target import Target
from cdc.tasks import DELTA_LOG, is_remote, local_path

_COMMIT = re.compile(r"\d{20}\.json")
if TYPE_CHECKING:  # Spark's tasks import this module, and do not need it
    from deltalake import DeltaTable

# Enough to find a commit of this project, unless others have made many since.
_NEWEST = 8


class NeedsSpark(Exception):
    """Something can be read by Spark only: the message says what.

    A program that could otherwise do without Spark then starts it. No user sees this error.
    """


class TableReader(Protocol):
    """Answers about tables; changes nothing. A table has to exist unless a method says otherwise.

    Raises NeedsSpark where this reader cannot read a table.
    """

    def find(self, parts: Sequence[str]) -> list[Target]:
        """The tables at the paths that consist of `parts` with any text between them."""

    def find_names(
        self, catalog: str | None, schema: re.Pattern[str], table: re.Pattern[str]
    ) -> list[Target]:
        """The tables of a catalog (None: the session's) whose names match."""

    def exists(self, target: Target) -> bool:
        """Whether there is a Delta table."""

    def names_in(self, target: Target) -> list[str]:
        """The names in the folder of a table known by its path; none without such a folder."""

    def properties(self, target: Target) -> dict[str, str]: ...

    def schema(self, target: Target) -> StructType: ...

    def newest_commit(self, target: Target) -> NewestCommit | None:
        """See `cdc.delta.log.newest_commit`. Raises TableRestored."""


class SparkReader:
    """Reads any table that Spark can read."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def find(self, parts: Sequence[str]) -> list[Target]:
        return by_spark.under(self.spark, parts)

    def find_names(
        self, catalog: str | None, schema: re.Pattern[str], table: re.Pattern[str]
    ) -> list[Target]:
        return by_spark.like(self.spark, catalog, schema, table)

    def exists(self, target: Target) -> bool:
        return target.exists(self.spark)

    def names_in(self, target: Target) -> list[str]:
        return by_spark.names_in(self.spark, target)

    def properties(self, target: Target) -> dict[str, str]:
        return target.properties(self.spark)

    def schema(self, target: Target) -> StructType:
        return target.read(self.spark).schema

    def newest_commit(self, target: Target) -> NewestCommit | None:
        return newest_commit(self.spark, target)


class LocalReader:
    """Reads tables on the local disk by delta-rs, each as it was when it was first read."""

    def __init__(self) -> None:
        # A few questions about one table follow one another.
        self._open = lru_cache(maxsize=8)(open_table)

    def find(self, parts: Sequence[str]) -> list[Target]:
        head, _, tail = local_path(parts[0]).rpartition("/")
        pattern = "*".join(map(glob.escape, [tail, *parts[1:]]))
        found = Path(head or "/").glob(f"{pattern}/{DELTA_LOG}")
        return [Target(str(log.parent)) for log in sorted(found) if _has_version(log)]

    def find_names(
        self, catalog: str | None, schema: re.Pattern[str], table: re.Pattern[str]
    ) -> list[Target]:
        raise NeedsSpark("the tables are in a catalog")

    def exists(self, target: Target) -> bool:
        return _has_version(Path(local_path(target.address), DELTA_LOG))

    def names_in(self, target: Target) -> list[str]:
        folder = Path(local_path(target.address))
        return [each.name for each in folder.iterdir()] if folder.exists() else []

    def properties(self, target: Target) -> dict[str, str]:
        return dict(self._open(target).metadata().configuration)

    def schema(self, target: Target) -> StructType:
        return StructType.fromJson(json.loads(self._open(target).schema().to_json()))

    def newest_commit(self, target: Target) -> NewestCommit | None:
        table = self._open(target)
        return find_contained(target, _read_log(table), lambda: table.metadata().configuration)


def _has_version(log: Path) -> bool:
    """Whether a log contains a version; a creation that was killed may have made its folder only.

    After a cleanup of the log the newest version has its file still.
    """
    return log.is_dir() and any(_COMMIT.fullmatch(each.name) for each in log.iterdir())


def is_readable_locally(target: Target) -> bool:
    """Whether `open_table` can open a table, if it exists: by its place alone."""
    # delta-rs takes a percent sign in a path for an escape, even if it is encoded itself.
    return not (target.is_name or "%" in target.address or is_remote(target.address))


def open_table(target: Target) -> DeltaTable:
    """Open a table without Spark.

    Raises TableNotFoundError if there is none, and NeedsSpark if delta-rs cannot read it.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    folder = local_path(target.address)
    if not (target.is_name or is_remote(target.address) or Path(folder).is_dir()):
        raise TableNotFoundError(folder)
    if not is_readable_locally(target):
        raise NeedsSpark(f"delta-rs cannot read the table {target}")
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        raise
    except DeltaError as error:
        raise NeedsSpark(f"delta-rs cannot read the table {target}") from error


def _read_log(table: DeltaTable) -> Iterator[LogEntry]:
    """The commits of a table, the newest first."""
    found = read_local_log(table, _NEWEST)
    yield from found
    if len(found) == _NEWEST:
        yield from read_local_log(table)[_NEWEST:]


def read_local_log(table: DeltaTable, most: int | None = None) -> list[LogEntry]:
    """The newest commits of an open table, the newest first; as many as `most`, or all."""
    return [_entry(about) for about in table.history(most)]


def _entry(about: dict[str, Any]) -> LogEntry:
    metadata, metrics = about.get("userMetadata"), about.get("operationMetrics") or {}
    version, made = int(str(about["version"])), float(str(about.get("timestamp", 0))) / 1000
    restores = find_restored(about.get("operation"), about.get("operationParameters"))
    text = None if metadata is None else str(metadata)
    texts = {name: str(value) for name, value in metrics.items()}
    return LogEntry(version, made, text, texts, restores)
