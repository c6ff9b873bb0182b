"""Queries of programs to a source, by its options and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from cdc.errors import OplogUnsuitable, UnsuitableSource
from cdc.model import MAX_KEY, MIN_KEY, KeyRange, Namespace, Offset, Selection, SnapshotSplit
from cdc.mongo.collections import Collection, Listing, estimate_documents
from cdc.mongo.inspect import (
    STREAMING,
    WAITING,
    CopyProgress,
    Examination,
    FinishedBatches,
    Status,
    check,
    examine,
    read_status,
    require_own,
    shards_of,
)
from cdc.mongo.plan import confirm_edge, missing_collections, range_splits, require_copy
from cdc.mongo.topology import Source
from cdc.options import SourceOptions
from cdc.source.columns import arrow_schema, row_schema
from cdc.source.translation import make_wanted
from cdc.tasks import discover_source, explain_change_streams, query_source, record_batches


def preflight(
    options: SourceOptions,
    is_new: bool = True,
    at: Offset | None = None,
    has_mirrors: bool = False,
) -> list[CopyProgress]:
    """Check a source like the start of a run; return the collections that the run captures.

    Their progress is that of a new run.

    Args:
        options: The options of the source.
        is_new: False if the run has a checkpoint. A collection may then be gone or not exist yet.
        at: The offset in the checkpoint, if it is known.
        has_mirrors: The run has mirrors or histories.

    Raises CdcError; ForeignOffset if the offset belongs to another source; OplogUnsuitable if the
    run requires the oplog and would not find its changes.
    """

    def list_captured(source: Source) -> list[CopyProgress]:
        if at is not None:
            require_own(at, source)
            require_copy(at, options.capture, options.copies)
        wanted = make_wanted(source, options, is_new)
        found = check(source, wanted)
        if has_mirrors:
            source.require_mirrorable(options.selection)
        if at is not None:
            _require_existing(source, options, at, found)
        listed = found.collections
        if options.read_by == "oplog":
            without = [each.namespace for each in listed if not each.has_images]
            _require_oplog(_explain_change_streams(options, source, without))
        phase = WAITING if wanted.start.copies else STREAMING
        return [
            CopyProgress(each.namespace, _estimate_documents(source, each), phase, 0.0)
            for each in listed
        ]

    return query_source(options, list_captured)


def _require_existing(source: Source, options: SourceOptions, at: Offset, listed: Listing) -> None:
    """Raise the error for a new part of the selection that matches no collection, if any."""
    if options.missing_collections == "fail":
        known = Selection.parse(at.selection)
        for problem in missing_collections.missing_errors(source, options.selection, listed, known):
            raise problem


def _estimate_documents(source: Source, collection: Collection) -> int:
    clients = (source.clients[shard] for shard in shards_of(source, collection))
    return sum(estimate_documents(client, collection.namespace) for client in clients)


def plan(options: SourceOptions, has_mirrors: bool = False) -> Examination:
    """Examine what a new run with these options would find, and whether it could succeed.

    `has_mirrors` means that the run has mirrors or histories. Reads only metadata and statistics.
    Raises BadOption, SourceUnreachable, UnsuitableSource.
    """

    def examine_source(source: Source) -> Examination:
        found = examine(source, make_wanted(source, options), options.split_size_mb * 2**20)
        try:
            if has_mirrors:
                source.require_mirrorable(options.selection)
        except UnsuitableSource as problem:
            found = replace(found, problems=[*found.problems, problem])
        without = [work.namespace for work in found.work if not work.images]
        reason = _explain_change_streams(options, source, without)
        if options.read_by != "oplog":
            return replace(found, why_streams=reason)
        try:
            _require_oplog(reason)
        except OplogUnsuitable as problem:
            found = replace(found, problems=[*found.problems, problem])
        return replace(found, why_streams=reason, requires_oplog=True)

    return query_source(options, examine_source)


def _explain_change_streams(
    options: SourceOptions, source: Source, without_images: list[Namespace]
) -> str | None:
    """Return why changes are read by change streams; None if they are read from the oplog."""
    reason = explain_change_streams(options, source)
    if reason is None and without_images:
        return f"no images are recorded for {', '.join(map(str, without_images))}"
    return reason


def _require_oplog(reason: str | None) -> None:
    """Raise OplogUnsuitable if there is a reason why changes are read by change streams."""
    if reason is not None:
        raise OplogUnsuitable(
            f"Option 'read.by' is oplog, but changes cannot be read from it: {reason}.",
            "Set read.by to auto, or remove the reason.",
        )


def sample_documents(options: SourceOptions, most: int) -> Iterator[pa.StructArray]:
    """Yield the first `most` documents by `_id` of each selected collection, as VARIANTs.

    Raises CdcError.
    """
    schema = arrow_schema(row_schema("variant"))
    options = replace(options, document_format="variant")

    def list_splits(source: Source) -> list[SnapshotSplit]:
        found = check(source, make_wanted(source, options, follows=False))
        at = confirm_edge(source, found)
        return range_splits(found, KeyRange(MIN_KEY, MAX_KEY), at, options.capture)

    for split in query_source(options, list_splits):
        left = most
        with closing(record_batches(split, options, schema, may_be_void=True)) as batches:
            for batch in batches:
                yield batch.column("after")[:left]
                left -= batch.num_rows
                if left <= 0:
                    break


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
