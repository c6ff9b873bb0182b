"""Restore: write a collection as it was at a time back into a MongoDB collection."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from cdc import options as declared
from cdc.delta.documents import LOSSES, restored
from cdc.delta.layout import Table
from cdc.delta.point_in_time import as_of
from cdc.errors import BadOption, UnmappableValue
from cdc.model import timestamp
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp
from cdc.mongo.restore import Destination
from jobs import checkpoint
from jobs import config as configuration
from jobs.config import Config
from jobs.result import LEFT, json_option, tell, told
from jobs.session import session
from jobs.terminal import Terminal

# Of keys, for each reason.
_SHOWN = 20
_COUNTS = "reason string, documents long, inexact long, keys array<string>"
_ARROW = pa.schema(
    [
        ("reason", pa.string()),
        ("documents", pa.int64()),
        ("inexact", pa.int64()),
        ("keys", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class Restored:
    """What was written. `inexact` of the documents may not be as of that time; `losses` says in
    what all of them differ from the source's, None if in nothing.

    `left_out` are not in the target: how many, by `reasons`, and the first `keys` of each.
    """

    collection: str
    into: str
    at: str
    documents: int
    inexact: int
    losses: str | None
    resumed: bool
    left_out: int
    reasons: dict[str, int]
    keys: dict[str, list[str]]


def restore(
    spark: SparkSession,
    config: Config,
    collection: Namespace,
    at: Timestamp,
    to_uri: str,
    into: Namespace,
    force: bool = False,
) -> Restored:
    """Writes the collection as of a time into `into`, in parallel. One that was interrupted goes on
    if it is called again with the same arguments, and the target then holds the same documents.
    A document that the target does not take is left out, and so is an image that is damaged; called
    again, it tries these alone, with `force` all.

    Raises NotCovered, TargetNotEmpty, BadOption, and the errors of a source that cannot be reached.
    """
    table = config.table("changelog", collection)
    if table is None:
        raise BadOption("There is no changelog in [table] to restore from.", "Set its template.")
    changelog = table.target.settled(spark)
    found = as_of(
        spark,
        changelog,
        collection,
        at,
        checkpoint.complete_until(config.checkpoint, collection),
    )
    options = declared.parse(config.source)
    target = Destination(to_uri, into, options.server_timeout_ms, options.retry_seconds)
    identity = {
        "collection": str(collection),
        "changelog": str(changelog),
        "at": timestamp.text(at),
    }
    resumed = target.begin(identity, force)
    counts = _written(found, target)
    left_out = {reason: row for reason, row in counts.items() if reason is not None}
    target.finish(is_whole=not left_out)
    written = counts.get(None)
    return Restored(
        str(collection),
        str(into),
        timestamp.text(at),
        written.documents if written else 0,
        written.inexact if written else 0,
        _losses(table, options.document_json, found),
        resumed,
        sum(row.documents for row in left_out.values()),
        {reason: row.documents for reason, row in left_out.items()},
        {reason: row["keys"] for reason, row in left_out.items()},
    )


def _written(found: DataFrame, target: Destination) -> dict[str | None, Row]:
    """Writes; returns the counts of each reason to leave a document out, and of what was written,
    for None."""
    rows = found.select("key", "document", "document_key", "exact")
    # One job, and no sort in it: whatever looked at the rows twice would write them twice.
    keys = F.array_sort(F.flatten(F.collect_list("keys")))
    counts = (
        rows.mapInArrow(_writer(target), _COUNTS)
        .groupBy("reason")
        .agg(
            F.sum("documents").alias("documents"),
            F.sum("inexact").alias("inexact"),
            F.slice(keys, 1, _SHOWN).alias("keys"),
        )
    )
    return {row.reason: row for row in sorted(counts.collect(), key=lambda row: row.reason or "")}


def _writer(
    target: Destination,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        documents, inexact = Counter[str | None](), Counter[str | None]()
        keys = defaultdict[str | None, list[str]](list)
        for batch in batches:
            rows = batch.to_pylist()
            left_out: dict[int, str] = {}
            refused = target.write(_documents(rows, left_out))
            left_out.update(refused)
            for number, row in enumerate(rows):
                reason = left_out.get(number)
                documents[reason] += 1
                inexact[reason] += row["exact"] is False
                if reason is not None and len(keys[reason]) < _SHOWN:
                    keys[reason].append(row["key"])
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "reason": reason,
                    "documents": count,
                    "inexact": inexact[reason],
                    "keys": keys[reason],
                }
                for reason, count in documents.items()
            ],
            _ARROW,
        )

    return write


def _documents(rows: list[dict[str, Any]], left_out: dict[int, str]) -> Iterator[tuple[int, bytes]]:
    """The documents of rows that hold one, by the row's number; why of the others."""
    for number, row in enumerate(rows):
        try:
            yield number, restored(row["document"], row["document_key"])
        except UnmappableValue as error:
            left_out[number] = error.message


def _losses(table: Table, json_mode: str, found: DataFrame) -> str | None:
    kind = found.schema["document"].dataType.simpleString()
    return LOSSES.get(json_mode if kind == "string" else kind)


def show(console: Console, result: Restored) -> None:
    """One line, and one for each reason to leave documents out, with their first keys."""
    console.print(
        f"{result.collection} as of {result.at}: {result.documents:,} documents in {result.into}"
        + (f"; {result.inexact:,} of them may not be as of that time" if result.inexact else "")
        + (f"; {result.losses}" if result.losses else ""),
        soft_wrap=True,
    )
    for reason, count in result.reasons.items():
        keys = ", ".join(result.keys[reason])
        console.print(f"  {count:,} left out, {reason}: {keys}", soft_wrap=True)


@click.command()
@click.option("--config", "path", type=click.Path(), help="The TOML file that replicate ran with.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option("--as-of", "time", required=True, help="seconds:increment, or ISO-8601.")
@click.option(
    "--to-uri", required=True, help="Of the target; env:NAME and file:PATH as in [source]."
)
@click.option("--namespace", required=True, help="db.coll to write into.")
@click.option("--collection", help="db.coll to restore; that of --namespace if absent.")
@click.option("--force", is_flag=True, help="Delete first what the target holds.")
@json_option
@told
def main(
    path: str | None,
    overrides: tuple[str, ...],
    time: str,
    to_uri: str,
    namespace: str,
    collection: str | None,
    force: bool,
    json_path: str | None,
) -> int:
    """Write a collection as it was at a time back into MongoDB, from its changelog. Exit code 6:
    documents were left out.

    Example: mongodb-cdc restore --config conf/local.toml --as-of 2026-01-31T12:00:00Z
    --to-uri env:TARGET_URI --namespace shop.orders_restored --collection shop.orders
    """
    config = configuration.load(path, overrides)
    into, own = Namespace.parse(namespace), Namespace.parse(collection or namespace)
    at = timestamp.parse(time)
    spark = session("mongodb-cdc restore")
    result = restore(spark, config, own, at, to_uri, into, force)
    tell(asdict(result), json_path, lambda: show(Terminal(), result))
    return LEFT if result.left_out else 0


if __name__ == "__main__":
    main()
