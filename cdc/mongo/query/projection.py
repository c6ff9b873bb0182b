"""Capture filter and projection as arguments of a find and stages of a change stream.

A change that makes a document match the filter is an insert into the copy, and one that ends the
match is a delete from it. So each image of an event is marked with whether it passes the filter,
and an image that does not pass is left out. An event is left out only if it is certain that none of
its images passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc.errors import UnsuitableSource
from cdc.model import PASSES, ROW_EVENTS, CaptureFilter, Expression, Namespace

Stage = dict[str, Any]
_BEFORE, _AFTER = "fullDocumentBeforeChange", "fullDocument"
# The field that contains the whole event if it is not a row event.
_WHOLE = "whole"
_ROW_FIELDS = (
    *("operationType", "clusterTime", "wallTime", "ns", "documentKey", "updateDescription"),
    *("lsid", "txnNumber", PASSES, _WHOLE),
)


def find_arguments(
    capture: CaptureFilter, condition: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the arguments of a find for the captured documents that also meet `condition`."""
    conditions = [dict(condition)] if condition else []
    if capture.condition is not None:
        conditions.append({"$expr": capture.condition})
    arguments: dict[str, Any] = {}
    if conditions:
        arguments["filter"] = conditions[0] if len(conditions) == 1 else {"$and": conditions}
    if capture.fields:
        arguments["projection"] = _projection(capture)
    return arguments


def filter_stages(capture: CaptureFilter) -> list[Stage]:
    """Return the last stages of a change stream's pipeline; `whole` must read its events."""
    marks = [] if capture.condition is None else [*_marks(capture.condition), _DROP]
    return [*marks, *_project(capture)]


def unwrap_event(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the event as it was before the stages moved it into one field."""
    original: Mapping[str, Any] = event.get(_WHOLE, event)
    return original


def has_other_collation(capture: CaptureFilter, collation: bytes | None) -> bool:
    """Whether a read of the collection filters by another collation than its change stream."""
    return capture.condition is not None and collation is not None


def collation_error(namespace: Namespace) -> UnsuitableSource:
    """Return the error for a collection that `has_other_collation`."""
    return UnsuitableSource(
        f"{namespace} has a default collation, by which its changes cannot be filtered.",
        "Remove it from 'collections', or remove 'filter'.",
    )


def _marks(condition: Expression) -> list[Stage]:
    marks = {"before": _passes(f"${_BEFORE}", condition), "after": _passes(f"${_AFTER}", condition)}
    return [
        {"$set": {PASSES: _for_rows(marks, "$$REMOVE")}},
        {"$set": {_BEFORE: _if_passed("before", _BEFORE), _AFTER: _if_passed("after", _AFTER)}},
    ]


def _passes(image: str, condition: Expression) -> Expression:
    """An expression for true or false, or null if the event has no such image."""
    # The paths of the condition are relative to CURRENT.
    inside = {"$let": {"vars": {"CURRENT": image}, "in": condition}}
    return {"$cond": [{"$eq": [{"$type": image}, "object"]}, inside, None]}


def _if_passed(mark: str, image: str) -> Expression:
    return {"$cond": [{"$eq": [f"${PASSES}.{mark}", False]}, "$$REMOVE", f"${image}"]}


def _for_rows(rows: Any, others: Any) -> Expression:
    return {"$cond": [{"$in": ["$operationType", list(ROW_EVENTS)]}, rows, others]}


_DROP: Stage = {
    "$match": {
        "$nor": [
            {"operationType": "insert", f"{PASSES}.after": False},
            {"operationType": "delete", f"{PASSES}.before": False},
            {f"{PASSES}.before": False, f"{PASSES}.after": False},
        ]
    }
}


def _project(capture: CaptureFilter) -> list[Stage]:
    if not capture.fields:
        return []
    if capture.excludes:
        return [
            {
                "$unset": [
                    f"{image}.{path}" for image in (_BEFORE, _AFTER) for path in _paths(capture)
                ]
            }
        ]
    fields: dict[str, Any] = dict.fromkeys(_ROW_FIELDS, 1)
    for image in (_BEFORE, _AFTER):
        fields |= {f"{image}.{path}": 1 for path in _projection(capture)}
    return [{"$set": {_WHOLE: _for_rows("$$REMOVE", "$$ROOT")}}, {"$project": fields}]


def _projection(capture: CaptureFilter) -> dict[str, int]:
    if capture.excludes:
        return dict.fromkeys(_paths(capture), 0)
    return {"_id": 1, **dict.fromkeys(_paths(capture), 1)}


def _paths(capture: CaptureFilter) -> list[str]:
    return [".".join(path) for path in capture.fields]
