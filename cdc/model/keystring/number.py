"""Numbers in a KeyString: the bytes give the value, the type bits the BSON type.

A number below zero mirrors its magnitude: its first byte is as far below zero's byte as the
magnitude's is above it, and the other bytes are inverted. The last 6 bits of a decimal's exponent
are type bits too, because 1.0 equals 1.00. Source: key_string.cpp of the server.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Final

from cdc.errors import BadToken
from cdc.model.bson import Element, decimal128, element
from cdc.model.keystring import magnitude, type_bits
from cdc.model.keystring.magnitude import Take

# The first bytes of all numbers.
CODES: Final = range(30, 52)
_NAN: Final = 30
_ZERO: Final = 41
_INVERTED: Final = bytes(range(255, -1, -1))

# The type bits of a number.
_INT32, _INT64, _DOUBLE, _DECIMAL = range(4)
_FORMATS: Final = {
    _INT32: (element.INT32, "<i"),
    _INT64: (element.INT64, "<q"),
    _DOUBLE: (element.DOUBLE, "<d"),
}
# For a zero, the type bits of a decimal mean that 15 more bits follow. 0 to 0xFFF is the double
# -0.0. From 0x2000 on come decimals by exponent, first the positive ones, then the negative ones.
_DECIMAL_ZERO: Final = 0x2000
_EXPONENTS: Final = decimal128.BIAS + decimal128.LAST_EXPONENT + 1


def encode(data: bytes, item: Element, bits: type_bits.Writer) -> bytes:
    """Encode a number; its type is appended to `bits`. All NaNs of a type get the same bytes."""
    if item.kind == element.DECIMAL128:
        return _encode_decimal(element.decimal128(data, item.start), bits)
    if item.kind == element.DOUBLE:
        return _encode_double(element.float64(data, item.start)[0], bits)
    is_short = item.kind == element.INT32
    bits.put(_INT32 if is_short else _INT64, 2)
    number: int = (element.int32 if is_short else element.int64)(data, item.start)[0]
    return (
        _with_sign(number < 0, magnitude.encode_number(abs(number))) if number else bytes([_ZERO])
    )


def decode(code: int, take: Take, bits: type_bits.Reader) -> tuple[int, bytes]:
    """BSON type and bytes of the number whose first byte is `code`.

    `take(n)` returns the next n bytes. Bytes that `encode` does not write raise BadToken or return
    some number: the caller must encode the result again and compare.
    """
    if code == _ZERO:
        return _pack(_INT32, 0) if bits.is_lost else _decode_zero(bits)
    if code == _NAN:
        return _decode_nan(_DOUBLE if bits.is_lost else bits.take(2))
    is_negative = code < _ZERO
    if is_negative:
        code, take = 2 * _ZERO - code, _invert(take)
    value = magnitude.decode(code, take)
    kind = _first_kind(is_negative, value) if bits.is_lost else bits.take(2)
    if kind == _DECIMAL:
        exact = value if isinstance(value, Decimal) else Decimal.from_float(value)
        exponent = None if bits.is_lost or exact.is_infinite() else bits.take(6)
        return element.DECIMAL128, decimal128.pack(is_negative, exact, exponent)
    if isinstance(value, Decimal):
        raise BadToken("a decimal in it has the type bits of another type")
    return _pack(kind, -value if is_negative else value)


def _first_kind(is_negative: bool, value: float | Decimal) -> int:
    """The first type that can represent the value."""
    if isinstance(value, Decimal):
        return _DECIMAL
    if not float(value).is_integer() or value >= 2**63 + is_negative:
        return _DOUBLE
    return _INT32 if value < 2**31 + is_negative else _INT64


def _encode_double(number: float, bits: type_bits.Writer) -> bytes:
    if number == 0 and math.copysign(1, number) < 0:
        bits.put(_DECIMAL, 2)
        bits.put(0, 3)  # the first 3 of the 15 bits; the others are omitted
        return bytes([_ZERO])
    bits.put(_DOUBLE, 2)
    if number == 0 or math.isnan(number):
        return bytes([_NAN if number else _ZERO])
    return _with_sign(number < 0, magnitude.encode_number(abs(number)))


def _encode_decimal(number: Decimal, bits: type_bits.Writer) -> bytes:
    bits.put(_DECIMAL, 2)
    if number.is_nan():
        return bytes([_NAN])
    if number.is_infinite():
        return _with_sign(number < 0, magnitude.encode_number(math.inf))
    biased = int(number.as_tuple().exponent) + decimal128.BIAS
    if not number:
        bits.put(_DECIMAL_ZERO + number.is_signed() * _EXPONENTS + biased, 15)
        return bytes([_ZERO])
    bits.put(biased, 6)
    return _with_sign(number < 0, magnitude.encode_decimal(number.copy_abs()))


def _with_sign(is_negative: bool, code: bytes) -> bytes:
    if not is_negative:
        return code
    return bytes([2 * _ZERO - code[0]]) + code[1:].translate(_INVERTED)


def _invert(take: Take) -> Take:
    return lambda size: take(size).translate(_INVERTED)


def _decode_zero(bits: type_bits.Reader) -> tuple[int, bytes]:
    kind = bits.take(2)
    if kind != _DECIMAL:
        return _pack(kind, 0)
    head = bits.take(3)
    if head == 0:
        return _pack(_DOUBLE, -0.0)
    sign, exponent = divmod((head << 12) + bits.take(12) - _DECIMAL_ZERO, _EXPONENTS)
    if sign < 0:
        raise BadToken("its type bits describe a zero that does not exist")
    return element.DECIMAL128, decimal128.pack_zero(sign == 1, exponent)


def _decode_nan(kind: int) -> tuple[int, bytes]:
    if kind == _DECIMAL:
        return element.DECIMAL128, struct.pack("<QQ", 0, 0x7C << 56)
    return _pack(kind, math.nan)


def _pack(kind: int, number: float) -> tuple[int, bytes]:
    name, form = _FORMATS[kind]
    try:
        return name, struct.pack(form, number if kind == _DOUBLE else _require_integer(number))
    except struct.error as error:
        raise BadToken("a number in it is too large for the type in its type bits") from error


def _require_integer(number: float) -> int:
    if not float(number).is_integer():
        raise BadToken("a number in it is no integer, but its type bits say integer")
    return int(number)
