"""Repair of tables with documents that were read again, while a job goes on writing them.

The documents are as of one cluster time, and so are the positions of their rows. Therefore a newer
change in the job wins, whichever of both comes first. The rows of a mirror cannot state that a
document was deleted, see `repair_mirror`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice
from operator import and_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import Image
from cdc.delta.followers import MIRROR, mirror
from cdc.delta.log import Commit, conflict, merging, read_log
from cdc.delta.tables import SOFT, Table
from cdc.errors import NotComparable
from cdc.model import VOIDING, Namespace, Timestamp, resume_token, timestamp

# What the userMetadata of a repair begins with, and that of the commit that says it is settled. The
# time as of which it was read follows, and the namespace. Earlier releases named no namespace.
_REPAIR, _SETTLED = "mongodb-cdc repair as of ", "mongodb-cdc settled as of "
_COMMITS = 1000
# Whose rows a commit of `extend_once` has added, in its transaction id and in its userMetadata.
_RUN = "mongodb-cdc backfill "

# The changes of the namespace after one time and up to another one, as the source reports them.
Changes = Callable[[Timestamp, Timestamp], DataFrame]


@dataclass(frozen=True, slots=True)
class _Slip:
    """The rows of a repair, and the time up to which the job had written when they were added."""

    at: Timestamp
    job: Timestamp


def repair_mirror(
    spark: SparkSession,
    table: Table,
    namespace: Namespace,
    rows: DataFrame,
    at: Timestamp,
    changes: Changes,
) -> None:
    """Merge rows of the source into a mirror.

    `rows` are `read` as of `at`, and `delete` for keys that do not exist then. At `at` the job of
    the mirror had written everything. A document that was deleted since, by a change that the job
    has applied before this merge, is removed again: `changes` reports it. May be repeated after any
    failure, if `settle` was called first. Raises ConflictsUnresolved.
    """
    conflict.repeated(partial(_merge, spark, table, namespace, rows, at), table.target)
    settle(spark, table, namespace, changes)


def settle(spark: SparkSession, table: Table, namespace: Namespace, changes: Changes) -> None:
    """Delete the documents that repairs added although the job had applied their deletion.

    This includes repairs that were killed before they could delete them.
    """
    for slip in _slips(spark, table, namespace):
        gone = changes(slip.at, slip.job)
        conflict.repeated(partial(_take_out, spark, table, namespace, gone, slip.at), table.target)
        nothing = table.target.read(spark).limit(0)
        text = f"{_SETTLED}{_described(slip.at, namespace)}"
        # Delta makes no commit of no rows without a transaction.
        transaction = {"txnAppId": f"mongodb-cdc settled {uuid.uuid4()}", "txnVersion": 1}
        table.target.append(nothing, {**transaction, "userMetadata": text})


def extend_changelog(spark: SparkSession, table: Table, rows: DataFrame) -> int:
    """Add the rows that the changelog lacks; return how many. May be repeated."""
    return conflict.repeated(partial(_add, spark, table, rows), table.target)


def extend_once(
    spark: SparkSession, table: Table, rows: DataFrame, at: Timestamp, run: str
) -> tuple[int, Timestamp]:
    """Add the documents in `rows`, `read` as of `at`, once per `run`.

    An earlier try of the same `run` had another time. Returns how many were added, and as of when.
    """
    # As hexadecimal digits: a MERGE takes both from settings, where `${` has a meaning.
    name = f"{_RUN}{run.encode().hex()}"
    transaction = {"txnAppId": name, "txnVersion": 1}
    text = f"{name} as of {timestamp.text(at)}"
    with merging(spark, {**transaction, "userMetadata": text}):
        extend_changelog(spark, table, rows)
    return _added(spark, table, name)


def lacking(spark: SparkSession, table: Table, rows: DataFrame) -> int:
    """The number of rows that the changelog lacks."""
    log = table.target.read(spark).alias("row")
    return rows.alias("new").join(log, _is_the_same(rows), "left_anti").count()


def _described(at: Timestamp, namespace: Namespace) -> str:
    # A MERGE takes it from a setting, in which Spark puts the environment's X for "${env:X}".
    return f"{timestamp.text(at)} {str(namespace).encode().hex()}"


def _merge(
    spark: SparkSession, table: Table, namespace: Namespace, rows: DataFrame, at: Timestamp
) -> None:
    image = Image.of_table(table.target.read(spark).schema)
    name = F.concat("db", F.lit("."), "coll").alias("_namespace")
    change = image.select(rows.select(name, "key", *mirror.change_columns())).alias("change")
    same = [F.col(f"mirror.{name}") == F.col(f"change.{name}") for name in MIRROR.key(table)]
    merge = table.target.delta(spark).alias("mirror").merge(change, reduce(and_, same))
    # What is there may have been read as of the same time, and damaged since.
    merge = MIRROR.with_changes(merge, table, image, "change._position >= mirror._position")
    with merging(spark, {"userMetadata": f"{_REPAIR}{_described(at, namespace)}"}):
        merge.execute()


def _slips(spark: SparkSession, table: Table, namespace: Namespace) -> list[_Slip]:
    """The repairs of a collection, among the newest commits of its table, that are not settled.

    Only those that the job was ahead of.
    """
    slips, job = dict[str, _Slip](), None
    own = str(namespace).encode().hex()
    for entry in sorted(islice(read_log(spark, table.target), _COMMITS)):
        text = entry.metadata or ""
        if commit := Commit.parse(text):
            job = commit.watermark
        elif text.startswith((_REPAIR, _SETTLED)):
            time, _, name = text.rpartition(" as of ")[2].partition(" ")
            if name not in (own, ""):
                continue
            if text.startswith(_SETTLED):
                slips.pop(time, None)
            elif job is not None and job > timestamp.parse(time):
                slips[time] = _Slip(timestamp.parse(time), job)
    return list(slips.values())


def _take_out(
    spark: SparkSession, table: Table, namespace: Namespace, gone: DataFrame, at: Timestamp
) -> None:
    """Rows as of `at` whose keys were deleted since, or all if the collection was."""
    position = F.lit(resume_token.position_after(at))
    own = F.col("mirror._position") == position
    if table.is_shared:
        own &= F.col("mirror._namespace") == F.lit(str(namespace))
    is_emptied = gone.where(F.col("op").isin(*VOIDING)).count()
    keys = gone.where((F.col("op") == "delete") & F.col("key").isNotNull())
    keys = keys.select("key").distinct().alias("gone")
    held = table.target.delta(spark).alias("mirror")
    same = own if is_emptied else own & (F.col("mirror.key") == F.col("gone.key"))
    merge = held.merge(spark.range(1).alias("gone") if is_emptied else keys, same)
    if table.options.delete == SOFT:
        merge.whenMatchedUpdate(set={"_deleted": F.lit(True)}).execute()
    else:
        merge.whenMatchedDelete().execute()


def _is_the_same(rows: DataFrame) -> Column:
    same = ["position", "key", "db", "coll"]
    same += [name for name in rows.columns if name == "_change_type"]
    return reduce(and_, [F.col(f"row.{name}").eqNullSafe(F.col(f"new.{name}")) for name in same])


def _add(spark: SparkSession, table: Table, rows: DataFrame) -> int:
    log = table.target.delta(spark).alias("row")
    merge = log.merge(rows.alias("new"), _is_the_same(rows)).whenNotMatchedInsertAll()
    done = merge.execute().head()  # None: Delta skipped it, because its transaction is known
    return done.num_inserted_rows if done is not None else 0


def _added(spark: SparkSession, table: Table, name: str) -> tuple[int, Timestamp]:
    """The numbers in the commit of that run, or in the newest one if this was the first try."""
    for entry in read_log(spark, table.target):
        run, _, at = (entry.metadata or "").partition(" as of ")
        if run == name:
            return _inserted(entry.metrics), timestamp.parse(at)
    raise NotComparable(
        f"The history of '{table.target}' tells no more what this run has added.",
        "Give another --run-id to read them again.",
    )


def _inserted(metrics: Mapping[str, str]) -> int:
    return int(metrics.get("numTargetRowsInserted", 0))
