"""Rows of changes whose document key counts as a whole, see `cdc.model.document_key`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cdc.model.change import Change
from cdc.model.document_key import document_key_of, whole_key
from cdc.model.merge_key import document_key_json


def with_whole_key(
    row: Change, event: Mapping[str, Any], after: bytes | None, fields: Sequence[str] | None
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
        fields: the paths of the shard key; None if it is no longer known, because the collection
            was dropped or got another one since. Then it consists of what the event has of it.
    """
    fields = list(event["documentKey"]) if fields is None else fields
    row = row._replace(key=whole_key(bytes(event["documentKey"].raw)))
    operation = event["operationType"]
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
