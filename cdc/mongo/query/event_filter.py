"""What a change stream is asked to deliver: conditions on events, built from selection and offset.

Namespaces are compared by equality wherever they are listed by name: the server applies that to
the oplog itself. `$expr` (regular expressions, key bounds) is evaluated on the finished event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import bson

from cdc.model import MIN_KEY, ROW_EVENTS, Copying, Namespace, Offset, Selection, full_name, literal
from cdc.mongo.query import projection

# The events after which a name holds other content than row events told. dropDatabase is one only
# because a stream of that database ends there: a batch has to end with it.
CUTTING_EVENTS = ["drop", "rename", "dropDatabase"]

Condition = dict[str, Any]


def pipeline(
    conditions: list[Condition],
    project: dict[str, Any] | None = None,
    then: Iterable[projection.Stage] = (),
) -> bytes:
    """BSON of the stages that pass events meeting any condition."""
    # The server ends a cursor behind `invalidate`; without that event the reader would not know.
    passing = [*conditions, {"operationType": "invalidate"}]
    stages: list[dict[str, Any]] = [{"$match": {"$or": passing}}]
    if project is not None:
        stages.append({"$project": project})
    stages += then
    return bson.encode({"pipeline": stages})


def cutting(selection: Selection) -> Condition:
    """DDL events that end a batch."""
    return {"$and": [{"operationType": {"$in": CUTTING_EVENTS}}, _concerned(selection)]}


def cuts(event: Mapping[str, Any]) -> bool:
    return event["operationType"] in CUTTING_EVENTS


def ends_batch(event: Mapping[str, Any]) -> bool:
    """Whether a batch cannot hold an event that its survey asked for; all other DDL it can."""
    return cuts(event) or event["operationType"] in ROW_EVENTS


def not_rows(selection: Selection) -> Condition:
    """All events but row events, whatever the frontier: DDL, and types not known yet."""
    return {"$and": [{"operationType": {"$nin": ROW_EVENTS}}, _concerned(selection)]}


def rows(selection: Selection, offset: Offset) -> Condition:
    """Row events of the collections that `offset` passes whole."""
    return {"$and": [{"operationType": {"$in": ROW_EVENTS}}, _passed(selection, offset)]}


def rows_below(copying: Copying) -> Condition | None:
    """Row events of the collection being copied, below its frontier key; None if that is MinKey.

    Across all BSON types as the `_id` index orders them, given the collection's collation. Events
    without a document key must not be put under this condition: a missing key is below nothing.
    """
    if copying.below == MIN_KEY:
        return None
    return {
        "operationType": {"$in": ROW_EVENTS},
        "ns.db": copying.namespace.db,
        "ns.coll": copying.namespace.coll,
        "$expr": {"$lt": ["$documentKey._id", literal(copying.below)]},
    }


def strangers(
    selection: Selection, start: Offset, end: Offset, scanned: list[Namespace]
) -> Condition:
    """Row events of collections that `end` passes, `start` does not, and nobody scans between."""
    others = [_passed(selection, start), *(_named(namespace) for namespace in scanned)]
    return {
        "$and": [
            {"operationType": {"$in": ROW_EVENTS}},
            _passed(selection, end),
            {"$nor": others},
        ]
    }


def newcomers(before: Selection | None, after: Selection, known: Iterable[Namespace]) -> Condition:
    """Row events of collections that `after` selects alone, and that are not among the known."""
    others = [before.condition("ns")] if before else []
    listed = Selection.of(known)
    if listed.names:
        others.append(listed.condition("ns"))
    unknown = [{"$nor": others}] if others else []
    return {"$and": [{"operationType": {"$in": ROW_EVENTS}}, after.condition("ns"), *unknown]}


def _concerned(selection: Selection) -> Condition:
    dropped = {"operationType": "dropDatabase", **selection.database_condition()}
    return {"$or": [selection.condition("ns"), selection.condition("to"), dropped]}


def _passed(selection: Selection, offset: Offset) -> Condition:
    conditions = [selection.condition("ns")]
    if offset.swept is not None:
        conditions.append({"$expr": {"$lte": [full_name("ns"), {"$literal": offset.swept}]}})
    if offset.apart:
        conditions.append({"$nor": [_named(namespace) for namespace in sorted(offset.apart)]})
    return {"$and": conditions}


def _named(namespace: Namespace) -> Condition:
    return {"ns.db": namespace.db, "ns.coll": namespace.coll}
