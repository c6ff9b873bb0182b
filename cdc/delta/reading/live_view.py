"""Live view: a mirror together with the batches of its changelog that it does not contain yet."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc.delta.columns import with_after
from cdc.delta.followers import MIRROR, MirrorState, PendingBatches, feeds, join, mirror
from cdc.delta.landing import CHANGELOG, Batch, effects
from cdc.delta.tables import PIPELINE, Layout, Table, Tables
from cdc.errors import BadOption, NotCovered
from cdc.model import Namespace

_ALL_BATCHES = 2**63 - 1
# So many changed keys are sent to all tasks. More are joined by a shuffle of the mirror.
_MOST_BROADCAST = 500_000


@dataclass(frozen=True, slots=True)
class LiveView:
    """A collection as its changelog reports it, however far its mirror lags.

    Attributes:
        rows: the columns of the mirror, one row for each document.
        state: what the rows are exact for, as of the newest batch in the changelog. `version` is
            that of the mirror.
    """

    rows: DataFrame
    state: MirrorState


def live(spark: SparkSession, layout: Layout, namespace: Namespace) -> LiveView:
    """Return a collection as of the newest batch in its changelog.

    The rows are those that the mirror will contain when it has applied the changelog: the same
    rules decide. Mirror and changelog may be written meanwhile; the result is as of this call.
    The cost is a scan of the mirror and of the batches that it lacks.

    Raises BadOption if `layout` has no mirror or no changelog for the collection, NotCovered if
    the mirror contains no batch yet, and ChangelogTooShort if the log of the changelog does not
    reach back to the batches that the mirror lacks.
    """
    mirrors, changelogs = _open(spark, layout, namespace)
    # The mirror's version comes before the batches: later ones that it applies are not in `rows`.
    table = mirrors.learn(spark, namespace)
    commit = mirrors.last(table) if table is not None else None
    version = mirrors.version(table) if table is not None else None
    if table is None or commit is None or version is None or commit.is_empty:
        raise NotCovered(
            f"The mirror of {namespace} contains no batch yet.",
            "Run replicate first. If it is running, try again later.",
        )
    changelog = changelogs.learn(spark, namespace)
    known = {changelog.target: changelogs.last(changelog)} if changelog is not None else {}
    rows = table.target.read(spark, version)
    if table.is_shared:
        rows = rows.where(F.col("_namespace") == F.lit(str(namespace)))
    pending = PendingBatches(last=_ALL_BATCHES)
    lacking = {table.target: (commit.batch, feeds(table, mirrors, changelogs))}
    pending.find(spark, lacking, known)
    if tail := pending.up_to(_ALL_BATCHES):
        batch = join(tail, table, mirrors, _columns(spark, changelogs, namespace))
        rows = _apply(rows, batch, table, mirrors, namespace)
        commit = effects.commit(table, batch, mirrors)
    return LiveView(mirror.present(rows, table), mirror.state_of(version, commit, namespace))


def _open(spark: SparkSession, layout: Layout, namespace: Namespace) -> tuple[Tables, Tables]:
    """The tables of the pipeline that the mirror names."""
    for kind in ("mirror", "changelog"):
        if layout.table(kind, namespace) is None:
            raise BadOption(
                f"[table] configures no {kind} for {namespace}; a live view needs both tables.",
                f"Set the template '{kind}'.",
            )
    named = layout.table("mirror", namespace)
    assert named is not None, "it was just found"
    target = named.target.settled(spark)
    properties = target.properties(spark) if target.exists(spark) else {}
    pipeline = properties.get(PIPELINE, "")
    return Tables(MIRROR, layout, pipeline), Tables(CHANGELOG, layout, pipeline)


def _columns(spark: SparkSession, changelogs: Tables, namespace: Namespace) -> StructType:
    changelog = changelogs.of(namespace)
    assert changelog is not None, "the layout has one"
    return with_after(changelog.target.read(spark)).schema


def _apply(
    rows: DataFrame, batch: Batch, table: Table, tables: Tables, namespace: Namespace
) -> DataFrame:
    """The rows of a mirror after a batch, by the rules of its MERGE."""
    summary = batch.summary
    emptied = [e for e in effects.emptied(table, summary, tables) if e.concerns(namespace)]
    for each in emptied:
        rows = rows.where(~effects.is_void(each, F.lit(str(namespace)), F.col("_position")))
    count = summary.rows(namespace)
    if not count:
        return rows

    def few(frame: DataFrame) -> DataFrame:
        return F.broadcast(frame) if count <= _MOST_BROADCAST else frame

    reported = effects.rows(batch.read(rows.sparkSession), [namespace], emptied, summary)
    changes = tables.image(table).select(mirror.last_changes(reported, ["key"]))
    # A backfill or a repair may have given the mirror a later state of a key.
    bounds = summary.keys[namespace]
    held = rows.where(F.col("key").between(F.lit(bounds.least), F.lit(bounds.greatest)))
    held = held.select("key", F.col("_position").alias("_held"))
    newer = held.join(few(changes.select("key", "_position")), "key").where("_held >= _position")
    changes = changes.join(few(newer.select("key")), "key", "left_anti")
    added = changes.where(F.col("_op") != "delete")
    if table.is_shared:
        added = added.withColumn("_namespace", F.lit(str(namespace)))
    if "_deleted" in rows.columns:
        added = added.withColumn("_deleted", F.lit(False))
    # What somebody has added to the mirror keeps its value, as it does in the MERGE.
    kept = rows.drop(*(name for name in added.columns if name != "key"))
    if kept.columns != ["key"]:
        added = added.join(kept, "key", "left")
    unchanged = rows.join(few(changes.select("key")), "key", "left_anti")
    return unchanged.select(*rows.columns).unionByName(added.select(*rows.columns))
