"""A filter on documents: a match expression becomes an aggregation expression.

A find could evaluate the first by itself. A change stream could not: it has to say of each image of
an event whether it passes, and only an expression is evaluated to a value. So there is one
expression for both, and a document is in the snapshot and in the stream by the same rule.

Like a match, a path goes through arrays of documents, and what stands at its end is compared itself
and, if it is an array, by each of its elements; numbers, text, dates and so on are compared with
their own kind only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import bson
from bson import json_util
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from cdc.errors import BadOption

Expression = dict[str, Any]
_NUMBERS = ("int", "long", "double", "decimal")
# The types that a value is compared with.
_KINDS: tuple[tuple[type | tuple[type, ...], tuple[str, ...]], ...] = (
    (bool, ("bool",)),
    ((int, float, Int64, Decimal128), _NUMBERS),
    (str, ("string", "symbol")),
    (datetime, ("date",)),
    (ObjectId, ("objectId",)),
    (Timestamp, ("timestamp",)),
    ((bytes, Binary), ("binData",)),
)
_NOTHING = ["null", "missing", "undefined"]
# A value that a match looks at.
_EACH = "$$each.v"
_COMPARISONS = ("$gt", "$gte", "$lt", "$lte")
# What is another document, or another value, each time or in each place that it is evaluated.
_UNSTEADY = ("$$ROOT", "$$NOW", "$$CLUSTER_TIME", "$$USER_ROLES")
_UNSTEADY_OPERATORS = ("$rand", "$sampleRate", "$function", "$accumulator", "$meta")
_EXAMPLE = 'Write it as {"field": value, …}.'
_REMEDY = 'Write that part as {"$expr": …}, an aggregation expression on the document.'


def parse(text: str) -> Expression:
    """The expression for a match in Extended JSON; it is true or false for a document that it is
    evaluated on. Raises BadOption."""
    try:
        match = json.loads(text, object_pairs_hook=_read)
    except (ValueError, TypeError, ArithmeticError, bson.errors.BSONError) as error:
        raise BadOption(f"Option 'filter' is not Extended JSON: {error}.", _EXAMPLE) from error
    if not isinstance(match, dict) or not match:
        raise BadOption("Option 'filter' is not a match on a document.", _EXAMPLE)
    expression = _all_of(match)
    try:
        bson.encode(expression)
    except (bson.errors.InvalidDocument, OverflowError) as error:
        raise BadOption(f"Option 'filter' is not for BSON: {error}.", _EXAMPLE) from error
    return expression


def _read(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadOption("Option 'filter' names a field twice.", "Put both into $and.")
    # The library would take an older spelling of a regular expression, and drop what is beside it.
    return found if "$regex" in found else json_util.object_hook(found)


def _all_of(match: Mapping[str, Any]) -> Expression:
    return _and([_clause(name, value) for name, value in match.items()])


def _and(parts: list[Any]) -> Expression:
    return parts[0] if len(parts) == 1 else {"$and": parts}


def _clause(name: str, value: Any) -> Expression:
    if name in ("$and", "$or", "$nor"):
        if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
            raise BadOption(f"{name} in option 'filter' takes a list of matches.")
        parts = [_all_of(each) for each in value]
        if name == "$nor":
            return {"$not": [{"$or": parts}]}
        return {name: parts}
    if name == "$expr":
        _require_steady(value)
        return {"$cond": [value, True, False]}
    if name.startswith("$"):
        raise BadOption(f"Option 'filter' cannot hold {name}.", _REMEDY)
    return _on_path(name, value)


def _require_steady(value: Any) -> None:
    for each in _walked(value):
        if isinstance(each, str) and (
            each in _UNSTEADY_OPERATORS or each.split(".")[0] in _UNSTEADY
        ):
            raise BadOption(
                f"$expr in option 'filter' cannot hold {each}: the snapshot and the changes would"
                " not mean the same by it.",
                'Use paths as "$field" and $$CURRENT for the whole document.',
            )


def _walked(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            if name != "$literal":
                yield from _walked(each)
    elif isinstance(value, list):
        for each in value:
            yield from _walked(each)
    else:
        yield value


# --- what stands at a path -----------------------------------------------------------------------


def _on_path(path: str, condition: Any) -> Expression:
    names = path.split(".")
    for name in names:
        if not name or name.startswith("$") or "\0" in name:
            raise BadOption(f"'{path}' in option 'filter' is not a field's path.")
        if name.isdigit() and len(names) > 1:
            raise BadOption(f"'{path}' in option 'filter' may be a place in an array.", _REMEDY)
    if _is_of_operators(condition, path):
        return _and([_operated(names, operator, condition) for operator in condition])
    return _any(names, _equals(condition))


def _is_of_operators(condition: Any, path: str) -> bool:
    if not isinstance(condition, dict) or not condition:
        return False
    operators = [name for name in condition if name.startswith("$")]
    if operators and len(operators) < len(condition):
        raise BadOption(f"'{path}' in option 'filter' mixes operators and fields.")
    return bool(operators)


def _any(names: list[str], condition: Expression) -> Expression:
    """Whether a condition on `_EACH` holds for any of the values that a match would look at. In one
    pass over each array: one that is put together element by element takes the square of that."""
    return _within(f"${names[0]}", names[1:], condition)


def _within(value: str, names: list[str], condition: Expression) -> Expression:
    is_array = {"$isArray": [value]}
    if not names:
        elements = {"$map": {"input": value, "as": "element", "in": {"v": "$$element"}}}
        itself = [{"v": value}]  # without `v` where there is none
        looked_at = {"$cond": [is_array, {"$concatArrays": [elements, itself]}, itself]}
        return {"$anyElementTrue": [{"$map": {"input": looked_at, "as": "each", "in": condition}}]}
    is_object = {"$eq": [{"$type": "$$element"}, "object"]}
    objects = {"$filter": {"input": value, "as": "element", "cond": is_object}}
    inside = {"$cond": [is_array, objects, [value]]}
    name = f"in{len(names)}"
    inner = _within(f"$${name}.{names[0]}", names[1:], condition)
    return {"$anyElementTrue": [{"$map": {"input": inside, "as": name, "in": inner}}]}


# --- operators on it -----------------------------------------------------------------------------


def _operated(names: list[str], operator: str, condition: Mapping[str, Any]) -> Expression:
    value, path = condition[operator], ".".join(names)
    if operator == "$eq":
        return _any(names, _equals(value))
    if operator == "$ne":
        return {"$not": [_any(names, _equals(value))]}
    if operator == "$not":
        if not _is_of_operators(value, path):
            raise BadOption(f"$not of '{path}' in option 'filter' takes operators.")
        return {"$not": [_on_path(path, value)]}
    if operator == "$exists":
        is_there = _any(names, {"$ne": [{"$type": _EACH}, "missing"]})
        return is_there if value else {"$not": [is_there]}
    if operator in ("$in", "$nin"):
        if not isinstance(value, list):
            raise BadOption(f"{operator} of '{path}' in option 'filter' takes a list.")
        found = _any(names, {"$or": [_equals(each) for each in value]})
        return found if operator == "$in" else {"$not": [found]}
    if operator in _COMPARISONS:
        return _any(names, _compares(operator, value, path))
    if operator == "$regex" or (operator == "$options" and "$regex" in condition):
        return _any(names, _matches(condition["$regex"], condition.get("$options", ""), path))
    raise BadOption(f"Option 'filter' cannot hold {operator}.", _REMEDY)


def _equals(value: Any) -> Expression:
    if value is None:
        return {"$in": [{"$type": _EACH}, _NOTHING]}
    if isinstance(value, Regex) or any(str(each).startswith("$") for each in _names(value)):
        raise BadOption(
            "Option 'filter' compares with an operator, or with a regular expression.",
            'Write an operator to the path of a field, as in {"a.b": {"$regex": …}}.',
        )
    return {"$eq": [_EACH, {"$literal": value}]}


def _names(value: Any) -> Iterator[str]:
    """Of the fields in a value, however deep."""
    if isinstance(value, Mapping):
        yield from value
    inner = value.values() if isinstance(value, Mapping) else value
    for each in inner if isinstance(inner, Iterable) and not isinstance(inner, str | bytes) else ():
        yield from _names(each)


def _compares(operator: str, value: Any, path: str) -> Expression:
    types = next((types for kind, types in _KINDS if isinstance(value, kind)), None)
    if types is None or (types == _NUMBERS and str(value).lower() == "nan"):
        raise BadOption(f"{operator} of '{path}' in option 'filter' takes no such value.", _REMEDY)
    tests: list[Expression] = [
        {"$in": [{"$type": _EACH}, list(types)]},
        {operator: [_EACH, {"$literal": value}]},
    ]
    if types == _NUMBERS:  # to an expression NaN is less than all numbers
        tests.append({"$ne": [_EACH, math.nan]})
    return {"$and": tests}


def _matches(pattern: Any, options: Any, path: str) -> Expression:
    is_text = isinstance(pattern, str) and isinstance(options, str)
    if not is_text or not set(options) <= set("imsx"):
        raise BadOption(f"$regex of '{path}' in option 'filter' takes text, $options of imsx.")
    is_found = {"$regexMatch": {"input": _EACH, "regex": {"$literal": pattern}, "options": options}}
    return {"$cond": [{"$eq": [{"$type": _EACH}, "string"]}, is_found, False]}
