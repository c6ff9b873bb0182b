"""Column types, and lossless casts of VARIANT scalars to them.

A value fits a type of its own family if the cast can be reversed. A number is compared by value,
whatever its own type is: `3.0` fits a bigint. Nothing is parsed: text does not fit a number. A
damaged value, or a decimal with more digits than its encoding allows, fits no type.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import numpy as np

from cdc.model.encoding import variant_bytes as v

MISFIT: Final = object()
DAY: Final = 86_400_000_000
# Every integer below these limits can be restored from a float or a double. So can, from a double,
# every decimal of at most DOUBLE_DIGITS digits.
SINGLE_LIMIT: Final = 2**24
DOUBLE_LIMIT: Final = 2**53
DOUBLE_DIGITS: Final = 15
# The digits of a decimal of 4, 8 and 16 bytes.
MOST_DIGITS: Final = (9, 18, 38)
# Sufficient for the 309 digits of the largest double and the 38 of the largest scale: nothing is
# rounded. No code here may compute in the current context: Python's default rounds to 28 digits,
# even in `abs`, and a program may set another. Comparisons and conversions are exact in any
# context.
EXACT = Context(prec=400, Emin=-999, Emax=999)


class Scalar(Enum):
    """Types without a parameter.

    Dates are UTC days since 1970, timestamps are microseconds since 1970.
    """

    STRING = auto()
    BINARY = auto()
    BOOLEAN = auto()
    DATE = auto()
    TIMESTAMP = auto()
    FLOAT = auto()
    DOUBLE = auto()
    VARIANT = auto()


@dataclass(frozen=True, slots=True)
class Integer:
    bits: int


@dataclass(frozen=True, slots=True)
class Decimals:
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Array:
    element: Kind


@dataclass(frozen=True, slots=True)
class Map:
    """A map whose keys are strings."""

    value: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]


Kind: TypeAlias = Scalar | Integer | Decimals | Array | Map | Struct


def scalar(value: bytes, kind: Kind) -> Any:
    """Cast a VARIANT value to a scalar type. Returns MISFIT if it does not fit.

    `value` is the complete encoded value and must not be null.
    """
    if kind is Scalar.STRING:
        return text(_strip_header(value, v.STRING))
    if kind is Scalar.BINARY:
        return _strip_header(value, v.BINARY)
    if kind is Scalar.BOOLEAN:
        return {v.TRUE << 2: True, v.FALSE << 2: False}.get(value[0], MISFIT)
    if kind in (Scalar.TIMESTAMP, Scalar.DATE):
        return _cast_time(value, kind)
    number = decode_number(value)
    if number is MISFIT:
        return MISFIT
    if isinstance(kind, Integer):
        return _cast_integer(number, 2 ** (kind.bits - 1))
    if isinstance(kind, Decimals):
        return _cast_decimal(number, kind)
    return _cast_floating(number, is_single=kind is Scalar.FLOAT)


def text(raw: Any) -> Any:
    """Decode UTF-8 bytes. Returns MISFIT for invalid UTF-8 and for MISFIT."""
    try:
        return raw if raw is MISFIT else raw.decode()
    except UnicodeDecodeError:
        return MISFIT


def _strip_header(value: bytes, kind: int) -> Any:
    if kind == v.STRING and value[0] & 3 == v.SHORT_STRING:
        return value[1:]
    return value[5:] if value[0] == kind << 2 else MISFIT


def _cast_time(value: bytes, kind: Kind) -> Any:
    if value[0] != v.TIMESTAMP << 2:
        return MISFIT
    (micros,) = struct.unpack_from("<q", value, 1)
    if kind is Scalar.TIMESTAMP:
        return micros
    return micros // DAY if micros % DAY == 0 else MISFIT


def decode_number(value: bytes) -> Any:
    """Decode a number as int, float or Decimal; a Decimal has no trailing zeros."""
    kind = value[0] >> 2
    if value[0] & 3 != v.PRIMITIVE:
        return MISFIT
    if v.INT1 <= kind <= v.INT8:
        return int.from_bytes(value[1:], "little", signed=True)
    if kind == v.DOUBLE:
        return struct.unpack_from("<d", value, 1)[0]
    if v.DECIMAL4 <= kind <= v.DECIMAL16:
        digits = MOST_DIGITS[kind - v.DECIMAL4]
        unscaled, scale = int.from_bytes(value[2:], "little", signed=True), value[1]
        if abs(unscaled) < 10**digits and scale <= digits:
            return Decimal(unscaled).scaleb(-scale, EXACT).normalize(EXACT)
    return MISFIT


def _cast_integer(number: Any, limit: int) -> Any:
    if isinstance(number, float) and not math.isfinite(number):
        return MISFIT
    whole = int(number)
    return whole if whole == number and -limit <= whole < limit else MISFIT


def _cast_decimal(number: Any, kind: Decimals) -> Any:
    if isinstance(number, float) and not math.isfinite(number):
        return MISFIT
    # `repr` of a double is the shortest text from which the double can be restored.
    decimal = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    rounded = decimal.quantize(Decimal(1).scaleb(-kind.scale, EXACT), ROUND_HALF_UP, EXACT)
    restored = float(rounded) if isinstance(number, float) else rounded
    limit = Decimal(1).scaleb(kind.precision - kind.scale, EXACT)
    return rounded if restored == number and rounded.copy_abs() < limit else MISFIT


def _cast_floating(number: Any, is_single: bool) -> Any:
    if isinstance(number, int) and abs(number) >= (SINGLE_LIMIT if is_single else DOUBLE_LIMIT):
        return MISFIT
    if isinstance(number, Decimal):
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), "no NaN"
        if max(len(digits) + max(exponent, 0), -exponent) > DOUBLE_DIGITS:
            return MISFIT
    double = float(number)
    with np.errstate(over="ignore"):
        is_restored = not is_single or float(np.float32(double)) == double
    return double if is_restored or math.isnan(double) else MISFIT
