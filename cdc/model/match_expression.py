"""The option `filter`: a match on documents, compiled to an aggregation expression.

A find can evaluate a match, but a change stream must decide for each image of an event whether it
passes, and only an aggregation expression evaluates to a value. So both use the same expression,
and the snapshot and the change stream select documents by the same rule.

As in a match, a path descends into arrays of documents. The value at its end is compared as a whole
and, if it is an array, element by element. Numbers, text, dates and so on are compared only with
values of their own kind.
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
# The BSON types that a value in a filter is compared with.
_KINDS: tuple[tuple[type | tuple[type, ...], tuple[str, ...]], ...] = (
    (bool, ("bool",)),
    ((int, float, Int64, Decimal128), _NUMBERS),
    (str, ("string", "symbol")),
    (datetime, ("date",)),
    (ObjectId, ("objectId",)),
    (Timestamp, ("timestamp",)),
    ((bytes, Binary), ("binData",)),
)
_NULL_TYPES = ["null", "missing", "undefined"]
# The value that a condition tests.
_VALUE = "$$each.v"
_COMPARISONS = ("$gt", "$gte", "$lt", "$lte")
# Variables and operators whose value depends on when or where they are evaluated.
_UNSTABLE_VARIABLES = ("$$ROOT", "$$NOW", "$$CLUSTER_TIME", "$$USER_ROLES")
_UNSTABLE_OPERATORS = ("$rand", "$sampleRate", "$function", "$accumulator", "$meta")
_EXAMPLE = 'Write it as {"field": value, …}.'
_REMEDY = 'Write that part as {"$expr": …}, an aggregation expression on the document.'


def parse(text: str) -> Expression:
    """Compile a match in Extended JSON to an expression that is true or false for a document.

    Raises BadOption for text that is no match, and for operators that are not supported.
    """
    try:
        match = json.loads(text, object_pairs_hook=_read_object)
    except (ValueError, TypeError, ArithmeticError, bson.errors.BSONError) as error:
        raise BadOption(f"Option 'filter' is not Extended JSON: {error}.", _EXAMPLE) from error
    if not isinstance(match, dict) or not match:
        raise BadOption("Option 'filter' is not a match on a document.", _EXAMPLE)
    expression = _compile_match(match)
    try:
        bson.encode(expression)
    except (bson.errors.InvalidDocument, OverflowError) as error:
        raise BadOption(f"Option 'filter' cannot be encoded as BSON: {error}.", _EXAMPLE) from error
    return expression


def _read_object(pairs: list[tuple[str, Any]]) -> Any:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadOption("Option 'filter' names a field twice.", "Put both into $and.")
    # The library would read {"$regex": …} as the old form of a regular expression, and drop other
    # operators beside it.
    return fields if "$regex" in fields else json_util.object_hook(fields)


def _compile_match(match: Mapping[str, Any]) -> Expression:
    return _combine([_compile_clause(name, value) for name, value in match.items()])


def _combine(parts: list[Any]) -> Expression:
    return parts[0] if len(parts) == 1 else {"$and": parts}


def _compile_clause(name: str, value: Any) -> Expression:
    if name in ("$and", "$or", "$nor"):
        if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
            raise BadOption(f"{name} in option 'filter' requires a list of matches.")
        parts = [_compile_match(each) for each in value]
        if name == "$nor":
            return {"$not": [{"$or": parts}]}
        return {name: parts}
    if name == "$expr":
        _require_stable(value)
        return {"$cond": [value, True, False]}
    if name.startswith("$"):
        raise BadOption(f"Option 'filter' cannot contain {name}.", _REMEDY)
    return _compile_path(name, value)


def _require_stable(value: Any) -> None:
    for each in _walk(value):
        if isinstance(each, str) and (
            each in _UNSTABLE_OPERATORS or each.split(".")[0] in _UNSTABLE_VARIABLES
        ):
            raise BadOption(
                f"$expr in option 'filter' cannot contain {each}: it would have different values"
                " in the snapshot and in the changes.",
                'Use paths such as "$field", and $$CURRENT for the whole document.',
            )


def _walk(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            if name != "$literal":
                yield from _walk(each)
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each)
    else:
        yield value


# --- the values at a path ------------------------------------------------------------------------


def _compile_path(path: str, condition: Any) -> Expression:
    names = path.split(".")
    for name in names:
        if not name or name.startswith("$") or "\0" in name:
            raise BadOption(f"'{path}' in option 'filter' is not the path of a field.")
        if name.isdigit() and len(names) > 1:
            raise BadOption(f"'{path}' in option 'filter' may be a position in an array.", _REMEDY)
    if _has_operators(condition, path):
        return _combine([_compile_operator(names, operator, condition) for operator in condition])
    return _test_any(names, _test_equal(condition))


def _has_operators(condition: Any, path: str) -> bool:
    if not isinstance(condition, dict) or not condition:
        return False
    operators = [name for name in condition if name.startswith("$")]
    if operators and len(operators) < len(condition):
        raise BadOption(f"'{path}' in option 'filter' mixes operators and fields.")
    return bool(operators)


def _test_any(names: list[str], condition: Expression) -> Expression:
    """An expression: whether a condition on `_VALUE` is true for any value that a match would test.

    It takes one pass over each array. Building an array element by element would take quadratic
    time.
    """
    return _test_within(f"${names[0]}", names[1:], condition)


def _test_within(value: str, names: list[str], condition: Expression) -> Expression:
    is_array = {"$isArray": [value]}
    if not names:
        elements = {"$map": {"input": value, "as": "element", "in": {"v": "$$element"}}}
        itself = [{"v": value}]  # `v` is missing if the value is
        looked_at = {"$cond": [is_array, {"$concatArrays": [elements, itself]}, itself]}
        return {"$anyElementTrue": [{"$map": {"input": looked_at, "as": "each", "in": condition}}]}
    is_object = {"$eq": [{"$type": "$$element"}, "object"]}
    objects = {"$filter": {"input": value, "as": "element", "cond": is_object}}
    inside = {"$cond": [is_array, objects, [value]]}
    name = f"in{len(names)}"
    inner = _test_within(f"$${name}.{names[0]}", names[1:], condition)
    return {"$anyElementTrue": [{"$map": {"input": inside, "as": name, "in": inner}}]}


# --- operators on it -----------------------------------------------------------------------------


def _compile_operator(names: list[str], operator: str, condition: Mapping[str, Any]) -> Expression:
    value, path = condition[operator], ".".join(names)
    if operator == "$eq":
        return _test_any(names, _test_equal(value))
    if operator == "$ne":
        return {"$not": [_test_any(names, _test_equal(value))]}
    if operator == "$not":
        if not _has_operators(value, path):
            raise BadOption(f"$not of '{path}' in option 'filter' requires operators.")
        return {"$not": [_compile_path(path, value)]}
    if operator == "$exists":
        is_there = _test_any(names, {"$ne": [{"$type": _VALUE}, "missing"]})
        return is_there if value else {"$not": [is_there]}
    if operator in ("$in", "$nin"):
        if not isinstance(value, list):
            raise BadOption(f"{operator} of '{path}' in option 'filter' requires a list.")
        is_in = _test_any(names, {"$or": [_test_equal(each) for each in value]})
        return is_in if operator == "$in" else {"$not": [is_in]}
    if operator in _COMPARISONS:
        return _test_any(names, _test_order(operator, value, path))
    if operator == "$regex" or (operator == "$options" and "$regex" in condition):
        return _test_any(
            names, _test_regex(condition["$regex"], condition.get("$options", ""), path)
        )
    raise BadOption(f"Option 'filter' cannot contain {operator}.", _REMEDY)


def _test_equal(value: Any) -> Expression:
    if value is None:
        return {"$in": [{"$type": _VALUE}, _NULL_TYPES]}
    if isinstance(value, Regex) or any(str(each).startswith("$") for each in _field_names(value)):
        raise BadOption(
            "Option 'filter' compares a field with an operator or a regular expression.",
            'Write the operator directly at the path of a field, as in {"a.b": {"$regex": …}}.',
        )
    return {"$eq": [_VALUE, {"$literal": value}]}


def _field_names(value: Any) -> Iterator[str]:
    """The names of the fields in a value, at every depth."""
    if isinstance(value, Mapping):
        yield from value
    inner = value.values() if isinstance(value, Mapping) else value
    for each in inner if isinstance(inner, Iterable) and not isinstance(inner, str | bytes) else ():
        yield from _field_names(each)


def _test_order(operator: str, value: Any, path: str) -> Expression:
    types = next((types for kind, types in _KINDS if isinstance(value, kind)), None)
    if types is None or (types == _NUMBERS and str(value).lower() == "nan"):
        raise BadOption(
            f"{operator} of '{path}' in option 'filter' does not accept this value.", _REMEDY
        )
    tests: list[Expression] = [
        {"$in": [{"$type": _VALUE}, list(types)]},
        {operator: [_VALUE, {"$literal": value}]},
    ]
    if types == _NUMBERS:  # an expression sorts NaN below all numbers
        tests.append({"$ne": [_VALUE, math.nan]})
    return {"$and": tests}


def _test_regex(pattern: Any, options: Any, path: str) -> Expression:
    is_text = isinstance(pattern, str) and isinstance(options, str)
    if not is_text or not set(options) <= set("imsx"):
        raise BadOption(
            f"$regex of '{path}' in option 'filter' requires text, $options letters of imsx."
        )
    is_found = {
        "$regexMatch": {"input": _VALUE, "regex": {"$literal": pattern}, "options": options}
    }
    return {"$cond": [{"$eq": [{"$type": _VALUE}, "string"]}, is_found, False]}
