"""Writing documents back into a collection, byte for byte: the only place that writes to a server.

A restore begins on a collection without documents and inserts. So whatever was killed can go on:
what is there already, by its `_id`, is what was inserted before. A document of the target's
database says which restore is unfinished, and is removed at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pymongo.errors
from bson.raw_bson import RawBSONDocument
from pymongo import InsertOne, UpdateOne
from pymongo.collection import Collection
from pymongo.write_concern import WriteConcern

from cdc.errors import CdcError, TargetNotEmpty
from cdc.model import element
from cdc.model.element import elements
from cdc.model.selection import Namespace
from cdc.model.split import key_of
from cdc.mongo.client import connect
from cdc.mongo.retry import repeated

_UNFINISHED = "mongodb_cdc_restores"
_DOCUMENTS, _BYTES = 1000, 16 * 2**20
_DUPLICATE_KEY = 11000
_NO_TIME = bytes(8)


@dataclass(frozen=True, slots=True)
class Destination:
    """A collection to restore into. `uri` may be `env:` or `file:`, as that of a source; picklable
    without a credential then."""

    uri: str
    namespace: Namespace
    timeout_ms: int
    retry_seconds: float

    def begin(self, identity: Mapping[str, str], force: bool) -> bool:
        """Makes sure that the target holds nothing but what a restore of this identity wrote;
        whether there was such a one, to go on with.

        With `force`, what else there is gets deleted; indexes and options of the collection stay.
        Raises TargetNotEmpty, and what `retry.repeated` does.
        """
        begun = repeated(self._begun, self.retry_seconds, self._to)
        is_ours = begun is not None and begun["identity"] == dict(identity)
        if not is_ours:
            self._claim(identity, begun is not None, force)
        if begun is None or not is_ours or not begun["emptied"]:
            repeated(self._empty, self.retry_seconds, self._to)
        return is_ours

    def write(self, documents: Iterable[bytes]) -> int:
        """Inserts those that are not there yet, and waits until a majority has them; how many were
        given. To be called between `begin` and `finish`, by any number of processes."""
        count = 0
        for some in _chunks(documents):
            repeated(partial(self._insert, some), self.retry_seconds, self._to)
            count += len(some)
        return count

    def finish(self) -> None:
        """To be called when everything is written."""
        repeated(lambda: self._unfinished.delete_one(self._own), self.retry_seconds, self._to)

    def _begun(self) -> dict[str, Any] | None:
        return self._unfinished.find_one(self._own)

    def _claim(self, identity: Mapping[str, str], is_anothers: bool, force: bool) -> None:
        def is_free() -> bool:
            return not is_anothers and self._collection().find_one({}, {"_id": 1}) is None

        if not force and not repeated(is_free, self.retry_seconds, self._to):
            what = "an unfinished restore of something else" if is_anothers else "documents already"
            raise TargetNotEmpty(
                f"{self.namespace} holds {what}; nothing was written.",
                "Name an empty collection, or give --force to have it emptied first.",
            )
        entry = {"identity": dict(identity), "emptied": False}
        repeated(
            lambda: self._unfinished.replace_one(self._own, entry, upsert=True),
            self.retry_seconds,
            self._to,
        )

    def _empty(self) -> None:
        self._collection().delete_many({})
        self._unfinished.update_one(self._own, {"$set": {"emptied": True}})

    def _insert(self, documents: list[bytes]) -> None:
        try:
            self._collection().bulk_write([_write(data) for data in documents], ordered=False)
        except pymongo.errors.BulkWriteError as error:
            self._require_known(error)

    def _require_known(self, error: pymongo.errors.BulkWriteError) -> None:
        """A document that is there already is one that was written before: the target was empty."""
        failed = [
            each["code"]
            for each in error.details["writeErrors"]
            if each["code"] != _DUPLICATE_KEY or list(each.get("keyPattern", ())) != ["_id"]
        ]
        if failed:
            raise CdcError(
                f"{self._to}: the server refused {len(failed)} documents (code {failed[0]}).",
                "Drop the target's unique indexes and validation, or restore into another"
                " collection; then run it again.",
            ) from None  # the driver's text holds documents
        for each in error.details["writeConcernErrors"]:
            raise pymongo.errors.WriteConcernError(self._to, each.get("code"), each)

    @property
    def _to(self) -> str:
        return f"Restoring into {self.namespace}"

    @property
    def _own(self) -> dict[str, str]:
        return {"_id": self.namespace.coll}

    @property
    def _unfinished(self) -> Collection[dict[str, Any]]:
        return self._named(_UNFINISHED)

    def _collection(self) -> Collection[dict[str, Any]]:
        return self._named(self.namespace.coll)

    def _named(self, name: str) -> Collection[dict[str, Any]]:
        database = connect(self.uri, self.timeout_ms)[self.namespace.db]
        return database.get_collection(name, write_concern=WriteConcern("majority"))


def _chunks(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk, size = list[bytes](), 0
    for data in documents:
        if chunk and (len(chunk) == _DOCUMENTS or size + len(data) > _BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(data)
        size += len(data)
    if chunk:
        yield chunk


def _write(data: bytes) -> InsertOne[dict[str, Any]] | UpdateOne:
    document: Any = RawBSONDocument(data)
    if not _has_no_time(data):
        return InsertOne(document)
    # Of an insert the server fills in the time itself where a field is Timestamp(0, 0).
    found = key_of(data)
    (key,) = elements(found, 0, len(found))
    equal = RawBSONDocument(_single(key.kind, b"$eq", found[key.start : key.stop]))
    return UpdateOne({"_id": equal}, [{"$replaceWith": {"$literal": document}}], upsert=True)


def _has_no_time(data: bytes) -> bool:
    return _NO_TIME in data and any(
        each.kind == element.TIMESTAMP and data[each.start : each.stop] == _NO_TIME
        for each in elements(data, 0, len(data))
    )


def _single(kind: int, name: bytes, value: bytes) -> bytes:
    body = bytes((kind,)) + name + b"\0" + value + b"\0"
    return (len(body) + 4).to_bytes(4, "little") + body
