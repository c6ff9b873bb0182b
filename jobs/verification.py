"""Compare a collection with its mirror, both as of the mirror's own time.

The source is read by the same code that copies it, at the time up to which the mirror's newest
commit claims to be exact. Writers and the replication may go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import cdc
from cdc.delta import mirror
from cdc.delta.columns import Columns, of_table
from cdc.delta.mirror import MirrorState
from cdc.delta.target import Target
from cdc.errors import BadOption, NotComparable
from cdc.model import timestamp
from cdc.model.selection import Namespace, Selection
from cdc.source import NAME
from cdc.source.inquiry import preflight
from jobs.config import Config

_SHOWN = 20


@dataclass(slots=True)
class Verdict:
    """One collection at time `at`. `missing`: only in MongoDB; `extra`: only in the mirror;
    `differing`: in both, unlike; `doubled`: keys with several rows in the mirror; `undecided`:
    documents that the source itself cannot tell as of that time (no before-images)."""

    namespace: str
    at: str
    documents: int = 0
    missing: int = 0
    extra: int = 0
    differing: int = 0
    doubled: int = 0
    undecided: int = 0
    keys: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.differing or self.doubled or self.undecided)


def verify(spark: SparkSession, config: Config, namespace: Namespace) -> Verdict:
    """Compares one collection. Raises NotComparable if there is no time at which to compare."""
    mirrored = config.table("mirror", namespace)
    if mirrored is None:
        raise BadOption("There is no mirror in [table] to verify.", "Set its template.")
    cdc.register(spark)
    state = exact_state(spark, mirrored.target, namespace)
    rows = mirrored.target.read(spark, state.version)
    table = mirror.documents(rows, mirrored, namespace)
    verdict = Verdict(str(namespace), timestamp.text(state.watermark))
    found = compared(_source(spark, config, namespace, state), table).persist()
    try:
        _count(found, verdict)
    finally:
        found.unpersist()
    verdict.doubled = table.count() - table.select("key").distinct().count()
    return verdict


def exact_state(spark: SparkSession, target: Target, namespace: Namespace) -> MirrorState:
    """What a mirror's newest commit says of a collection. Raises NotComparable if there is none, or
    if the mirror is at no time what the collection was."""
    state = mirror.state(spark, target, namespace)
    if state is None:
        raise NotComparable(f"{namespace} has no mirror at {target} yet.", "Run replicate first.")
    if state.exact_from is not None and state.exact_from > state.watermark:
        raise NotComparable(
            f"The mirror of {namespace} is not exact at {timestamp.text(state.watermark)}: it holds"
            f" documents looked up until {timestamp.text(state.exact_from)}.",
            "Verify again after the next change; enable pre- and post-images for exactness.",
        )
    if state.kept:
        raise NotComparable(
            f"The mirror of {namespace} keeps documents of a collection that was dropped or renamed"
            " (on.drop, on.rename).",
            "Compare collections whose mirrors follow them.",
        )
    if state.copying is not None and state.copying.get("below") is None:
        raise NotComparable(f"{namespace} waits to be copied again.", "Verify again later.")
    return state


def _source(
    spark: SparkSession, config: Config, namespace: Namespace, state: MirrorState
) -> DataFrame:
    options = {"snapshot.at": timestamp.text(state.watermark)}
    if state.copying is not None:
        options["snapshot.below"] = state.copying["below"]
    return read(spark, config, namespace, options)


def read(
    spark: SparkSession, config: Config, namespace: Namespace, options: Mapping[str, str]
) -> DataFrame:
    """A batch read of one collection, as the pipeline reads it but for these options."""
    own = {name: value for name, value in config.source.items() if name not in ("mode", "start")}
    own["collections"] = Selection.of([namespace]).text
    return spark.read.format(NAME).options(**{**own, **options}).load()


def compared(source: DataFrame, table: DataFrame) -> DataFrame:
    """The source's rows and a mirror's, by key: `what` is missing, extra, differing or undecided;
    null where both agree."""
    if columns := of_table(table.schema):
        source = _as_taken(source, "after", columns)
        documents = table.withColumn("document", columns.document())
        # Spark does not find a Python function whose argument it has put an expression with a
        # lambda into; it puts none through a shuffle, and the join needs this one anyway.
        table = _as_taken(documents.repartition("key"), "document", columns)
    return _joined(source, table)


def _as_taken(frame: DataFrame, document: str, columns: Columns) -> DataFrame:
    """The documents as typed columns tell them. Rows that are older than a column have in
    `_rescued` what it would take of them, so this is done with either side."""
    others = [name for name in ("key", "exact") if name in frame.columns]
    taken = columns.select(frame.select(*others, document), document)
    return taken.select(*others, columns.document().alias(document))


def _joined(source: DataFrame, table: DataFrame) -> DataFrame:
    """One row per key: what it is (null where both agree)."""
    left = source.select("key", F.col("exact").alias("exact"), *_content(source, "after", "ours"))
    right = table.select("key", F.lit(True).alias("there"), *_content(table, "document", "theirs"))
    names = [name for name in left.columns if name.startswith("ours")]
    same = F.lit(True)
    for name in names:
        same = same & F.col(name).eqNullSafe(F.col(name.replace("ours", "theirs")))
    what = (
        F.when(F.col("exact").isNull(), "extra")
        .when(~F.col("exact"), "undecided")
        .when(F.col("there").isNull(), "missing")
        .when(~same, "differing")
    )
    return left.join(right, "key", "full_outer").select("key", what.alias("what"))


def _content(frame: DataFrame, column: str, alias: str) -> list[Column]:
    """Comparable columns of a document. VARIANT has no equality: its text and its types do."""
    document = F.col(column)
    if frame.schema[column].dataType.simpleString() != "variant":
        return [document.alias(alias)]
    return [
        F.to_json(document).alias(alias),
        F.schema_of_variant(document).alias(f"{alias}_type"),
    ]


def _count(found: DataFrame, verdict: Verdict) -> None:
    counts = {row["what"]: row["count"] for row in found.groupBy("what").count().collect()}
    verdict.documents = sum(counts.values()) - counts.get("extra", 0)
    for what in ("missing", "extra", "differing", "undecided"):
        if counts.get(what):
            setattr(verdict, what, counts[what])
            first = found.filter(F.col("what") == what).orderBy("key").limit(_SHOWN).collect()
            verdict.keys[what] = [row["key"] for row in first]


def namespaces(config: Config, only: tuple[str, ...]) -> list[Namespace]:
    """The collections to verify: those given, or all that the configuration selects."""
    if only:
        return [config.captured(name) for name in only]
    return [collection.namespace for collection in preflight(config.source, is_new=False)]
