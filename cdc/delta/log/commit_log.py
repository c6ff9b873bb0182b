"""The commits in the log of a Delta table.

The newest ones are read from the files of the log, each of which takes a millisecond. To read more
of them, Delta starts a Spark job, which would take longer than all else that a small batch needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc.delta.log.snapshot import is_missing_file
from cdc.delta.log.target import Target

# How many commits are read from files before a Spark job reads them.
_FROM_FILES = 8


class LogEntry(NamedTuple):
    """One commit in the log of a table.

    Attributes:
        version: the version of the table that it made.
        made: its time, in seconds since 1970.
        metadata: its userMetadata, if it has some.
        metrics: the metrics of its operation, as text.
        restores: of a RESTORE, the version whose rows it brought back, or -1 if it names a time
            instead; None for all other operations.
    """

    version: int
    made: float
    metadata: str | None
    metrics: Mapping[str, str]
    restores: int | None = None


def newest_entry(spark: SparkSession, target: Target) -> LogEntry:
    """The newest commit of an existing table, whoever made it."""
    return next(read_log(spark, target))


def read_log(spark: SparkSession, target: Target) -> Iterator[LogEntry]:
    """Yield the commits in the log of an existing table, the newest first.

    The log may begin later than the table. A version is yielded once, also if other writers commit
    meanwhile.
    """
    snapshot = target.snapshot(spark)
    newest = int(snapshot.version())
    end = max(-1, newest - _FROM_FILES)
    for version in range(newest, end, -1):
        entry = _read_file(spark, snapshot.deltaLog(), version)
        if entry is None:
            return
        yield entry
    limit, oldest = 8 * _FROM_FILES, end + 1
    while oldest > 0:
        made = F.unix_micros("timestamp").alias("made")
        about = "operation", "operationParameters"
        names = "version", made, "userMetadata", "operationMetrics", *about
        found = target.delta(spark).history(limit).select(*names).collect()
        for row in sorted(found, key=lambda row: -int(row.version)):
            if row.version < oldest:
                oldest = int(row.version)
                metrics = row.operationMetrics or {}
                restores = find_restored(row.operation, row.operationParameters)
                yield LogEntry(oldest, row.made / 1e6, row.userMetadata, metrics, restores)
        if len(found) < limit:
            return
        limit *= 8


def find_restored(operation: str | None, parameters: Mapping[str, Any] | None) -> int | None:
    """`LogEntry.restores` of a commit with this operation and its parameters."""
    if operation != "RESTORE":
        return None
    version = (parameters or {}).get("version")
    return int(version) if version not in (None, "null") else -1


def _read_file(spark: SparkSession, log: Any, version: int) -> LogEntry | None:
    """The commit of a version; None if the log does not contain it any more."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(log.logPath(), f"{version:020}.json")
    try:
        lines = log.store().readAsIterator(path, log.newDeltaHadoopConf())
    except Py4JJavaError as error:
        if not is_missing_file(error):
            raise
        return None
    try:
        while lines.hasNext():
            if about := json.loads(lines.next()).get("commitInfo"):
                made, metrics = about["timestamp"] / 1000, about.get("operationMetrics", {})
                texts = {name: str(value) for name, value in metrics.items()}
                restores = find_restored(about.get("operation"), about.get("operationParameters"))
                return LogEntry(version, made, about.get("userMetadata"), texts, restores)
    finally:
        lines.close()
    return LogEntry(version, 0.0, None, {})
