"""Extended JSON v2 back to BSON bytes: the inverse of `cdc.model.extended_json`.

Canonical form gives the bytes that it was made of, except: a NaN has neither sign nor payload, a
decimal128 that was not canonical is the zero it means, and the elements of an array are numbered.
Relaxed form gives a whole number as int32 if it fits, else as int64, and any other as double.

An object is read as a value exactly where the encoder writes that value as that object; any other
is a document of the user's, `{"$numberInt": " 5 "}` too. One that is written alike cannot be told
apart, and becomes the value.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128

from cdc.errors import UnmappableValue
from cdc.model import element, extended_json, variant
from cdc.model.element import Element

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DOUBLE, _INT32, _INT64 = struct.Struct("<d"), struct.Struct("<i"), struct.Struct("<q")
# BSON type and bytes.
_Value: TypeAlias = tuple[int, bytes]


class Origin(Enum):
    """What a tree was read from, by which it is known what the encoder writes as an object."""

    TEXT = auto()  # of relaxed or canonical form, which may both be in one table
    VARIANT = auto()
    SCOPE = auto()  # of a code in a VARIANT: of canonical form, its numbers too


def document(tree: Mapping[str, Any], origin: Origin = Origin.TEXT, depth: int = 0) -> bytes:
    """BSON of a parsed object; `depth` is that of the document it stands in.

    Besides what JSON has, its leaves may be what `variant_tree` gives: `bytes` (binaries of subtype
    0), `Decimal` and `DatetimeMS`. Raises UnmappableValue for what BSON cannot hold, and never for
    what an encoder wrote. The deepest document takes 510 of the interpreter's 1,000 frames.
    """
    _bound(depth)
    # Loops and no comprehensions where it recurses, as in `extended_json`.
    parts: list[bytes] = []
    for name, item in tree.items():
        kind, data = _value(item, origin, depth)
        parts += (bytes((kind,)), _cstring(name), data)
    return _framed(parts)


def _value(item: Any, origin: Origin, depth: int) -> _Value:
    if isinstance(item, list):
        _bound(depth + 1)
        parts: list[bytes] = []
        for number, each in enumerate(item):
            kind, data = _value(each, origin, depth + 1)
            parts += (bytes((kind,)), b"%d\0" % number, data)
        return element.ARRAY, _framed(parts)
    if not isinstance(item, dict):
        return _leaf(item, origin)
    if _is_code_with_scope(item):
        try:
            inner = Origin.TEXT if origin is Origin.TEXT else Origin.SCOPE
            data = _text(item["$code"]) + document(item["$scope"], inner, depth + 1)
            return element.CODE_WITH_SCOPE, _INT32.pack(len(data) + 4) + data
        except _NotCanonical:
            if origin is Origin.SCOPE:
                raise
    return _extended(item, origin) or (element.DOCUMENT, document(item, origin, depth + 1))


def _bound(depth: int) -> None:
    if depth > element.MAX_DEPTH:
        raise UnmappableValue(f"documents nested more than {element.MAX_DEPTH} levels deep")


def _framed(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return _INT32.pack(len(body) + 5) + body + b"\0"


# --- leaves --------------------------------------------------------------------------------------


class _NotCanonical(Exception):
    """What stands in a `$scope` is no canonical Extended JSON: it is a document of the user's."""


def _leaf(item: Any, origin: Origin) -> _Value:
    if origin is Origin.SCOPE and not isinstance(item, str | bool | None):
        raise _NotCanonical
    write = _LEAVES.get(type(item))
    if write is None:
        raise UnmappableValue("a value of no type of BSON")
    return write(item)


def _integer(number: int) -> _Value:
    if -(2**31) <= number < 2**31:
        return element.INT32, _INT32.pack(number)
    if -(2**63) <= number < 2**63:
        return element.INT64, _INT64.pack(number)
    raise UnmappableValue("an integer of more than 64 bits")


def _decimal(number: decimal.Decimal) -> _Value:
    try:
        return element.DECIMAL128, Decimal128(number).bid
    except decimal.DecimalException as error:
        raise UnmappableValue("a decimal of more than 34 digits") from error


def _binary(payload: bytes, subtype: int = 0) -> _Value:
    if subtype == 2:  # the old one repeats its length inside
        payload = _INT32.pack(len(payload)) + payload
    return element.BINARY, _INT32.pack(len(payload)) + bytes((subtype,)) + payload


def _text(text: str) -> bytes:
    data = _utf8(text)
    return _INT32.pack(len(data) + 1) + data + b"\0"


def _cstring(text: str) -> bytes:
    data = _utf8(text)
    if b"\0" in data:
        raise UnmappableValue("a name or a regular expression with a NUL in it")
    return data + b"\0"


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnmappableValue("a name or a string that no UTF-8 can hold") from error


_LEAVES: Mapping[type, Callable[[Any], _Value]] = {
    type(None): lambda item: (element.NULL, b""),
    bool: lambda item: (element.BOOL, bytes((item,))),
    int: _integer,
    float: lambda item: (element.DOUBLE, _DOUBLE.pack(item)),
    str: lambda item: (element.STRING, _text(item)),
    bytes: _binary,
    decimal.Decimal: _decimal,
    DatetimeMS: lambda item: (element.DATE, _INT64.pack(int(item))),
}


# --- objects of Extended JSON --------------------------------------------------------------------


def _is_code_with_scope(item: dict[str, Any]) -> bool:
    if item.keys() != {"$code", "$scope"}:
        return False
    return isinstance(item["$code"], str) and isinstance(item["$scope"], dict)


def _extended(item: dict[str, Any], origin: Origin) -> _Value | None:
    """The value that an encoder writes as this very object; None if there is none."""
    if len(item) != 1:
        return None
    ((name, content),) = item.items()
    read = _FORMS.get(name)
    if read is None:
        return None
    try:
        found = read(content)
        return found if _is_written(found, item, origin) else None
    except _MALFORMED:
        return None


def _is_written(found: _Value, item: dict[str, Any], origin: Origin) -> bool:
    """Whether the encoder writes a value as that object. By asking it: no reader of numbers, dates
    or binaries in Python takes its own spelling alone."""
    kind, data = found
    whole = Element(kind, b"", 0, len(data))
    if origin is Origin.VARIANT and not variant.is_object(data, whole):
        return False
    if _same(extended_json.value(data, whole, relaxed=False), item):
        return True
    is_relaxed = origin is Origin.TEXT and kind == element.DATE
    return is_relaxed and _same(extended_json.value(data, whole, relaxed=True), item)


def _same(one: Any, other: Any) -> bool:
    """Equal in type too: 1, 1.0 and true are equal in Python."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _double(text: str) -> _Value:
    number = float(text)
    return element.DOUBLE, _DOUBLE.pack(math.nan if math.isnan(number) else number)


def _date(content: Any) -> _Value:
    if isinstance(content, dict):
        return element.DATE, _INT64.pack(int(content["$numberLong"]))
    moment = datetime.datetime.fromisoformat(content)
    return element.DATE, _INT64.pack((moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def _object_id(text: str) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != 12:
        raise ValueError
    return data


def _of_base64(content: dict[str, str]) -> _Value:
    payload = base64.b64decode(content["base64"], validate=True)
    return _binary(payload, int(content["subType"], 16))


def _regex(content: dict[str, str]) -> _Value:
    return element.REGEX, _cstring(content["pattern"]) + _cstring(content["options"])


def _pointer(content: dict[str, Any]) -> _Value:
    return element.DBPOINTER, _text(content["$ref"]) + _object_id(content["$id"]["$oid"])


def _timestamp(content: dict[str, int]) -> _Value:
    return element.TIMESTAMP, struct.pack("<II", content["i"], content["t"])


# May take more than an encoder writes, and raise any of these for what is malformed.
_FORMS: Mapping[str, Callable[[Any], _Value]] = {
    "$numberInt": lambda text: (element.INT32, _INT32.pack(int(text))),
    "$numberLong": lambda text: (element.INT64, _INT64.pack(int(text))),
    "$numberDouble": _double,
    "$numberDecimal": lambda text: (element.DECIMAL128, Decimal128(text).bid),
    "$oid": lambda text: (element.OBJECT_ID, _object_id(text)),
    "$date": _date,
    "$binary": _of_base64,
    "$regularExpression": _regex,
    "$dbPointer": _pointer,
    "$code": lambda code: (element.CODE, _text(code)),
    "$symbol": lambda text: (element.SYMBOL, _text(text)),
    "$timestamp": _timestamp,
    "$undefined": lambda content: (element.UNDEFINED, b""),
    "$minKey": lambda content: (element.MIN_KEY, b""),
    "$maxKey": lambda content: (element.MAX_KEY, b""),
}
_MALFORMED = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, struct.error),
    UnmappableValue,
)
