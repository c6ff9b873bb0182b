"""A router's cursors: each has an identifier of its own, and reads the cursors of some shards.

The rules of merging are those of async_results_merger.cpp and router_stage_*.cpp of the server's
source.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from tests.mongo.stand_in.request import Remote, Request, close_remotes
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.wire import Document

# A reply has to fit into 16 MiB with its envelope.
REPLY_BYTES = 16 * 2**20
FIRST_BATCH = 101


class Batch:
    """The documents of one reply, up to a number and to what fits into a message."""

    def __init__(self, size: int | None) -> None:
        self.documents: list[RawBSONDocument] = []
        self._left, self._size = REPLY_BYTES, size

    @property
    def is_full(self) -> bool:
        return self._size is not None and len(self.documents) >= self._size

    def takes(self, document: RawBSONDocument) -> bool:
        """Take the document, unless it no longer fits."""
        size = len(document.raw) + 16
        if self.documents and size > self._left:
            return False
        self._left -= size
        self.documents.append(document)
        return True


class Merged(Protocol):
    """What a router's cursor does: hands out the documents of its remotes, in its own order."""

    async def next_batch(
        self, request: Request, size: int | None, wait_ms: int | None
    ) -> list[RawBSONDocument]:
        """Return the next documents. Raises Refused, after which the caller must close it."""
        ...

    async def close(self) -> None:
        """Close the cursors of the shards."""
        ...

    @property
    def is_exhausted(self) -> bool: ...

    @property
    def fields(self) -> Document:
        """Return further fields of `cursor` in a reply."""
        ...


class Interleaved:
    """Documents of shards in no order: all that one has returned, then those of the next.

    Nothing waits for the slowest shard, so the order changes from one read to another
    (`_nextReadyUnsorted`). With a sort, the least of the next documents of all shards is next, so
    each of them must have one (`_readySorted`).

    Args:
        remotes: the cursors of the shards.
        sort_key: returns what to compare of a document; None for no order.
        finish: returns the document that the client gets.
        skip: the number of documents that are left out.
        limit: the greatest number of documents; 0 for all.
        fields: further fields of `cursor` in each reply.
    """

    def __init__(
        self,
        remotes: list[Remote],
        sort_key: Callable[[RawBSONDocument], Any] | None = None,
        finish: Callable[[RawBSONDocument], RawBSONDocument] = lambda document: document,
        skip: int = 0,
        limit: int = 0,
        fields: Document | None = None,
    ) -> None:
        self._remotes, self.fields = remotes, fields or {}
        self._key, self._finish = sort_key, finish
        self._skip, self._left = skip, limit or None
        self._from = 0

    @property
    def is_exhausted(self) -> bool:
        return self._left == 0 or all(
            each.is_exhausted and not each.documents for each in self._remotes
        )

    async def next_batch(
        self, request: Request, size: int | None, wait_ms: int | None = None
    ) -> list[RawBSONDocument]:
        if wait_ms:
            message = "maxTimeMS can only be used with getMore for tailable, awaitData cursors"
            raise Refused.of(2, "BadValue", message)
        batch = Batch(size)
        while not self.is_exhausted and not batch.is_full:
            remote = await self._ready(request, size)
            if remote is None:
                continue
            if self._skip:
                self._skip -= 1
            elif not batch.takes(self._finish(remote.documents[0])):
                break
            elif self._left is not None:
                self._left -= 1
            remote.documents.popleft()
        return batch.documents

    async def close(self) -> None:
        await close_remotes(self._remotes)

    async def _ready(self, request: Request, size: int | None) -> Remote | None:
        """Return the shard of the next document, None if there may be none any more."""
        arguments = {} if size is None else {"batchSize": max(size, 1)}
        empty = [r for r in self._remotes if not r.documents and not r.is_exhausted]
        has_any = any(each.documents for each in self._remotes)
        if empty and (self._key or not has_any):
            await asyncio.gather(*(each.more(request, **arguments) for each in empty))
        with_next = [each for each in self._remotes if each.documents]
        if self._key is not None:
            if any(not r.documents and not r.is_exhausted for r in self._remotes):
                return None
            key = self._key
            return min(with_next, key=lambda r: key(r.documents[0]), default=None)
        for _ in self._remotes:
            if self._remotes[self._from].documents:
                return self._remotes[self._from]
            self._from = (self._from + 1) % len(self._remotes)
        return None


@dataclass
class _Open:
    """An open cursor; `reading` is the getMore that runs on it."""

    merged: Merged
    namespace: str
    command: Document
    reading: asyncio.Task[list[RawBSONDocument]] | None = None


class Cursors:
    """The open cursors of a router, by identifiers of its own."""

    def __init__(self) -> None:
        self._ids = itertools.count(7_000_000_000)
        self._open: dict[int, _Open] = {}

    async def first_reply(
        self, request: Request, merged: Merged, namespace: str, size: int | None, is_single: bool
    ) -> Document:
        """Return the first reply of a new cursor; it stays open if anything is left."""
        try:
            documents = await merged.next_batch(request, size, 0)
        except Exception:
            await merged.close()
            raise
        cursor = 0
        if is_single:
            await merged.close()
        elif not merged.is_exhausted:
            cursor = next(self._ids)
            self._open[cursor] = _Open(merged, namespace, {**request.command, "$db": request.db})
        return _reply("firstBatch", documents, cursor, namespace, merged)

    async def more(self, request: Request) -> Document:
        """Answer a getMore (`ClusterFind::runGetMore`). An error ends the cursor."""
        number, command = int(request.command["getMore"]), request.command
        cursor = self._check_out(number, command)
        merged, wait_ms = cursor.merged, command.get("maxTimeMS")
        size = command.get("batchSize") or None
        cursor.reading = asyncio.ensure_future(merged.next_batch(request, size, wait_ms))
        try:
            documents = await cursor.reading
        except asyncio.CancelledError:
            if number in self._open:  # the router itself is killed
                raise
            raise Refused.of(237, "CursorKilled", "operation was interrupted") from None
        except Exception:
            await self._close(number)
            raise
        cursor.reading = None
        if merged.is_exhausted:
            await self._close(number)
            number = 0
        return _reply("nextBatch", documents, number, cursor.namespace, merged)

    def _check_out(self, number: int, command: Document) -> _Open:
        """Return a cursor for a getMore (cluster_cursor_manager.cpp). Raises Refused."""
        cursor = self._open.get(number)
        if cursor is None:
            raise Refused.of(43, "CursorNotFound", f"cursor id {number} not found")
        if command.get("lsid") != cursor.command.get("lsid"):
            message = f"Cannot run getMore on cursor {number} in another session"
            raise Refused.of(50801, "Location50801", message)
        if cursor.reading is not None:
            raise Refused.of(12051, "CursorInUse", f"cursor id {number} is already in use")
        return cursor

    async def kill(self, cursors: Sequence[int]) -> Document:
        """Close cursors; a getMore that runs on one is interrupted."""
        known = [number for number in cursors if number in self._open]
        for number in known:
            await self._close(number)
        return {
            "cursorsKilled": [Int64(number) for number in known],
            "cursorsNotFound": [Int64(number) for number in cursors if number not in known],
            "cursorsAlive": [],
            "cursorsUnknown": [],
            "ok": 1.0,
        }

    async def _close(self, number: int) -> None:
        cursor = self._open.pop(number, None)
        if cursor is None:
            return
        if cursor.reading is not None:
            cursor.reading.cancel()
        await cursor.merged.close()

    def describe(self) -> list[Document]:
        """Return what `$currentOp` reports of the router's own idle cursors."""
        return [
            {
                "type": "idleCursor",
                "ns": cursor.namespace,
                "cursor": {"cursorId": Int64(number), "originatingCommand": cursor.command},
            }
            for number, cursor in self._open.items()
            if cursor.reading is None
        ]


def _reply(
    name: str, documents: list[RawBSONDocument], cursor: int, namespace: str, merged: Merged
) -> Document:
    fields = {**merged.fields, "id": Int64(cursor), "ns": namespace}
    return {"cursor": {name: documents, **fields}, "ok": 1.0}
