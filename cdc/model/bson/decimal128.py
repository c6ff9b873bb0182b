"""Decimal128 for KeyStrings: conversion to doubles, to units of the last digit, and to bytes.

All numbers here are magnitudes, never negative; only `text` accepts a negative one.
`decimal.Decimal` compares exactly, and a function that rounds says how. Nothing uses the caller's
decimal context, which rounds to 28 digits by default. That context may trap FloatOperation, so
doubles are converted with `from_float`.
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
# More digits than any double has, so nothing is rounded.
_EXACT: Final = Context(1100, capitals=1)
_DOWN: Final = Context(DIGITS, ROUND_DOWN)
_UPSHIFT: Final = _DOWN.create_decimal(Decimal.from_float(2.0**256))
_DOWNSHIFT: Final = _DOWN.create_decimal(Decimal.from_float(2.0**-256))


def text(number: Decimal) -> str:
    """The text of IEEE 754 and Extended JSON, negative numbers included: `str` in any context."""
    return _EXACT.to_sci_string(number)


def to_double_down(number: Decimal) -> float:
    """The greatest finite double that is not above `number`."""
    nearest = float(number)
    return nearest if Decimal.from_float(nearest) <= number else math.nextafter(nearest, 0)


def round_double(binary: float, digits: int, rounding: str) -> Decimal:
    return Context(digits, rounding).create_decimal(Decimal.from_float(binary))


def scale_up(number: Decimal) -> float:
    """`number` times 2**256, rounded down: for numbers where subnormal doubles lack digits."""
    return to_double_down(_DOWN.multiply(number, _UPSHIFT))


def scale_down(binary: float) -> Decimal:
    """The inverse of `scale_up`: a decimal at or below the number that it was given."""
    return _DOWN.multiply(round_double(binary, DIGITS, ROUND_DOWN), _DOWNSHIFT)


def unit_exponent(number: Decimal) -> int:
    """The exponent at which `number` has 34 digits, the most that a decimal128 can have."""
    return max(number.adjusted() + 1 - DIGITS, -BIAS)


def to_units(number: Decimal, exponent: int) -> int:
    """`number` divided by 10**exponent; it must be a multiple of that."""
    return int(number.scaleb(-exponent, _EXACT))


def from_units(count: int, exponent: int) -> Decimal:
    return Decimal(count).scaleb(exponent, _EXACT)


def to_words(number: Decimal) -> tuple[int, int]:
    """The high and low half of its bytes, at full precision: they sort as the numbers do."""
    exponent = unit_exponent(number)
    return _pack_words(to_units(number, exponent), exponent)


def from_words(high: int, low: int) -> Decimal:
    """The inverse of `to_words`; any decimal for two words that it never returns."""
    return from_units((high & (1 << 49) - 1) << 64 | low, (high >> 49) - BIAS)


def pack(is_negative: bool, magnitude: Decimal, exponent_bits: int | None) -> bytes:
    """The BSON bytes of a magnitude above zero, with the given lowest 6 bits of its exponent.

    At most one representation has these bits, because no value has 64 possible exponents. Without
    bits the result is the representation with the fewest digits. Raises BadToken if there is none.
    """
    if magnitude.is_infinite():
        return struct.pack("<QQ", 0, is_negative << 63 | 0x78 << 56)
    shortest = magnitude.normalize(_EXACT)
    last = int(shortest.as_tuple().exponent)
    exponent = min(last, LAST_EXPONENT)
    if exponent_bits is not None:
        exponent = last - (last + BIAS - exponent_bits) % 64
    if not unit_exponent(shortest) <= exponent <= LAST_EXPONENT:
        raise BadToken("a decimal in it does not match its type bits")
    high, low = _pack_words(to_units(shortest, exponent), exponent)
    return struct.pack("<QQ", low, is_negative << 63 | high)


def pack_zero(is_negative: bool, biased_exponent: int) -> bytes:
    return struct.pack("<QQ", 0, is_negative << 63 | biased_exponent << 49)


def _pack_words(coefficient: int, exponent: int) -> tuple[int, int]:
    return exponent + BIAS << 49 | coefficient >> 64, coefficient & (1 << 64) - 1
