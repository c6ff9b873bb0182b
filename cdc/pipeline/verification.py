"""Compare a collection with its mirror or live view, as of the time of the mirror or live view.

The time is the watermark of the newest commit, of the mirror or of the changelog. The source is
read as of that time by the same code that copies it. Writers and the replication may continue
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.delta.columns import Columns, of_table
from cdc.delta.followers import MirrorState, mirror, read_view
from cdc.delta.log import Target
from cdc.delta.reading import live
from cdc.errors import BadOption, NotComparable
from cdc.model import Namespace, Selection, Timestamp, timestamp
from cdc.pipeline.config import Config
from cdc.source import NAME, preflight, register

_SHOWN = 20


@dataclass(slots=True)
class Verdict:
    """The comparison of one collection as of time `at`, in numbers of documents.

    `missing`: only in MongoDB. `extra`: only in the mirror, or in the live view. `differing`: in
    both, but not equal. `doubled`: additional rows of a key in the mirror. `undecided`: the source
    cannot reconstruct the document as of that time, because it records no pre-images. `keys`: the
    first keys of each kind of difference.
    """

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


def verify(
    spark: SparkSession, config: Config, namespace: Namespace, is_live: bool = False
) -> Verdict:
    """Compare one collection with its mirror, or with its live view: the SQL view if it has one.

    Raises BadOption if the pipeline has no mirror (or no changelog, for the live view), and
    NotComparable if there is no time at which to compare.
    """
    mirrored = config.table("mirror", namespace)
    if mirrored is None:
        raise BadOption("[table] configures no mirror to verify.", "Set the template 'mirror'.")
    register(spark)
    if is_live:
        # Before the batches are read, so that the view begins no later than they end.
        read_up_to = read_view(spark, config.layout, namespace)
        view = live(spark, config.layout, namespace)
        state = view.state
        table = view.rows if read_up_to is None else read_up_to(state.batch)
        _require_exact(state, namespace)
    else:
        state = exact_state(spark, mirrored.target, namespace)
        rows = mirrored.target.read(spark, state.version)
        table = mirror.documents(rows, mirrored, namespace)
    verdict = Verdict(str(namespace), timestamp.text(state.watermark))
    differences = compare(_source(spark, config, namespace, state), table).persist()
    try:
        _count(differences, verdict)
    finally:
        differences.unpersist()
    verdict.doubled = table.count() - table.select("key").distinct().count()
    return verdict


def mirrored_until(spark: SparkSession, config: Config, namespace: Namespace) -> Timestamp | None:
    """The time up to which the collection's mirror contains all changes.

    None if it does not contain the whole copy yet, or if the pipeline has no mirror of it.
    """
    table = config.table("mirror", namespace)
    state = table and mirror.state(spark, table.target, namespace)
    return state.watermark if state and state.copying is None else None


def exact_state(spark: SparkSession, target: Target, namespace: Namespace) -> MirrorState:
    """The state of a collection in its mirror's newest commit.

    Raises NotComparable if there is no mirror yet, or if the mirror does not equal the collection
    as of any time: it contains documents looked up later, retains documents of a dropped or renamed
    collection, or waits for another copy.
    """
    state = mirror.state(spark, target, namespace)
    if state is None:
        raise NotComparable(
            f"The mirror of {namespace} at {target} contains no batch yet.",
            "Run replicate first. If it is running, verify again later.",
        )
    _require_exact(state, namespace)
    return state


def _require_exact(state: MirrorState, namespace: Namespace) -> None:
    if state.exact_from is not None and state.exact_from > state.watermark:
        raise NotComparable(
            f"The mirror of {namespace} is not exact at {timestamp.text(state.watermark)}: it"
            f" contains documents looked up until {timestamp.text(state.exact_from)}.",
            "Verify again after the next change; enable pre- and post-images for exactness.",
        )
    if state.kept:
        raise NotComparable(
            f"The mirror of {namespace} retains documents of a collection that was dropped or"
            " renamed (on.drop, on.rename).",
            "Verify only collections whose mirrors follow drops and renames.",
        )
    if state.copying is not None and state.copying.get("below") is None:
        raise NotComparable(f"{namespace} waits to be copied again.", "Verify again later.")


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
    """Read one collection in a batch, with the pipeline's options, overridden by `options`.

    The result is lazy: each action reads MongoDB.
    """
    given = {name: value for name, value in config.source.items() if name not in ("mode", "start")}
    given["collections"] = Selection.of([namespace]).text
    return spark.read.format(NAME).options(**{**given, **options}).load()


def compare(source: DataFrame, table: DataFrame) -> DataFrame:
    """Compare the source's rows with a mirror's documents by key.

    Returns one row per key with the columns `key` and `what`: `missing`, `extra`, `differing`,
    `undecided`, or null where both are equal.
    """
    if columns := of_table(table.schema):
        source = _through_columns(source, "after", columns)
        documents = table.withColumn("document", columns.document())
        # Spark inlines an expression with a lambda into the argument of a Python function, and
        # then fails to extract the function. It inlines nothing through a shuffle, and the join
        # needs this shuffle anyway.
        table = _through_columns(documents.repartition("key"), "document", columns)
    return _join(source, table)


def _through_columns(frame: DataFrame, document: str, columns: Columns) -> DataFrame:
    """The documents after a conversion into typed columns and back.

    Rows that are older than a column contain its value in `_rescued`. So both sides need the
    conversion.
    """
    others = [name for name in ("key", "exact") if name in frame.columns]
    typed = columns.select(frame.select(*others, document), document)
    return typed.select(*others, columns.document().alias(document))


def _join(source: DataFrame, table: DataFrame) -> DataFrame:
    """One row per key with the kind of difference, null where both are equal."""
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
    """Comparable columns of a document. VARIANT has no equality, but its text and types have."""
    document = F.col(column)
    if frame.schema[column].dataType.simpleString() != "variant":
        return [document.alias(alias)]
    return [
        F.to_json(document).alias(alias),
        F.schema_of_variant(document).alias(f"{alias}_type"),
    ]


def _count(differences: DataFrame, verdict: Verdict) -> None:
    counts = {row["what"]: row["count"] for row in differences.groupBy("what").count().collect()}
    verdict.documents = sum(counts.values()) - counts.get("extra", 0)
    for what in ("missing", "extra", "differing", "undecided"):
        if counts.get(what):
            setattr(verdict, what, counts[what])
            rows = differences.filter(F.col("what") == what).orderBy("key").limit(_SHOWN).collect()
            verdict.keys[what] = [row["key"] for row in rows]


def select_namespaces(config: Config, only: tuple[str, ...]) -> list[Namespace]:
    """The collections to verify: those in `only`, or all that the configuration selects.

    Raises BadOption if the pipeline does not capture one of `only`.
    """
    if only:
        return [config.parse_captured(name) for name in only]
    return [collection.namespace for collection in preflight(config.options, is_new=False)]
