"""Rows of the source: for documents read, change events and control messages.

`Change` has the columns of the source in their order; `cdc.source` gives them their Spark types.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import UnmappableValue
from cdc.model import resume_token, timestamp
from cdc.model.bson import Element, Json, elements, extended_json, value
from cdc.model.capture_filter import CaptureFilter, filter_marks
from cdc.model.encoding import Column, relaxed_json
from cdc.model.merge_key import document_key_json, document_key_of, merge_key, whole_key
from cdc.model.selection import Namespace, Selection
from cdc.model.split import ControlSplit, SnapshotSplit, key_of

Encode = Callable[[bytes], Column]
WATERMARK, RESYNC, GAP, VOID = "watermark", "resync", "gap", "void"
ROW_EVENTS = ("insert", "update", "replace", "delete")
# The event fields that have a column of their own for every type of event.
_COLUMN_FIELDS = frozenset({"_id", "operationType", "clusterTime", "wallTime", "lsid", "txnNumber"})


class Change(NamedTuple):
    """One row; docs/tables/changelog.md describes its columns.

    Times are microseconds since the epoch (UTC).
    """

    op: str
    position: str
    cluster_time: int
    cluster_inc: int
    wall_time: int | None = None
    db: str | None = None
    coll: str | None = None
    key: str | None = None
    document_key: str | None = None
    before: Column | None = None
    after: Column | None = None
    update_description: str | None = None
    txn: dict[str, Any] | None = None
    description: str | None = None
    exact: bool = True


def read_row(
    document: bytes,
    namespace: Namespace,
    at: Timestamp,
    exact_from: Timestamp | None,
    encode: Encode,
    fields: Sequence[str] = (),
) -> Change:
    """Return the row of a document read as of `at`.

    If `exact_from` is set, the document is in a state between `at` and that time. `fields` are
    those of the shard key, if the document key counts as a whole.
    """
    key = document_key_of(document, fields) if fields else key_of(document)
    return Change(
        op="read",
        position=resume_token.position_after(at),
        cluster_time=at.time * 1_000_000,
        cluster_inc=at.inc,
        db=namespace.db,
        coll=namespace.coll,
        key=whole_key(key) if fields else merge_key(key),
        document_key=document_key_json(key),
        after=encode(document),
        description=_describe_row(exact_from),
        exact=exact_from is None,
    )


def event_row(
    event: Mapping[str, Any],
    after: bytes | None,
    exact: bool,
    exact_from: Timestamp | None,
    shard: str,
    selection: Selection,
    capture: CaptureFilter,
    encode: Encode,
) -> Change:
    """Return the row of a change event. An event of an unknown type is not an error.

    If an event does not change one document, `description` contains its fields without a column,
    also fields that no server has yet. If a collection that is not selected is renamed to a
    selected name, the row has the target as its namespace: it belongs to the target's changelog.
    `description` contains both names. A change by which a document enters the capture filter is an
    insert; one by which a document leaves it is a delete.

    Args:
        event: the change event.
        after: BSON of the document after the change, or None.
        exact: the image is exact as of the event.
        exact_from: if set, `after` is in a state between the event and that time.
        shard: the shard that reports the event; empty for a replica set.
        selection: the captured collections.
        capture: the capture filter and the projection.
        encode: encodes a document for its column.
    """
    time: Timestamp = event["clusterTime"]
    operation, namespace = str(event["operationType"]), _select_namespace(event, selection)
    is_row = operation in ROW_EVENTS
    document_key = bytes(event["documentKey"].raw) if is_row else None
    before = event.get("fullDocumentBeforeChange") if is_row else None
    is_filtered = is_row and capture.condition is not None
    crossed = _find_crossing(event, after, exact_from) if is_filtered else None
    # The update description of a change that may cross the filter could reveal excluded values.
    is_inside = not is_filtered or (not crossed and filter_marks(event).after is True)
    update = event.get("updateDescription") if is_row and is_inside else None
    image = after if after is not None or before is None else bytes(before.raw)
    return Change(
        op=crossed or operation,
        position=str(event["_id"]["_data"]),
        cluster_time=time.time * 1_000_000,
        cluster_inc=time.inc,
        wall_time=_convert_wall_time(event),
        db=namespace[0],
        coll=namespace[1],
        key=None if document_key is None else merge_key(key_of(document_key)),
        document_key=None if document_key is None else document_key_json(document_key),
        before=None if before is None else encode(bytes(before.raw)),
        after=None if after is None else encode(after),
        update_description=None
        if update is None
        else describe_update(bytes(update.raw), capture, image),
        txn=_find_transaction(event, shard),
        description=_describe_row(exact_from, crossed and operation)
        if is_row
        else _describe_event(event),
        exact=exact,
    )


def control_rows(split: ControlSplit) -> Iterator[Change]:
    """Yield the rows that state the effect of the batch on the tables of a sink."""
    if split.gap is not None:
        lost = _describe_missing_time(split.gap, split.at)
        yield _control_row(GAP, split.gap, resume_token.position_after(split.gap), lost)
    if split.description is not None:
        yield _control_row(
            WATERMARK, split.at, resume_token.high_water_mark(split.at), split.description
        )
    # After every event of the batch, and not after the first document that is read after it.
    position = resume_token.position_after(split.at)
    for namespace in split.resync:
        db, coll = namespace or (None, None)
        yield _control_row(RESYNC, split.at, position, None)._replace(db=db, coll=coll)
    for (db, coll), since in split.withheld:
        missing = _describe_missing_time(since, split.at)
        yield _control_row(RESYNC, split.at, position, missing)._replace(db=db, coll=coll)


def _describe_missing_time(after: Timestamp | None, upto: Timestamp) -> str:
    """Return the description of a row that states the time whose changes are missing."""
    return json.dumps({"from": after and timestamp.text(after), "to": timestamp.text(upto)})


def void_row(split: SnapshotSplit) -> Change:
    """Return the row that reports a void range: not all of it was emitted as of its time.

    Like the watermark row, it is only for the sink.
    """
    row = _control_row(VOID, split.at, resume_token.position_after(split.at), None)
    return row._replace(db=split.namespace.db, coll=split.namespace.coll)


def _control_row(op: str, at: Timestamp, position: str, description: str | None) -> Change:
    return Change(
        op=op,
        position=position,
        cluster_time=at.time * 1_000_000,
        cluster_inc=at.inc,
        description=description,
    )


def _select_namespace(
    event: Mapping[str, Any], selection: Selection
) -> tuple[str | None, str | None]:
    own, target = _parse_namespace(event.get("ns")), _parse_namespace(event.get("to"))
    if None not in (*own, *target) and not selection.matches(Namespace(*own)):
        return target
    return own


def _parse_namespace(value: Any) -> tuple[Any, Any]:
    """Return the database and the collection; each is None if the event does not contain it."""
    return (value.get("db"), value.get("coll")) if isinstance(value, Mapping) else (None, None)


def _convert_wall_time(event: Mapping[str, Any]) -> int | None:
    wall = event.get("wallTime")
    if wall is None:
        return None
    # The driver's datetimes are UTC without a time zone; Python takes these for local time.
    is_number = isinstance(wall, int)
    millis = wall if is_number else round(wall.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    return int(millis) * 1000


def _find_transaction(event: Mapping[str, Any], shard: str) -> dict[str, Any] | None:
    lsid = event.get("lsid")
    if lsid is None or "txnNumber" not in event:
        return None
    return transaction(lsid, int(event["txnNumber"]), shard)


def transaction(lsid: Mapping[str, Any], number: int, shard: str) -> dict[str, Any]:
    """Return the column `txn` of a change in a transaction of that session."""
    # A router's internal transactions have the id and number of the user's session. Only their
    # `txnUUID` distinguishes them.
    own = lsid.get("txnUUID")
    identity = bytes(lsid["id"]).hex() + ("" if own is None else f".{bytes(own).hex()}")
    return {"lsid": identity, "number": number, "shard": shard or None}


def _describe_event(event: Mapping[str, Any]) -> str:
    assert isinstance(event, RawBSONDocument), "only events of a row are put together"
    data = bytes(event.raw)
    fields = ((each.name.decode(), each) for each in elements(data, 0, len(data)))
    described = {
        name: _convert_value(data, each) for name, each in fields if name not in _COLUMN_FIELDS
    }
    return json.dumps(described, ensure_ascii=False)


def _convert_value(data: bytes, item: Element) -> Json:
    try:
        return value(data, item, relaxed=True)
    except UnmappableValue as error:
        return {"$unmappable": str(error)}


def _find_crossing(
    event: Mapping[str, Any], after: bytes | None, exact_from: Timestamp | None
) -> str | None:
    """Return the operation of an update or replace that crosses the capture filter.

    It is "insert" if the document enters the filter, "delete" if it leaves it, and None otherwise.
    """
    if event["operationType"] not in ("update", "replace"):
        return None
    before_passes, after_passes = filter_marks(event)
    if after_passes is None and exact_from is not None:  # the document was looked up
        after_passes = after is not None
    if after_passes is False:
        return "delete"
    return "insert" if after_passes and before_passes is False else None


def _describe_row(exact_from: Timestamp | None, crossed: str | None = None) -> str | None:
    description = {"filtered": crossed} if crossed else {}
    if exact_from is not None:
        description["exactFrom"] = timestamp.text(exact_from)
    return json.dumps(description) if description else None


def describe_update(data: bytes, capture: CaptureFilter, image: bytes | None) -> str:
    """Return the column `update_description`.

    Args:
        data: BSON of the event's `updateDescription`.
        capture: the capture filter and the projection.
        image: the newest image of the document, or None.
    """
    try:
        if not capture.fields:
            return relaxed_json(data)
        update = extended_json.document(data, 0, len(data), relaxed=True)
        return json.dumps(capture.project_update(update, image), ensure_ascii=False)
    except UnmappableValue as error:
        return json.dumps({"$unmappable": str(error)})
