"""Values as relaxed Extended JSON; values with a rare spelling are refused.

Each function writes at `at` and returns the position after the text, or REFUSED.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cdc.kernel.bson.decimals import decimal, is_negative
from cdc.kernel.bson.elements import REFUSED
from cdc.kernel.compiled import hot, part
from cdc.kernel.numbers import Bytes, copy, put, put_digits, put_hex, put_hex_byte, uint64

_OID, _DATE, _LONG, _DECIMAL, _BASE64, _SUBTYPE, _END = (
    np.frombuffer(text, np.uint8)
    for text in (
        *(b'{"$oid":"', b'{"$date":"', b'{"$date":{"$numberLong":"', b'{"$numberDecimal":"'),
        *(b'{"$binary":{"base64":"', b'","subType":"', b'"}}'),
    )
)
_SIXTY_FOUR = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_ESCAPED = np.frombuffer(b"btn\0fr", np.uint8)  # the short escapes of 8 to 13; 11 has none
_QUOTE, _BACKSLASH, _SPACE, _MINUS, _POINT, _ZERO = 0x22, 0x5C, 0x20, 0x2D, 0x2E, 0x30
_ONES = np.uint64(0x0101010101010101)
_QUOTES, _BACKSLASHES, _SPACES, _HIGH = (np.uint64(n) * _ONES for n in (0x22, 0x5C, 0x20, 0x80))
_TEN, _LAST_BIT = np.uint64(10), np.uint64(63)
_MOST_EXACT: Final = 10**15
_FIRST_DAY: Final = -719468  # 0000-03-01, in days from 1970
_DAY: Final = 86_400_000


@hot
def put_quoted(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    """Write a JSON string; the bytes must be UTF-8."""
    at = put(out, at, _QUOTE, 1)
    while start + 8 <= stop:
        word = uint64(data, start)
        if _must_escape(word):
            break
        start, at = start + 8, put(out, at, np.int64(word), 8)
    for index in range(start, stop):
        byte = np.int64(data[np.uint64(index)])
        if byte >= _SPACE and byte != _QUOTE and byte != _BACKSLASH:
            out[np.uint64(at)] = byte
            at += 1
        else:
            at = _put_escaped(byte, out, at)
    return put(out, at, _QUOTE, 1)


@part
def _must_escape(word: np.uint64) -> bool:
    """Whether one of 8 bytes is a control character, a quote or a backslash.

    A byte borrows from the highest bit of its place where it is below the subtracted one.
    """
    quote, backslash = word ^ _QUOTES, word ^ _BACKSLASHES
    low = (word - _SPACES) & ~word
    return (low | ((quote - _ONES) & ~quote) | ((backslash - _ONES) & ~backslash)) & _HIGH != 0


@part
def _put_escaped(byte: int, out: Bytes, at: int) -> int:
    at = put(out, at, _BACKSLASH, 1)
    if byte >= _SPACE:
        return put(out, at, byte, 1)
    if 8 <= byte <= 13 and byte != 11:
        return put(out, at, _ESCAPED[byte - 8], 1)
    at = put(out, at, 0x303075, 3)  # u00, the lowest byte first
    return put_hex_byte(byte, out, at)


@part
def put_object_id(data: Bytes, start: int, out: Bytes, at: int) -> int:
    at = put_hex(data, start, 12, out, copy(_OID, 0, len(_OID), out, at))
    return copy(_END, 0, 2, out, at)


@part
def put_double(data: Bytes, start: int, out: Bytes, at: int) -> int:
    """Write the shortest text that parses to the same double; REFUSED above 15 digits.

    Also REFUSED if the text needs an exponent. Of the texts with up to 15 digits, only one parses
    to the double.
    """
    bits = np.uint64(uint64(data, start))
    magnitude = abs(np.uint64(bits).view(np.float64))
    if not magnitude < _MOST_EXACT or 0 < magnitude < 1e-4:
        return REFUSED
    if bits >> _LAST_BIT:
        at = put(out, at, _MINUS, 1)
    power, scale = 1.0, 0
    while magnitude * power < _MOST_EXACT:
        digits = np.int64(np.rint(magnitude * power))
        # Both numbers are exact, so this division rounds as parsing the text does.
        if np.float64(digits) / power == magnitude:
            whole = np.uint64(digits) * _TEN if scale == 0 else np.uint64(digits)
            return put_scaled(out, at, whole, max(scale, 1))
        power, scale = power * 10.0, scale + 1
    return REFUSED


@part
def put_scaled(out: Bytes, at: int, digits: np.uint64, scale: int) -> int:
    """Write a number with `scale` digits after the decimal point; no point if that is 0."""
    size = max(_size(digits), scale + 1)
    stop = at + size + (1 if scale > 0 else 0)
    place = stop - 1
    for index in range(size):
        if scale > 0 and index == scale:
            out[place] = _POINT
            place -= 1
        out[place] = np.uint64(_ZERO) + digits % _TEN
        digits //= _TEN
        place -= 1
    return stop


@part
def _size(digits: np.uint64) -> int:
    size = 1
    while digits >= _TEN:
        digits //= _TEN
        size += 1
    return size


@part
def put_decimal(data: Bytes, start: int, out: Bytes, at: int) -> int:
    """Write a decimal; REFUSED if it has more than 64 bits or its text needs an exponent."""
    high, low, exponent = decimal(data, start)
    if high > np.uint64(0) or exponent > 0 or exponent + _size(low) - 1 < -6:
        return REFUSED
    at = copy(_DECIMAL, 0, len(_DECIMAL), out, at)
    if is_negative(data, start):
        at = put(out, at, _MINUS, 1)
    return copy(_END, 0, 2, out, put_scaled(out, at, low, -exponent))


@part
def put_date(out: Bytes, at: int, millis: int) -> int:
    """Write a date: ISO-8601 from 1970 to 9999, else the number of milliseconds."""
    if millis < 0 or millis >= 253_402_300_800_000:
        at = copy(_LONG, 0, len(_LONG), out, at)
        return copy(_END, 0, 3, out, put_digits(out, at, millis))
    at = _put_day(out, copy(_DATE, 0, len(_DATE), out, at), millis // _DAY)
    seconds, fraction = millis % _DAY // 1000, millis % 1000
    at = _put_two(out, put(out, at, 0x54, 1), seconds // 3600)
    at = _put_two(out, put(out, at, 0x3A, 1), seconds // 60 % 60)
    at = _put_two(out, put(out, at, 0x3A, 1), seconds % 60)
    if fraction:
        out[at], out[at + 1] = _POINT, _ZERO + fraction // 100
        at = _put_two(out, at + 2, fraction % 100)
    return copy(_END, 0, 2, out, put(out, at, 0x5A, 1))


@part
def _put_day(out: Bytes, at: int, day: int) -> int:
    """Write the date of a day since 1970. Years begin in March here: a leap day is the last day."""
    day -= _FIRST_DAY
    era, of_era = day // 146_097, day % 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    number = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year + era * 400 + (1 if month <= 2 else 0)
    at = _put_two(out, _put_two(out, at, year // 100), year % 100)
    at = _put_two(out, put(out, at, _MINUS, 1), month)
    return _put_two(out, put(out, at, _MINUS, 1), number)


@part
def _put_two(out: Bytes, at: int, number: int) -> int:
    out[at], out[at + 1] = _ZERO + number // 10, _ZERO + number % 10
    return at + 2


@part
def put_base64(data: Bytes, start: int, stop: int, out: Bytes, at: int) -> int:
    """Write a binary whose subtype is the byte before `start`.

    The old subtype 2 is REFUSED, because its payload begins with another length.
    """
    subtype = np.int64(data[start - 1])
    if subtype == 2:
        return REFUSED
    at = copy(_BASE64, 0, len(_BASE64), out, at)
    for index in range(start, stop, 3):
        left = stop - index
        bits = np.int64(data[index]) << 16
        bits |= np.int64(data[index + 1]) << 8 if left > 1 else 0
        bits |= np.int64(data[index + 2]) if left > 2 else 0
        for digit in range(4):
            is_filling = digit > left
            out[at] = 0x3D if is_filling else _SIXTY_FOUR[bits >> (18 - 6 * digit) & 63]
            at += 1
    at = copy(_SUBTYPE, 0, len(_SUBTYPE), out, at)
    return copy(_END, 0, 3, out, put_hex_byte(subtype, out, at))
