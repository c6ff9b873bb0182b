"""The shard keys of collections whose document keys count as a whole, when a split is read.

A change of the shard key (sharding, refining, resharding) changes the document keys. A router of
MongoDB 6.0 does not report it. So a copy ends that finds such a change after its time, and a
pipeline ends before it commits a batch after one, see `cdc.checkpoint.recorded_keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cdc.model import (
    Namespace,
    Selection,
    ShardKey,
    SnapshotSplit,
    StreamSplit,
    shard_key_changed,
)
from cdc.mongo.connection import retry_call
from cdc.mongo.read import fields_error
from cdc.mongo.topology import Source
from cdc.options import SourceOptions

# None: the `_id` is enough for every collection.
ShardKeys = Mapping[Namespace, ShardKey] | None


def of_range(source: Source, split: SnapshotSplit, options: SourceOptions) -> tuple[str, ...]:
    """Return the fields of the shard key of a range; none if the `_id` is enough.

    Raises UnsuitableSource if the collection got its shard key after the time of the range.
    """
    keys = query(source, Selection.of([split.namespace]), options)
    key = None if keys is None else keys.get(split.namespace)
    if key is None:
        return ()
    if key.since > split.at:
        raise shard_key_changed(split.namespace)
    return key.fields


def of_slice(source: Source, split: StreamSplit, options: SourceOptions) -> ShardKeys:
    """Return the shard keys of the collections of a slice.

    Raises BadOption if the option `fields` is set and there are any: without its shard key, a
    document has no document key.
    """
    keys = query(source, split.selection, options)
    if keys and split.capture.fields:
        raise fields_error()
    return keys


def query(source: Source, selection: Selection, options: SourceOptions) -> ShardKeys:
    """Return `Source.shard_keys`. Temporary errors are retried for `retry.seconds`."""
    ask = partial(source.shard_keys, selection)
    return retry_call(ask, options.retry_seconds, "Reading the shard keys")
