"""A positive number in a KeyString: bytes that sort by value, whatever the BSON type.

The first byte tells the order of magnitude. From 1 to 2**63 the whole part follows, doubled,
big-endian; its lowest bit says that there is a fraction, and then 8 bytes hold both. Doubles out of
that range follow as they are. A decimal that no double equals begins with the double below it; the
marker, two bits at the end of that, and perhaps a continuation of 8 bytes tell how far above.

Source: version 1 of the format, key_string.cpp of the server; each range was compared with tokens
of real servers, see tests/mongo/test_tokens.py.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from decimal import ROUND_UP, Decimal
from typing import Final, TypeAlias

from cdc.errors import BadToken
from cdc.model import decimal128

Take: TypeAlias = Callable[[int], bytes]

# The first byte.
_BELOW_ONE: Final = 42
_ONE_BYTE: Final = 43
_EIGHT_BYTES: Final = 50
_LARGE: Final = 51

# The marker compares a decimal with the double before it, or with that rounded up to 15 digits.
_EQUAL, _BELOW_ROUNDED, _ROUNDED, _ABOVE_ROUNDED = range(4)
# Never stored: above a double that is 2**256 times as large as the one it stands for.
_ABOVE_SCALED: Final = 4

_SCALE: Final = 2.0**256
_FULL_MARKER: Final = 2.0**-255  # Below, and from 2**63 on, the marker has but one bit.
_LONG_WHOLE: Final = 2**53  # From here to 2**63 a double may lack the end of the whole part.
_END_OF_WHOLE: Final = 2**63
_INFINITY: Final = 2**64 - 1


def of_number(number: float) -> bytes:
    """Of an integer up to 2**63 or of a double, infinity included."""
    # -2**63 is an int64 and 2**63 is not: it is stored as the double in every type.
    if isinstance(number, int) and number < _END_OF_WHOLE:
        return _whole(2 * number)
    return _binary(float(number), _EQUAL)


def of_decimal(number: Decimal) -> bytes:
    """Of a finite decimal128; its exponent is not in it."""
    binary = decimal128.toward_zero(number)
    if binary == number:
        return _binary(binary, _EQUAL)
    if binary < sys.float_info.min:
        return _tiny(number, binary)
    if binary == sys.float_info.max:
        high, low = decimal128.words(number)
        return struct.pack(">BQQ", _LARGE, high | 1 << 63, low)
    if _LONG_WHOLE <= binary < _END_OF_WHOLE:
        return _long_whole(number)
    marker = _ABOVE_ROUNDED
    if _FULL_MARKER <= binary < _LONG_WHOLE:
        rounded = decimal128.rounded(binary, 15, ROUND_UP)
        if rounded == number:
            return _binary(binary, _ROUNDED)
        marker = _BELOW_ROUNDED if number < rounded else _ABOVE_ROUNDED
    return _binary(binary, marker) + _continuation(number, _stored(binary, marker))


def read(code: int, take: Take) -> float | Decimal:
    """The number whose first byte is `code`; `take(n)` gives n more. Raises BadToken.

    An integer or a double if one has that value, else a decimal. Bytes that are never written may
    give any number instead.
    """
    number, marker = _read(code, take)
    if isinstance(number, Decimal) or marker == _EQUAL:
        return number
    if marker == _ROUNDED:
        return decimal128.rounded(number, 15, ROUND_UP)
    stored = _stored(number, marker)
    unit = decimal128.unit(stored)
    return decimal128.of_units(decimal128.units(stored, unit) + int.from_bytes(take(8)), unit)


# --- to bytes ------------------------------------------------------------------------------------


def _whole(doubled: int) -> bytes:
    size = (doubled.bit_length() + 7) // 8
    return bytes([_ONE_BYTE + size - 1]) + doubled.to_bytes(size)


def _binary(number: float, marker: int) -> bytes:
    """Of a double, as such or as the beginning of a decimal."""
    if number < 1:
        return bytes([_BELOW_ONE]) + _below_one(number, marker).to_bytes(8)
    if number >= _END_OF_WHOLE:
        return bytes([_LARGE]) + _large(number, marker).to_bytes(8)
    whole = int(number)
    if whole == number and marker == _EQUAL:
        return _whole(2 * whole)
    # The fraction gets what is left of 8 bytes; of a double's 53 bits none reaches the marker.
    size = (63 - whole.bit_length()) // 8
    word = int(number * 256.0**size) + (whole + 1 << 8 * size) | marker
    return bytes([_EIGHT_BYTES - size]) + word.to_bytes(8)


def _below_one(number: float, marker: int) -> int:
    """Begins with the bits 11; with 01 or 10 where the marker has but one bit; never with 00, which
    is left to decimals below all doubles."""
    if number >= _FULL_MARKER:
        return _word(number) << 2 | marker
    return (_word(number * _SCALE) << 1 | (marker != _EQUAL)) + (1 << 62)


def _large(number: float, marker: int) -> int:
    """Begins with the bit 0; 1 is left to decimals above all doubles, and to infinity."""
    if math.isinf(number):
        return _INFINITY
    return _word(number) << 1 & (1 << 63) - 1 | (marker != _EQUAL)


def _tiny(number: Decimal, binary: float) -> bytes:
    """Of a decimal below all doubles, or between the subnormal ones: too coarse to begin it."""
    if binary == 0:
        return struct.pack(">BQQ", _BELOW_ONE, *decimal128.words(number))
    scaled = max(decimal128.scaled(number), binary * _SCALE)
    word = (_word(scaled) << 1 | 1) + (1 << 62)
    continuation = _continuation(number, _stored(scaled, _ABOVE_SCALED))
    return bytes([_BELOW_ONE]) + word.to_bytes(8) + continuation


def _long_whole(number: Decimal) -> bytes:
    whole = int(number)
    if whole == number:
        return _whole(2 * whole)
    # Below 2**55 one of the 8 bytes is left; it holds nothing but the marker.
    marker = b"" if whole >= 2**55 else bytes([_ABOVE_ROUNDED])
    return _whole(2 * whole + 1) + marker + _continuation(number, _stored(whole, _ABOVE_ROUNDED))


def _continuation(number: Decimal, stored: Decimal) -> bytes:
    unit = decimal128.unit(stored)
    return (decimal128.units(number, unit) - decimal128.units(stored, unit)).to_bytes(8)


def _stored(number: float, marker: int) -> Decimal:
    """What a continuation counts from, in units of the last of its 34 digits."""
    if marker != _ABOVE_SCALED:
        return decimal128.rounded(number, decimal128.DIGITS, ROUND_UP)
    if number >= sys.float_info.min * _SCALE:
        return decimal128.rounded(number / _SCALE, decimal128.DIGITS, ROUND_UP)
    return decimal128.unscaled(number)


# --- from bytes ----------------------------------------------------------------------------------


def _read(code: int, take: Take) -> tuple[float | Decimal, int]:
    """What comes before a continuation: an integer or a double, with its marker; or a decimal
    beyond all doubles."""
    if code == _LARGE:
        return _read_large(int.from_bytes(take(8)), take)
    if code == _BELOW_ONE:
        return _read_below_one(int.from_bytes(take(8)), take)
    whole, has_fraction = divmod(int.from_bytes(take(code - _ONE_BYTE + 1)), 2)
    if not has_fraction:
        return whole, _EQUAL
    size = _EIGHT_BYTES - code
    fraction = int.from_bytes(take(size))
    if whole >= _LONG_WHOLE or not size:
        return whole, _ABOVE_ROUNDED
    return ((whole << 8 * size) + (fraction & ~3)) / 256**size, fraction & 3


def _read_large(word: int, take: Take) -> tuple[float | Decimal, int]:
    if word == _INFINITY:
        return math.inf, _EQUAL
    if word >> 63:
        return decimal128.of_words(word & (1 << 63) - 1, int.from_bytes(take(8))), _EQUAL
    number = _float(word >> 1 | 1 << 62)
    if not math.isfinite(number):
        raise BadToken("a number in it is beyond all numbers")
    return number, _ABOVE_ROUNDED if word & 1 else _EQUAL


def _read_below_one(word: int, take: Take) -> tuple[float | Decimal, int]:
    if word >> 62 == 0:
        return decimal128.of_words(word, int.from_bytes(take(8))), _EQUAL
    if word >> 62 == 3:
        return _float(word >> 2), word & 3
    scaled = _float(word - (1 << 62) >> 1)
    return (scaled, _ABOVE_SCALED) if word & 1 else (scaled / _SCALE, _EQUAL)


def _word(number: float) -> int:
    return int.from_bytes(struct.pack(">d", number))


def _float(word: int) -> float:
    number: float = struct.unpack(">d", word.to_bytes(8))[0]
    return number
