"""Event filter: conditions on change events, built from a selection and an offset.

Namespaces that are listed by name are compared by equality: the server applies this comparison to
the oplog itself. `$expr` (regular expressions, key bounds) is evaluated on the finished event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from cdc.model import MIN_KEY, ROW_EVENTS, Copying, Namespace, Offset, Selection, full_name, literal
from cdc.mongo.query import projection

# After these events a name has content that is in no row event. dropDatabase is listed only because
# a stream of that database ends there, and the batch must end with it.
CUTTING_EVENTS = ["drop", "rename", "dropDatabase"]

Condition = dict[str, Any]
# Stages are moved as bytes: values in them stay what they are.
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def pipeline(
    conditions: list[Condition],
    project: dict[str, Any] | None = None,
    then: Iterable[projection.Stage] = (),
) -> bytes:
    """Return BSON of the stages that pass the events that meet any of the conditions.

    Args:
        conditions: the conditions.
        project: a projection of the events, or None.
        then: stages to append.
    """
    # The server closes a cursor after `invalidate`. Without that event the reader would not notice.
    passing = [*conditions, {"operationType": "invalidate"}]
    stages: list[dict[str, Any]] = [{"$match": {"$or": passing}}]
    if project is not None:
        stages.append({"$project": project})
    stages += then
    return bson.encode({"pipeline": stages})


def narrow(
    stages: bytes, operations: Iterable[str] | None = None, keys: Iterable[bytes] | None = None
) -> bytes:
    """Return the stages of `pipeline` for fewer of its events.

    Args:
        stages: BSON of the stages.
        operations: the types of the events; None for all.
        keys: BSON of `{"_id": K}` for each document whose row events pass, and no other events;
            None for all events.
    """
    conditions = list[Condition]()
    if operations is not None:
        conditions.append({"operationType": {"$in": sorted(operations)}})
    if keys is not None:
        values = [literal(key) for key in keys]
        conditions.append({"operationType": {"$in": ROW_EVENTS}})
        conditions.append({"$expr": {"$in": ["$documentKey._id", values]}})
    if not conditions:
        return stages
    first = bson.decode(pipeline([{"$and": conditions}]), _RAW)["pipeline"]
    return bson.encode({"pipeline": [*first, *bson.decode(stages, _RAW)["pipeline"]]})


def cutting_ddl(selection: Selection) -> Condition:
    """Return the condition for DDL events that end a batch."""
    return {"$and": [{"operationType": {"$in": CUTTING_EVENTS}}, _match_selection(selection)]}


def cuts(event: Mapping[str, Any]) -> bool:
    """Whether an event is DDL that ends a batch."""
    return event["operationType"] in CUTTING_EVENTS


def ends_batch(event: Mapping[str, Any]) -> bool:
    """Whether a batch cannot contain an event of its survey; it can contain all other DDL."""
    return cuts(event) or event["operationType"] in ROW_EVENTS


def not_rows(selection: Selection) -> Condition:
    """Return the condition for all events except row events: DDL and unknown types.

    It does not depend on the frontier.
    """
    return {"$and": [{"operationType": {"$nin": ROW_EVENTS}}, _match_selection(selection)]}


def rows(selection: Selection, offset: Offset) -> Condition:
    """Return the condition for row events of the collections that `offset` passes whole."""
    return {"$and": [{"operationType": {"$in": ROW_EVENTS}}, _match_passed(selection, offset)]}


def rows_below(copying: Copying) -> Condition | None:
    """Return the condition for row events below the frontier key of the collection being copied.

    It is None if that key is MinKey. Under the collection's collation it compares keys of all BSON
    types in the order of the `_id` index. Do not apply it to events without a document key: a
    missing key has no place in this order, so such events could be dropped.
    """
    if copying.below == MIN_KEY:
        return None
    return {
        "operationType": {"$in": ROW_EVENTS},
        "ns.db": copying.namespace.db,
        "ns.coll": copying.namespace.coll,
        "$expr": {"$lt": ["$documentKey._id", literal(copying.below)]},
    }


def unscanned_rows(
    selection: Selection, start: Offset, end: Offset, scanned: list[Namespace]
) -> Condition:
    """Return the condition for row events of collections that become done without a scan.

    `end` passes these collections whole, `start` does not, and `scanned` does not contain them.
    """
    others = [_match_passed(selection, start), *(_match_name(namespace) for namespace in scanned)]
    return {
        "$and": [
            {"operationType": {"$in": ROW_EVENTS}},
            _match_passed(selection, end),
            {"$nor": others},
        ]
    }


def newly_selected_content(
    before: Selection | None, after: Selection, known: Iterable[Namespace]
) -> Condition:
    """Return the condition for events that give content to a collection of the new selection alone.

    These are row events, and any rename onto a name of the new selection.

    Args:
        before: the old selection; None if all collections of the new one count as new.
        after: the new selection.
        known: collections that were listed; their events do not meet the condition.
    """
    others = [before.condition("ns")] if before else []
    listed = Selection.of(known)
    if listed.names:
        others.append(listed.condition("ns"))
    unknown = [{"$nor": others}] if others else []
    rows = {"$and": [{"operationType": {"$in": ROW_EVENTS}}, after.condition("ns"), *unknown]}
    return {"$or": [rows, {"$and": [{"operationType": "rename"}, after.condition("to")]}]}


def _match_selection(selection: Selection) -> Condition:
    dropped = {"operationType": "dropDatabase", **selection.database_condition()}
    return {"$or": [selection.condition("ns"), selection.condition("to"), dropped]}


def _match_passed(selection: Selection, offset: Offset) -> Condition:
    conditions = [selection.condition("ns")]
    if offset.swept is not None:
        conditions.append({"$expr": {"$lte": [full_name("ns"), {"$literal": offset.swept}]}})
    if offset.apart:
        conditions.append({"$nor": [_match_name(namespace) for namespace in sorted(offset.apart)]})
    return {"$and": conditions}


def _match_name(namespace: Namespace) -> Condition:
    return {"ns.db": namespace.db, "ns.coll": namespace.coll}
