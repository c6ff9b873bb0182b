"""Backfills: documents or changes read again into a pipeline's tables.

Documents are read as of one time. Newer rows in a table win. A repeated backfill results in the
same tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import bson
from bson import json_util
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc.checkpoint import Folder, HadoopFiles, checkpoint, hold
from cdc.delta.columns import BATCH, in_form
from cdc.delta.followers import MirrorState, mirror, renew_view
from cdc.delta.log import newest_commit
from cdc.delta.maintenance import extend_changelog, extend_once, lacking, repair_mirror, settle
from cdc.delta.tables import Table
from cdc.errors import BadOption, NotComparable
from cdc.model import Namespace, Timestamp, encode_key, resume_token, timestamp
from cdc.pipeline.config import Config
from cdc.pipeline.verification import compare, exact_state, read
from cdc.source import register


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a collection: documents with `least` ≤ `_id` < `below` that match `filter`.

    The bounds are Extended JSON. None is no bound or no filter; all None is the whole collection.
    """

    least: str | None = None
    below: str | None = None
    filter: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.least is None and self.below is None and self.filter is None

    def options(self, config: Config) -> dict[str, str]:
        """The source's options that read this part. Raises BadOption if a bound is not JSON."""
        given = {"snapshot.from": self.least, "snapshot.below": self.below}
        options = {name: encode_key(_key(text)) for name, text in given.items() if text is not None}
        if self.filter is not None:
            whole = config.source.get("filter")
            both = f'{{"$and": [{whole}, {self.filter}]}}' if whole else self.filter
            options["filter"] = both
        return options


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The result of a backfill as of time `at`, in numbers of documents.

    The mirror lacked the `missing` documents, contained other values of the `differing` ones, and
    contained the `extra` ones, which the source lacks. The source cannot reconstruct the
    `undecided` ones as of that time. `left` counts those of all these that were not repaired.
    `changelog_rows` counts the rows that the changelog gained.
    """

    collection: str
    at: str
    missing: int = 0
    differing: int = 0
    extra: int = 0
    undecided: int = 0
    left: int = 0
    changelog_rows: int = 0


def backfill_mirror(
    spark: SparkSession,
    config: Config,
    namespace: Namespace,
    part: Part,
    repair: bool,
    dry: bool = False,
) -> BackfillResult:
    """Correct the mirror's documents as of the time up to which the job has written it.

    Args:
        part: The documents to read.
        repair: Also delete documents that only the mirror contains; needs the whole collection.
        dry: Write nothing; the result counts every difference as `left`.

    Raises NotComparable if there is no time at which to compare, BadOption if the pipeline has no
    mirror or the part is not valid, and ConflictsUnresolved if other writers prevent the commit.
    """
    if repair:
        require_whole(part)
    register(spark)

    def changes(after: Timestamp, upto: Timestamp) -> DataFrame:
        window = {"from": timestamp.text(timestamp.after(after))}
        window["to"] = timestamp.text(timestamp.after(upto))
        return read(spark, config, namespace, window)

    table = config.require_table("mirror", namespace)
    if table.target.exists(spark) and not dry:
        settle(spark, table, namespace, changes)
    at, version = _time_and_version(spark, config, namespace, table)
    options = {**part.options(config), "snapshot.at": timestamp.text(at)}
    source = read(spark, config, namespace, options).persist()
    mirrored = mirror.documents(table.target.read(spark, version), table, namespace)
    differences = compare(source, mirrored).persist()
    try:
        kinds = differences.groupBy("what").count().collect()
        counts = {row["what"]: row["count"] for row in kinds}
        extra = counts.get("extra", 0) if part.is_whole else 0
        done = ["missing", "differing"] + (["extra"] if repair else [])
        wrong = differences.where(F.col("what").isin(done))
        rows = _rows(source, wrong, namespace, at)
        if not dry:
            with hold(Folder(HadoopFiles(spark), config.checkpoint)):
                repair_mirror(spark, table, namespace, rows, at, changes)
            renew_view(spark, config.layout, namespace)
    finally:
        differences.unpersist()
        source.unpersist()
    undecided = counts.get("undecided", 0)
    todo = sum(counts.get(what, 0) for what in done) if dry else 0
    return BackfillResult(
        collection=str(namespace),
        at=timestamp.text(at),
        missing=counts.get("missing", 0),
        differing=counts.get("differing", 0),
        extra=extra,
        undecided=undecided,
        left=undecided + todo + (0 if repair else extra),
    )


def backfill_documents(
    spark: SparkSession,
    config: Config,
    namespace: Namespace,
    part: Part,
    done: BackfillResult,
    dry: bool = False,
    run: str | None = None,
) -> BackfillResult:
    """Add a part's documents to the changelog; return `done` with the number of new rows.

    Args:
        done: The result for the mirror. The documents are read as of `done.at` if it is not empty,
            else as of the time up to which the job has written.
        dry: Write nothing; count the rows that the changelog lacks.
        run: A name: repeated calls with it add the documents of the part only once.

    Raises BadOption if there is no time to read as of.
    """
    written = checkpoint.complete_until(config.checkpoint, namespace)
    time = timestamp.parse(done.at) if done.at else written
    if time is None:
        raise BadOption("The time to read as of is unknown.", "Set --at.")
    options = {**part.options(config), "snapshot.at": timestamp.text(time)}
    table, rows = _for_changelog(spark, config, namespace, options)
    if run is None or dry:
        count = (lacking if dry else extend_changelog)(spark, table, rows)
    else:
        # The same name may be given for several collections of a table, and for several parts.
        once = json.dumps([run, str(namespace), *astuple(part)])
        count, time = extend_once(spark, table, rows, time, once)
    return replace(done, at=done.at or timestamp.text(time), changelog_rows=count)


def backfill_window(
    spark: SparkSession,
    config: Config,
    namespace: Namespace,
    window: Mapping[str, str],
    dry: bool = False,
) -> tuple[int, Timestamp]:
    """Add the changes of a window to the changelog, but none that the job has still to write.

    The job appends without a look at what is there. So it would write a later change once more.

    Args:
        window: the options `from` and `to` of the source.
        dry: write nothing.

    Returns the number of rows that the changelog lacked, and the time up to which it was compared:
    that of the job's last batch. Raises NotComparable if there is no batch.
    """
    table, rows = _for_changelog(spark, config, namespace, window)
    newest = newest_commit(spark, table.target)
    # A collection without changes has no commit. What the checkpoint does not state, a commit does.
    known = [checkpoint.complete_until(config.checkpoint, namespace)]
    known += [newest.commit.watermark] if newest is not None else []
    written = max((time for time in known if time is not None), default=None)
    if written is None:
        raise NotComparable(f"The changelog of {namespace} has no batch.", "Run replicate first.")
    rows = rows.where(F.col("position") < F.lit(resume_token.position_after(written)))
    return (lacking if dry else extend_changelog)(spark, table, rows), written


def require_whole(part: Part) -> None:
    """Raise BadOption unless the part is the whole collection."""
    if not part.is_whole:
        raise BadOption(
            "A repair of a part cannot find documents that only the mirror contains.",
            "Repair the whole collection: remove --filter, --min and --max.",
        )


def _for_changelog(
    spark: SparkSession, config: Config, namespace: Namespace, options: Mapping[str, str]
) -> tuple[Table, DataFrame]:
    """The changelog, and the rows that the source reads, in the changelog's form."""
    register(spark)
    table = config.require_table("changelog", namespace)
    if not table.target.exists(spark):
        raise NotComparable(f"{namespace} has no changelog yet.", "Run replicate first.")
    rows = read(spark, config, namespace, options)
    rows = in_form(rows, table.options.changelog_form).withColumn(BATCH, F.lit(None).cast("long"))
    # The next batch adds the columns that an earlier release did not write.
    known = set(table.target.read(spark).columns)
    return table, rows.select([name for name in rows.columns if name in known])


def _rows(source: DataFrame, wrong: DataFrame, namespace: Namespace, at: Timestamp) -> DataFrame:
    """The source's row for each wrong document; a delete for each that the source lacks."""
    joined = source.join(wrong.select("key", "what"), "key", "right")
    is_extra = F.col("what") == "extra"
    delete = {
        "op": F.lit("delete"),
        "position": F.lit(resume_token.position_after(at)),
        "cluster_time": F.timestamp_seconds(F.lit(at.time)),
        "cluster_inc": F.lit(at.inc),
        "db": F.lit(namespace.db),
        "coll": F.lit(namespace.coll),
    }
    return joined.withColumns(
        {name: F.when(is_extra, value).otherwise(F.col(name)) for name, value in delete.items()}
    )


def _time_and_version(
    spark: SparkSession, config: Config, namespace: Namespace, table: Table
) -> tuple[Timestamp, int]:
    """The time as of which the mirror should equal the collection, and the mirror's version."""
    written = checkpoint.complete_until(config.checkpoint, namespace)
    state = exact_state(spark, table.target, namespace)
    if state.copying is not None:
        raise NotComparable(f"{namespace} is being copied.", "Wait until its copy is complete.")
    if written is None or _lags(spark, config, namespace, state):
        return state.watermark, state.version
    # A batch without changes of the collection writes no version; the mirror stays correct.
    return max(state.watermark, written), state.version


def _lags(spark: SparkSession, config: Config, namespace: Namespace, state: MirrorState) -> bool:
    """Whether the changelog contains a batch that the mirror may not contain."""
    changelog = config.table("changelog", namespace)
    if changelog is None or not changelog.target.exists(spark):
        return False
    newest = newest_commit(spark, changelog.target)
    return newest is not None and newest.commit.batch > state.batch


def _key(text: str) -> bytes:
    try:
        return bson.encode({"_id": json_util.loads(text)})
    except (ValueError, TypeError, bson.errors.BSONError):
        raise BadOption(
            f"'{text}' is not an _id in Extended JSON.",
            """Write it like 5, '"x"' or {"$oid": "…"}.""",
        ) from None
