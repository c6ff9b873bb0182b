"""The row: what one document read, change event or control message becomes.

`Change` has the columns of the source in their order; `source.py` gives them their Spark types.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from cdc.errors import UnmappableValue
from cdc.model import resume_token, timestamp
from cdc.model.bson import Element, Json, elements, extended_json, value
from cdc.model.capture_filter import Excerpt, passes
from cdc.model.encoding import Column, relaxed_json
from cdc.model.merge_key import document_key_json, merge_key
from cdc.model.selection import Namespace, Selection
from cdc.model.split import ControlSplit, SnapshotSplit, key_of

Encode = Callable[[bytes], Column]
WATERMARK, RESYNC, GAP, VOID = "watermark", "resync", "gap", "void"
ROW_EVENTS = ("insert", "update", "replace", "delete")
# What has a column of its own, whatever happened.
_TOLD = frozenset({"_id", "operationType", "clusterTime", "wallTime", "lsid", "txnNumber"})


class Change(NamedTuple):
    """One row. Times are microseconds since the epoch (UTC); see the README's column table."""

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
) -> Change:
    """The row of a document read as of `at`; with `exact_from`, in a state between the two."""
    key = key_of(document)
    return Change(
        op="read",
        position=resume_token.behind(at),
        cluster_time=at.time * 1_000_000,
        cluster_inc=at.inc,
        db=namespace.db,
        coll=namespace.coll,
        key=merge_key(key),
        document_key=document_key_json(key),
        after=encode(document),
        description=_row_description(exact_from),
        exact=exact_from is None,
    )


def event_row(
    event: Mapping[str, Any],
    after: bytes | None,
    exact: bool,
    exact_from: Timestamp | None,
    shard: str,
    selection: Selection,
    excerpt: Excerpt,
    encode: Encode,
) -> Change:
    """The row of a change event of any type, known or not: that is never an error.

    What is not about one document is told in `description`, with fields that no server has yet.
    A rename of a collection that is not selected onto one that is has the target as its namespace:
    it concerns that collection's changelog; `description` tells both names.
    A change that takes a document into the filter is an insert, one that takes it out a delete.
    """
    time: Timestamp = event["clusterTime"]
    operation, namespace = str(event["operationType"]), _namespace(event, selection)
    is_row = operation in ROW_EVENTS
    document_key = bytes(event["documentKey"].raw) if is_row else None
    before = event.get("fullDocumentBeforeChange") if is_row else None
    is_filtered = is_row and excerpt.condition is not None
    crossed = _crossed(event, after, exact_from) if is_filtered else None
    # Of a change that may have led elsewhere, it would tell what the filter keeps back.
    is_inside = not is_filtered or (not crossed and passes(event).after is True)
    update = event.get("updateDescription") if is_row and is_inside else None
    image = after if after is not None or before is None else bytes(before.raw)
    return Change(
        op=crossed or operation,
        position=str(event["_id"]["_data"]),
        cluster_time=time.time * 1_000_000,
        cluster_inc=time.inc,
        wall_time=_wall_time(event),
        db=namespace[0],
        coll=namespace[1],
        key=None if document_key is None else merge_key(key_of(document_key)),
        document_key=None if document_key is None else document_key_json(document_key),
        before=None if before is None else encode(bytes(before.raw)),
        after=None if after is None else encode(after),
        update_description=None if update is None else updated(bytes(update.raw), excerpt, image),
        txn=_transaction(event, shard),
        description=_row_description(exact_from, crossed and operation)
        if is_row
        else _description(event),
        exact=exact,
    )


def control_rows(split: ControlSplit) -> Iterator[Change]:
    """The rows by which a sink learns what the batch makes of its tables."""
    if split.gap is not None:
        lost = _missing(split.gap, split.at)
        yield _control(GAP, split.gap, resume_token.behind(split.gap), lost)
    if split.description is not None:
        yield _control(
            WATERMARK, split.at, resume_token.high_water_mark(split.at), split.description
        )
    # Behind every event of the batch, and not behind the first document read after it.
    position = resume_token.behind(split.at)
    for namespace in split.resync:
        db, coll = namespace or (None, None)
        yield _control(RESYNC, split.at, position, None)._replace(db=db, coll=coll)
    for (db, coll), since in split.withheld:
        missing = _missing(since, split.at)
        yield _control(RESYNC, split.at, position, missing)._replace(db=db, coll=coll)


def _missing(after: Timestamp | None, upto: Timestamp) -> str:
    """The description of a row that says of which time there are no changes."""
    return json.dumps({"from": after and timestamp.text(after), "to": timestamp.text(upto)})


def void_row(split: SnapshotSplit) -> Change:
    """For the sink alone, as the watermark is: of this range, not all was told as of its time."""
    row = _control(VOID, split.at, resume_token.behind(split.at), None)
    return row._replace(db=split.namespace.db, coll=split.namespace.coll)


def _control(op: str, at: Timestamp, position: str, description: str | None) -> Change:
    return Change(
        op=op,
        position=position,
        cluster_time=at.time * 1_000_000,
        cluster_inc=at.inc,
        description=description,
    )


def _namespace(event: Mapping[str, Any], selection: Selection) -> tuple[str | None, str | None]:
    own, target = _names(event.get("ns")), _names(event.get("to"))
    if None not in (*own, *target) and not selection.matches(Namespace(*own)):
        return target
    return own


def _names(value: Any) -> tuple[Any, Any]:
    """Database and collection, each None if it is not told."""
    return (value.get("db"), value.get("coll")) if isinstance(value, Mapping) else (None, None)


def _wall_time(event: Mapping[str, Any]) -> int | None:
    wall = event.get("wallTime")
    if wall is None:
        return None
    # The driver's are UTC without saying so; Python takes such for local time.
    is_number = isinstance(wall, int)
    told = wall if is_number else round(wall.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    return int(told) * 1000


def _transaction(event: Mapping[str, Any], shard: str) -> dict[str, Any] | None:
    lsid = event.get("lsid")
    if lsid is None or "txnNumber" not in event:
        return None
    return transaction(lsid, int(event["txnNumber"]), shard)


def transaction(lsid: Mapping[str, Any], number: int, shard: str) -> dict[str, Any]:
    """The column `txn` of a change in that session's transaction."""
    # A router's own transactions share their user's id and number, and have one more of their own.
    own = lsid.get("txnUUID")
    identity = bytes(lsid["id"]).hex() + ("" if own is None else f".{bytes(own).hex()}")
    return {"lsid": identity, "number": number, "shard": shard or None}


def _description(event: Mapping[str, Any]) -> str:
    assert isinstance(event, RawBSONDocument), "only events of a row are put together"
    data = bytes(event.raw)
    fields = ((each.name.decode(), each) for each in elements(data, 0, len(data)))
    told = {name: _value(data, each) for name, each in fields if name not in _TOLD}
    return json.dumps(told, ensure_ascii=False)


def _value(data: bytes, item: Element) -> Json:
    try:
        return value(data, item, relaxed=True)
    except UnmappableValue as error:
        return {"$unmappable": str(error)}


def _crossed(
    event: Mapping[str, Any], after: bytes | None, exact_from: Timestamp | None
) -> str | None:
    """What an update or a replace is that takes a document into the filter, or out of it."""
    if event["operationType"] not in ("update", "replace"):
        return None
    before_passes, after_passes = passes(event)
    if after_passes is None and exact_from is not None:  # it was looked for
        after_passes = after is not None
    if after_passes is False:
        return "delete"
    return "insert" if after_passes and before_passes is False else None


def _row_description(exact_from: Timestamp | None, crossed: str | None = None) -> str | None:
    told = {"filtered": crossed} if crossed else {}
    if exact_from is not None:
        told["exactFrom"] = timestamp.text(exact_from)
    return json.dumps(told) if told else None


def updated(data: bytes, excerpt: Excerpt, image: bytes | None) -> str:
    """The column `update_description` from BSON of that field; `image` is the document's newest."""
    try:
        if not excerpt.fields:
            return relaxed_json(data)
        told = extended_json.document(data, 0, len(data), relaxed=True)
        return json.dumps(excerpt.of_update(told, image), ensure_ascii=False)
    except UnmappableValue as error:
        return json.dumps({"$unmappable": str(error)})
