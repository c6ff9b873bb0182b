"""The work of a Spark task: from a split to rows and Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar

import pyarrow as pa

from cdc.errors import LoginRefused
from cdc.model import (
    Change,
    ControlSplit,
    Namespace,
    Selection,
    SnapshotSplit,
    Split,
    StreamSplit,
    control_rows,
    event_row,
    read_row,
    void_row,
)
from cdc.model.encoding import encoder
from cdc.mongo.connection import UNLIMITED, Pace, retry_call, retry_first_call
from cdc.mongo.read import (
    IMAGES,
    Documents,
    Event,
    Note,
    ReadMethod,
    Run,
    oplog,
    read_range,
    read_slice,
)
from cdc.mongo.topology import Source, discover, reopen
from cdc.options import SourceOptions
from cdc.tasks import arrow_batches, shard_keys
from cdc.tasks.allocator import LARGE_BYTES
from cdc.tasks.prefetch import prefetch
from cdc.tasks.shard_keys import CollectionKeys

T = TypeVar("T")


def discover_once(options: SourceOptions) -> Source:
    """Discover the replica set or cluster of `uri`, in one attempt.

    Raises SourceUnreachable and other temporary errors, NotPermitted, UnsuitableSource.
    """
    return discover(*_source_options(options))


def _source_options(options: SourceOptions) -> tuple[str, int, bool, str | None]:
    """Return the arguments of `discover` and `reopen`."""
    database = options.selection.database
    return options.uri, options.server_timeout_ms, options.shards_direct, database


def discover_source(options: SourceOptions) -> Source:
    """Discover the source like `discover_once`, with retries for `retry.seconds`.

    A primary that shuts down or steps down is retried. SourceUnreachable and LoginRefused are
    raised at once.
    """
    return retry_first_call(
        partial(discover_once, options), options.retry_seconds, "Connecting to MongoDB"
    )


def query_source(options: SourceOptions, question: Callable[[Source], T]) -> T:
    """Discover the source and return what `question` returns for it.

    The question is repeated, for at most `retry.seconds`, after errors that a repetition may cure.
    LoginRefused is raised at once: a user who is missing on one shard stays missing.
    """
    source = discover_source(options)
    ask = partial(question, source)
    return retry_call(ask, options.retry_seconds, "Asking MongoDB", but=(LoginRefused,))


def record_batches(
    split: Split,
    options: SourceOptions,
    schema: pa.Schema,
    may_be_void: bool,
    pace: Pace = UNLIMITED,
    note: Note = lambda reason: None,
) -> Generator[pa.RecordBatch, None, None]:
    """Read the rows of a split (see `read_split`) as Arrow batches.

    The next reply is read while the previous one is encoded. Large replies of documents and runs of
    events are encoded as columns, all else row by row. The rows are the same.

    Args:
        split: What to read.
        options: The options of the source.
        schema: The schema of the batches.
        may_be_void: See `read_split`.
        pace: Limits the rate of reads, over all splits of the task.
        note: See `cdc.mongo.read.oplog`.
    """
    if isinstance(split, SnapshotSplit):
        documents, fields = _documents(_reopen(options, pace), split, options, may_be_void)
        with closing(prefetch(documents, pace.end, _has_large_documents)) as read:
            yield from _document_batches(read, split, options, schema, fields)
    elif isinstance(split, StreamSplit):
        events, keys = _changes(_reopen(options, pace), split, options, note)
        with closing(prefetch(events, pace.end, _has_large_events)) as changes:
            yield from _event_batches(changes, split, options, schema, keys)
    else:
        yield from arrow_batches.encode_rows(control_rows(split), schema)


def _has_large_documents(documents: Documents) -> bool:
    return arrow_batches.total_size(documents.raw) >= LARGE_BYTES * len(documents.raw) > 0


def _has_large_events(events: Sequence[Event]) -> bool:
    if isinstance(events, Run):
        size = len(events.located.data)
    else:
        size = sum(event.size for event in events)
    return size >= LARGE_BYTES * len(events) > 0


def _document_batches(
    read: Iterator[Documents],
    split: SnapshotSplit,
    options: SourceOptions,
    schema: pa.Schema,
    fields: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    for is_large, parts in groupby(read, lambda documents: arrow_batches.is_large(documents.raw)):
        if is_large:
            for documents in parts:
                yield from arrow_batches.encode_documents(documents, split, options, schema, fields)
        else:
            encoded = (row for part in parts for row in _read_rows(part, split, options, fields))
            yield from arrow_batches.encode_rows(encoded, schema)


def _event_batches(
    changes: Iterator[Sequence[Event]],
    split: StreamSplit,
    options: SourceOptions,
    schema: pa.Schema,
    keys: CollectionKeys,
) -> Iterator[pa.RecordBatch]:
    # A run may have 28 MB. Nothing refers to it while its rows are written.
    runs = list[Run]()

    def until_run() -> Iterator[Sequence[Event]]:
        for events in changes:
            # Where the document key counts as a whole, a change may be two rows.
            if isinstance(events, Run) and (keys is None or (not keys and events.has_ids_alone)):
                runs.append(events)
                return
            yield events

    while True:
        yield from arrow_batches.encode_rows(_event_rows(until_run(), split, options, keys), schema)
        if not runs:
            return
        parts = arrow_batches.split_by_collection(runs.pop())
        while parts:
            yield arrow_batches.encode_events(parts.pop(0), split, options, schema)


def read_split(split: Split, options: SourceOptions, may_be_void: bool) -> Iterator[Change]:
    """Yield each row of a split once.

    If the collection no longer exists, the split ends early with `may_be_void`. Otherwise
    UnsuitableSource is raised.
    """
    if isinstance(split, ControlSplit):
        yield from control_rows(split)
    elif isinstance(split, SnapshotSplit):
        read, fields = _documents(_reopen(options), split, options, may_be_void)
        for documents in read:
            yield from _read_rows(documents, split, options, fields)
    elif isinstance(split, StreamSplit):
        changes, keys = _changes(_reopen(options), split, options)
        yield from _event_rows(changes, split, options, keys)


def _event_rows(
    changes: Iterable[Sequence[Event]],
    split: StreamSplit,
    options: SourceOptions,
    keys: CollectionKeys,
) -> Iterator[Change]:
    encode = encoder(options.document_format, options.document_json)
    selection, capture = Selection.parse(split.collections), split.capture
    for events in changes:
        for event in events:
            row = event_row(*event, split.shard, selection, capture, encode)
            if keys is None or row.db is None or row.coll is None or row.key is None:
                yield row
            else:
                key = keys.get(Namespace(row.db, row.coll))
                yield from shard_keys.with_whole_key(row, event.raw, event.after, key)


def _read_rows(
    documents: Documents, split: SnapshotSplit, options: SourceOptions, fields: Sequence[str]
) -> Iterator[Change]:
    encode = encoder(options.document_format, options.document_json)
    for raw in documents.raw:
        yield read_row(raw, split.namespace, split.at, documents.exact_from, encode, fields)
    if documents.is_void and options.emit_watermark:
        yield void_row(split)


def _documents(
    source: Source, split: SnapshotSplit, options: SourceOptions, may_be_void: bool
) -> tuple[Iterator[Documents], tuple[str, ...]]:
    """Return the documents of a range, and the fields of their shard key."""
    fields = shard_keys.of_range(source, split, options)
    return read_range(source, split, float(options.retry_seconds), may_be_void), fields


def _changes(
    source: Source,
    split: StreamSplit,
    options: SourceOptions,
    note: Note = lambda reason: None,
) -> tuple[Iterator[Sequence[Event]], CollectionKeys]:
    """Return the events of a slice, and the shard keys of their collections."""
    keys, patience = shard_keys.of_slice(source, split, options), float(options.retry_seconds)
    images = replace(IMAGES[options.images], on_oversize=options.on_oversize)
    method = ReadMethod(options.read_by, options.oplog_verify, options.oplog_on_difference)
    return read_slice(source, split, images, patience, method, note), keys


def _reopen(options: SourceOptions, pace: Pace = UNLIMITED) -> Source:
    """Return the source of a split, with the comment and the pace of the task's reads."""
    opener = partial(reopen, *_source_options(options))
    source = retry_call(opener, options.retry_seconds, "Looking for the shards")
    return source.configure(options.comment, pace)


def explain_change_streams(options: SourceOptions, source: Source) -> str | None:
    """Return why all changes are read by change streams; None if the oplog is read where possible.

    Raises TransientError.
    """
    if options.read_by == "change_stream":
        return "'read.by' is change_stream"
    for shard in source.shards:
        member = source.open(shard)
        try:
            found = oplog.find_obstacle(member, IMAGES[options.images])
        finally:
            member.end()
        if found is not None:
            return f"{found}, on shard {shard}" if shard else found
    return None
