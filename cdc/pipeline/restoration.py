"""Restore a collection as of a time, from its changelog, into MongoDB."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from cdc.checkpoint import checkpoint
from cdc.delta.reading import LOSSES, as_of, restored
from cdc.errors import BadOption, UnmappableValue
from cdc.model import Namespace, Timestamp, timestamp
from cdc.mongo.destination import Destination
from cdc.pipeline.config import Config

# Keys that are reported for each reason.
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
class RestoreResult:
    """The result of a restore.

    `inexact` counts the written documents that may not be as of the time. `losses` describes how
    the format of the changelog changed all documents; None if they equal those of the source.
    `left_out` counts the documents that were not written, `reasons` counts them for each reason,
    and `keys` lists the first 20 of each.
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
) -> RestoreResult:
    """Write a collection as of a time into a MongoDB collection, in parallel.

    To continue an interrupted restore, call it again with the same arguments; the target then
    contains the same documents. A document that the target refuses is left out, and so is a damaged
    image. A second call tries only these.

    Args:
        collection: The captured collection.
        to_uri: The connection string of the target; `env:NAME` and `file:PATH` as in `uri`.
        into: The collection to write into.
        force: Delete other content of `into` first; start again a restore that has finished.

    Raises BadOption if there is no changelog, NotCovered if it does not cover the time,
    TargetNotEmpty, and the errors of a server that cannot be reached.
    """
    table = config.table("changelog", collection)
    if table is None:
        raise BadOption(
            "There is no changelog in [table] to restore from.", "Set 'changelog' in [table]."
        )
    changelog = table.target.settled(spark)
    found = as_of(
        spark,
        changelog,
        collection,
        at,
        checkpoint.complete_until(config.checkpoint, collection),
    )
    options = config.options
    target = Destination(to_uri, into, options.server_timeout_ms, options.retry_seconds)
    identity = {
        "collection": str(collection),
        "changelog": str(changelog),
        "at": timestamp.text(at),
    }
    resumed = target.begin(identity, force)
    counts = _write_documents(found, target)
    left_out = {reason: row for reason, row in counts.items() if reason is not None}
    target.finish(is_whole=not left_out)
    written = counts.get(None)
    return RestoreResult(
        str(collection),
        str(into),
        timestamp.text(at),
        written.documents if written else 0,
        written.inexact if written else 0,
        _describe_losses(options.document_json, found),
        resumed,
        sum(row.documents for row in left_out.values()),
        {reason: row.documents for reason, row in left_out.items()},
        {reason: row["keys"] for reason, row in left_out.items()},
    )


def _write_documents(found: DataFrame, target: Destination) -> dict[str | None, Row]:
    """Write the documents; return a row of counts for each reason to leave documents out.

    The row of the reason None counts the written documents.
    """
    rows = found.select("key", "document", "document_key", "exact")
    # One job without a global sort: a sort evaluates the rows twice, and would write them twice.
    keys = F.array_sort(F.flatten(F.collect_list("keys")))
    counts = (
        rows.mapInArrow(_make_writer(target), _COUNTS)
        .groupBy("reason")
        .agg(
            F.sum("documents").alias("documents"),
            F.sum("inexact").alias("inexact"),
            F.slice(keys, 1, _SHOWN).alias("keys"),
        )
    )
    return {row.reason: row for row in sorted(counts.collect(), key=lambda row: row.reason or "")}


def _make_writer(
    target: Destination,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        documents, inexact = Counter[str | None](), Counter[str | None]()
        keys = defaultdict[str | None, list[str]](list)
        for batch in batches:
            rows = batch.to_pylist()
            left_out: dict[int, str] = {}
            refused = target.write(_decode_documents(rows, left_out))
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


def _decode_documents(
    rows: list[dict[str, Any]], left_out: dict[int, str]
) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the document of each row; put the reason of a failure in `left_out`."""
    for number, row in enumerate(rows):
        try:
            yield number, restored(row["document"], row["document_key"])
        except UnmappableValue as error:
            left_out[number] = error.message


def _describe_losses(json_mode: str, found: DataFrame) -> str | None:
    kind = found.schema["document"].dataType.simpleString()
    return LOSSES.get(json_mode if kind == "string" else kind)
