"""Values of every BSON type as bytes, drawn by a seed: numbers of all ranges, nested documents."""

from __future__ import annotations

import decimal
import math
import random
import struct
import sys

from bson import Decimal128, Int64

from cdc.model.bson import element
from tests.model.test_merge_key import (
    OTHERS,
    SPECIAL_NUMBERS,
    Element,
    array,
    code_with_scope,
    decimals_around,
    document,
    double,
    numbers_around,
    of,
    text,
)

DBPOINTER = 0x0C
_DEEPEST = 3
_CONTEXT = decimal.Context(34, Emin=-6143, Emax=6144, clamp=1, traps=[])
_LEAVES = [item for item in OTHERS if item[0] != DBPOINTER]


def values(seed: int, count: int, pointers: bool = True) -> list[Element]:
    """`pointers`: with DBPointers. No document has one name twice."""
    draw = random.Random(seed)
    return [_value(draw, pointers, 0) for _ in range(count)]


def edges() -> list[Element]:
    """Numbers on both sides of where the way of storing them changes, of either sign."""
    found = []
    for power in (-1074, -1073, -1022, -255, -254, 0, 8, 52, 53, 54, 55, 56, 62, 63, 64, 1023):
        edge = math.ldexp(1, power)
        for number in (math.nextafter(edge, 0), edge, math.nextafter(edge, math.inf)):
            found += decimals_around(number) + decimals_around(-number)
    return found + decimals_around(sys.float_info.max) + numbers_around(2**54) + numbers_around(255)


def as_kept(item: Element) -> Element:
    """What is left of a value that was a key: a NaN has neither sign nor payload, what is no
    canonical decimal is the zero that it means, the elements of an array are numbered."""
    kind, value = item
    if kind == 0x01 and math.isnan(struct.unpack("<d", value)[0]):
        return kind, struct.pack("<Q", 0x7FF8 << 48)
    if kind == 0x13:
        return kind, _kept_decimal(*struct.unpack("<QQ", value))
    if kind in (0x03, 0x04):
        inner = [
            (each.name, as_kept((each.kind, value[each.start : each.stop])))
            for each in element.elements(value, 0, len(value))
        ]
        return array(*[each for _, each in inner]) if kind == 0x04 else document(*inner)
    if kind == 0x0F:
        scope = as_kept((0x03, value[element.scope_start(value, 0) :]))
        return code_with_scope(element.string(value, 4), scope[1])
    return item


def _kept_decimal(low: int, high: int) -> bytes:
    if high >> 58 & 0x1F == 0x1F:
        return struct.pack("<QQ", 0, 0x7C << 56)
    exponent = high >> 47 & 0x3FFF if high >> 61 & 3 == 3 else high >> 49 & 0x3FFF
    is_infinite = high >> 59 & 0xF == 0xF
    if not is_infinite and (high >> 61 & 3 == 3 or (high & 2**49 - 1) << 64 | low >= 10**34):
        low, high = 0, high >> 63 << 63 | exponent << 49
    return struct.pack("<QQ", low, high)


def a_double(draw: random.Random) -> float:
    kind = draw.randrange(6)
    if kind == 0:
        any_bits: float = struct.unpack("<d", draw.randbytes(8))[0]
        return any_bits
    if kind == 1:
        return draw.randrange(-(10**6), 10**6) / 2 ** draw.randrange(12)
    if kind == 2:
        return draw.randrange(-1000, 1000) / 100
    lowest, highest = [(-1074, -250), (40, 70), (-60, 60)][kind - 3]
    return math.ldexp(draw.random() - 0.5, draw.randrange(lowest, highest))


def a_decimal(draw: random.Random) -> Decimal128:
    kind = draw.randrange(6)
    if kind == 0:
        return Decimal128(_around(draw, a_double(draw)))
    if kind == 1:
        whole, sign = draw.randrange(2**52, 2**64), draw.choice(["", "-"])
        fraction = draw.randrange(10 ** draw.randrange(1, 15))
        return Decimal128(_CONTEXT.create_decimal(f"{sign}{whole}.{fraction}"))
    if kind == 2:
        return Decimal128(f"{draw.randrange(-(10**4), 10**4)}E{draw.randrange(-6, 6)}")
    size = draw.randrange(1, 35)
    digits = tuple(draw.randrange(10) for _ in range(size))
    # Any exponent, around 1, and around the subnormal doubles.
    lowest, highest = [(-6176, 6112), (-40, 10), (-346 - size, -300)][kind - 3]
    sign, exponent = draw.randrange(2), draw.randrange(lowest, highest)
    return Decimal128(decimal.Decimal((sign, digits, exponent)))


def _around(draw: random.Random, number: float) -> decimal.Decimal:
    """The double, or a decimal next to it, with so many digits that a few are not enough."""
    if not math.isfinite(number):
        return decimal.Decimal(number)
    rounding = draw.choice([decimal.ROUND_DOWN, decimal.ROUND_UP])
    context = decimal.Context(draw.choice([14, 15, 16, 17, 33, 34]), rounding)
    near = _CONTEXT.create_decimal(context.create_decimal(decimal.Decimal(number)))
    return draw.choice([near, near, _CONTEXT.next_plus(near), _CONTEXT.next_minus(near)])


def _value(draw: random.Random, pointers: bool, depth: int) -> Element:
    kind = draw.randrange(20)
    if kind < 5:
        return of(a_decimal(draw))
    if kind < 8:
        return double(a_double(draw))
    if kind < 10:
        return of(Int64(draw.randrange(-(2**63), 2**63) >> draw.randrange(64)))
    if kind == 10:
        return of(draw.randrange(-(2**31), 2**31) >> draw.randrange(32))
    if kind < 13:
        return draw.choice(SPECIAL_NUMBERS + (OTHERS if pointers else _LEAVES))
    if kind < 17 or depth == _DEEPEST:
        return _bytes(draw, pointers)
    if kind == 17:
        return array(*[_value(draw, pointers, depth + 1) for _ in range(draw.randrange(4))])
    names = draw.sample([b"a", b"b", b"ab", b"", b"\xc3\xa9"], draw.randrange(4))
    inner = document(*[(name, _value(draw, pointers, depth + 1)) for name in names])
    return inner if kind == 18 else code_with_scope(draw.choice([b"", b"f", b"f\0g"]), inner[1])


def _bytes(draw: random.Random, pointers: bool) -> Element:
    kind = draw.randrange(7 if pointers else 6)
    if kind == 0:
        content = draw.randbytes(draw.randrange(4)).replace(b"7", b"\0")
        return text(content, draw.choice([0x02, 0x0D, 0x0E]))
    if kind == 1:
        size = draw.choice([0, 1, 2, 3, 254, 255, 256])
        return 0x05, struct.pack("<iB", size, draw.choice([0, 1, 5, 128])) + draw.randbytes(size)
    if kind < 4:
        return draw.choice([0x09, 0x11]), draw.randbytes(8)
    if kind == 4:
        return 0x07, draw.randbytes(12)
    if kind == 5:
        return 0x0B, draw.choice([b"\0", b"a\0", b"ab\0"]) + draw.choice([b"\0", b"i\0", b"im\0"])
    return DBPOINTER, text(draw.choice([b"", b"a", b"b", b"ab"]))[1] + draw.randbytes(12)
