"""decimal128 as an unscaled integer, in two 64-bit halves, and a scale, as in a VARIANT."""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.compiled import part
from cdc.kernel.numbers import Bytes, is_less, times_ten, uint64

_U1, _U47, _U49, _U61, _U63 = (np.uint64(bits) for bits in (1, 47, 49, 61, 63))
_EXPONENT, _COEFFICIENT = np.uint64(0x3FFF), np.uint64(2**49 - 1)
_BIAS: Final = 6176
_MAX_SCALE: Final = 38
# A canonical coefficient is below 10**34. From 10**37 on, ten times the number is too large for a
# VARIANT, and soon for two halves.
_CANONICAL_HIGH, _CANONICAL_LOW = np.uint64(10**34 >> 64), np.uint64(10**34 % 2**64)
_TENTH_HIGH, _TENTH_LOW = np.uint64(10**37 >> 64), np.uint64(10**37 % 2**64)
_NINE, _EIGHTEEN = np.uint64(10**9), np.uint64(10**18)
_ZERO, _THREE = np.uint64(0), np.uint64(3)


@part
def is_negative(data: Bytes, at: int) -> bool:
    return uint64(data, at + 8) >> _U63 == _U1


@part
def decimal(data: Bytes, at: int) -> tuple[np.uint64, np.uint64, int]:
    """The high and low half of the magnitude, and its exponent.

    The exponent is too large to use if the value is NaN or infinite, or not in canonical form.
    """
    low, high = uint64(data, at), uint64(data, at + 8)
    coefficient = high & _COEFFICIENT
    is_plain = high >> _U61 & _THREE != _THREE
    if not is_plain or not is_less(coefficient, low, _CANONICAL_HIGH, _CANONICAL_LOW):
        return _ZERO, _ZERO, _BIAS
    return coefficient, low, np.int64(high >> _U49 & _EXPONENT) - _BIAS


@part
def unscaled(data: Bytes, at: int) -> tuple[np.uint64, np.uint64, int]:
    """The two halves of the magnitude, and the scale: -1 if a VARIANT cannot represent it."""
    high, low, exponent = decimal(data, at)
    if exponent < -_MAX_SCALE or exponent > _MAX_SCALE:
        return high, low, -1
    for _ in range(exponent):
        if not is_less(high, low, _TENTH_HIGH, _TENTH_LOW):
            return high, low, -1
        high, low = times_ten(high, low)
    return high, low, max(-exponent, 0)


@part
def width(high: np.uint64, low: np.uint64, scale: int) -> int:
    """4, 8 or 16 bytes. Spark checks both the digits and the scale against this width."""
    if high == _ZERO and low < _NINE and scale <= 9:
        return 4
    if high == _ZERO and low < _EIGHTEEN and scale <= 18:
        return 8
    return 16
