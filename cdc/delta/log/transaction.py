"""The one transaction by which data files become rows of a table.

Contract of `commit_files`:

* **Atomic.** Files, transaction id and metadata (`Commit`) become visible in one Delta commit. A
  new table is created by the commit of its first files.
* **Once.** The commit contains `txn` (application id, version). It asks Delta for the newest
  version of that id within the same transaction. So Delta aborts it if another writer commits that
  id meanwhile: without the question it would accept the same batch twice. A version that is not
  newer is not committed; the result says so.
* **Blind,** unless it changes files. It has read no rows, so it conflicts with no append, MERGE or
  OPTIMIZE. It conflicts with a change of the table's schema, properties or protocol.
* **Of one version,** if it changes files. The caller has looked at the rows of a version. So the
  commit conflicts with any other after that version that adds or removes rows.
* **Found again.** A version that another process has made in its place is no commit; see
  `cdc.delta.log.overwritten_commit`.
* **Nothing before it is visible.** A crash before the commit leaves files that no commit names. A
  crash after it leaves a committed batch, which the replay finds by its `txn`.

It uses an internal interface of the pinned Delta: delta-rs refuses clustered tables and accepts the
same `txn` twice; Delta's Kernel refuses VARIANT. `tests/delta/test_transaction.py` holds the
interface to this contract.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.log.commit_metadata import Commit
from cdc.delta.log.conflict import Outdated
from cdc.delta.log.live_files import LiveFile
from cdc.delta.log.newest_commit import newest_commit
from cdc.delta.log.overwritten_commit import require_found
from cdc.delta.log.snapshot import delta_log, metadata_of, newest_snapshot
from cdc.delta.log.suitable_table import require_changeable, require_suitable
from cdc.delta.log.target import Target, hadoop
from cdc.errors import DataFileLost
from cdc.tasks import DataFile

_PHYSICAL_NAME = "delta.columnMapping.physicalName"


@dataclass(frozen=True, slots=True)
class NewTable:
    """How a table is created: its columns, properties, and the columns that cluster it."""

    schema: StructType
    properties: Mapping[str, str]
    cluster: Sequence[str]


class Transaction(NamedTuple):
    """What makes a commit of one table and pipeline unique.

    Attributes:
        name: the application id.
        version: greater than that of all commits before it.
    """

    name: str
    version: int


class ChangedFiles(NamedTuple):
    """The files of which a commit removes rows.

    Attributes:
        version: the version of the table that was looked at.
        files: the files, among them perhaps some that the commit adds.
        vectors: the new deletion vector of each file, by its name. A file without one has lost all
            its rows.
    """

    version: int
    files: Sequence[LiveFile]
    vectors: Mapping[str, Mapping[str, Any]]


class TableExists(Exception):
    """Another writer has created the table."""


def commit_files(
    spark: SparkSession,
    target: Target,
    files: Sequence[DataFile],
    own: Transaction,
    commit: Commit,
    schema: StructType,
    new: NewTable | None,
    before_commit: Callable[[], None] = lambda: None,
    changed: ChangedFiles | None = None,
    newest: tuple[int, int] | None = None,
) -> int | None:
    """Commit data files to a table; return the version, or None if the batch is in the table.

    See the module for the contract. Conflicts with other writers are raised as Delta's errors; the
    call may be repeated.

    Args:
        spark: the session.
        target: the table, known by its path; it exists, unless `new` is given.
        files: files that lie in its folder; none for a commit that only states something.
        own: the transaction of the commit.
        commit: the metadata.
        schema: the columns of the files.
        new: the table to create.
        changed: the files that lose rows, see the module; None for a blind commit.
        newest: a version of the table, and the version of the last transaction of this name that it
            contains, if the caller knows them. They spare Delta a look through the whole log as
            long as nobody else commits.
        before_commit: called right before the commit is tried. From then on the files may be part
            of the table, whatever is raised.

    Raises TableExists if there is a table though `new` is given; UnsuitableTable; TableRestored if
    the table lacks its newest commit of this project; Outdated if there is a newer version than the
    one that was looked at, or if another process has overwritten the commit; DataFileLost if Delta
    does not find a file: it may look for it in another place.
    """
    delta = _Delta(spark)
    transaction = delta.start(target)
    actions = list[Mapping[str, Any]]()
    if new is not None:
        if transaction.readVersion() >= 0:
            raise TableExists
        # Settings of the session may add properties to a new table, so it is checked as well.
        transaction.updateMetadataForNewTable(delta.action(_metadata(new)))
        actions.append(_clustering(new.cluster))
    if files:
        require_suitable(transaction, schema)
    if newest is not None and transaction.readVersion() == newest[0]:
        # What `txnVersion` does to detect another writer of this id.
        transaction.readTxn().addOne(own.name)
        last = newest[1]
    else:
        # Somebody else may have restored a version that lacks what this process wrote. Delta does
        # not take that for a conflict.
        if new is None:
            newest_commit(spark, target)
        last = transaction.txnVersion(own.name)
    if last >= own.version:
        return None
    if changed is not None:
        if transaction.readVersion() != changed.version:
            raise Outdated
        transaction.readWholeTable()
        if changed.files:
            require_changeable(transaction, schema)
    delta.require_files(target, files)
    now = int(time.time() * 1000)
    actions += _file_actions(files, changed, now)
    written = {"appId": own.name, "version": own.version, "lastUpdated": now}
    actions.append({"txn": written})
    before_commit()
    return delta.commit(transaction, actions, files, own, commit)


def create_table(spark: SparkSession, target: Target, new: NewTable) -> None:
    """Create a table without rows at a path. Files that no commit names may lie there already.

    Raises TableExists.
    """
    delta = _Delta(spark)
    transaction = delta.start(target)
    if transaction.readVersion() >= 0:
        raise TableExists
    metadata = delta.action(_metadata(new))
    transaction.updateMetadataForNewTable(metadata)
    operation = delta.operations.CreateTable(metadata, False, False, delta.none)
    try:
        delta.end(transaction, [_cluster_by(transaction, new.cluster)], operation)
    except Outdated as error:
        raise TableExists from error


def replace_table(spark: SparkSession, target: Target, new: NewTable, commit: Commit) -> None:
    """Give a table at a path, which has no rows, other columns and properties in one commit.

    Fails if another commit comes in between.
    """
    delta = _Delta(spark)
    transaction = delta.start(target)
    metadata = delta.action(_metadata(new))
    transaction.updateMetadataForTableOverwrite(metadata)
    stated, rest = delta.some(commit.text()), [delta.none] * 6
    operation = delta.operations.ReplaceTable(metadata, False, False, False, stated, *rest)
    delta.end(transaction, [_cluster_by(transaction, new.cluster)], operation)


def _cluster_by(transaction: Any, columns: Sequence[str]) -> dict[str, Any]:
    """The action that clusters the table of a transaction by some of its columns."""
    # Settings of the session may map columns to other names.
    schema = json.loads(metadata_of(transaction)["schemaString"])
    physical = {
        each["name"]: each["metadata"].get(_PHYSICAL_NAME, each["name"])
        for each in schema["fields"]
    }
    return _clustering([physical[name] for name in columns])


class _Delta:
    """Delta's classes in the JVM of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._jvm, self.operations = jvm, jvm.org.apache.spark.sql.delta.DeltaOperations
        self.none, self.some = jvm.scala.Option.empty(), jvm.scala.Option.apply

    def start(self, target: Target) -> Any:
        log = delta_log(self._spark, target.address)
        return log.startTransaction(self.none, self.some(newest_snapshot(self._spark, log)))

    def require_files(self, target: Target, files: Sequence[DataFile]) -> None:
        """Raise DataFileLost unless each file is complete where readers of the table look."""
        root, system = hadoop(self._spark, target.address)
        for file in files:
            path = self._jvm.org.apache.hadoop.fs.Path(root, file.name)
            size = system.getFileStatus(path).getLen() if system.exists(path) else None
            if size != file.size:
                found = "none" if size is None else f"one of {size}"
                raise DataFileLost(
                    f"A task wrote {file.name} of '{target}' with {file.size} bytes; in the folder"
                    f" that Spark finds of this name there is {found}.",
                    "Let all machines mount the folder at the same path, or set write.by = spark in"
                    " [sink].",
                )

    def action(self, fields: Mapping[str, Any]) -> Any:
        actions = self._jvm.org.apache.spark.sql.delta.actions
        return actions.Action.fromJson(json.dumps(fields))

    def commit(
        self,
        transaction: Any,
        actions: Sequence[Mapping[str, Any]],
        files: Sequence[DataFile],
        own: Transaction,
        commit: Commit,
    ) -> int:
        jvm = self._jvm
        scala = jvm.org.apache.spark.api.python.PythonUtils
        metrics = jvm.java.util.HashMap()
        numbers = {
            "numAddedFiles": len(files),
            "numRemovedFiles": sum("remove" in action for action in actions),
            "numOutputRows": sum(file.rows for file in files),
            "numOutputBytes": sum(file.size for file in files),
        }
        for name, number in numbers.items():
            metric = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(
                self._spark.sparkContext._jsc.sc(), name
            )
            metric.set(number)
            metrics.put(name, metric)
        transaction.registerSQLMetrics(self._spark._jsparkSession, scala.toScalaMap(metrics))
        append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        operation = self.operations.StreamingUpdate(
            append, own.name, own.version, self.some(commit.text())
        )
        return self.end(transaction, actions, operation)

    def end(self, transaction: Any, actions: Sequence[Mapping[str, Any]], operation: Any) -> int:
        """Commit the actions; return the version that this made."""
        every = self._jvm.java.util.ArrayList()
        for action in actions:
            every.add(self.action(action))
        found = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(every)
        version = int(transaction.commit(found, operation))
        require_found(self._spark, transaction, version)
        return version


def added(file: DataFile) -> dict[str, Any]:
    """The action that adds a data file."""
    return {
        "add": {
            "path": file.name,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
            "stats": file.statistics,
        }
    }


def _file_actions(
    files: Sequence[DataFile], changed: ChangedFiles | None, now: int
) -> Iterator[Mapping[str, Any]]:
    """The actions that add data files and change others."""
    new, changes = {file.name for file in files}, changed.files if changed else ()
    for each in changes:
        if each.name not in new:
            yield each.removed(now)
        if changed and (vector := changed.vectors.get(each.name)) is not None:
            yield each.without_rows(vector)
    new.difference_update(each.name for each in changes)
    yield from (added(file) for file in files if file.name in new)


def _metadata(new: NewTable) -> dict[str, Any]:
    features = {f"delta.feature.{name}": "supported" for name in ("clustering", "domainMetadata")}
    return {
        "metaData": {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": new.schema.json(),
            "partitionColumns": [],
            "configuration": {**new.properties, **features},
            "createdTime": int(time.time() * 1000),
        }
    }


def _clustering(columns: Sequence[str]) -> dict[str, Any]:
    configuration = {"clusteringColumns": [[name] for name in columns]}
    return {
        "domainMetadata": {
            "domain": "delta.clustering",
            "configuration": json.dumps(configuration),
            "removed": False,
        }
    }
