"""Extended JSON v2 back to BSON bytes: the inverse of `cdc.model.extended_json`.

Canonical form gives the bytes that it was made of, except: a NaN has neither sign nor payload, a
decimal128 that was not canonical is the zero it means, the elements of an array are numbered, and a
document that looks like Extended JSON, `{"$oid": "…"}`, becomes what it looks like. Relaxed form
gives a whole number as int32 if it fits, else as int64, and any other as double.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

from bson.decimal128 import Decimal128

from cdc.model import element

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DOUBLE, _INT32, _INT64 = struct.Struct("<d"), struct.Struct("<i"), struct.Struct("<q")
_Value = tuple[int, bytes]


def document(tree: Mapping[str, Any]) -> bytes:
    """BSON of a parsed object. Besides what JSON has, its leaves may be `bytes`, `Decimal` and
    `datetime` (without a zone: UTC), as a VARIANT's are: binaries of subtype 0, decimal128, dates
    in milliseconds. Raises ValueError for what BSON cannot hold, and never for what
    `extended_json` wrote."""
    return _framed([(name.encode(), _value(item)) for name, item in tree.items()])


def _framed(items: list[tuple[bytes, _Value]]) -> bytes:
    body = b"".join(bytes((kind,)) + name + b"\0" + data for name, (kind, data) in items)
    return _INT32.pack(len(body) + 5) + body + b"\0"


def _value(item: Any) -> _Value:
    if isinstance(item, Mapping):
        return _extended(item) or (element.DOCUMENT, document(item))
    if isinstance(item, list):
        numbered = enumerate(map(_value, item))
        return element.ARRAY, _framed([(str(n).encode(), value) for n, value in numbered])
    if item is None:
        return element.NULL, b""
    return _LEAVES[type(item)](item)


def _integer(number: int) -> _Value:
    if -(2**31) <= number < 2**31:
        return element.INT32, _INT32.pack(number)
    if -(2**63) <= number < 2**63:
        return element.INT64, _INT64.pack(number)
    raise ValueError("an integer of more than 64 bits")


def _date(moment: datetime.datetime) -> _Value:
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return element.DATE, _INT64.pack((zoned - _EPOCH) // datetime.timedelta(milliseconds=1))


def _binary(payload: bytes, subtype: int = 0) -> _Value:
    if subtype == 2:  # the old one repeats its length inside
        payload = _INT32.pack(len(payload)) + payload
    return element.BINARY, _INT32.pack(len(payload)) + bytes((subtype,)) + payload


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT32.pack(len(data) + 1) + data + b"\0"


def _decimal(number: decimal.Decimal) -> _Value:
    return element.DECIMAL128, Decimal128(number).bid


_LEAVES: Mapping[type, Callable[[Any], _Value]] = {
    bool: lambda item: (element.BOOL, bytes((item,))),
    int: _integer,
    float: lambda item: (element.DOUBLE, _DOUBLE.pack(item)),
    str: lambda item: (element.STRING, _text(item)),
    bytes: _binary,
    bytearray: lambda item: _binary(bytes(item)),
    decimal.Decimal: _decimal,
    datetime.datetime: _date,
}


# --- what looks like Extended JSON ---------------------------------------------------------------


def _extended(item: Mapping[str, Any]) -> _Value | None:
    """The value that an object stands for; None if it is none of Extended JSON, exactly so. The
    order of its fields does not count: a VARIANT keeps none."""
    names = tuple(sorted(item))
    read = _FORMS.get(names)
    if read is None:
        return None
    try:
        return read(*(item[name] for name in names))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, struct.error):
        return None  # a document of the user's that only begins like one


def _double(text: str) -> _Value:
    number = float(text)
    return element.DOUBLE, _DOUBLE.pack(math.nan if math.isnan(number) else number)


def _moment(value: Any) -> _Value:
    if isinstance(value, Mapping):
        (number,) = _exactly(value, "$numberLong")
        return element.DATE, _INT64.pack(int(number))
    return _date(datetime.datetime.fromisoformat(value))


def _object_id(text: str) -> _Value:
    data = bytes.fromhex(text)
    if len(data) != 12 or len(text) != 24:
        raise ValueError
    return element.OBJECT_ID, data


def _of_base64(value: Mapping[str, str]) -> _Value:
    encoded, subtype = _exactly(value, "base64", "subType")
    try:
        payload = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError from error
    return _binary(payload, int(subtype, 16))


def _regex(value: Mapping[str, str]) -> _Value:
    parts = _exactly(value, "pattern", "options")
    return element.REGEX, b"".join(_cstring(part) for part in parts)


def _cstring(text: str) -> bytes:
    data = text.encode()
    if b"\0" in data:
        raise ValueError
    return data + b"\0"


def _pointer(value: Mapping[str, Any]) -> _Value:
    namespace, target = _exactly(value, "$ref", "$id")
    (text,) = _exactly(target, "$oid")
    return element.DBPOINTER, _text(namespace) + _object_id(text)[1]


def _with_scope(code: str, scope: Mapping[str, Any]) -> _Value:
    data = _text(code) + document(scope)
    return element.CODE_WITH_SCOPE, _INT32.pack(len(data) + 4) + data


def _timestamp(value: Mapping[str, int]) -> _Value:
    seconds, increment = _exactly(value, "t", "i")
    return element.TIMESTAMP, struct.pack("<II", increment, seconds)


def _nothing(kind: int, is_right: Callable[[Any], bool]) -> Callable[[Any], _Value]:
    def read(value: Any) -> _Value:
        if not is_right(value):
            raise ValueError
        return kind, b""

    return read


def _exactly(value: Mapping[str, Any], *names: str) -> list[Any]:
    if set(value) != set(names):
        raise ValueError
    return [value[name] for name in names]


_FORMS: Mapping[tuple[str, ...], Callable[..., _Value]] = {
    ("$numberInt",): lambda text: (element.INT32, _INT32.pack(int(text))),
    ("$numberLong",): lambda text: (element.INT64, _INT64.pack(int(text))),
    ("$numberDouble",): _double,
    ("$numberDecimal",): lambda text: (element.DECIMAL128, Decimal128(text).bid),
    ("$oid",): _object_id,
    ("$date",): _moment,
    ("$binary",): _of_base64,
    ("$regularExpression",): _regex,
    ("$dbPointer",): _pointer,
    ("$code",): lambda code: (element.CODE, _text(code)),
    ("$code", "$scope"): _with_scope,
    ("$symbol",): lambda text: (element.SYMBOL, _text(text)),
    ("$timestamp",): _timestamp,
    ("$undefined",): _nothing(element.UNDEFINED, lambda value: value is True),
    ("$minKey",): _nothing(element.MIN_KEY, lambda value: value == 1),
    ("$maxKey",): _nothing(element.MAX_KEY, lambda value: value == 1),
}
