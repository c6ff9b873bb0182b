"""Rows whose document keys count as a whole, and the shard keys that this takes.

A change of the shard key (sharding, refining, resharding) changes the document keys. A router of
MongoDB 6.0 does not report it. A batch ends at its time, and the collection is copied again, see
`cdc.mongo.plan.key_changes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from bson.timestamp import Timestamp

from cdc.model import (
    Change,
    Namespace,
    Selection,
    ShardKey,
    SnapshotSplit,
    StreamSplit,
    document_key_json,
    document_key_of,
    shard_keys_hidden,
    whole_key,
)
from cdc.mongo.connection import retry_call
from cdc.mongo.read import fields_error
from cdc.mongo.topology import Source
from cdc.options import SourceOptions

# None: the `_id` is enough for every collection.
CollectionKeys = Mapping[Namespace, ShardKey] | None


def of_range(source: Source, split: SnapshotSplit, options: SourceOptions) -> tuple[str, ...]:
    """Return the fields of the shard key of a range; none if the `_id` is enough.

    There are also none if the incarnation of the range is gone: then it has no documents either. If
    the collection got its shard key after the time of the range, it is copied again.
    """
    keys = _query(source, Selection.of([split.namespace]), split.at, options, split.has_whole_keys)
    key = None if keys is None else keys.get(split.namespace)
    return key.fields if key is not None and key.uuid == split.uuid and key.others else ()


def of_slice(source: Source, split: StreamSplit, options: SourceOptions) -> CollectionKeys:
    """Return the shard keys with other fields than `_id` that the collections of a slice had.

    Those that they got at its end or later are left out: its events have others. Raises BadOption
    if the option `fields` is set and there are any: without its shard key, a document has no
    document key.
    """
    keys = _query(source, split.selection, split.last, options, split.has_whole_keys)
    if keys is None:
        return None
    keys = {name: key for name, key in keys.items() if key.others}
    if keys and split.capture.fields:
        raise fields_error()
    return {name: key for name, key in keys.items() if key.since < split.last}


def with_whole_key(
    row: Change, event: Mapping[str, Any], after: bytes | None, shard_key: ShardKey | None
) -> list[Change]:
    """Return the rows of a change with the whole document key as `key`.

    A change of a shard key's value ends one document key, and begins another. If the document stays
    on its shard, the server reports one update or replace, with the document key before it. That
    becomes two rows, a delete and an insert at one position, as if the document had moved to
    another shard; their `description` names the operation of the event. Without an after-image the
    new document key is unknown, and the change is one row of the old one.

    Args:
        row: the row of the event, see `event_row`.
        event: the change event.
        after: BSON of the document after the change, or None.
        shard_key: None if it is no longer known, because the collection was dropped or got another
            one since. Then it consists of what the event has of it.
    """
    fields = list(event["documentKey"]) if shard_key is None else shard_key.fields
    operation, document_key = event["operationType"], bytes(event["documentKey"].raw)
    before = event.get("fullDocumentBeforeChange")
    # An insert may have the `_id` alone before 6.0. A shard may learn of a new shard key late.
    if operation == "insert" and after is not None:
        document_key = document_key_of(after, fields)
    elif operation == "delete" and before is not None:
        document_key = document_key_of(bytes(before.raw), fields)
    row = row._replace(key=whole_key(document_key))
    if operation not in ("update", "replace") or row.op == "delete" or after is None:
        return [row]
    document_key = document_key_of(after, fields)
    key = whole_key(document_key)
    if key == row.key:
        return [row]
    described = {**json.loads(row.description or "{}"), "rekeyed": operation}
    row = row._replace(update_description=None, description=json.dumps(described))
    inserted = row._replace(
        op="insert", key=key, document_key=document_key_json(document_key), before=None
    )
    if row.op == "insert":  # it entered the capture filter
        return [inserted]
    ended = json.dumps({"rekeyed": operation})
    return [row._replace(op="delete", after=None, description=ended), inserted]


def _query(
    source: Source, selection: Selection, after: Timestamp, options: SourceOptions, is_needed: bool
) -> CollectionKeys:
    """Return `Source.shard_keys`. Temporary errors are retried for `retry.seconds`.

    Raises UnsuitableSource if earlier rows contain them, and the user may no longer read them.
    """
    ask = partial(source.shard_keys, selection, after)
    keys = retry_call(ask, options.retry_seconds, "Reading the shard keys")
    if keys is None and is_needed:
        raise shard_keys_hidden()
    return keys
