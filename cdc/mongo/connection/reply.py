"""Reply to a cursor command; only the requested parts become objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import bson
from bson.raw_bson import RawBSONDocument

from cdc.kernel import Places, reply
from cdc.model.bson import Element, element, elements


@dataclass(frozen=True, slots=True)
class CursorBatch:
    """One reply of a cursor. `cursor` is its number, 0 if the cursor is at its end."""

    cursor: int
    _data: bytes
    _fields: dict[bytes, Element]

    @classmethod
    def of(cls, answer: RawBSONDocument) -> Self:
        """Make a batch of the reply to a find, an aggregate or a getMore. Bytes are not copied."""
        data = bytes(answer.raw)
        whole = {each.name: each for each in elements(data, 0, len(data))}
        cursor = whole[b"cursor"]
        fields = {each.name: each for each in elements(data, cursor.start, cursor.stop)}
        number: int = element.int64(data, fields[b"id"].start)[0]
        return cls(number, data, fields)

    @property
    def size(self) -> int:
        """The size of the whole reply in bytes."""
        return len(self._data)

    @property
    def array(self) -> tuple[bytes, int, int]:
        """The bytes of the reply, and the start and end of the array of documents in them."""
        array = self._fields.get(b"nextBatch") or self._fields[b"firstBatch"]
        return self._data, array.start, array.stop

    @property
    def documents(self) -> Places:
        """The places of the documents in the bytes of the reply."""
        return reply.documents(*self.array)

    def document(self, name: bytes) -> dict[str, Any]:
        """Return a field of the reply's `cursor` that is a document, decoded."""
        field = self._fields[name]
        return bson.decode(self._data[field.start : field.stop])
