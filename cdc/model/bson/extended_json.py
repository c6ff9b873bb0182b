"""BSON bytes to MongoDB Extended JSON v2, as a tree for `json.dumps`.

This module reads the bytes, not the driver's Python objects. Those merge symbol with string,
undefined with null and DBPointer with DBRef, and have no date outside the years 1 to 9999.
Source: https://github.com/mongodb/specifications/blob/master/source/extended-json/extended-json.md
"""

from __future__ import annotations

import base64
import datetime
import math
from typing import TypeAlias

from cdc.errors import UnmappableValue
from cdc.model.bson import decimal128, element
from cdc.model.bson.element import Element, elements

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

# Relaxed form writes a date as ISO-8601 from 1970 up to the last millisecond of 9999.
_END_OF_ISO_DATES = 253_402_300_800_000
_EPOCH = datetime.datetime(1970, 1, 1)


def document(data: bytes, start: int, stop: int, relaxed: bool, depth: int = 0) -> dict[str, Json]:
    """Read the document that fills `data[start:stop]`, with its fields in their order.

    Canonical form (`relaxed` false) keeps every type and value, with two exceptions. A NaN, double
    or decimal128, loses its sign and payload; a non-canonical decimal128 becomes the zero it means.
    Relaxed form writes finite doubles and integers as JSON numbers, and dates from 1970 to 9999 as
    ISO-8601.

    Raises UnmappableValue for corrupt bytes, text that is not UTF-8, a name that occurs twice in a
    document, or nesting deeper than element.MAX_DEPTH.
    """
    items = elements(data, start, stop, depth)
    names = element.names_text(tuple(each.name for each in items))
    tree: dict[str, Json] = {}
    # Recursion uses loops, not comprehensions: before Python 3.12 a comprehension takes a frame of
    # its own, and the deepest document would come close to the interpreter's limit of 1,000.
    for name, each in zip(names, items, strict=True):
        tree[name] = value(data, each, relaxed, depth)
    return tree


def value(data: bytes, item: Element, relaxed: bool, depth: int = 0) -> Json:
    """Read one element's value, as `document` does; `depth` is that of the enclosing document."""
    kind, _, start, stop = item
    if kind == element.STRING:
        return element.text(element.string(data, start))
    if kind == element.DOCUMENT:
        return document(data, start, stop, relaxed, depth + 1)
    if kind == element.ARRAY:
        return _read_array(data, item, relaxed, depth + 1)
    if kind == element.NULL:
        return None
    if kind == element.BOOL:
        return element.boolean(data, start)
    if kind in _NUMBERS:
        return _read_number(data, item, relaxed)
    if kind == element.DATE:
        return _date_tree(element.int64(data, start)[0], relaxed)
    if kind == element.CODE_WITH_SCOPE:
        code = element.text(element.string(data, start + 4))
        scope = element.scope_start(data, start)
        return {"$code": code, "$scope": document(data, scope, stop, relaxed, depth + 1)}
    return _read_wrapped(data, item)


def _read_array(data: bytes, item: Element, relaxed: bool, depth: int) -> Json:
    tree: list[Json] = []
    # The names of an array's elements are ignored: only their order counts, on the server too.
    for each in elements(data, item.start, item.stop, depth):
        tree.append(value(data, each, relaxed, depth))
    return tree


_NUMBERS = {element.INT32, element.INT64, element.DOUBLE, element.DECIMAL128}


def _read_number(data: bytes, item: Element, relaxed: bool) -> Json:
    if item.kind == element.INT32:
        short: int = element.int32(data, item.start)[0]
        return short if relaxed else {"$numberInt": str(short)}
    if item.kind == element.INT64:
        long: int = element.int64(data, item.start)[0]
        return long if relaxed else {"$numberLong": str(long)}
    if item.kind == element.DECIMAL128:
        number = element.decimal128(data, item.start)
        return {"$numberDecimal": "NaN" if number.is_nan() else decimal128.text(number)}
    double: float = element.float64(data, item.start)[0]
    if relaxed and math.isfinite(double):
        return double
    return {"$numberDouble": double_text(double)}


def double_text(double: float) -> str:
    """The shortest text that parses to the same double, as Extended JSON spells it."""
    if math.isfinite(double):
        return repr(double)
    return "NaN" if math.isnan(double) else "Infinity" if double > 0 else "-Infinity"


def _date_tree(millis: int, relaxed: bool) -> Json:
    if relaxed and 0 <= millis < _END_OF_ISO_DATES:
        moment = _EPOCH + datetime.timedelta(milliseconds=millis)
        # The specification omits a fraction of zero.
        precision = "milliseconds" if millis % 1000 else "seconds"
        return {"$date": moment.isoformat(timespec=precision) + "Z"}
    return {"$date": {"$numberLong": str(millis)}}


def _read_wrapped(data: bytes, item: Element) -> Json:
    """Types that have the same relaxed and canonical form and contain no document."""
    kind, _, start, stop = item
    match kind:
        case element.OBJECT_ID:
            return {"$oid": data[start:stop].hex()}
        case element.BINARY:
            return _read_binary(data, start, stop)
        case element.UNDEFINED:
            return {"$undefined": True}
        case element.REGEX:
            pattern, options, _ = data[start:stop].split(b"\0")
            options_text = element.text(options)
            return {
                "$regularExpression": {"pattern": element.text(pattern), "options": options_text}
            }
        case element.DBPOINTER:
            target: Json = {"$oid": data[stop - 12 : stop].hex()}
            namespace = element.text(element.string(data, start))
            return {"$dbPointer": {"$ref": namespace, "$id": target}}
        case element.CODE:
            return {"$code": element.text(element.string(data, start))}
        case element.SYMBOL:
            return {"$symbol": element.text(element.string(data, start))}
        case element.TIMESTAMP:
            increment, seconds = element.uint32(data, start)[0], element.uint32(data, start + 4)[0]
            return {"$timestamp": {"t": seconds, "i": increment}}
        case element.MIN_KEY:
            return {"$minKey": 1}
        case element.MAX_KEY:
            return {"$maxKey": 1}
    raise UnmappableValue(f"there is no Extended JSON for BSON type 0x{kind:02x}")


def _read_binary(data: bytes, start: int, stop: int) -> Json:
    subtype = data[start + 4]
    payload = data[start + 5 : stop]
    if subtype == 2:
        # The payload of the old subtype begins with its length, which Extended JSON omits.
        if len(payload) < 4 or element.int32(payload, 0)[0] != len(payload) - 4:
            raise UnmappableValue("corrupt BSON: a binary of subtype 2 has a wrong inner length")
        payload = payload[4:]
    return binary(payload, subtype)


def binary(payload: bytes, subtype: int) -> Json:
    """The `$binary` object of Extended JSON v2."""
    return {"$binary": {"base64": base64.b64encode(payload).decode(), "subType": f"{subtype:02x}"}}
