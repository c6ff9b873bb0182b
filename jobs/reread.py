"""What a backfill does: a collection, or a part of it, is read again as of one time.

What is newer in a table wins, and the same twice makes the same tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import bson
from bson import json_util
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cdc
from cdc.delta import mirror
from cdc.delta.forms import CDF, cdf
from cdc.delta.layout import Table
from cdc.delta.repair import extend_changelog, extend_once, lacking, repair_mirror, settle
from cdc.errors import BadOption, NotComparable
from cdc.model import timestamp, token
from cdc.model.offset import encode_key
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp
from jobs import checkpoint
from jobs.config import Config
from jobs.verification import compared, exact_state, read


@dataclass(frozen=True, slots=True)
class Part:
    """Which documents: those whose `_id` is from `least` on and below `below` (Extended JSON), and
    that pass `filter`. All None: the whole collection."""

    least: str | None = None
    below: str | None = None
    filter: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.least is None and self.below is None and self.filter is None

    def options(self, config: Config) -> dict[str, str]:
        """The source's options for it. Raises BadOption."""
        given = {"snapshot.from": self.least, "snapshot.below": self.below}
        found = {name: encode_key(_key(text)) for name, text in given.items() if text is not None}
        if self.filter is not None:
            whole = config.source.get("filter")
            both = f'{{"$and": [{whole}, {self.filter}]}}' if whole else self.filter
            found["filter"] = both
        return found


@dataclass(frozen=True, slots=True)
class Backfilled:
    """As of `at`: documents that the mirror lacked, held otherwise, and held though they are gone;
    `undecided` ones of which the source cannot tell; how many of all these are `left` as they were;
    and rows that the changelog got."""

    collection: str
    at: str
    missing: int = 0
    differing: int = 0
    extra: int = 0
    undecided: int = 0
    left: int = 0
    changelog_rows: int = 0


def into_mirror(
    spark: SparkSession,
    config: Config,
    namespace: Namespace,
    part: Part,
    repair: bool,
    dry: bool = False,
) -> Backfilled:
    """Bring the mirror to what the source holds, as of the time up to which the job has written it.
    With `repair`, what only the mirror holds is taken out; that needs the whole collection. `dry`:
    nothing is written, and all is left. Raises NotComparable if there is no such time, BadOption,
    ConflictsUnresolved."""
    if repair:
        require_whole(part)
    cdc.register(spark)

    def changes(after: Timestamp, upto: Timestamp) -> DataFrame:
        window = {"from": timestamp.text(timestamp.after(after))}
        window["to"] = timestamp.text(timestamp.after(upto))
        return read(spark, config, namespace, window)

    table = _table(config, "mirror", namespace)
    if table.target.exists(spark) and not dry:
        settle(spark, table, namespace, changes)
    at, version = _standing(spark, config, namespace, table)
    options = {**part.options(config), "snapshot.at": timestamp.text(at)}
    source = read(spark, config, namespace, options).persist()
    held = mirror.documents(table.target.read(spark, version), table, namespace)
    found = compared(source, held).persist()
    try:
        counts = {row["what"]: row["count"] for row in found.groupBy("what").count().collect()}
        extra = counts.get("extra", 0) if part.is_whole else 0
        done = ["missing", "differing"] + (["extra"] if repair else [])
        rows = _rows(source, found.where(F.col("what").isin(done)), namespace, at)
        if not dry:
            repair_mirror(spark, table, namespace, rows, at, changes)
    finally:
        found.unpersist()
        source.unpersist()
    undecided = counts.get("undecided", 0)
    todo = sum(counts.get(what, 0) for what in done) if dry else 0
    return Backfilled(
        collection=str(namespace),
        at=timestamp.text(at),
        missing=counts.get("missing", 0),
        differing=counts.get("differing", 0),
        extra=extra,
        undecided=undecided,
        left=undecided + todo + (0 if repair else extra),
    )


def documents_into_changelog(
    spark: SparkSession,
    config: Config,
    namespace: Namespace,
    part: Part,
    done: Backfilled,
    dry: bool = False,
    run: str | None = None,
) -> Backfilled:
    """Add the documents as of the time at which the mirror was brought to them (`done.at`), or else
    as of that up to which the job has written; once for each `run`, if it has a name. Raises
    BadOption if there is no such time."""
    written = checkpoint.complete_until(config.checkpoint, namespace)
    time = timestamp.parse(done.at) if done.at else written
    if time is None:
        raise BadOption("Nothing says as of when to read.", "Set --at.")
    options = {**part.options(config), "snapshot.at": timestamp.text(time)}
    if run is None or dry:
        count = into_changelog(spark, config, namespace, options, dry)
    else:
        table, rows = _for_changelog(spark, config, namespace, options)
        count, time = extend_once(spark, table, rows, time, run)
    return replace(done, at=done.at or timestamp.text(time), changelog_rows=count)


def into_changelog(
    spark: SparkSession,
    config: Config,
    namespace: Namespace,
    options: Mapping[str, str],
    dry: bool = False,
) -> int:
    """Add what the source reads with these options: documents as of `snapshot.at`, or changes
    `from` one time `to` another. Returns how many rows the changelog did not have; `dry`: does not
    have, for nothing is written."""
    table, rows = _for_changelog(spark, config, namespace, options)
    return (lacking if dry else extend_changelog)(spark, table, rows)


def require_whole(part: Part) -> None:
    """Raises BadOption unless it is the whole collection."""
    if not part.is_whole:
        raise BadOption(
            "Which documents of a part are in the mirror only cannot be told.",
            "Repair the whole collection: leave out --filter, --min and --max.",
        )


def _for_changelog(
    spark: SparkSession, config: Config, namespace: Namespace, options: Mapping[str, str]
) -> tuple[Table, DataFrame]:
    """The changelog, and what the source reads, in its form."""
    cdc.register(spark)
    table = _table(config, "changelog", namespace)
    if not table.target.exists(spark):
        raise NotComparable(f"{namespace} has no changelog yet.", "Run replicate first.")
    rows = read(spark, config, namespace, options)
    return table, cdf(rows) if table.options.changelog_form == CDF else rows


def _rows(source: DataFrame, compared: DataFrame, namespace: Namespace, at: Timestamp) -> DataFrame:
    """The source's rows of what is not as it is to be, and a delete for each that is not there."""
    found = source.join(compared.select("key", "what"), "key", "right")
    gone = F.col("what") == "extra"
    told = {
        "op": F.lit("delete"),
        "position": F.lit(token.behind(at)),
        "cluster_time": F.timestamp_seconds(F.lit(at.time)),
        "cluster_inc": F.lit(at.inc),
        "db": F.lit(namespace.db),
        "coll": F.lit(namespace.coll),
    }
    return found.withColumns(
        {name: F.when(gone, value).otherwise(F.col(name)) for name, value in told.items()}
    )


def _standing(
    spark: SparkSession, config: Config, namespace: Namespace, table: Table
) -> tuple[Timestamp, int]:
    """A time as of which the mirror is to be the collection, and the version that is."""
    written = checkpoint.complete_until(config.checkpoint, namespace)
    state = exact_state(spark, table.target, namespace)
    if state.copying is not None:
        raise NotComparable(f"{namespace} is being copied.", "Wait until its copy is complete.")
    # A batch without changes of the collection leaves the mirror as it is, and right.
    return max(state.watermark, written or state.watermark), state.version


def _table(config: Config, kind: str, namespace: Namespace) -> Table:
    table = config.table(kind, namespace)
    if table is None:
        raise BadOption(f"{namespace} has no {kind} in [table].", "Set its template.")
    return table


def _key(text: str) -> bytes:
    try:
        return bson.encode({"_id": json_util.loads(text)})
    except (ValueError, TypeError, bson.errors.BSONError):
        raise BadOption(
            f"'{text}' is no _id in Extended JSON.", """Write it like 5, '"x"' or {"$oid": "…"}."""
        ) from None
