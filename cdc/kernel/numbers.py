"""Reading and writing of numbers and text in bytes."""

from __future__ import annotations

import numpy as np

from cdc.kernel.compiled import part

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_U8, _U16, _U24, _U32 = np.uint64(8), np.uint64(16), np.uint64(24), np.uint64(32)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_MINUS, _DIGIT_0 = np.uint8(0x2D), np.uint64(0x30)
_ZERO, _HALF = np.uint64(0), np.uint64(0xFFFFFFFF)
_ONE, _TWO, _THREE, _TEN = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(10)


@part
def uint32(data: Bytes, at: int) -> np.uint64:
    place = np.uint64(at)
    low = np.uint64(data[place]) | np.uint64(data[place + _ONE]) << _U8
    return low | np.uint64(data[place + _TWO]) << _U16 | np.uint64(data[place + _THREE]) << _U24


@part
def uint64(data: Bytes, at: int) -> np.uint64:
    return uint32(data, at) | uint32(data, at + 4) << _U32


@part
def int32(data: Bytes, at: int) -> int:
    return np.int64(np.int32(uint32(data, at)))


@part
def int64(data: Bytes, at: int) -> int:
    return np.int64(uint64(data, at))


@part
def put(out: Bytes, at: int, number: int, size: int) -> int:
    """Write the lowest `size` bytes of a number; return the position after them."""
    for index in range(size):
        out[np.uint64(at + index)] = number & 0xFF
        number >>= 8
    return at + size


@part
def copy(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    """Copy bytes; return the position after them. In one array, they may move to the left."""
    while start + 8 <= stop:
        at, start = put(out, at, int64(data, start), 8), start + 8
    while start < stop:
        out[np.uint64(at)] = data[np.uint64(start)]
        at, start = at + 1, start + 1
    return at


@part
def put_hex(data: Bytes, start: int, count: int, out: Bytes, at: int) -> int:
    """Write two hex digits for each of `count` bytes; return the position after them."""
    for index in range(start, start + count):
        at = put_hex_byte(data[index], out, at)
    return at


@part
def put_hex_byte(byte: int, out: Bytes, at: int) -> int:
    out[at], out[at + 1] = _HEX[byte >> 4], _HEX[byte & 15]
    return at + 2


@part
def put_digits(out: Bytes, at: int, number: int) -> int:
    """Write a number in decimal digits; return the position after it."""
    if number < 0:
        out[at] = _MINUS
        at += 1
    rest = np.uint64(-number) if number < 0 else np.uint64(number)
    stop, left = at + 1, rest
    while left >= _TEN:
        left //= _TEN
        stop += 1
    for index in range(stop - at):
        out[stop - 1 - index] = _DIGIT_0 + rest % _TEN
        rest //= _TEN
    return stop


@part
def is_ascii(data: Bytes, start: int, stop: int) -> bool:
    seen = 0
    for index in range(start, stop):
        seen |= data[np.uint64(index)]
    return seen < 0x80


@part
def is_text(data: Bytes, start: int, stop: int) -> bool:
    """Whether the bytes are UTF-8 as Python decodes it: only shortest forms, no surrogates."""
    if is_ascii(data, start, stop):
        return True
    at = start
    while at < stop:
        size = _character(data, at, stop)
        if size == 0:
            return False
        at += size
    return True


@part
def _character(data: Bytes, at: int, stop: int) -> int:
    """The size in bytes of the character at `at`; 0 if it is not valid UTF-8."""
    lead = np.int64(data[at])
    if lead < 0x80:
        return 1
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    if lead < 0xC2 or lead > 0xF4 or at + size > stop:
        return 0
    for index in range(1, size):
        if data[at + index] & 0xC0 != 0x80:
            return 0
    second = np.int64(data[at + 1])
    is_overlong = (lead == 0xE0 and second < 0xA0) or (lead == 0xF0 and second < 0x90)
    is_beyond = (lead == 0xED and second > 0x9F) or (lead == 0xF4 and second > 0x8F)
    return 0 if is_overlong or is_beyond else size


@part
def product(left: np.uint64, right: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The high and low half of the product, which has 128 bits."""
    a, b, c, d = left >> _U32, left & _HALF, right >> _U32, right & _HALF
    low, middle = b * d, a * d
    crossed = b * c + (low >> _U32) + (middle & _HALF)
    high = a * c + (crossed >> _U32) + (middle >> _U32)
    return high, crossed << _U32 | low & _HALF


@part
def times_ten(high: np.uint64, low: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Ten times a number of two halves, which must be below 2**124."""
    carry, result = product(low, _TEN)
    return high * _TEN + carry, result


@part
def is_less(high: np.uint64, low: np.uint64, other_high: np.uint64, other_low: np.uint64) -> bool:
    return high < other_high or (high == other_high and low < other_low)


@part
def negate(high: np.uint64, low: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The two's complement of a number of two halves."""
    less = ~low + np.uint64(1)
    return ~high + np.uint64(low == _ZERO), less
