"""Resume tokens: order, time, and all that a token tells.

A token's `_data` is the hex of a KeyString that begins with the cluster time: byte 0x82 (the type),
then seconds and increment as big-endian 32-bit numbers. Upper-case hex sorts as the bytes do, so
`_data` itself is the total order of all events: the column `position`. That holds for the tokens of
versions 1 (servers from 4.2) and 2 (from 7.0, and of 6.0 where large events are split); version 0
(4.0) has its time at the same place.
Source: jstests and `resume_token.cpp` of the server; tried on 4.2, 5.0 and 6.0.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from dataclasses import dataclass, replace
from typing import Final, Literal

from bson.timestamp import Timestamp

from cdc.errors import BadToken, UnmappableValue
from cdc.model import element, keystring, timestamp
from cdc.model.element import elements

Kind = Literal["high_water_mark", "event"]

_TIMESTAMP_TYPE: Final = "82"
_LAST_VERSION: Final = 2
_EXPLICIT: Final = 2  # the version since which every event tells its type, and nothing is left out
_UUID: Final = struct.pack("<iB", 16, 4)
_KINDS: Final[dict[int, Kind]] = {0: "high_water_mark", 128: "event"}
_REMEDY: Final = "Give `_data` as the server did, with the `_typeBits` that came with it."


def _behind_the_time() -> str:
    """A version 1 token of type "high-water mark" behind its time: version, type, index in a
    transaction, whether from an invalidate. It sorts before every event of that time."""
    body = b"".join(struct.pack("<BBi", element.INT32, 0, number) for number in (1, 0, 0))
    body += bytes([element.BOOL, 0, False])
    key, _ = keystring.encode(struct.pack("<i", len(body) + 5) + body + b"\0")
    return key.hex().upper()


_HIGH_WATER_MARK: Final = _behind_the_time()


@dataclass(frozen=True, slots=True)
class Token:
    """What a token tells. `txn_op_index` counts the events of one cluster time. Documents are BSON.

    `operation_type` is known of version 2, and in version 1 of events that tell more than others
    (`showExpandedEvents`); with it comes either key or description, or neither. `fragment` counts
    from 0 where an event was split. A token of version 0 does not tell its kind: it is an event's,
    as the server has it.
    """

    version: int
    kind: Kind
    cluster_time: Timestamp
    txn_op_index: int = 0
    from_invalidate: bool = False
    uuid: uuid.UUID | None = None
    document_key: bytes | None = None
    operation_type: str | None = None
    operation_description: bytes | None = None
    fragment: int | None = None


def high_water_mark(time: Timestamp) -> str:
    """The position that lies after every event before `time` and before every event at `time`."""
    return f"{_TIMESTAMP_TYPE}{time.time:08X}{time.inc:08X}{_HIGH_WATER_MARK}"


def behind(time: Timestamp) -> str:
    """The position behind every event at `time` and before any later one: where a document read as
    of `time` stands, which has seen all of those events. It is the next time's high-water mark."""
    return high_water_mark(timestamp.after(time))


def parse(text: str) -> str:
    """The position that a user names: a token's `_data`, or the token as a change stream gives it
    (`{"_data": …}`). Raises BadToken."""
    data = text.strip()
    try:
        if data.startswith("{"):
            data = str(json.loads(data)["_data"])
        if decode(data).fragment is not None:
            raise BadToken("it lies between the fragments of an event")
    except (BadToken, ValueError, KeyError, RecursionError) as error:
        raise BadToken(
            "What is given is no resume token.",
            'Write it as {"_data": "82…"}, as 82… alone, or as the position of a row.',
        ) from error
    return data.upper()


def time_of(data: str) -> Timestamp:
    """The cluster time at the head of a token's `_data`; the rest is not looked at.

    Raises BadToken.
    """
    try:
        head = bytes.fromhex(data[:18])
    except ValueError as error:
        raise BadToken("A resume token is not hexadecimal.") from error
    if len(head) != 9 or head[0] != 0x82:
        raise BadToken("A resume token does not begin with a cluster time.")
    return Timestamp(int.from_bytes(head[1:5]), int.from_bytes(head[5:9]))


def decode(data: str, type_bits: bytes | None = None) -> Token:
    """All that the token with this `_data` and these `_typeBits` tells.

    The server gives none if they are all zero: then they are empty here. None means that they are
    not at hand, as with a row's `position`; numbers in the key then have the right value, but
    perhaps another type. Stricter than the server, which reads over bytes that it does not write.
    Raises BadToken, which names what is wrong but no value.
    """
    try:
        if len(data) % 2 or not re.fullmatch("[0-9A-Fa-f]+", data):
            raise BadToken("it is not hexadecimal")
        return _token(_Fields(keystring.decode(bytes.fromhex(data), type_bits)))
    except (BadToken, UnmappableValue) as error:
        raise BadToken(f"This is no resume token: {error.message}.", _REMEDY) from error


def _token(fields: _Fields) -> Token:
    inc, seconds = struct.unpack("<II", fields.take(element.TIMESTAMP, "cluster time"))
    version = fields.number("version")
    if version > _LAST_VERSION:
        raise BadToken(f"its version is {version}, and known are 0 to {_LAST_VERSION}")
    kind = _KINDS.get(fields.number("type")) if version else "event"
    if kind is None:
        raise BadToken("its type is neither that of an event nor of a high-water mark")
    index = fields.number("index in a transaction")
    from_invalidate = version > 0 and fields.take(element.BOOL, "origin") == b"\1"
    head = Token(version, kind, Timestamp(seconds, inc), index, from_invalidate)
    token = replace(head, uuid=_collection(version, fields))
    if kind == "event":
        token = _with_event(token, fields)
    elif token != Token(version, kind, head.cluster_time):
        raise BadToken("it is a high-water mark and yet tells of an event")
    fields.end()
    return token


def _collection(version: int, fields: _Fields) -> uuid.UUID | None:
    """Nothing at all in older versions, and null since version 2, where there is no collection."""
    if version < _EXPLICIT and not fields.has_next:
        return None
    if version >= _EXPLICIT and fields.take_if(element.NULL):
        return None
    value = fields.take(element.BINARY, "collection")
    if value[:5] != _UUID:
        raise BadToken("its collection is no UUID")
    return uuid.UUID(bytes=value[5:])


def _with_event(token: Token, fields: _Fields) -> Token:
    if token.version < _EXPLICIT and not fields.has_next:
        return token
    identifier = fields.take(element.DOCUMENT, "event")
    names = [item.name for item in elements(identifier, 0, len(identifier))]
    if token.version < _EXPLICIT and (names[:1] != [b"operationType"] or b"_id" in names):
        return replace(token, document_key=identifier)
    inner = _Fields(identifier)
    token = replace(token, operation_type=inner.text("operation type"))
    if names[1:] == [b"documentKey"]:
        token = replace(token, document_key=inner.take(element.DOCUMENT, "document key"))
    elif names[1:] == [b"operationDescription"]:
        description = inner.take(element.DOCUMENT, "operation description")
        token = replace(token, operation_description=description)
    inner.end()
    if token.version >= _EXPLICIT and fields.has_next:
        token = replace(token, fragment=fields.number("fragment"))
    return token


class _Fields:
    """The values of a document one by one; `what` names in an error what was expected."""

    def __init__(self, document: bytes) -> None:
        self._data = document
        self._items = elements(document, 0, len(document))

    @property
    def has_next(self) -> bool:
        return bool(self._items)

    def take_if(self, kind: int) -> bool:
        is_next = self.has_next and self._items[0].kind == kind
        if is_next:
            self._items.pop(0)
        return is_next

    def take(self, kind: int, what: str) -> bytes:
        if not self._items:
            raise BadToken(f"it ends before its {what}")
        item = self._items.pop(0)
        if item.kind != kind:
            raise BadToken(f"its {what} is of a wrong type")
        return self._data[item.start : item.stop]

    def number(self, what: str) -> int:
        value = int.from_bytes(self.take(element.INT32, what), "little", signed=True)
        if value < 0:
            raise BadToken(f"its {what} is below zero")
        return value

    def text(self, what: str) -> str:
        return element.text(element.string(self.take(element.STRING, what), 0))

    def end(self) -> None:
        if self._items:
            raise BadToken("it goes on behind its end")
