"""Change streams through a router: one stream of each shard, merged in the order of their events.

What is imitated, by the names of the server's source:

* `_readySortedTailable` of async_results_merger.cpp: an event is handed out once each shard has
  promised, by the post-batch token of a reply, to return nothing before it.
* `getHighWaterMark`: the token of a reply is the least promise of all shards if no event is ready,
  else that of the last event.
* `setAwaitDataTimeout`: with several shards, each is waited for a second at most.
* `awaitNextWithTimeout`: a reply that has an event does not wait for more.
* `_assertNotInvalidated`: the stream ends where that of a shard was invalidated.
* `openChangeStreamNewShardMonitor` and `ChangeStreamHandleTopologyChange`: the stream of
  `config.shards` takes part in the merge. Where it reports a shard, the shard's stream is opened
  one tick later. Its own events are swallowed, and so is its promise while `config.shards` is
  behind (`_checkHighWaterMarkEligibility`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from tests.mongo.stand_in.cursors import Batch
from tests.mongo.stand_in.faults import Faults
from tests.mongo.stand_in.post_image import PostImages
from tests.mongo.stand_in.request import Remote, Request, close_remotes, open_remotes
from tests.mongo.stand_in.routing import Target
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.stream_start import StreamCommand
from tests.mongo.stand_in.wire import Document

_WAIT_MS, _LONGEST_WAIT_MS = 1000, 1000
_COLD_PAUSE = 0.01
_UNREACHABLE = 6
_MONITOR = "config.shards"
# Before 6.0 a shard reports its first chunk of a collection so; it is for the router only.
_INTERNAL = "kNewShardDetected"


@dataclass
class _Part:
    """The stream of one shard, or that of `config.shards`.

    Attributes:
        remote: its cursor.
        promised: the token of its last reply; it returns nothing before it any more.
        is_eligible: the promise may become a token of the merged stream.
        asked: the getMore that has no reply yet.
    """

    remote: Remote
    promised: RawBSONDocument
    is_eligible: bool
    asked: asyncio.Task[Document] | None = None

    @property
    def is_monitor(self) -> bool:
        return self.remote.namespace == _MONITOR

    @property
    def is_idle(self) -> bool:
        return not self.remote.documents and not self.remote.is_exhausted and self.asked is None

    @property
    def next_token(self) -> str:
        return _text(self.remote.documents[0]["_id"])


class MergedStream:
    """The merged stream of all shards. See the module."""

    def __init__(self, command: StreamCommand, images: PostImages, faults: Faults) -> None:
        self._command, self._images, self._faults = command, images, faults
        self._completed = ""  # the token of an event that a reply had no place for
        self._parts: list[_Part] = []
        self._high_water = self._token = command.after
        self.is_exhausted = False

    @classmethod
    async def open(cls, request: Request, faults: Faults) -> MergedStream:
        """Open the stream on all shards. Raises Refused."""
        topology, since = request.topology, tick(request.clock.time)
        images = PostImages(request.command["pipeline"])
        of_shards = {**request.command, "pipeline": images.of_shards}
        stream = cls(StreamCommand.of(of_shards, since), images, faults)
        shards = await topology.shards(is_renewed=True)
        targets = [Target(name, servers, {}) for name, servers in shards.items()]
        await stream._open_parts(request, targets, stream._command)
        stream._high_water = min((part.promised for part in stream._parts), key=_text)
        if topology.metadata not in shards.values():
            await stream._open_monitor(request, since)
        return stream

    async def _open_parts(
        self, request: Request, targets: Sequence[Target], command: StreamCommand
    ) -> None:
        remotes, replies = await open_remotes(request, targets, lambda _: command.of_shards)
        self._parts += [
            _Part(remote, self._promise(reply), is_eligible=True)
            for remote, reply in zip(remotes, replies, strict=True)
        ]

    def _promise(self, reply: Document) -> RawBSONDocument:
        """Return the token of a shard's reply, or that after which the client starts if later."""
        promised: RawBSONDocument = reply["cursor"]["postBatchResumeToken"]
        after = self._command.after
        return after if after is not None and _text(after) > _text(promised) else promised

    async def _open_monitor(self, request: Request, since: Timestamp) -> None:
        stage = {"startAtOperationTime": since, "allowToRunOnConfigDB": True}
        command = {
            "aggregate": "shards",
            "pipeline": [{"$changeStream": stage}, {"$match": {"operationType": "insert"}}],
            "cursor": {"batchSize": 0},
            "readConcern": request.read_concern or {"level": "majority"},
            **request.session,
        }
        target = Target("config", request.topology.metadata, {})
        answer = await target.servers.run("config", command)
        remote = Remote.of(target, answer, request)
        promised = answer.reply["cursor"]["postBatchResumeToken"]
        self._parts.append(_Part(remote, promised, is_eligible=False))

    async def close(self) -> None:
        asked = [part.asked for part in self._parts if part.asked is not None]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await close_remotes(part.remote for part in self._parts)

    # --- replies ---

    @property
    def fields(self) -> Document:
        return {"postBatchResumeToken": self._token}

    async def next_batch(
        self, request: Request, size: int | None, wait_ms: int | None
    ) -> list[RawBSONDocument]:
        wait_ms = _WAIT_MS if wait_ms is None else wait_ms
        deadline, batch, is_stashed = time.monotonic() + wait_ms / 1000, Batch(size), False
        is_first = request.name == "aggregate"
        self._absorb(request)
        while not batch.is_full and not is_stashed and not self.is_exhausted:
            part = self._ready()
            if part is not None and part.is_monitor:
                await self._add_shard(request, part.remote.documents.popleft())
            elif part is not None and not self._is_wanted(part.remote.documents[0]):
                await self._leave_out(request, part)
            elif part is not None and await self._complete(request, part):
                is_stashed = not self._hand_out(part, batch)
            elif part is not None:
                continue  # a stage of the router left the event out
            elif self._is_ended():
                self.is_exhausted = True
            elif is_first or batch.documents or time.monotonic() >= deadline:
                break
            else:
                await self._wait(request, size, wait_ms, deadline)
        self.is_exhausted = self.is_exhausted or self._is_ended()
        if not is_stashed:
            self._token = self._advance()
        return batch.documents

    async def _complete(self, request: Request, part: _Part) -> bool:
        """Do the router's own work on the next event; return whether the event remains."""
        event = part.remote.documents[0]
        if self._completed == _text(event["_id"]):
            return True
        completed = await self._images.complete(request, event)
        if completed is None:
            part.remote.documents.popleft()
            self._high_water = event["_id"]
            return False
        part.remote.documents[0], self._completed = completed, _text(completed["_id"])
        return True

    def _hand_out(self, part: _Part, batch: Batch) -> bool:
        """Hand out the next event of a part, unless the reply has no place for it."""
        event = part.remote.documents[0]
        if not batch.takes(event):
            return False
        part.remote.documents.popleft()
        self._high_water = self._token = event["_id"]
        return True

    def _is_wanted(self, event: RawBSONDocument) -> bool:
        is_internal = event.get("operationType") == _INTERNAL
        return not is_internal and _text(event["_id"]) > _text(self._command.after)

    async def _leave_out(self, request: Request, part: _Part) -> None:
        """Drop an event that is not for the client, or at or before the token where it starts.

        If it invalidated the shard's stream, that is opened again after it.
        """
        event = part.remote.documents.popleft()
        if part.remote.is_exhausted and not part.remote.documents:
            self._parts.remove(part)
            again = self._command.starting(startAfter=event["_id"])
            await self._open_parts(request, [part.remote.target], again)

    def _ready(self) -> _Part | None:
        """Return the part of the least event, if nothing before it can come any more."""
        with_next = [part for part in self._parts if part.remote.documents]
        if not with_next:
            return None
        least = min(with_next, key=lambda part: part.next_token)
        return least if least.next_token <= _text(self._least().promised) else None

    def _least(self) -> _Part:
        return min(self._parts, key=lambda part: _text(part.promised))

    def _advance(self) -> RawBSONDocument | None:
        least = self._least()
        if self._ready() is None and least.is_eligible:
            self._high_water = least.promised
        return self._high_water

    def _is_ended(self) -> bool:
        return self._ready() is None and self._least().remote.is_exhausted

    # --- asking the shards ---

    async def _wait(
        self, request: Request, size: int | None, wait_ms: int, deadline: float
    ) -> None:
        """Ask each shard that has nothing left, and wait for a reply of any of them."""
        longest = min(wait_ms, _LONGEST_WAIT_MS) if len(self._parts) > 1 else wait_ms
        arguments: Document = {"maxTimeMS": longest}
        if size is not None:
            arguments["batchSize"] = size
        warm = [part for part in self._parts if not self._is_cold(part)]
        for part in warm:
            if part.is_idle:
                part.asked = asyncio.ensure_future(part.remote.ask(request, **arguments))
        tasks = [part.asked for part in warm if part.asked]
        left = max(0.0, deadline - time.monotonic())
        if len(warm) < len(self._parts):
            left = min(left, _COLD_PAUSE)
        if tasks:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(left)
        self._absorb(request)

    def _is_cold(self, part: _Part) -> bool:
        return part.remote.target.shard in self._faults.cold

    def _absorb(self, request: Request) -> None:
        """Take the promises of all replies that have come. Raises their errors."""
        for part in self._parts:
            if part.asked is None or not part.asked.done() or self._is_cold(part):
                continue
            asked, part.asked = part.asked, None
            try:
                reply = asked.result()
            except Refused as refused:
                if refused.code == _UNREACHABLE:  # `isResumableChangeStreamError`
                    refused.reply["errorLabels"] = ["ResumableChangeStreamError"]
                raise
            request.see(reply)
            part.remote.take(reply)
            promised = self._promise(reply)
            assert _text(promised) >= _text(part.promised), "a shard breaks its promise"
            part.is_eligible = self._is_eligible(part, promised)
            part.promised = promised

    def _is_eligible(self, part: _Part, promised: RawBSONDocument) -> bool:
        if not part.is_monitor:
            return True
        if _text(promised) < _text(self._high_water) or part.remote.documents:
            return False
        return part.is_eligible or _text(promised) > _text(part.promised)

    async def _add_shard(self, request: Request, event: RawBSONDocument) -> None:
        """Open the stream of a shard from the time at which it was added."""
        name, shards = event["documentKey"]["_id"], await request.topology.shards(is_renewed=True)
        if name in shards and name not in {part.remote.target.shard for part in self._parts}:
            added = self._command.starting(startAtOperationTime=tick(event["clusterTime"]))
            await self._open_parts(request, [Target(name, shards[name], {})], added)


def tick(moment: Timestamp) -> Timestamp:
    return Timestamp(moment.time, moment.inc + 1)


def _text(token: Mapping[str, Any] | None) -> str:
    return "" if token is None else str(token["_data"])
