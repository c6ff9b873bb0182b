"""Backfill: read a collection, or a part of it, again as of one time, while the job goes on.

Into the mirror goes what it lacks or holds otherwise, at the time up to which the job has written
it; into the changelog all that is read, or the changes of a window of time. What is newer wins, and
the same arguments twice make the same tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import bson
import click
from bson import json_util
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

import cdc
from cdc.delta import mirror
from cdc.delta.forms import CDF, cdf
from cdc.delta.layout import Table
from cdc.delta.repair import extend_changelog, repair_mirror, settle
from cdc.errors import BadOption, NotComparable
from cdc.model import timestamp, token
from cdc.model.offset import encode_key
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp
from jobs import checkpoint
from jobs import config as configuration
from jobs.config import Config
from jobs.failure import told
from jobs.session import session
from jobs.verify import compared, read, require_exact

LEFT = 6
_INTO = ("mirror", "changelog")


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
    spark: SparkSession, config: Config, namespace: Namespace, part: Part, repair: bool
) -> Backfilled:
    """Bring the mirror to what the source holds, as of the time up to which the job has written it.
    With `repair`, what only the mirror holds is taken out; that needs the whole collection. Raises
    NotComparable if there is no such time, BadOption, ConflictsUnresolved."""
    if repair:
        _require_whole(part)
    cdc.register(spark)

    def changes(after: Timestamp, upto: Timestamp) -> DataFrame:
        window = {"from": timestamp.text(timestamp.after(after))}
        window["to"] = timestamp.text(timestamp.after(upto))
        return read(spark, config, namespace, window)

    table = _table(config, "mirror", namespace)
    if table.target.exists(spark):
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
        repair_mirror(spark, table, namespace, rows, at, changes)
    finally:
        found.unpersist()
        source.unpersist()
    undecided = counts.get("undecided", 0)
    return Backfilled(
        collection=str(namespace),
        at=timestamp.text(at),
        missing=counts.get("missing", 0),
        differing=counts.get("differing", 0),
        extra=extra,
        undecided=undecided,
        left=undecided + (0 if repair else extra),
    )


def into_changelog(
    spark: SparkSession, config: Config, namespace: Namespace, options: Mapping[str, str]
) -> int:
    """Add what the source reads with these options: documents as of `snapshot.at`, or changes
    `from` one time `to` another. Returns how many rows the changelog did not have."""
    cdc.register(spark)
    table = _table(config, "changelog", namespace)
    if not table.target.exists(spark):
        raise NotComparable(f"{namespace} has no changelog yet.", "Run replicate first.")
    rows = read(spark, config, namespace, options)
    is_cdf = table.options.changelog_form == CDF
    return extend_changelog(spark, table, cdf(rows) if is_cdf else rows)


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
    state = mirror.state(spark, table.target, namespace)
    if state is None:
        raise NotComparable(
            f"{namespace} has no mirror at {table.target} yet.", "Run replicate first."
        )
    require_exact(namespace, state)
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


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file that replicate ran with.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--collection", required=True, help="db.coll")
@click.option("--into", type=click.Choice(_INTO), multiple=True, help="Both if left out.")
@click.option("--min", "least", help="Documents from this _id on, in Extended JSON.")
@click.option("--max", "below", help="Documents below this _id, in Extended JSON.")
@click.option("--filter", "condition", help="Documents that pass this; the syntax is a match's.")
@click.option("--at", help="The changelog's: the time t:i to read at; the mirror's if left out.")
@click.option("--repair", is_flag=True, help="Take out of the mirror what is not in the source.")
@click.option("--from", "start", help="Changes from this time on, into the changelog.")
@click.option("--to", "end", help="Changes up to, but without, this time.")
@click.option("--json", "json_path", type=click.Path(), help="Write the result to this file.")
@told
def main(
    path: str | None,
    overrides: tuple[str, ...],
    collection: str,
    into: tuple[str, ...],
    least: str | None,
    below: str | None,
    condition: str | None,
    at: str | None,
    repair: bool,
    start: str | None,
    end: str | None,
    json_path: str | None,
) -> int:
    """Read documents, or the changes of a window of time, again into tables that a job may write
    meanwhile. Exit code 6: differences are left.

    Example: mongodb-cdc backfill --config conf/local.toml --collection shop.orders --repair
    """
    config = configuration.load(path, overrides)
    namespace, part = Namespace.parse(collection), Part(least, below, condition)
    part.options(config)
    window = {name: value for name, value in (("from", start), ("to", end)) if value is not None}
    kinds = [kind for kind in into or _INTO if config.table(kind, namespace)]
    if window:
        _require_bare(part.is_whole and not repair and at is None and "mirror" not in into)
        kinds = []
    elif at is not None:
        _require_changelog_only(timestamp.parse(at), kinds)
    if repair:
        _require_whole(part)
    spark = session("mongodb-cdc backfill")
    done = Backfilled(collection, at or end or "")
    if window:
        done = replace(done, changelog_rows=into_changelog(spark, config, namespace, window))
    if "mirror" in kinds:
        done = into_mirror(spark, config, namespace, part, repair)
    if "changelog" in kinds:
        done = _documents_into_changelog(spark, config, namespace, part, done)
    Console().print_json(json.dumps(asdict(done)))
    if json_path:
        Path(json_path).write_text(json.dumps(asdict(done), indent=2) + "\n")
    return LEFT if done.left else 0


def _documents_into_changelog(
    spark: SparkSession, config: Config, namespace: Namespace, part: Part, done: Backfilled
) -> Backfilled:
    """As of the same time as the mirror, if that was asked for too."""
    written = checkpoint.complete_until(config.checkpoint, namespace)
    time = timestamp.parse(done.at) if done.at else written
    if time is None:
        raise BadOption("Nothing says as of when to read.", "Set --at.")
    told = timestamp.text(time)
    options = {**part.options(config), "snapshot.at": told}
    rows = into_changelog(spark, config, namespace, options)
    return replace(done, at=told, changelog_rows=rows)


def _require_whole(part: Part) -> None:
    if not part.is_whole:
        raise BadOption(
            "Which documents of a part are in the mirror only cannot be told.",
            "Repair the whole collection: leave out --filter, --min and --max.",
        )


def _require_bare(is_bare: bool) -> None:
    if not is_bare:
        raise BadOption(
            "A window of time goes into the changelog, whole.", "Leave out all but --from and --to."
        )


def _require_changelog_only(at: Timestamp, kinds: Sequence[str]) -> None:
    if "mirror" in kinds:
        raise BadOption(
            f"A mirror is brought to what it is to be at its own time, not {timestamp.text(at)}.",
            "Leave out --at, or choose --into changelog.",
        )


if __name__ == "__main__":
    main()
