"""Point in time: a collection as it was at any cluster time that its changelog covers."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import ID, id_text, is_of, with_after
from cdc.delta.landing import ROW_OPS, effects
from cdc.delta.log import Target, newest_commit
from cdc.errors import NotCovered
from cdc.model import VOIDING, Namespace, Span, Timestamp, resume_token, timestamp


def as_of(
    spark: SparkSession,
    changelog: Target,
    namespace: Namespace,
    at: Timestamp,
    complete_until: Timestamp | None = None,
) -> DataFrame:
    """Return the documents of a collection as of a time, with all changes up to and at `at`.

    The columns are `key`, `_id` as text, `document_key`, `document`, `exact`, `position`,
    `cluster_time` and `cluster_inc` of the row that each document comes from.

    The changelog may have either form, contain other collections too, and be written meanwhile.
    `complete_until` is a time up to which it is known to be complete, if that is later than its own
    commits state: a collection without changes gets no commit.

    `exact` is false if the document may have been another one at that time: its image was taken
    later than `at`, or a later change came without an image. On a sharded cluster a transaction
    across shards counts from the first time at which a shard reports it, a little later than its
    commit. Raises NotCovered.
    """
    version, span = _covering(spark, changelog, namespace, at, complete_until)
    rows = with_after(changelog.read(spark, version))
    last = resume_token.position_after(at)
    own = is_of(namespace)
    begin, is_sharded = _beginning(rows, namespace, own, span, last)
    rows = rows.where(own & F.col("op").isin(*ROW_OPS))
    # What was read as of the time of a resync has the same position, and belongs after it.
    is_behind = (F.col("position") > begin) | (
        (F.col("op") == "read") & (F.col("position") == begin)
    )
    rows = rows.where(is_behind)
    is_past = F.col("position") <= last
    return _last_images(_whole_transactions(rows, last) if is_sharded else rows.where(is_past), at)


def _covering(
    spark: SparkSession,
    changelog: Target,
    namespace: Namespace,
    at: Timestamp,
    complete_until: Timestamp | None,
) -> tuple[int, Span]:
    newest = newest_commit(spark, changelog) if changelog.exists(spark) else None
    if newest is None:
        raise NotCovered(
            f"There is no changelog at '{changelog}'.", "Check the path, or run replicate first."
        )
    commit = newest.commit
    end = max(commit.watermark, complete_until or commit.watermark)
    whole = commit.state(namespace).whole
    if (span := whole.at(at, end)) is None:
        raise NotCovered(
            f"{namespace} is not known as of {timestamp.text(at)}; its changelog covers:"
            f" {whole.text(end)}.",
            "Choose a time that is covered; a run in mode initial covers all from the end of the"
            " copy on.",
        )
    return newest.version, span


def _beginning(
    rows: DataFrame, namespace: Namespace, own: Column, span: Span, last: str
) -> tuple[str, bool]:
    """The position after which the collection was empty; whether shards report transactions."""
    to = F.from_json("description", "to struct<db string, coll string>")["to"]
    wide = F.col("coll").isNull() & F.coalesce(F.col("db") == F.lit(namespace.db), F.lit(True))
    concerns = own | wide | ((F.col("op") == "rename") & is_of(namespace, to))
    empties = concerns & F.col("op").isin(*VOIDING) & (F.col("position") <= last)
    found = rows.agg(
        F.max(F.when(empties, F.col("position"))).alias("emptied"),
        F.coalesce(F.max(own & _may_be_moved()), F.lit(False)).alias("sharded"),
    ).head()
    assert found is not None, "an aggregate without groups has one row"
    nothing = resume_token.high_water_mark(span.since) if span.from_nothing else ""
    return max(found.emptied or "", nothing), found.sharded


def _whole_transactions(rows: DataFrame, last: str) -> DataFrame:
    """The rows up to a position, and the later rows of transactions that begin before it.

    Each shard reports a transaction at a time of its own.
    """
    past = rows.where(F.col("position") <= last)
    identity = (F.col("txn.lsid").alias("_lsid"), F.col("txn.number").alias("_number"))
    begun = past.where(F.col("txn.shard").isNotNull()).select(*identity).distinct()
    later = rows.where((F.col("position") > last) & F.col("txn.shard").isNotNull())
    late = later.join(
        F.broadcast(begun),
        (F.col("txn.lsid") == F.col("_lsid")) & (F.col("txn.number") == F.col("_number")),
        "left_semi",
    )
    found = _name_places(past.unionByName(late))
    return effects.without_moves(found.withColumn("_namespace", F.lit("")))


def _may_be_moved() -> Column:
    """Whether a row may be the half of a move between shards, see `effects.without_moves`."""
    has_shard_key = F.size(F.json_object_keys("document_key")) > 1
    return F.col("txn").isNotNull() & (F.col("txn.shard").isNotNull() | has_shard_key)


def _name_places(rows: DataFrame) -> DataFrame:
    """The rows with the shard key for a shard, if a router read them: it does not know the shard.

    A document that moves gets another shard key.
    """
    place = F.coalesce(F.col("txn.shard"), F.col("document_key"))
    named = F.col("txn").withField("shard", place)
    return rows.withColumn("txn", F.when(_may_be_moved(), named).otherwise(F.col("txn")))


def _last_images(rows: DataFrame, at: Timestamp) -> DataFrame:
    """The last state of each key, without the keys that were deleted."""
    names = ("document_key", "position", "cluster_time", "cluster_inc")
    image = F.struct("op", F.col("after").alias("document"), _is_exact(at).alias("exact"), *names)
    says = (F.col("op") == "delete") | F.col("after").isNotNull()
    stated = F.max_by(F.when(says, image), F.when(says, F.col("position")))
    last = rows.groupBy("key").agg(stated.alias("stated"), F.max("position").alias("last"))
    exact = F.col("stated.exact") & (F.col("stated.position") == F.col("last"))
    return last.where(F.col("stated.op") != "delete").select(
        "key",
        F.expr(id_text("key")).alias(ID),
        "stated.document_key",
        "stated.document",
        exact.alias("exact"),
        "stated.position",
        "stated.cluster_time",
        "stated.cluster_inc",
    )


def _is_exact(at: Timestamp) -> Column:
    """Whether an image is right as of `at`: one that was taken later is right from then on."""
    taken = F.get_json_object("description", "$.exactFrom")
    second, increment = (F.split_part(taken, F.lit(":"), F.lit(n)).cast("long") for n in (1, 2))
    is_past = (second < at.time) | ((second == at.time) & (increment <= at.inc))
    return F.col("exact") | F.coalesce(is_past, F.lit(False))
