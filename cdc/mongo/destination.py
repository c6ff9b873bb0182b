"""Restore: writes documents into a collection, byte for byte.

This is the only module that writes to a server. A restore starts with a collection without
documents and inserts. So a killed restore can continue: a document that exists already, by its
`_id`, was inserted before.

A document in the target's database records the unfinished restore. It is removed at the end, unless
documents were left out. The same restore then continues with these, once the cause is removed.
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
from cdc.model import Namespace, key_of
from cdc.model.bson import element, elements, encode_document, encode_field
from cdc.mongo.connection import connect, may_pass, retry_call

_Write: TypeAlias = InsertOne[dict[str, Any]] | UpdateOne
_UNFINISHED = "mongodb_cdc_restores"
_DOCUMENTS, _BYTES = 1000, 16 * 2**20
# The largest document, on all releases. A command may be larger.
_LARGEST = 16 * 2**20
_DUPLICATE_KEY = 11000
# For one document the server refuses the whole command: Overflow (nested too deep), InvalidBSON.
_OF_A_COMMAND = frozenset({15, 22})
# Reported for each document, but about the target: Unauthorized, InvalidNamespace, a view,
# AtlasError (a quota), OutOfDiskSpace.
_OF_THE_TARGET = frozenset({13, 73, 166, 8000, 14031})
_REASONS = {
    15: "nested too deep for the server",
    _DUPLICATE_KEY: "a unique index of the target already contains its value",
    121: "the target's validation refuses it",
}
_EMPTY_TIMESTAMP = bytes(8)


@dataclass(frozen=True, slots=True)
class Destination:
    """A collection to restore into.

    As for a source, `uri` may be `env:…` or `file:…`. Then pickling it copies no credential.
    """

    uri: str
    namespace: Namespace
    timeout_ms: int
    retry_seconds: float

    def begin(self, identity: Mapping[str, str], force: bool) -> bool:
        """Prepare the target; return whether an unfinished restore of this identity continues.

        Afterwards the target contains only documents that a restore of this identity wrote.

        Args:
            identity: identifies the restore.
            force: delete all other documents. The collection keeps its indexes and options. This
                also deletes what a restore of this identity wrote if it ended with documents left
                out.

        Raises TargetNotEmpty, and what `retry_call` raises.
        """
        unfinished = retry_call(self._read_unfinished, self.retry_seconds, self._attempted)
        is_ours = unfinished is not None and unfinished["identity"] == dict(identity)
        if force and unfinished is not None and "ended" in unfinished:
            is_ours = False
        if not is_ours:
            self._claim(identity, unfinished is not None, force)
        if unfinished is None or not is_ours or not unfinished["emptied"]:
            retry_call(self._delete_documents, self.retry_seconds, self._attempted)
        return is_ours

    def write(self, documents: Iterable[tuple[int, bytes]]) -> dict[int, str]:
        """Insert the documents that are missing, and wait until a majority has them.

        It must be called between `begin` and `finish`; any number of processes may call it. Each
        document has a number of its own. The result maps the numbers of the documents that the
        server refuses to the reasons, which contain no values. These documents are left out; all
        others are written. Raises what `retry_call` raises, also if the target accepts no
        document at all.
        """
        left_out: dict[int, str] = {}
        for chunk in _chunks(documents):
            left_out |= retry_call(
                partial(self._insert, chunk), self.retry_seconds, self._attempted
            )
        return left_out

    def finish(self, is_whole: bool = True) -> None:
        """End the restore after all calls of `write`; not `is_whole` if documents were left out."""

        def record_end() -> None:
            if is_whole:
                self._restores.delete_one(self._record)
            else:
                self._restores.update_one(self._record, {"$set": {"ended": True}})

        retry_call(record_end, self.retry_seconds, self._attempted)

    def _read_unfinished(self) -> dict[str, Any] | None:
        return self._restores.find_one(self._record)

    def _claim(self, identity: Mapping[str, str], is_anothers: bool, force: bool) -> None:
        def is_free() -> bool:
            return not is_anothers and self._collection().find_one({}, {"_id": 1}) is None

        if not force and not retry_call(is_free, self.retry_seconds, self._attempted):
            what = "an unfinished restore of other data" if is_anothers else "documents already"
            raise TargetNotEmpty(
                f"{self._attempted}: the collection contains {what}; nothing was written.",
                "Name an empty collection, or add --force to delete its documents first.",
            )
        entry = {"identity": dict(identity), "emptied": False}
        retry_call(
            lambda: self._restores.replace_one(self._record, entry, upsert=True),
            self.retry_seconds,
            self._attempted,
        )

    def _delete_documents(self) -> None:
        self._collection().delete_many({})
        self._restores.update_one(self._record, {"$set": {"emptied": True}})

    def _insert(self, documents: list[tuple[int, bytes]]) -> dict[int, str]:
        writes: list[tuple[int, _Write]] = []
        left_out: dict[int, str] = {}
        for number, data in documents:
            try:
                writes.append((number, _make_write(data)))
            except UnmappableValue as error:
                left_out[number] = error.message
        return left_out | self._send(writes)

    def _send(self, writes: list[tuple[int, _Write]]) -> dict[int, str]:
        """Send the writes; return the refused ones and the reasons.

        If a document makes the server refuse the whole command, each half is sent again.
        """
        if not writes:
            return {}
        try:
            self._collection().bulk_write([write for _, write in writes], ordered=False)
        except pymongo.errors.BulkWriteError as error:
            return {writes[index][0]: reason for index, reason in self._refusals(error)}
        except pymongo.errors.OperationFailure as error:
            if error.code not in _OF_A_COMMAND:
                raise
            if len(writes) == 1:
                return {writes[0][0]: _reason(error.code)}
            half = len(writes) // 2
            return self._send(writes[:half]) | self._send(writes[half:])
        return {}

    def _refusals(self, error: pymongo.errors.BulkWriteError) -> Iterator[tuple[int, str]]:
        """Yield the index of each refused write of a bulk, and the reason.

        A document that exists already is not refused: it was written before, because the target was
        empty. The errors get texts of their own: those of the driver would contain documents.
        """
        for each in error.details["writeConcernErrors"]:
            raise pymongo.errors.WriteConcernError(self._attempted, each.get("code"), each)
        for each in error.details["writeErrors"]:
            code: int = each["code"]
            failure = pymongo.errors.OperationFailure(self._attempted, code)
            if code in _OF_THE_TARGET or may_pass(failure):
                raise failure
            if code != _DUPLICATE_KEY or list(each.get("keyPattern", ())) != ["_id"]:
                yield each["index"], _reason(code)

    @property
    def _attempted(self) -> str:
        return f"Restoring into {self.namespace}"

    @property
    def _record(self) -> dict[str, str]:
        """A query for the document that records the unfinished restore of this collection."""
        return {"_id": self.namespace.coll}

    @property
    def _restores(self) -> Collection[dict[str, Any]]:
        return self._open(_UNFINISHED)

    def _collection(self) -> Collection[dict[str, Any]]:
        return self._open(self.namespace.coll)

    def _open(self, name: str) -> Collection[dict[str, Any]]:
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


def _make_write(data: bytes) -> _Write:
    """Return the write for a document.

    Raises UnmappableValue for a document that any server would refuse.
    """
    if len(data) > _LARGEST:
        raise UnmappableValue("larger than the limit of 16 MiB for a document")
    try:
        document: Any = RawBSONDocument(data)
    except InvalidBSON as error:
        raise UnmappableValue("corrupt BSON") from error
    if not _has_empty_timestamp(data):
        return InsertOne(document)
    # In an insert, the server replaces each Timestamp(0, 0) at the top level by its own time.
    key_document = key_of(data)
    (key,) = elements(key_document, 0, len(key_document))
    value = encode_field(key.kind, b"$eq", key_document[key.start : key.stop])
    equal = RawBSONDocument(encode_document([value]))
    return UpdateOne({"_id": equal}, [{"$replaceWith": {"$literal": document}}], upsert=True)


def _has_empty_timestamp(data: bytes) -> bool:
    """Whether a field at the top level is Timestamp(0, 0)."""
    return _EMPTY_TIMESTAMP in data and any(
        each.kind == element.TIMESTAMP and data[each.start : each.stop] == _EMPTY_TIMESTAMP
        for each in elements(data, 0, len(data))
    )
