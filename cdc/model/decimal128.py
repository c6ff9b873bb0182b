"""Decimal128 as a KeyString needs it: next to doubles, in units of its last digit, as its bytes.

All numbers here are magnitudes, not negative. `decimal.Decimal` compares exactly; what rounds says
how. Nothing uses the context of the program around, which by default rounds to 28 digits; where it
traps FloatOperation, a double has to be converted by `from_float`.
Source of the bytes: IEEE 754-2008, binary integer decimal (BID) encoding.
"""

from __future__ import annotations

import math
import struct
from decimal import ROUND_DOWN, Context, Decimal
from typing import Final

from cdc.errors import BadToken

DIGITS: Final = 34
BIAS: Final = 6176
LAST_EXPONENT: Final = 6111
# Larger than any number of digits that a double has, so that nothing is rounded.
_EXACT: Final = Context(1100, capitals=1)
_DOWN: Final = Context(DIGITS, ROUND_DOWN)
_UPSHIFT: Final = _DOWN.create_decimal(Decimal.from_float(2.0**256))
_DOWNSHIFT: Final = _DOWN.create_decimal(Decimal.from_float(2.0**-256))


def text(number: Decimal) -> str:
    """As IEEE 754 and Extended JSON write it, also a negative one: `str` in any context."""
    return _EXACT.to_sci_string(number)


def toward_zero(number: Decimal) -> float:
    """The greatest finite double that is not above `number`."""
    nearest = float(number)
    return nearest if Decimal.from_float(nearest) <= number else math.nextafter(nearest, 0)


def rounded(binary: float, digits: int, rounding: str) -> Decimal:
    return Context(digits, rounding).create_decimal(Decimal.from_float(binary))


def scaled(number: Decimal) -> float:
    """`number` times 2**256, somewhat less: where subnormal doubles lack digits."""
    return toward_zero(_DOWN.multiply(number, _UPSHIFT))


def unscaled(binary: float) -> Decimal:
    """A decimal that is not above the one of which `scaled` gave `binary`."""
    return _DOWN.multiply(rounded(binary, DIGITS, ROUND_DOWN), _DOWNSHIFT)


def unit(number: Decimal) -> int:
    """The exponent at which `number` has as many digits as a decimal128 can have."""
    return max(number.adjusted() + 1 - DIGITS, -BIAS)


def units(number: Decimal, exponent: int) -> int:
    """`number` as a multiple of 10**exponent, which it has to be."""
    return int(number.scaleb(-exponent, _EXACT))


def of_units(count: int, exponent: int) -> Decimal:
    return Decimal(count).scaleb(exponent, _EXACT)


def words(number: Decimal) -> tuple[int, int]:
    """The two halves of its bytes, high and low, with all digits: they sort as the numbers do."""
    exponent = unit(number)
    return _words(units(number, exponent), exponent)


def of_words(high: int, low: int) -> Decimal:
    """The decimal of `words`; of what these could not have given, any other one."""
    return of_units((high & (1 << 49) - 1) << 64 | low, (high >> 49) - BIAS)


def packed(is_negative: bool, magnitude: Decimal, exponent_bits: int | None) -> bytes:
    """The BSON value of that magnitude, not zero, with those lowest 6 bits of its exponent.

    There is at most one, because no value has 64 exponents to choose from; BadToken if there is
    none. Without such bits it is the one of the least digits.
    """
    if magnitude.is_infinite():
        return struct.pack("<QQ", 0, is_negative << 63 | 0x78 << 56)
    shortest = magnitude.normalize(_EXACT)
    last = int(shortest.as_tuple().exponent)
    exponent = min(last, LAST_EXPONENT)
    if exponent_bits is not None:
        exponent = last - (last + BIAS - exponent_bits) % 64
    if not unit(shortest) <= exponent <= LAST_EXPONENT:
        raise BadToken("a decimal in it is not the one that its type bits tell")
    high, low = _words(units(shortest, exponent), exponent)
    return struct.pack("<QQ", low, is_negative << 63 | high)


def packed_zero(is_negative: bool, biased_exponent: int) -> bytes:
    return struct.pack("<QQ", 0, is_negative << 63 | biased_exponent << 49)


def _words(coefficient: int, exponent: int) -> tuple[int, int]:
    return exponent + BIAS << 49 | coefficient >> 64, coefficient & (1 << 64) - 1
