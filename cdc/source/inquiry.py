"""Queries of programs to a source, by its options and without Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdc.model import Namespace, Offset
from cdc.mongo.collections import Collection, estimate_documents
from cdc.mongo.inspect import (
    Examination,
    FinishedBatches,
    Status,
    check,
    examine,
    read_status,
    shards_of,
)
from cdc.mongo.topology import Source
from cdc.options import SourceOptions
from cdc.source.translation import make_wanted
from cdc.tasks import discover_source, explain_change_streams, query_source


@dataclass(frozen=True, slots=True)
class CapturedCollection:
    """A selected collection and its approximate number of documents."""

    namespace: Namespace
    documents: int


def preflight(options: SourceOptions, is_new: bool = True) -> list[CapturedCollection]:
    """Check a source like the start of a run; return the collections that the run captures.

    Args:
        options: The options of the source.
        is_new: False if the run has a checkpoint. A collection may then be gone or not exist yet.

    Raises CdcError.
    """

    def list_captured(source: Source) -> list[CapturedCollection]:
        listed = check(source, make_wanted(source, options, is_new)).collections
        return [
            CapturedCollection(each.namespace, _estimate_documents(source, each)) for each in listed
        ]

    return query_source(options, list_captured)


def _estimate_documents(source: Source, collection: Collection) -> int:
    clients = (source.clients[shard] for shard in shards_of(source, collection))
    return sum(estimate_documents(client, collection.namespace) for client in clients)


def plan(options: SourceOptions) -> Examination:
    """Examine what a new run with these options would find, and whether it could succeed.

    Reads only metadata and statistics. Raises BadOption, SourceUnreachable, UnsuitableSource.
    """

    def examine_source(source: Source) -> Examination:
        found = examine(source, make_wanted(source, options), options.split_size_mb * 2**20)
        return replace(found, why_streams=_explain_change_streams(options, source, found))

    return query_source(options, examine_source)


def _explain_change_streams(
    options: SourceOptions, source: Source, found: Examination
) -> str | None:
    """Return why changes are read by change streams; None if they are read from the oplog."""
    reason = explain_change_streams(options, source)
    unrecorded = [str(work.namespace) for work in found.work if not work.images]
    if reason is None and unrecorded:
        return f"no images are recorded for {', '.join(unrecorded)}"
    return reason


def query_status(
    options: SourceOptions, at: Offset | None, passed: FinishedBatches | None
) -> Status:
    """Read the status of a run with these options.

    Args:
        options: The options of the source.
        at: The offset of its tables; None before the first batch.
        passed: Its last batches; None if unknown.

    Raises CdcError.
    """
    return read_status(discover_source(options), options.selection, options.capture, at, passed)
