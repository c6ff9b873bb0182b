"""KeyString: BSON values as bytes that sort in the server's own order.

The server writes the values of resume tokens and of indexes like this. Each value begins with a
byte for its position among the types. All numbers share one such byte, and so do strings and
symbols: the type bits distinguish them. Documents sort by type, name and value of their fields.
Only ascending keys are supported, without the discriminators that end the bounds of index scans:
tokens have neither.

Source: version 1 of the format, key_string.cpp of the server; compared with the tokens and with
`$sort` of real servers, see tests/mongo/read/test_server_tokens.py. `$sort` differs from an index,
and from this module, for DBPointers only.
"""

from __future__ import annotations

import struct
from typing import Final

from cdc.errors import BadToken, UnmappableValue
from cdc.model.bson import (
    Element,
    element,
    elements,
    encode_document,
    encode_field,
    encode_string,
)
from cdc.model.keystring import number, type_bits

_END: Final = 4
# The first byte of a value; that of true is one more than that of false. Numbers have a range.
_CODES: Final = {
    element.MIN_KEY: 10,
    element.UNDEFINED: 15,
    element.NULL: 20,
    element.STRING: 60,
    element.DOCUMENT: 70,
    element.ARRAY: 80,
    element.BINARY: 90,
    element.OBJECT_ID: 100,
    element.BOOL: 110,
    element.DATE: 120,
    element.TIMESTAMP: 130,
    element.REGEX: 140,
    element.DBPOINTER: 150,
    element.CODE: 160,
    element.CODE_WITH_SCOPE: 170,
    element.MAX_KEY: 240,
}
_KINDS: Final = {code: kind for kind, code in _CODES.items()}
_TRUE: Final = _CODES[element.BOOL] + 1
_NUMBERS: Final = (element.INT32, element.INT64, element.DOUBLE, element.DECIMAL128)
# The same with the types that share a byte. In a document this byte also precedes a field's name.
_CODES_WITH_SHARED: Final = {
    **_CODES,
    element.SYMBOL: _CODES[element.STRING],
    **dict.fromkeys(_NUMBERS, number.CODES[0]),
}
_MILLIS_BIAS: Final = 2**63
# A length takes one byte. If that byte has this value, the length is in the next four.
_LONG: Final = 0xFF


def encode(document: bytes) -> tuple[bytes, bytes]:
    """Encode the values of a BSON document, without their names; return the key and its type bits.

    The bytes are the server's for the same values. The sign and the payload of a NaN and the names
    of array elements are lost. Raises UnmappableValue if the bytes are not a document.
    """
    writer = _Writer(document)
    for item in elements(document, 0, len(document)):
        writer.value(item, 0)
    writer.key.append(_END)
    return bytes(writer.key), writer.bits.pack()


def decode(key: bytes, packed_type_bits: bytes | None = None) -> bytes:
    """Decode a key to a BSON document of its values, each under an empty name.

    Type bits of None are unknown. Then each number gets the first type of int32, int64, double and
    decimal128 that can represent its value, and each string is a string, never a symbol. `encode`
    of the result returns exactly the arguments. Raises BadToken for arguments for which that is
    not possible; its message is a clause about "it".
    """
    reader = _Reader(key, packed_type_bits)
    fields = []
    while (code := reader.byte()) != _END:
        kind, value = reader.value(code, 0)
        fields.append(encode_field(kind, b"", value))
    document = encode_document(fields)
    try:
        encoded, type_bits_of_it = encode(document)
    except UnmappableValue as error:
        raise BadToken("it contains a value that BSON does not have") from error
    if encoded != key or packed_type_bits not in (None, type_bits_of_it):
        raise BadToken("no server writes these bytes for its values")
    return document


class _Writer:
    """Appends the values of one document to a key."""

    def __init__(self, data: bytes) -> None:
        self.key = bytearray()
        self.bits = type_bits.Writer()
        self._data = data

    def value(self, item: Element, depth: int) -> None:
        kind, start, stop = item.kind, item.start, item.stop
        if kind in _NUMBERS:
            self.key += number.encode(self._data, item, self.bits)
            return
        self.key.append(_CODES_WITH_SHARED[kind])
        if kind == element.DOCUMENT:
            self._fields(start, stop, depth + 1)
        elif kind == element.ARRAY:
            for each in elements(self._data, start, stop, depth + 1):
                self.value(each, depth + 1)
            self.key.append(0)
        elif kind == element.CODE_WITH_SCOPE:
            self._string(start + 4)
            self._fields(element.scope_start(self._data, start), stop, depth + 1)
        else:
            self._leaf(item)

    def _fields(self, start: int, stop: int, depth: int) -> None:
        for item in elements(self._data, start, stop, depth):
            self.key.append(_CODES_WITH_SHARED[item.kind])
            self.key += item.name + b"\0"
            self.value(item, depth)
        self.key.append(0)

    def _leaf(self, item: Element) -> None:
        kind, _, start, stop = item
        if kind in (element.STRING, element.SYMBOL):
            self.bits.put(kind == element.SYMBOL, 1)
            self._string(start)
        elif kind == element.CODE:
            self._string(start)
        elif kind == element.BOOL:
            self.key[-1] += element.boolean(self._data, start)
        elif kind == element.DATE:
            self.key += (element.int64(self._data, start)[0] + _MILLIS_BIAS).to_bytes(8)
        elif kind == element.TIMESTAMP:
            self.key += self._data[start:stop][::-1]
        elif kind == element.BINARY:
            self._binary(start, stop)
        elif kind == element.DBPOINTER:
            namespace = element.string(self._data, start)
            self.key += struct.pack(">I", len(namespace)) + namespace + self._data[stop - 12 : stop]
        else:
            self.key += self._data[start:stop]

    def _string(self, start: int) -> None:
        self.key += element.string(self._data, start).replace(b"\0", b"\0\xff") + b"\0"

    def _binary(self, start: int, stop: int) -> None:
        size, subtype = stop - start - 5, self._data[start + 4 : start + 5]
        length = bytes([size]) if size < _LONG else struct.pack(">BI", _LONG, size)
        self.key += length + subtype + self._data[start + 5 : stop]


class _Reader:
    """Reads a key value by value; every method raises BadToken if the bytes are not a key."""

    def __init__(self, key: bytes, packed_type_bits: bytes | None) -> None:
        self._key = key
        self._at = 0
        self._bits = type_bits.Reader(packed_type_bits)

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._key):
            raise BadToken("it ends in the middle of a value")
        return self._key[start : self._at]

    def byte(self) -> int:
        return self.take(1)[0]

    def value(self, code: int, depth: int) -> tuple[int, bytes]:
        """BSON type and bytes of the value whose first byte, already read, is `code`."""
        if code in number.CODES:
            return number.decode(code, self.take, self._bits)
        if code == _TRUE:
            return element.BOOL, b"\1"
        kind = _KINDS.get(code)
        if kind is None:
            raise BadToken(f"it contains a value of an unknown type, 0x{code:02X}")
        if kind == element.DOCUMENT:
            return kind, self._fields(depth + 1)
        if kind == element.ARRAY:
            return kind, self._items(depth + 1)
        if kind == element.CODE_WITH_SCOPE:
            content = encode_string(self._string()) + self._fields(depth + 1)
            return kind, struct.pack("<i", len(content) + 4) + content
        if kind == element.STRING and self._bits.take(1):
            kind = element.SYMBOL
        return kind, self._leaf(kind)

    def _fields(self, depth: int) -> bytes:
        _check_depth(depth)
        fields = []
        while self.byte() != 0:
            name = self._cstring()
            kind, value = self.value(self.byte(), depth)
            fields.append(encode_field(kind, name, value))
        return encode_document(fields)

    def _items(self, depth: int) -> bytes:
        _check_depth(depth)
        items: list[bytes] = []
        while (code := self.byte()) != 0:
            kind, value = self.value(code, depth)
            items.append(encode_field(kind, b"%d" % len(items), value))
        return encode_document(items)

    def _leaf(self, kind: int) -> bytes:
        if kind in (element.STRING, element.SYMBOL, element.CODE):
            return encode_string(self._string())
        if kind == element.OBJECT_ID:
            return self.take(12)
        if kind == element.DATE:
            return struct.pack("<q", int.from_bytes(self.take(8)) - _MILLIS_BIAS)
        if kind == element.TIMESTAMP:
            return self.take(8)[::-1]
        if kind == element.BINARY:
            return self._binary()
        if kind == element.REGEX:
            return self._cstring() + b"\0" + self._cstring() + b"\0"
        if kind == element.DBPOINTER:
            return encode_string(self.take(int.from_bytes(self.take(4)))) + self.take(12)
        return b"\0" if kind == element.BOOL else b""

    def _binary(self) -> bytes:
        size = self.byte()
        if size == _LONG:
            size = int.from_bytes(self.take(4))
        return struct.pack("<I", size) + self.take(1 + size)

    def _cstring(self) -> bytes:
        end = self._key.find(0, self._at)
        if end < 0:
            raise BadToken("it ends in the middle of a value")
        return self.take(end + 1 - self._at)[:-1]

    def _string(self) -> bytes:
        parts = [self._cstring()]
        while self._key[self._at : self._at + 1] == b"\xff":
            self._at += 1
            parts.append(self._cstring())
        return b"\0".join(parts)


def _check_depth(depth: int) -> None:
    if depth > element.MAX_DEPTH:
        raise BadToken(f"its values are nested more than {element.MAX_DEPTH} levels deep")
