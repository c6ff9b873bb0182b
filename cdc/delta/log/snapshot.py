"""A version of a table as Delta has it in the JVM: its snapshot."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

_MAPPING = "delta.columnMapping."


class Size(NamedTuple):
    """The data files of a table: their number and their bytes."""

    files: int
    bytes: int


def delta_log(spark: SparkSession, path: str) -> Any:
    """The log of the table at a path, as Delta has it in the JVM."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def newest_snapshot(spark: SparkSession, log: Any) -> Any:
    """The newest snapshot of the log of a table that has a path; its version is -1 if there is
    none. Starts no Spark job.

    Delta lists the log to find it, and a log contains the commits of seven days. With 2,400 commits
    on a local disk that took four fifths of the time of the next commit. So the log is listed only
    if another process has changed it.
    """
    known = log.unsafeVolatileSnapshot()
    return known if _is_newest(spark, log, known) else listed_snapshot(spark, log)


def listed_snapshot(spark: SparkSession, log: Any) -> Any:
    """The newest snapshot of a log, from a list of its files; its version is -1 if there is none.

    It begins with the newest checkpoint.
    """
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    return log.update(False, nothing, nothing)


def _is_newest(spark: SparkSession, log: Any, known: Any) -> bool:
    """Whether the file of a snapshot's version is the one it was made of, and there is no next one.

    False too if it was made of a checkpoint alone.
    """
    commits = known.logSegment().deltas()
    if commits.isEmpty():
        return False
    jvm: Any = spark._jvm
    last = commits.last()
    path, following = last.getPath(), f"{int(known.version()) + 1:020}.json"
    system = path.getFileSystem(log.newDeltaHadoopConf())
    try:
        found = system.getFileStatus(path)
    except Py4JJavaError as error:
        if not is_missing_file(error):
            raise
        return False  # somebody has removed or replaced the table
    is_same = found.getLen() == last.getLen()
    is_same = is_same and found.getModificationTime() == last.getModificationTime()
    return is_same and not system.isFile(jvm.org.apache.hadoop.fs.Path(log.logPath(), following))


def is_missing_file(error: Py4JJavaError) -> bool:
    """Whether a file system reports that there is no such file."""
    return bool(error.java_exception.getClass().getName() == "java.io.FileNotFoundException")


def metadata_of(snapshot: Any) -> dict[str, Any]:
    """The action `metaData` of a snapshot, or of a transaction."""
    found: dict[str, Any] = json.loads(snapshot.metadata().json())["metaData"]
    return found


def schema_of(snapshot: Any) -> StructType:
    """The columns of a snapshot, as Spark reads them: without Delta's own notes of other names."""
    text = metadata_of(snapshot)["schemaString"]
    return StructType.fromJson(json.loads(text, object_hook=_without_mapping))


def _without_mapping(each: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in each.items() if not name.startswith(_MAPPING)}


def stated_size(snapshot: Any) -> Size | None:
    """The size that Delta states in a file beside each commit; None if there is no such file."""
    checksum = snapshot.checksumOpt()
    if checksum.isEmpty():
        return None
    return Size(int(checksum.get().numFiles()), int(checksum.get().tableSizeBytes()))
