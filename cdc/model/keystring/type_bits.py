"""Type bits: the part of a value that must not affect the order of KeyStrings.

1 and 1.0 have the same KeyString; the type bits say whether it was an int32 or a double. Each
number has a few bits and each string one, in the order of the values. Source: `TypeBits` of the
server's key_string.h; tested on 4.2, 5.0 and 6.0.
"""

from __future__ import annotations

from typing import Final

from cdc.errors import BadToken

# A first byte of this value or more gives the length of the data that follows.
_LENGTH: Final = 0x80


class Writer:
    """Collects bits; `pack` returns the bytes that the server stores for them."""

    def __init__(self) -> None:
        self._bits: list[int] = []

    def put(self, value: int, count: int) -> None:
        """Appends the lowest `count` bits of `value`, the highest of them first."""
        self._bits += [value >> shift & 1 for shift in range(count - 1, -1, -1)]

    def pack(self) -> bytes:
        """Return the stored bytes; empty if no bit is set: the server then sends no type bits."""
        if not any(self._bits):
            return b""
        size = (len(self._bits) + 7) // 8
        # The first bit is the lowest of the first byte.
        packed = int("".join(map(str, reversed(self._bits))), 2).to_bytes(size, "little")
        if size == 1 and packed[0] < _LENGTH:
            return packed
        if size < _LENGTH:
            return bytes([_LENGTH | size]) + packed
        return bytes([_LENGTH]) + size.to_bytes(4, "little") + packed


class Reader:
    """Returns the bits of its input in the order in which they were put; zeros if it is empty.

    None means that the bits are lost. Then `is_lost` is true, and the caller may only take the bit
    of a string, which is 0.
    """

    def __init__(self, packed: bytes | None) -> None:
        """Raises BadToken if the stored length does not match the number of bytes."""
        self.is_lost = packed is None
        packed = packed or b""
        if packed and packed[0] >= _LENGTH:
            prefix = 1 if packed[0] > _LENGTH else 5
            size = int.from_bytes(packed[1:5], "little") if prefix == 5 else packed[0] - _LENGTH
            packed = packed[prefix:]
            if size != len(packed):
                raise BadToken("the length of its type bits is wrong")
        elif len(packed) > 1:
            raise BadToken("the length of its type bits is wrong")
        self._packed = packed
        self._at = 0

    def take(self, count: int) -> int:
        """The next `count` bits as a number, highest first. Raises BadToken if too few remain."""
        value = 0
        for at in range(self._at, self._at + count):
            value = value << 1 | self._bit(at)
        self._at += count
        return value

    def _bit(self, at: int) -> int:
        if not self._packed:
            return 0
        if at >= 8 * len(self._packed):
            raise BadToken("its type bits end before its values do")
        return self._packed[at // 8] >> at % 8 & 1
