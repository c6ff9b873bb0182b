"""Writing documents back into a collection, byte for byte: the only place that writes to a server.

A restore begins on a collection without documents and inserts. So whatever was killed can go on:
what is there already, by its `_id`, is what was inserted before. A document of the target's
database says which restore is unfinished. It is removed at the end, unless documents were left out:
the same restore then goes on with these, once it is mended why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pymongo.errors
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from pymongo import InsertOne, UpdateOne
from pymongo.collection import Collection
from pymongo.write_concern import WriteConcern

from cdc.errors import TargetNotEmpty, UnmappableValue
from cdc.model import element
from cdc.model.element import elements
from cdc.model.selection import Namespace
from cdc.model.split import key_of
from cdc.mongo.client import connect
from cdc.mongo.codes import may_pass
from cdc.mongo.retry import repeated

_Write: TypeAlias = InsertOne[dict[str, Any]] | UpdateOne
_UNFINISHED = "mongodb_cdc_restores"
_DOCUMENTS, _BYTES = 1000, 16 * 2**20
# Of a document, for all releases: what is sent besides may be longer.
_LARGEST = 16 * 2**20
_DUPLICATE_KEY = 11000
# For one document the server refuses the whole command: Overflow (nested too deep), InvalidBSON.
_OF_A_COMMAND = frozenset({15, 22})
# Reported for each document, but about the target: Unauthorized, InvalidNamespace, a view,
# AtlasError (a quota), OutOfDiskSpace.
_OF_THE_TARGET = frozenset({13, 73, 166, 8000, 14031})
_REASONS = {
    15: "nested too deep for the server",
    _DUPLICATE_KEY: "a unique index of the target has its value already",
    121: "the target's validation refuses it",
}
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
        So is what a restore of this identity wrote that came to its end but left documents out.
        Raises TargetNotEmpty, and what `retry.repeated` does.
        """
        begun = repeated(self._begun, self.retry_seconds, self._to)
        is_ours = begun is not None and begun["identity"] == dict(identity)
        if force and begun is not None and "ended" in begun:
            is_ours = False
        if not is_ours:
            self._claim(identity, begun is not None, force)
        if begun is None or not is_ours or not begun["emptied"]:
            repeated(self._empty, self.retry_seconds, self._to)
        return is_ours

    def write(self, documents: Iterable[tuple[int, bytes]]) -> dict[int, str]:
        """Inserts those that are not there yet, and waits until a majority has them.

        Each comes with a number of its own. Returns the numbers of those that the server does not
        take, and why, without a value: they are left out, whatever else is written. To be called
        between `begin` and `finish`, by any number of processes. Raises what `retry.repeated` does,
        for a target that takes no document at all too.
        """
        left_out: dict[int, str] = {}
        for some in _chunks(documents):
            left_out |= repeated(partial(self._insert, some), self.retry_seconds, self._to)
        return left_out

    def finish(self, is_whole: bool = True) -> None:
        """To be called when everything is written; not `is_whole`: what was not left out."""

        def mark() -> None:
            if is_whole:
                self._unfinished.delete_one(self._own)
            else:
                self._unfinished.update_one(self._own, {"$set": {"ended": True}})

        repeated(mark, self.retry_seconds, self._to)

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

    def _insert(self, documents: list[tuple[int, bytes]]) -> dict[int, str]:
        writes: list[tuple[int, _Write]] = []
        left_out: dict[int, str] = {}
        for number, data in documents:
            try:
                writes.append((number, _write(data)))
            except UnmappableValue as error:
                left_out[number] = error.message
        return left_out | self._written(writes)

    def _written(self, writes: list[tuple[int, _Write]]) -> dict[int, str]:
        if not writes:
            return {}
        try:
            self._collection().bulk_write([write for _, write in writes], ordered=False)
        except pymongo.errors.BulkWriteError as error:
            return {writes[index][0]: reason for index, reason in self._refused(error)}
        except pymongo.errors.OperationFailure as error:
            if error.code not in _OF_A_COMMAND:
                raise
            if len(writes) == 1:
                return {writes[0][0]: _reason(error.code)}
            half = len(writes) // 2
            return self._written(writes[:half]) | self._written(writes[half:])
        return {}

    def _refused(self, error: pymongo.errors.BulkWriteError) -> Iterator[tuple[int, str]]:
        """Which writes of a bulk, and why. A document that is there already is one that was written
        before: the target was empty. The driver's own text would hold documents."""
        for each in error.details["writeConcernErrors"]:
            raise pymongo.errors.WriteConcernError(self._to, each.get("code"), each)
        for each in error.details["writeErrors"]:
            code: int = each["code"]
            failure = pymongo.errors.OperationFailure(self._to, code)
            if code in _OF_THE_TARGET or may_pass(failure):
                raise failure
            if code != _DUPLICATE_KEY or list(each.get("keyPattern", ())) != ["_id"]:
                yield each["index"], _reason(code)

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


def _reason(code: int) -> str:
    return f"{_REASONS.get(code, 'the server refuses it')} (code {code})"


def _chunks(documents: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    chunk, size = list[tuple[int, bytes]](), 0
    for number, data in documents:
        if chunk and (len(chunk) == _DOCUMENTS or size + len(data) > _BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((number, data))
        size += len(data)
    if chunk:
        yield chunk


def _write(data: bytes) -> _Write:
    """Raises UnmappableValue for what need not be sent to a server."""
    if len(data) > _LARGEST:
        raise UnmappableValue("larger than the 16 MiB that a document may have")
    try:
        document: Any = RawBSONDocument(data)
    except InvalidBSON as error:
        raise UnmappableValue("corrupt BSON") from error
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
