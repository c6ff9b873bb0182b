"""The elements of a BSON document, located in its bytes.

All bounds checks of this package's BSON readers are here. The owner of an `Element` may read
`data[element.start:element.stop]`, and the parts that its type has (see `_value_size`), without
another check. Source: https://bsonspec.org/spec.html, version 1.1.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from cdc.errors import UnmappableValue

DOUBLE: Final = 0x01
STRING: Final = 0x02
DOCUMENT: Final = 0x03
ARRAY: Final = 0x04
BINARY: Final = 0x05
UNDEFINED: Final = 0x06
OBJECT_ID: Final = 0x07
BOOL: Final = 0x08
DATE: Final = 0x09
NULL: Final = 0x0A
REGEX: Final = 0x0B
DBPOINTER: Final = 0x0C
CODE: Final = 0x0D
SYMBOL: Final = 0x0E
CODE_WITH_SCOPE: Final = 0x0F
INT32: Final = 0x10
TIMESTAMP: Final = 0x11
INT64: Final = 0x12
DECIMAL128: Final = 0x13
MIN_KEY: Final = 0xFF
MAX_KEY: Final = 0x7F

# The highest value that the server accepts for maxBSONDepth (default: 200). Every reader here
# recurses: without a limit a hostile document would raise RecursionError instead of a reason.
MAX_DEPTH: Final = 250

_FIXED: Final = {DOUBLE: 8, UNDEFINED: 0, OBJECT_ID: 12, BOOL: 1, DATE: 8, NULL: 0, INT32: 4}
_FIXED.update({TIMESTAMP: 8, INT64: 8, DECIMAL128: 16, MIN_KEY: 0, MAX_KEY: 0})

int32 = struct.Struct("<i").unpack_from
int64 = struct.Struct("<q").unpack_from
uint32 = struct.Struct("<I").unpack_from
float64 = struct.Struct("<d").unpack_from


class Element(NamedTuple):
    """One element: its BSON type, its name as stored, and the position of its value."""

    kind: int
    name: bytes
    start: int
    stop: int


def elements(data: bytes, start: int, stop: int, depth: int = 0) -> list[Element]:
    """List the elements of the document (or array) that fills `data[start:stop]` exactly.

    Embedded documents are not opened, names and strings are not decoded. Raises UnmappableValue if
    the bytes are not a document or if `depth` exceeds MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise UnmappableValue(f"documents nested more than {MAX_DEPTH} levels deep")
    last = stop - 1
    if last - start < 4 or int32(data, start)[0] != stop - start or data[last] != 0:
        raise UnmappableValue("corrupt BSON: a document's length is wrong")
    position = start + 4
    found = []
    while position < last:
        name_end = data.find(0, position + 1, last)
        if name_end < 0:
            raise UnmappableValue("corrupt BSON: a field name has no end")
        kind = data[position]
        value = name_end + 1
        size = _FIXED.get(kind)
        after = value + (_value_size(kind, data, value, last) if size is None else size)
        if after > last:
            raise UnmappableValue("corrupt BSON: a value reaches beyond its document")
        found.append(Element(kind, data[position + 1 : name_end], value, after))
        position = after
    return found


def _value_size(kind: int, data: bytes, at: int, last: int) -> int:
    """Bytes of a value of variable length; the caller must refuse more than `last - at`."""
    if kind in (STRING, CODE, SYMBOL):
        return _string_size(data, at, last)
    if kind in (DOCUMENT, ARRAY):
        return _read_length(data, at, last, least=5)
    if kind == BINARY:
        return 5 + _read_length(data, at, last, least=0)
    if kind == REGEX:
        pattern = _cstring_size(data, at, last)
        return pattern + _cstring_size(data, at + pattern, last)
    if kind == DBPOINTER:
        return _string_size(data, at, last) + 12
    if kind == CODE_WITH_SCOPE:
        return _code_with_scope_size(data, at, last)
    raise UnmappableValue(f"corrupt BSON: there is no type 0x{kind:02x}")


def _read_length(data: bytes, at: int, last: int, least: int) -> int:
    length: int = int32(data, at)[0] if at + 4 <= last else -1
    if length < least:
        raise UnmappableValue("corrupt BSON: a value's length is wrong")
    return length


def _string_size(data: bytes, at: int, last: int) -> int:
    size = 4 + _read_length(data, at, last, least=1)
    if at + size > last or data[at + size - 1] != 0:
        raise UnmappableValue("corrupt BSON: a string has no end")
    return size


def _cstring_size(data: bytes, at: int, last: int) -> int:
    end = data.find(0, at, last)
    if end < 0:
        raise UnmappableValue("corrupt BSON: a regular expression has no end")
    return end + 1 - at


def _code_with_scope_size(data: bytes, at: int, last: int) -> int:
    """Also checks that code and scope fit into the value: `scope_start` relies on it."""
    size = _read_length(data, at, last, least=14)
    if at + size > last or 4 + _string_size(data, at + 4, at + size) + 5 > size:
        raise UnmappableValue("corrupt BSON: a code with scope has a wrong length")
    return size


def encode_field(kind: int, name: bytes, value: bytes) -> bytes:
    """Return the bytes of an element."""
    return b"".join(field_parts(kind, name, value))


def field_parts(kind: int, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of an element in two parts, so that `encode_document` copies a large value
    once."""
    return b"%c%b\0" % (kind, name), value


def encode_document(fields: Iterable[bytes]) -> bytes:
    """Return the document, or the array, of these elements or their parts."""
    parts = [b"", *fields, b"\0"]
    parts[0] = struct.pack("<i", sum(map(len, parts)) + 4)
    return b"".join(parts)


def encode_string(raw: bytes) -> bytes:
    """Return the value of a string, which is UTF-8."""
    return struct.pack("<i", len(raw) + 1) + raw + b"\0"


def scope_start(data: bytes, start: int) -> int:
    """The start of the scope document in the code with scope at `start`."""
    length: int = int32(data, start + 4)[0]
    return start + 8 + length


def string(data: bytes, start: int) -> bytes:
    """The bytes of the string (code, symbol) at `start`, without the final NUL, not decoded."""
    length: int = int32(data, start)[0]
    return data[start + 4 : start + 3 + length]


def boolean(data: bytes, start: int) -> bool:
    """The bool at `start`. Raises UnmappableValue for any byte but 0 and 1, as the server does."""
    if data[start] > 1:
        raise UnmappableValue("corrupt BSON: a bool is neither true nor false")
    return data[start] == 1


def text(raw: bytes) -> str:
    """Decode UTF-8. Raises UnmappableValue for anything else, encoded surrogates included."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnmappableValue("a name or a string is not valid UTF-8") from error


def names_text(raw: tuple[bytes, ...]) -> list[str]:
    """The field names of one document as text, in their order.

    Raises UnmappableValue if a name is not UTF-8 or occurs twice. A reader that looks up fields by
    name would find either the first or the last of the two.
    """
    if len(set(raw)) != len(raw):
        raise UnmappableValue("a document contains the same field name twice")
    return [text(name) for name in raw]


def decimal128(data: bytes, start: int) -> decimal.Decimal:
    """The decimal128 (BID encoding) at `start`: sign, coefficient and exponent as stored.

    A coefficient above 10**34 - 1 is not canonical and means zero (IEEE 754-2008, 3.5.2), as on
    the server. The payload of a NaN is dropped; NaN and sNaN remain different.
    """
    low, high = struct.unpack_from("<QQ", data, start)
    sign = "-" if high >> 63 else ""
    if (high >> 59) & 0xF == 0xF:
        special = "Infinity" if not (high >> 58) & 1 else "sNaN" if (high >> 57) & 1 else "NaN"
        return decimal.Decimal(sign + special)
    if (high >> 61) & 3 == 3:
        coefficient, exponent = 0, (high >> 47) & 0x3FFF
    else:
        coefficient, exponent = ((high & 0x1FFFFFFFFFFFF) << 64) | low, (high >> 49) & 0x3FFF
    if coefficient >= 10**34:
        coefficient = 0
    return decimal.Decimal(f"{sign}{coefficient}E{exponent - 6176}")
