"""Casts of VARIANT scalars to a column's type, by the rules of `cdc.model.typed.casts`.

Each function handles one value per row; a negative start means that there is none. It sets
`status` to MISSING, TAKEN or MISFIT. The output of a row is undefined unless its status is TAKEN.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.columns import DONE, DOUBTFUL, FULL
from cdc.kernel.compiled import entry, part
from cdc.kernel.numbers import Bytes, copy, int64, is_less, is_text, negate, times_ten
from cdc.kernel.places import MISFIT, MISSING, TAKEN
from cdc.kernel.variant.variant_bytes import Numbers, number
from cdc.model.encoding import variant_bytes as v
from cdc.model.typed import DAY, DOUBLE_DIGITS, DOUBLE_LIMIT, MOST_DIGITS, SINGLE_LIMIT

Doubles = np.ndarray[tuple[int], np.dtype[np.float64]]
Halves = np.ndarray[tuple[int, int], np.dtype[np.uint64]]

# The kind of a value: no number, or one of these.
_NONE: Final = 0
_INTEGER: Final = 1
_DOUBLE: Final = 2
_DECIMAL: Final = 3

_HIGH = np.array([10**power >> 64 for power in range(39)], np.uint64)
_LOW = np.array([10**power % 2**64 for power in range(39)], np.uint64)
_TENS = np.array(
    [10.0**power for power in range(23)]
)  # the powers that a double represents exactly
_DIGITS = np.array(MOST_DIGITS, np.int64)
_ZERO, _SIX, _TEN = np.uint64(0), np.uint64(6), np.uint64(10)
_TENTH = np.uint64(2**64 // 10)
# Decimals of up to 15 digits have different doubles: the double identifies the decimal.
_PLAIN: Final = 1e15


@entry
def cast_integers(
    data: Bytes, starts: Numbers, stops: Numbers, bits: int, out: Numbers, status: Bytes
) -> None:
    limit = 2.0 ** (bits - 1)
    for row in range(len(starts)):
        status[row] = _initial_status(data, starts[row])
        if status[row] == MISFIT:
            kind = _kind(data, starts[row])
            if kind == _INTEGER:
                found = _integer(data, starts[row], stops[row])
                fits = bits == 64 or -limit <= found < limit
            elif kind == _DOUBLE:
                double = _double(data, starts[row])
                fits = -limit <= double < limit and double == np.floor(double)
                found = np.int64(double) if fits else 0
            else:
                fits, found = _whole(data, starts[row], stops[row], kind, bits)
            if fits:
                out[row] = found
                status[row] = TAKEN


@entry
def cast_doubles(
    data: Bytes, starts: Numbers, stops: Numbers, is_single: bool, out: Doubles, status: Bytes
) -> None:
    limit = SINGLE_LIMIT if is_single else DOUBLE_LIMIT
    for row in range(len(starts)):
        status[row] = _initial_status(data, starts[row])
        if status[row] == MISFIT:
            kind, fits, found = _kind(data, starts[row]), False, 0.0
            if kind == _INTEGER:
                whole = _integer(data, starts[row], stops[row])
                fits, found = -limit < whole < limit, np.float64(whole)
            elif kind == _DOUBLE:
                fits, found = True, _double(data, starts[row])
            elif kind == _DECIMAL:
                fits, found = _short_decimal(data, starts[row], stops[row])
            if fits and (not is_single or _is_single(found)):
                out[row] = found
                status[row] = TAKEN


@entry
def cast_decimals(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    precision: int,
    scale: int,
    at: int,
    out: Halves,
    status: Bytes,
) -> tuple[int, int]:
    """Write the low and the high half of the unscaled number.

    Doubles of many digits are DOUBTFUL: the caller must cast them with `cdc.model.typed.casts`.
    """
    while at < len(starts):
        status[at] = _initial_status(data, starts[at])
        if status[at] == MISFIT:
            kind = _kind(data, starts[at])
            if kind == _DOUBLE:
                double = _double(data, starts[at])
                if np.isfinite(double):
                    if scale >= len(_TENS) or abs(double) * _TENS[scale] >= _PLAIN:
                        return at, DOUBTFUL
                    unscaled = np.rint(double * _TENS[scale])
                    if unscaled / _TENS[scale] == double:
                        low = np.uint64(abs(unscaled))
                        if is_less(_ZERO, low, _HIGH[precision], _LOW[precision]):
                            _put(out, status, at, unscaled < 0, _ZERO, low)
            elif kind != _NONE:
                _put_exact(data, starts[at], stops[at], kind, precision, scale, out, status, at)
        at += 1
    return at, DONE


@entry
def cast_fixed(
    data: Bytes,
    starts: Numbers,
    is_boolean: bool,
    is_date: bool,
    out: Numbers,
    status: Bytes,
) -> None:
    """Cast to timestamps in microseconds, dates in days, or booleans as 0 and 1."""
    for row in range(len(starts)):
        status[row] = _initial_status(data, starts[row])
        if status[row] == MISFIT:
            header = np.int64(data[starts[row]])
            if is_boolean:
                if header in (v.TRUE << 2, v.FALSE << 2):
                    out[row] = header == v.TRUE << 2
                    status[row] = TAKEN
            elif header == v.TIMESTAMP << 2:
                micros = int64(data, starts[row] + 1)
                if not is_date or micros % DAY == 0:
                    out[row] = micros // DAY if is_date else micros
                    status[row] = TAKEN


@entry
def cast_contents(
    data: Bytes,
    starts: Numbers,
    stops: Numbers,
    is_binary: bool,
    at: int,
    out: Bytes,
    ends: np.ndarray[tuple[int], np.dtype[np.int32]],
    status: Bytes,
) -> tuple[int, int]:
    """Cast to strings or binaries."""
    while at < len(starts):
        place = np.int64(ends[at])
        status[at] = _initial_status(data, starts[at])
        if status[at] == MISFIT:
            begin, stop = _content(data, starts[at], is_binary), stops[at]
            if begin > 0 and (is_binary or is_text(data, begin, stop)):
                if place + stop - begin > len(out):
                    return at, FULL
                place = copy(data, begin, stop, out, place)
                status[at] = TAKEN
        at += 1
        ends[at] = place
    return at, DONE


@part
def _initial_status(data: Bytes, at: int) -> int:
    """The initial status: MISSING if there is no value, or null, else MISFIT."""
    return MISSING if at < 0 or data[at] == v.NULL else MISFIT


@part
def _content(data: Bytes, at: int, is_binary: bool) -> int:
    header = np.int64(data[at])
    if is_binary:
        return at + 5 if header == v.BINARY << 2 else -1
    if header & 3 == v.SHORT_STRING:
        return at + 1
    return at + 5 if header == v.STRING << 2 else -1


@part
def _kind(data: Bytes, at: int) -> int:
    kind = np.int64(data[at]) >> 2
    if data[at] & 3 != v.PRIMITIVE:
        return _NONE
    if v.INT1 <= kind <= v.INT8:
        return _INTEGER
    if v.DECIMAL4 <= kind <= v.DECIMAL16:
        return _DECIMAL
    return _DOUBLE if kind == v.DOUBLE else _NONE


@part
def _integer(data: Bytes, at: int, stop: int) -> int:
    bits = 8 * (stop - at - 1)
    return number(data, at + 1, stop - at - 1) << (64 - bits) >> (64 - bits)


@part
def _double(data: Bytes, at: int) -> float:
    return np.int64(int64(data, at + 1)).view(np.float64)


@part
def _is_single(double: float) -> bool:
    return np.isnan(double) or np.float64(np.float32(double)) == double


@part
def _decimal(data: Bytes, at: int, stop: int) -> tuple[bool, np.uint64, np.uint64, int]:
    """Whether it is negative, the two halves of its magnitude, and its scale.

    Trailing zeros are removed. The scale is -1 if the decimal has more digits than its type allows.
    """
    digits, size = _DIGITS[_width(stop - at - 2)], min(stop - at - 2, 8)
    whole = number(data, at + 2, size) << (64 - 8 * size) >> (64 - 8 * size)
    high, low = np.uint64(whole >> 63), np.uint64(whole)
    if stop - at - 2 == 16:
        high = np.uint64(int64(data, at + 10))
    is_negative, scale = np.int64(high) < 0, np.int64(data[at + 1])
    if is_negative:
        high, low = negate(high, low)
    if scale > digits or not is_less(high, low, _HIGH[digits], _LOW[digits]):
        return False, _ZERO, _ZERO, -1
    while scale > 0:
        next_high, next_low, rest = _divide_by_ten(high, low)
        if rest != _ZERO:
            break
        high, low = next_high, next_low
        scale -= 1
    return is_negative, high, low, scale


@part
def _width(size: int) -> int:
    return 0 if size == 4 else 1 if size == 8 else 2


@part
def _divide_by_ten(high: np.uint64, low: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """A number of two halves divided by ten, and the remainder."""
    over = high % _TEN
    rest = over * _SIX + low % _TEN
    return high // _TEN, over * _TENTH + low // _TEN + rest // _TEN, rest % _TEN


@part
def _whole(data: Bytes, at: int, stop: int, kind: int, bits: int) -> tuple[bool, int]:
    """Whether a value is a decimal that fits an integer of so many bits, and that integer."""
    if kind != _DECIMAL:
        return False, 0
    is_negative, high, low, scale = _decimal(data, at, stop)
    limit = np.uint64(1) << np.uint64(bits - 1)
    if scale != 0 or high != _ZERO or low > limit or (low == limit and not is_negative):
        return False, 0
    return True, np.int64(negate(high, low)[1] if is_negative else low)


@part
def _short_decimal(data: Bytes, at: int, stop: int) -> tuple[bool, float]:
    """Whether a decimal has few digits, and its nearest double.

    The coefficient and the power of ten are then exact doubles: their quotient is the nearest one.
    """
    is_negative, high, low, scale = _decimal(data, at, stop)
    if not 0 <= scale <= DOUBLE_DIGITS or high != _ZERO or low >= _LOW[DOUBLE_DIGITS]:
        return False, 0.0
    found = np.float64(low) / _TENS[scale]
    return True, -found if is_negative else found


@part
def _put_exact(
    data: Bytes,
    start: int,
    stop: int,
    kind: int,
    precision: int,
    scale: int,
    out: Halves,
    status: Bytes,
    row: int,
) -> None:
    if kind == _INTEGER:
        whole = _integer(data, start, stop)
        is_negative, own = whole < 0, 0
        high, low = _ZERO, np.uint64(-whole) if is_negative else np.uint64(whole)
    else:
        is_negative, high, low, own = _decimal(data, start, stop)
    digits = precision - scale + own
    if 0 <= own <= scale and is_less(high, low, _HIGH[digits], _LOW[digits]):
        for _ in range(scale - own):
            high, low = times_ten(high, low)
        _put(out, status, row, is_negative, high, low)


@part
def _put(
    out: Halves, status: Bytes, row: int, is_negative: bool, high: np.uint64, low: np.uint64
) -> None:
    if is_negative:
        high, low = negate(high, low)
    out[row, 0], out[row, 1] = low, high
    status[row] = TAKEN
