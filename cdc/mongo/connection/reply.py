"""A cursor's reply, of which no more is made into objects than is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import bson
from bson.raw_bson import RawBSONDocument

from cdc.kernel import Places, reply
from cdc.model.bson import Element, element, elements


@dataclass(frozen=True, slots=True)
class Batch:
    """`cursor` is the number of the cursor, 0 if it has come to its end."""

    cursor: int
    _data: bytes
    _fields: dict[bytes, Element]

    @classmethod
    def of(cls, told: RawBSONDocument) -> Self:
        """Of a find, an aggregate or a getMore; its bytes, which may be many, are not copied."""
        data = bytes(told.raw)
        whole = {each.name: each for each in elements(data, 0, len(data))}
        cursor = whole[b"cursor"]
        fields = {each.name: each for each in elements(data, cursor.start, cursor.stop)}
        number: int = element.int64(data, fields[b"id"].start)[0]
        return cls(number, data, fields)

    @property
    def size(self) -> int:
        """The bytes of the whole reply."""
        return len(self._data)

    @property
    def array(self) -> tuple[bytes, int, int]:
        """Where its documents lie in which bytes."""
        array = self._fields.get(b"nextBatch") or self._fields[b"firstBatch"]
        return self._data, array.start, array.stop

    @property
    def documents(self) -> Places:
        return reply.documents(*self.array)

    def document(self, name: bytes) -> dict[str, Any]:
        field = self._fields[name]
        return bson.decode(self._data[field.start : field.stop])
