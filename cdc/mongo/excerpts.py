"""How a server is asked for an excerpt: the arguments of a find, the stages of a change stream.

A change that takes a document into the filter, or out of it, is one into the copy or out of it. So
each image of an event is marked with whether it passes, and one that does not is not told; an event
is left out only if that is known of all the images that it could have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdc.errors import UnsuitableSource
from cdc.model.change import ROW_EVENTS
from cdc.model.excerpt import PASSES, Excerpt
from cdc.model.filter import Expression
from cdc.model.selection import Namespace

Stage = dict[str, Any]
_BEFORE, _AFTER = "fullDocumentBeforeChange", "fullDocument"
# An event that is not about a row, as it was.
_WHOLE = "whole"
_TOLD_OF_ROWS = (
    *("operationType", "clusterTime", "wallTime", "ns", "documentKey", "updateDescription"),
    *("lsid", "txnNumber", PASSES, _WHOLE),
)


def of_find(excerpt: Excerpt, condition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a find for the documents that meet another condition too."""
    conditions = [dict(condition)] if condition else []
    if excerpt.condition is not None:
        conditions.append({"$expr": excerpt.condition})
    found: dict[str, Any] = {}
    if conditions:
        found["filter"] = conditions[0] if len(conditions) == 1 else {"$and": conditions}
    if excerpt.fields:
        found["projection"] = _projection(excerpt)
    return found


def stages(excerpt: Excerpt) -> list[Stage]:
    """What a change stream's pipeline ends with."""
    marks = [] if excerpt.condition is None else [*_marks(excerpt.condition), _DROP]
    return [*marks, *_cut(excerpt)]


def whole(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event that came through the stages."""
    told: Mapping[str, Any] = event.get(_WHOLE, event)
    return told


def is_ambiguous(excerpt: Excerpt, collation: bytes | None) -> bool:
    """Whether a read would filter by another collation than the change stream does."""
    return excerpt.condition is not None and collation is not None


def ambiguous(namespace: Namespace) -> UnsuitableSource:
    return UnsuitableSource(
        f"{namespace} has a collation of its own, by which its changes cannot be filtered.",
        "Take it out of 'collections', or leave out 'filter'.",
    )


def _marks(condition: Expression) -> list[Stage]:
    marks = {"before": _passes(f"${_BEFORE}", condition), "after": _passes(f"${_AFTER}", condition)}
    return [
        {"$set": {PASSES: _of_rows(marks, "$$REMOVE")}},
        {"$set": {_BEFORE: _passing("before", _BEFORE), _AFTER: _passing("after", _AFTER)}},
    ]


def _passes(image: str, condition: Expression) -> Expression:
    """True or false, or null if there is no such image."""
    # Paths of the condition begin at CURRENT.
    inside = {"$let": {"vars": {"CURRENT": image}, "in": condition}}
    return {"$cond": [{"$eq": [{"$type": image}, "object"]}, inside, None]}


def _passing(mark: str, image: str) -> Expression:
    return {"$cond": [{"$eq": [f"${PASSES}.{mark}", False]}, "$$REMOVE", f"${image}"]}


def _of_rows(rows: Any, others: Any) -> Expression:
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


def _cut(excerpt: Excerpt) -> list[Stage]:
    if not excerpt.fields:
        return []
    if excerpt.excludes:
        return [
            {
                "$unset": [
                    f"{image}.{path}" for image in (_BEFORE, _AFTER) for path in _paths(excerpt)
                ]
            }
        ]
    kept: dict[str, Any] = dict.fromkeys(_TOLD_OF_ROWS, 1)
    for image in (_BEFORE, _AFTER):
        kept |= {f"{image}.{path}": 1 for path in _projection(excerpt)}
    return [{"$set": {_WHOLE: _of_rows("$$REMOVE", "$$ROOT")}}, {"$project": kept}]


def _projection(excerpt: Excerpt) -> dict[str, int]:
    if excerpt.excludes:
        return dict.fromkeys(_paths(excerpt), 0)
    return {"_id": 1, **dict.fromkeys(_paths(excerpt), 1)}


def _paths(excerpt: Excerpt) -> list[str]:
    return [".".join(path) for path in excerpt.fields]
