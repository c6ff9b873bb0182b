"""Values of `_id` of every BSON type, and their readable texts."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import UuidRepresentation

from cdc.model import merge_key, whole_key

_UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
_DAY = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)

# Those that have a text of their own, and what it is.
TEXTS: list[tuple[Any, str]] = [
    (ObjectId("65a1b2c3d4e5f60718293a4b"), "65a1b2c3d4e5f60718293a4b"),
    ("a-1", "a-1"),
    ("", ""),
    ("7", "7"),
    ('"quoted"', '"quoted"'),
    ("C:\\udemy\\", "C:\\udemy\\"),
    ("two\nlines\tand \x00", "two\nlines\tand \x00"),
    ("Ærø 🚲 \\", "Ærø 🚲 \\"),
    ('{"$oid":"65a1b2c3d4e5f60718293a4b"}', '{"$oid":"65a1b2c3d4e5f60718293a4b"}'),
    (7, "7"),
    (Int64(-(2**63)), "-9223372036854775808"),
    (7.0, "7"),
    (0.5, "0.5"),
    (0.1, "0.1"),
    (1e300, "1e+300"),
    (Decimal128("7.50"), "7.5"),
    (True, "true"),
    (None, "null"),
    (Binary.from_uuid(_UUID, UuidRepresentation.STANDARD), str(_UUID)),
    (Binary(bytes(16), 4), str(uuid.UUID(int=0))),
]
# Those whose readable text is the key.
OTHERS: list[Any] = [
    *(Binary(b"\x01\x02"), Binary(bytes(16)), Binary(bytes(17), 4), Binary(b"x", 0x80)),
    *(_DAY, Timestamp(1769860800, 1), Regex("a", "i"), Code("f()"), Code("f()", {"x": 1})),
    *({}, {"region": "EU", "n": 1}, {"$oid": "65a1b2c3d4e5f60718293a4b"}, {"n": [1, "x"]}),
    *(float("nan"), float("inf"), Decimal128("NaN"), MinKey(), MaxKey()),
]
# The bytes of strings that are not UTF-8.
_BROKEN = [b"\xff", b"\\ud\xff", b"\xed\xa0\x80"]


def key_of(value: Any) -> str:
    return merge_key(bson.encode({"_id": value}))


def _broken_key(text: bytes) -> str:
    body = b"\x02_id\0" + (len(text) + 1).to_bytes(4, "little") + text + b"\0"
    return merge_key((len(body) + 5).to_bytes(4, "little") + body + b"\0")


def texts_by_key() -> Mapping[str, str]:
    """The readable text of each key."""
    own = {key: key for key in [*map(key_of, OTHERS), *map(_broken_key, _BROKEN)]}
    own |= {key_of(value): text for value, text in TEXTS}
    return own | {_with_shard_key(key): text for key, text in own.items()}


def _with_shard_key(key: str) -> str:
    """The key of a document whose whole document key counts."""
    rest = whole_key(bson.encode({"place": 'a"\\\t{', "n.m": None, "_id": 0})).removeprefix("0")
    return key + rest
