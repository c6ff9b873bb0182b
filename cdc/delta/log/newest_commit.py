"""The newest commit of this project in the log of a table: what the table contains.

Somebody may have restored an earlier version of the table (`RESTORE TABLE`). Its log still has the
commits after that version, but the table lacks their rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import SparkSession

from cdc.delta.log.commit_log import LogEntry, read_log
from cdc.delta.log.commit_metadata import Commit
from cdc.delta.log.target import Target
from cdc.errors import TableRestored

_KEPT = "mongodb-cdc.commit"


class NewestCommit(NamedTuple):
    """The newest version of a table, and the newest commit of this project.

    Attributes:
        version: the newest version of the table.
        commit: the commit. It made that version or an earlier one, or is what `keep` has stored.
        made: its time, in seconds since 1970; None if only a property of the table states it.
        undone: the version that it made, if the table lacks its rows since a RESTORE; else None.
    """

    version: int
    commit: Commit
    made: float | None
    undone: int | None = None


def newest_commit(spark: SparkSession, target: Target) -> NewestCommit | None:
    """The newest commit to an existing table; None if there is none.

    Raises TableRestored if the table does not contain it any more.
    """
    return find_contained(target, read_log(spark, target), lambda: target.properties(spark))


def find_newest(spark: SparkSession, target: Target) -> NewestCommit | None:
    """As `newest_commit`, whether the table contains the commit or not."""
    return find_commit(read_log(spark, target), lambda: target.properties(spark))


def find_contained(
    target: Target, entries: Iterable[LogEntry], properties: Callable[[], Mapping[str, str]]
) -> NewestCommit | None:
    """As `find_commit`. Raises TableRestored if the table does not contain the commit any more."""
    newest = find_commit(entries, properties)
    if newest is not None:
        require_contained(target, newest.commit, newest.undone)
    return newest


def require_contained(target: Target, commit: Commit, undone: int | None) -> None:
    """Raise TableRestored if the newest commit to a table is undone; see `NewestCommit`."""
    if undone is not None:
        raise TableRestored(
            f"The table at '{target}' lacks batch {commit.batch}, which version {undone} contained:"
            " somebody has restored an earlier version.",
            f"RESTORE the table TO VERSION AS OF {undone}. Or make a mirror or history again from"
            " its changelog: mongodb-cdc follow --rebuild --collection, with its name.",
        )


def keep(spark: SparkSession, target: Target, age: timedelta) -> None:
    """Store the metadata of our newest commit beyond the retention of the log, if it is old.

    Raises TableRestored.
    """
    newest = newest_commit(spark, target)
    if newest is None or newest.made is None or newest.made > time.time() - age.total_seconds():
        return
    text = newest.commit.text()
    if target.properties(spark).get(_KEPT) != text:
        target.set_property(spark, _KEPT, text)


def find_commit(
    entries: Iterable[LogEntry], properties: Callable[[], Mapping[str, str]]
) -> NewestCommit | None:
    """Find the newest commit of this project.

    Args:
        entries: The commits in the log of the table, the newest first.
        properties: Reads the properties of the table.
    """
    version, restored = None, None
    for entry in entries:
        version = entry.version if version is None else version
        is_undone = restored is not None and entry.version > restored
        if commit := Commit.parse(entry.metadata):
            return NewestCommit(version, commit, entry.made, entry.version if is_undone else None)
        if entry.restores is not None and not is_undone:
            restored = entry.restores
    kept = Commit.parse(properties().get(_KEPT))
    return NewestCommit(version, kept, None) if kept and version is not None else None
