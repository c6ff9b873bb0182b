"""Extended JSON v2 back to BSON bytes: the inverse of `cdc.model.bson.extended_json`.

Canonical form returns the original bytes, with three exceptions. A NaN has neither sign nor
payload, a non-canonical decimal128 is the zero it means, and array elements are renumbered.
Relaxed form returns a whole number as int32 if it fits, else as int64, and any other as double.

An object is read as a value exactly if the encoder writes that value as that object. Any other
object is a user's document, for example `{"$numberInt": " 5 "}`. A user's document that looks
exactly like an encoded value cannot be distinguished, and becomes the value.
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
from cdc.model.bson import Element, element, extended_json
from cdc.model.encoding import variant

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DOUBLE, _INT32, _INT64 = struct.Struct("<d"), struct.Struct("<i"), struct.Struct("<q")
# The BSON type and bytes of a value.
_Value: TypeAlias = tuple[int, bytes]


class Origin(Enum):
    """The source of a tree; it decides which values the encoder writes as objects."""

    TEXT = auto()  # relaxed or canonical form; one table may contain both
    VARIANT = auto()
    SCOPE = auto()  # the scope of a code in a VARIANT: canonical form, numbers included


def document(tree: Mapping[str, Any], origin: Origin = Origin.TEXT, depth: int = 0) -> bytes:
    """Encode a parsed object as BSON; `depth` is that of the enclosing document.

    Besides JSON values, leaves may be those of `variant_tree`: `bytes` (binaries of subtype 0),
    `Decimal` and `DatetimeMS`. The deepest document takes 510 of the interpreter's 1,000 frames.
    Raises UnmappableValue for a value that BSON does not have, never for the output of an encoder.
    """
    _check_depth(depth)
    # Recursion uses loops, not comprehensions, as in `extended_json`.
    parts: list[bytes] = []
    for name, item in tree.items():
        kind, data = _encode_value(item, origin, depth)
        parts += (bytes((kind,)), _encode_cstring(name), data)
    return _frame(parts)


def _encode_value(item: Any, origin: Origin, depth: int) -> _Value:
    if isinstance(item, list):
        _check_depth(depth + 1)
        parts: list[bytes] = []
        for number, each in enumerate(item):
            kind, data = _encode_value(each, origin, depth + 1)
            parts += (bytes((kind,)), b"%d\0" % number, data)
        return element.ARRAY, _frame(parts)
    if not isinstance(item, dict):
        return _encode_leaf(item, origin)
    if _is_code_with_scope(item):
        try:
            inner = Origin.TEXT if origin is Origin.TEXT else Origin.SCOPE
            data = _encode_text(item["$code"]) + document(item["$scope"], inner, depth + 1)
            return element.CODE_WITH_SCOPE, _INT32.pack(len(data) + 4) + data
        except _NotCanonical:
            if origin is Origin.SCOPE:
                raise
    return _read_extended(item, origin) or (element.DOCUMENT, document(item, origin, depth + 1))


def _check_depth(depth: int) -> None:
    if depth > element.MAX_DEPTH:
        raise UnmappableValue(f"documents nested more than {element.MAX_DEPTH} levels deep")


def _frame(parts: list[bytes]) -> bytes:
    body = b"".join(parts)
    return _INT32.pack(len(body) + 5) + body + b"\0"


# --- leaves --------------------------------------------------------------------------------------


class _NotCanonical(Exception):
    """A `$scope` is not canonical Extended JSON, so its object is a user's document."""


def _encode_leaf(item: Any, origin: Origin) -> _Value:
    if origin is Origin.SCOPE and not isinstance(item, str | bool | None):
        raise _NotCanonical
    write = _LEAVES.get(type(item))
    if write is None:
        raise UnmappableValue("a value whose type BSON does not have")
    return write(item)


def _encode_integer(number: int) -> _Value:
    if -(2**31) <= number < 2**31:
        return element.INT32, _INT32.pack(number)
    if -(2**63) <= number < 2**63:
        return element.INT64, _INT64.pack(number)
    raise UnmappableValue("an integer of more than 64 bits")


def _encode_decimal(number: decimal.Decimal) -> _Value:
    try:
        return element.DECIMAL128, Decimal128(number).bid
    except decimal.DecimalException as error:
        raise UnmappableValue("a decimal of more than 34 digits") from error


def _encode_binary(payload: bytes, subtype: int = 0) -> _Value:
    if subtype == 2:  # the payload of the old subtype begins with its length
        payload = _INT32.pack(len(payload)) + payload
    return element.BINARY, _INT32.pack(len(payload)) + bytes((subtype,)) + payload


def _encode_text(text: str) -> bytes:
    data = _encode_utf8(text)
    return _INT32.pack(len(data) + 1) + data + b"\0"


def _encode_cstring(text: str) -> bytes:
    data = _encode_utf8(text)
    if b"\0" in data:
        raise UnmappableValue("a name or a regular expression that contains NUL")
    return data + b"\0"


def _encode_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnmappableValue("a name or a string that UTF-8 cannot encode") from error


_LEAVES: Mapping[type, Callable[[Any], _Value]] = {
    type(None): lambda item: (element.NULL, b""),
    bool: lambda item: (element.BOOL, bytes((item,))),
    int: _encode_integer,
    float: lambda item: (element.DOUBLE, _DOUBLE.pack(item)),
    str: lambda item: (element.STRING, _encode_text(item)),
    bytes: _encode_binary,
    decimal.Decimal: _encode_decimal,
    DatetimeMS: lambda item: (element.DATE, _INT64.pack(int(item))),
}


# --- objects of Extended JSON --------------------------------------------------------------------


def _is_code_with_scope(item: dict[str, Any]) -> bool:
    if item.keys() != {"$code", "$scope"}:
        return False
    return isinstance(item["$code"], str) and isinstance(item["$scope"], dict)


def _read_extended(item: dict[str, Any], origin: Origin) -> _Value | None:
    """The value that an encoder writes as exactly this object; None if there is none."""
    if len(item) != 1:
        return None
    ((name, content),) = item.items()
    read = _FORMS.get(name)
    if read is None:
        return None
    try:
        value = read(content)
        return value if _is_written_as(value, item, origin) else None
    except _MALFORMED:
        return None


def _is_written_as(value: _Value, item: dict[str, Any], origin: Origin) -> bool:
    """Whether the encoder writes a value as that object, found by encoding it again.

    Parsing is not enough: Python's parsers of numbers, dates and base64 accept other spellings too.
    """
    kind, data = value
    whole = Element(kind, b"", 0, len(data))
    if origin is Origin.VARIANT and not variant.is_object(data, whole):
        return False
    if _is_same(extended_json.value(data, whole, relaxed=False), item):
        return True
    is_relaxed = origin is Origin.TEXT and kind == element.DATE
    return is_relaxed and _is_same(extended_json.value(data, whole, relaxed=True), item)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two trees are equal, types included: in Python 1, 1.0 and True are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _read_double(text: str) -> _Value:
    number = float(text)
    return element.DOUBLE, _DOUBLE.pack(math.nan if math.isnan(number) else number)


def _read_date(content: Any) -> _Value:
    if isinstance(content, dict):
        return element.DATE, _INT64.pack(int(content["$numberLong"]))
    moment = datetime.datetime.fromisoformat(content)
    return element.DATE, _INT64.pack((moment - _EPOCH) // datetime.timedelta(milliseconds=1))


def _read_object_id(text: str) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != 12:
        raise ValueError
    return data


def _read_binary(content: dict[str, str]) -> _Value:
    payload = base64.b64decode(content["base64"], validate=True)
    return _encode_binary(payload, int(content["subType"], 16))


def _read_regex(content: dict[str, str]) -> _Value:
    return element.REGEX, _encode_cstring(content["pattern"]) + _encode_cstring(content["options"])


def _read_pointer(content: dict[str, Any]) -> _Value:
    return element.DBPOINTER, _encode_text(content["$ref"]) + _read_object_id(
        content["$id"]["$oid"]
    )


def _read_timestamp(content: dict[str, int]) -> _Value:
    return element.TIMESTAMP, struct.pack("<II", content["i"], content["t"])


# These may accept more than an encoder writes, and raise any of _MALFORMED for malformed content.
_FORMS: Mapping[str, Callable[[Any], _Value]] = {
    "$numberInt": lambda text: (element.INT32, _INT32.pack(int(text))),
    "$numberLong": lambda text: (element.INT64, _INT64.pack(int(text))),
    "$numberDouble": _read_double,
    "$numberDecimal": lambda text: (element.DECIMAL128, Decimal128(text).bid),
    "$oid": lambda text: (element.OBJECT_ID, _read_object_id(text)),
    "$date": _read_date,
    "$binary": _read_binary,
    "$regularExpression": _read_regex,
    "$dbPointer": _read_pointer,
    "$code": lambda code: (element.CODE, _encode_text(code)),
    "$symbol": lambda text: (element.SYMBOL, _encode_text(text)),
    "$timestamp": _read_timestamp,
    "$undefined": lambda content: (element.UNDEFINED, b""),
    "$minKey": lambda content: (element.MIN_KEY, b""),
    "$maxKey": lambda content: (element.MAX_KEY, b""),
}
_MALFORMED = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, struct.error),
    UnmappableValue,
)
