"""Restore: write a collection as it was at a time back into a MongoDB collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import click
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from cdc import options as declared
from cdc.delta.documents import LOSSES, restored
from cdc.delta.layout import Table
from cdc.delta.point_in_time import as_of
from cdc.errors import BadOption
from cdc.model import timestamp
from cdc.model.selection import Namespace
from cdc.model.timestamp import Timestamp
from cdc.mongo.restore import Destination
from jobs import checkpoint
from jobs import config as configuration
from jobs.config import Config
from jobs.result import json_option, tell, told
from jobs.session import session
from jobs.terminal import Terminal


@dataclass(frozen=True, slots=True)
class Restored:
    """What was written. `inexact` of the documents may not be as of that time; `losses` says in
    what all of them differ from the source's, None if in nothing."""

    collection: str
    into: str
    at: str
    documents: int
    inexact: int
    losses: str | None
    resumed: bool


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

    Raises NotCovered, TargetNotEmpty, BadOption, and the errors of a source that cannot be reached.
    """
    table = config.table("changelog", collection)
    if table is None:
        raise BadOption("There is no changelog in [table] to restore from.", "Set its template.")
    found = as_of(
        spark,
        table.target,
        collection,
        at,
        checkpoint.complete_until(config.checkpoint, collection),
    )
    options = declared.parse(config.source)
    target = Destination(to_uri, into, options["server.timeout.ms"], options["retry.seconds"])
    identity = {
        "collection": str(collection),
        "changelog": str(table.target),
        "at": timestamp.text(at),
    }
    resumed = target.begin(identity, force)
    documents, inexact = _written(found, target)
    target.finish()
    losses = _losses(table, options["document.json"], found)
    return Restored(
        str(collection), str(into), timestamp.text(at), documents, inexact, losses, resumed
    )


def _written(found: DataFrame, target: Destination) -> tuple[int, int]:
    rows = found.select("document", "document_key", "exact")
    counts = rows.mapInArrow(_writer(target), "documents long, inexact long")
    total = counts.agg(F.sum("documents"), F.sum("inexact")).head()
    assert total is not None, "an aggregate without groups has one row"
    return total[0] or 0, total[1] or 0


def _writer(
    target: Destination,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            images, keys = (batch.column(name).to_pylist() for name in ("document", "document_key"))
            written = target.write(map(restored, images, keys))
            inexact = batch.column("exact").to_pylist().count(False)
            yield pa.RecordBatch.from_pydict({"documents": [written], "inexact": [inexact]})

    return write


def _losses(table: Table, json_mode: str, found: DataFrame) -> str | None:
    kind = found.schema["document"].dataType.simpleString()
    return LOSSES.get(json_mode if kind == "string" else kind)


def show(console: Console, result: Restored) -> None:
    """One line."""
    console.print(
        f"{result.collection} as of {result.at}: {result.documents:,} documents in {result.into}"
        + (f"; {result.inexact:,} of them may not be as of that time" if result.inexact else "")
        + (f"; {result.losses}" if result.losses else ""),
        soft_wrap=True,
    )


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
    """Write a collection as it was at a time back into MongoDB, from its changelog.

    Example: mongodb-cdc restore --config conf/local.toml --as-of 2026-01-31T12:00:00Z
    --to-uri env:TARGET_URI --namespace shop.orders_restored --collection shop.orders
    """
    config = configuration.load(path, overrides)
    into, own = Namespace.parse(namespace), Namespace.parse(collection or namespace)
    at = timestamp.parse(time)
    spark = session("mongodb-cdc restore")
    result = restore(spark, config, own, at, to_uri, into, force)
    tell(asdict(result), json_path, lambda: show(Terminal(), result))
    return 0


if __name__ == "__main__":
    main()
