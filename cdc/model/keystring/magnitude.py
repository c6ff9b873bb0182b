"""A positive number in a KeyString: bytes that sort by value, whatever the BSON type.

The first byte gives the order of magnitude. From 1 to 2**63 the whole part follows, doubled,
big-endian. Its lowest bit is set if there is a fraction; then both parts share 8 bytes. Doubles
outside that range follow unchanged. A decimal that equals no double begins with the double below
it. A marker, the last two bits of that double, and sometimes a continuation of 8 bytes say how far
above the double the decimal is.

Source: version 1 of the format, key_string.cpp of the server; each range was compared with tokens
of real servers, see tests/mongo/read/test_server_tokens.py.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from decimal import ROUND_UP, Decimal
from typing import Final, TypeAlias

from cdc.errors import BadToken
from cdc.model.bson import decimal128

Take: TypeAlias = Callable[[int], bytes]

# The first byte.
_BELOW_ONE: Final = 42
_ONE_BYTE: Final = 43
_EIGHT_BYTES: Final = 50
_LARGE: Final = 51

# The marker compares a decimal with the double before it, or with that rounded up to 15 digits.
_EQUAL, _BELOW_ROUNDED, _ROUNDED, _ABOVE_ROUNDED = range(4)
# Never stored: the decimal is above a double that was multiplied by 2**256.
_ABOVE_SCALED: Final = 4

_SCALE: Final = 2.0**256
_FULL_MARKER: Final = 2.0**-255  # Below this, and from 2**63 on, the marker has only one bit.
_LONG_WHOLE: Final = 2**53  # From here to 2**63 a double may lack the end of the whole part.
_END_OF_WHOLE: Final = 2**63
_INFINITY: Final = 2**64 - 1


def encode_number(number: float) -> bytes:
    """Encode an integer up to 2**63, or a double, infinity included."""
    # -2**63 is an int64 but 2**63 is not: that magnitude is stored as the double in every type.
    if isinstance(number, int) and number < _END_OF_WHOLE:
        return _encode_whole(2 * number)
    return _encode_double(float(number), _EQUAL)


def encode_decimal(number: Decimal) -> bytes:
    """Encode a finite decimal128 by its value; 1.0 and 1.00 have the same bytes."""
    binary = decimal128.to_double_down(number)
    if binary == number:
        return _encode_double(binary, _EQUAL)
    if binary < sys.float_info.min:
        return _encode_tiny(number, binary)
    if binary == sys.float_info.max:
        high, low = decimal128.to_words(number)
        return struct.pack(">BQQ", _LARGE, high | 1 << 63, low)
    if _LONG_WHOLE <= binary < _END_OF_WHOLE:
        return _encode_long_whole(number)
    marker = _ABOVE_ROUNDED
    if _FULL_MARKER <= binary < _LONG_WHOLE:
        rounded = decimal128.round_double(binary, 15, ROUND_UP)
        if rounded == number:
            return _encode_double(binary, _ROUNDED)
        marker = _BELOW_ROUNDED if number < rounded else _ABOVE_ROUNDED
    return _encode_double(binary, marker) + _encode_continuation(
        number, _continuation_base(binary, marker)
    )


def decode(code: int, take: Take) -> float | Decimal:
    """Decode the number whose first byte is `code`; `take(n)` returns the next n bytes.

    The result is an integer or a double if one has that value, else a decimal. Bytes that no
    encoder writes return any number or raise BadToken.
    """
    number, marker = _decode_head(code, take)
    if isinstance(number, Decimal) or marker == _EQUAL:
        return number
    if marker == _ROUNDED:
        return decimal128.round_double(number, 15, ROUND_UP)
    stored = _continuation_base(number, marker)
    unit = decimal128.unit_exponent(stored)
    return decimal128.from_units(decimal128.to_units(stored, unit) + int.from_bytes(take(8)), unit)


# --- to bytes ------------------------------------------------------------------------------------


def _encode_whole(doubled: int) -> bytes:
    size = (doubled.bit_length() + 7) // 8
    return bytes([_ONE_BYTE + size - 1]) + doubled.to_bytes(size)


def _encode_double(number: float, marker: int) -> bytes:
    """Encode a double, alone or as the beginning of a decimal."""
    if number < 1:
        return bytes([_BELOW_ONE]) + _below_one_word(number, marker).to_bytes(8)
    if number >= _END_OF_WHOLE:
        return bytes([_LARGE]) + _large_word(number, marker).to_bytes(8)
    whole = int(number)
    if whole == number and marker == _EQUAL:
        return _encode_whole(2 * whole)
    # The fraction takes the rest of the 8 bytes; a double's 53 bits never reach the marker.
    size = (63 - whole.bit_length()) // 8
    word = int(number * 256.0**size) + (whole + 1 << 8 * size) | marker
    return bytes([_EIGHT_BYTES - size]) + word.to_bytes(8)


def _below_one_word(number: float, marker: int) -> int:
    """The word begins with the bits 11, or with 01 or 10 where the marker has only one bit.

    00 is reserved for decimals below all doubles.
    """
    if number >= _FULL_MARKER:
        return _double_to_word(number) << 2 | marker
    return (_double_to_word(number * _SCALE) << 1 | (marker != _EQUAL)) + (1 << 62)


def _large_word(number: float, marker: int) -> int:
    """The word begins with the bit 0; 1 is reserved for infinity and decimals above all doubles."""
    if math.isinf(number):
        return _INFINITY
    return _double_to_word(number) << 1 & (1 << 63) - 1 | (marker != _EQUAL)


def _encode_tiny(number: Decimal, binary: float) -> bytes:
    """Encode a decimal below the normal doubles; a subnormal double is too coarse to begin it."""
    if binary == 0:
        return struct.pack(">BQQ", _BELOW_ONE, *decimal128.to_words(number))
    scaled = max(decimal128.scale_up(number), binary * _SCALE)
    word = (_double_to_word(scaled) << 1 | 1) + (1 << 62)
    continuation = _encode_continuation(number, _continuation_base(scaled, _ABOVE_SCALED))
    return bytes([_BELOW_ONE]) + word.to_bytes(8) + continuation


def _encode_long_whole(number: Decimal) -> bytes:
    whole = int(number)
    if whole == number:
        return _encode_whole(2 * whole)
    # Below 2**55 one of the 8 bytes remains; it contains only the marker.
    marker = b"" if whole >= 2**55 else bytes([_ABOVE_ROUNDED])
    return (
        _encode_whole(2 * whole + 1)
        + marker
        + _encode_continuation(number, _continuation_base(whole, _ABOVE_ROUNDED))
    )


def _encode_continuation(number: Decimal, stored: Decimal) -> bytes:
    unit = decimal128.unit_exponent(stored)
    return (decimal128.to_units(number, unit) - decimal128.to_units(stored, unit)).to_bytes(8)


def _continuation_base(number: float, marker: int) -> Decimal:
    """The decimal from which a continuation counts, in units of the last of its 34 digits."""
    if marker != _ABOVE_SCALED:
        return decimal128.round_double(number, decimal128.DIGITS, ROUND_UP)
    if number >= sys.float_info.min * _SCALE:
        return decimal128.round_double(number / _SCALE, decimal128.DIGITS, ROUND_UP)
    return decimal128.scale_down(number)


# --- from bytes ----------------------------------------------------------------------------------


def _decode_head(code: int, take: Take) -> tuple[float | Decimal, int]:
    """Read what precedes a continuation: an integer or a double, and its marker.

    A decimal below or above all doubles is returned whole, with the marker _EQUAL.
    """
    if code == _LARGE:
        return _decode_large(int.from_bytes(take(8)), take)
    if code == _BELOW_ONE:
        return _decode_below_one(int.from_bytes(take(8)), take)
    whole, has_fraction = divmod(int.from_bytes(take(code - _ONE_BYTE + 1)), 2)
    if not has_fraction:
        return whole, _EQUAL
    size = _EIGHT_BYTES - code
    fraction = int.from_bytes(take(size))
    if whole >= _LONG_WHOLE or not size:
        return whole, _ABOVE_ROUNDED
    return ((whole << 8 * size) + (fraction & ~3)) / 256**size, fraction & 3


def _decode_large(word: int, take: Take) -> tuple[float | Decimal, int]:
    if word == _INFINITY:
        return math.inf, _EQUAL
    if word >> 63:
        return decimal128.from_words(word & (1 << 63) - 1, int.from_bytes(take(8))), _EQUAL
    number = _word_to_double(word >> 1 | 1 << 62)
    if not math.isfinite(number):
        raise BadToken("a number in it is larger than any BSON number")
    return number, _ABOVE_ROUNDED if word & 1 else _EQUAL


def _decode_below_one(word: int, take: Take) -> tuple[float | Decimal, int]:
    if word >> 62 == 0:
        return decimal128.from_words(word, int.from_bytes(take(8))), _EQUAL
    if word >> 62 == 3:
        return _word_to_double(word >> 2), word & 3
    scaled = _word_to_double(word - (1 << 62) >> 1)
    return (scaled, _ABOVE_SCALED) if word & 1 else (scaled / _SCALE, _EQUAL)


def _double_to_word(number: float) -> int:
    return int.from_bytes(struct.pack(">d", number))


def _word_to_double(word: int) -> float:
    number: float = struct.unpack(">d", word.to_bytes(8))[0]
    return number
