"""Write a collection as of a time, from its changelog, into a MongoDB collection."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

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
from jobs.config import Config

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
