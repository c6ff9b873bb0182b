"""Change streams through a router: one stream of each shard, merged in the order of their events.

What is imitated, by the names of the server's source:

* `getStartTimeForNewStream`: without a start, all shards begin one tick after the newest cluster
  time that the router knows. A shard may not have reached it.
* `_readySortedTailable` of async_results_merger.cpp: an event is handed out once each shard has
  promised, by the post-batch token of a reply, to return nothing before it.
* `getHighWaterMark`: the token of a reply is the least promise of all shards if no event is ready,
  else that of the last event.
* `setAwaitDataTimeout`: with several shards, each is waited for a second at most.
* `awaitNextWithTimeout`: a reply that has an event does not wait for more.
* `openChangeStreamNewShardMonitor` and `ChangeStreamHandleTopologyChange`: the stream of
  `config.shards` takes part in the merge. Where it reports a shard, the shard's stream is opened
  one tick later. Its own events are swallowed, and so is its promise while `config.shards` is
  behind (`_checkHighWaterMarkEligibility`).
* `DocumentSourceChangeStreamAddPostImage`: `updateLookup` is a read by the router, after the merge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from tests.mongo.stand_in.cursors import Batch, Remote, close_remotes, open_remotes
from tests.mongo.stand_in.faults import Faults
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.routing import Target
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.wire import Document

_STARTS = ("resumeAfter", "startAfter", "startAtOperationTime")
_WAIT_MS, _LONGEST_WAIT_MS = 1000, 1000
_COLD_PAUSE = 0.01
_MONITOR = "config.shards"


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
        return self.remote.namespace.startswith(_MONITOR)

    @property
    def next_token(self) -> str:
        return _text(self.remote.documents[0]["_id"])


class MergedStream:
    """The merged stream of all shards. See the module."""

    def __init__(self, command: Document, faults: Faults) -> None:
        self._command, self._faults = command, faults
        self._parts: list[_Part] = []
        self._is_closed = False
        self._high_water: RawBSONDocument | None = None
        self._token: RawBSONDocument | None = None

    @classmethod
    async def open(cls, request: Request, faults: Faults) -> MergedStream:
        """Open the stream on all shards. Raises Refused."""
        topology, since = request.topology, _tick(request.clock.time)
        stream = cls(_with_start(request.command, since), faults)
        shards = await topology.shards(is_renewed=True)
        targets = [Target(name, servers, {}) for name, servers in shards.items()]
        await stream._open_parts(request, targets)
        stream._high_water = min((part.promised for part in stream._parts), key=_text)
        if topology.metadata not in shards.values():
            await stream._open_monitor(request, since)
        return stream

    async def _open_parts(self, request: Request, targets: Sequence[Target]) -> None:
        remotes, replies = await open_remotes(request, targets, lambda _: self._command)
        self._parts += [
            _Part(remote, reply["cursor"]["postBatchResumeToken"], is_eligible=True)
            for remote, reply in zip(remotes, replies, strict=True)
        ]

    async def _open_monitor(self, request: Request, since: Timestamp) -> None:
        stage = {"startAtOperationTime": since, "allowToRunOnConfigDB": True}
        command = {
            "aggregate": "shards",
            "pipeline": [{"$changeStream": stage}, {"$match": {"operationType": "insert"}}],
            "cursor": {"batchSize": 0},
            "readConcern": {"level": "majority"},
            **request.session,
        }
        servers = request.topology.metadata
        reply, address = await servers.run("config", command)
        cursor = reply["cursor"]
        remote = Remote(
            Target("config", servers, {}), address, int(cursor["id"]), _MONITOR, request.session
        )
        self._parts.append(_Part(remote, cursor["postBatchResumeToken"], is_eligible=False))

    # --- replies ---

    async def close(self) -> None:
        for part in self._parts:
            if part.asked is not None:
                part.asked.cancel()
        await close_remotes(part.remote for part in self._parts)

    @property
    def is_exhausted(self) -> bool:
        return self._is_closed

    @property
    def fields(self) -> Document:
        return {"postBatchResumeToken": self._token}

    async def next_batch(
        self, request: Request, size: int | None, wait_ms: int | None
    ) -> list[RawBSONDocument]:
        wait_ms = _WAIT_MS if wait_ms is None else wait_ms
        deadline, batch, is_stashed = time.monotonic() + wait_ms / 1000, Batch(size), False
        is_first = size == 0 or request.name == "aggregate"
        if not is_first:
            self._absorb(request)
        while not batch.is_full:
            part = self._ready()
            if part is not None and part.is_monitor:
                await self._add_shard(request, part)
            elif part is not None:
                event = part.remote.documents[0]
                if not batch.takes(event):
                    is_stashed = True
                    break
                part.remote.documents.popleft()
                self._high_water = self._token = event["_id"]
            elif self._is_ended():
                self._is_closed = True
                break
            elif is_first or batch.documents or time.monotonic() >= deadline:
                break
            else:
                await self._wait(request, size, wait_ms, deadline)
        self._is_closed = self._is_closed or self._is_ended()
        if not is_stashed:
            self._token = self._advance()
        return batch.documents

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
        """Whether a shard's stream was invalidated, and everything before that was handed out."""
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
        for part in self._parts:
            remote = part.remote
            is_idle = not remote.documents and not remote.is_exhausted and part.asked is None
            if is_idle and not self._is_cold(part):
                part.asked = asyncio.ensure_future(remote.more(request, **arguments))
        tasks = [part.asked for part in self._parts if part.asked and not self._is_cold(part)]
        left = max(0.0, deadline - time.monotonic())
        if self._faults.cold:
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
            reply, part.asked = part.asked.result(), None
            request.see(reply)
            promised = reply["cursor"]["postBatchResumeToken"]
            part.is_eligible = self._is_eligible(part, promised)
            assert _text(promised) >= _text(part.promised), "a shard breaks its promise"
            part.promised = promised

    def _is_eligible(self, part: _Part, promised: RawBSONDocument) -> bool:
        if not part.is_monitor:
            return True
        if _text(promised) < _text(self._high_water) or part.remote.documents:
            return False
        return part.is_eligible or _text(promised) > _text(part.promised)

    async def _add_shard(self, request: Request, monitor: _Part) -> None:
        """Open the stream of a shard from the time at which it was added."""
        event = monitor.remote.documents.popleft()
        name = event["documentKey"]["_id"]
        if name in {part.remote.target.shard for part in self._parts}:
            return
        shards = await request.topology.shards(is_renewed=True)
        if name not in shards:
            return  # it has left again
        command, self._command = self._command, _restarted(self._command, event["clusterTime"])
        try:
            await self._open_parts(request, [Target(name, shards[name], {})])
        finally:
            self._command = command


def is_change_stream(command: Mapping[str, Any]) -> bool:
    pipeline = command.get("pipeline", ())
    return bool(pipeline) and "$changeStream" in pipeline[0]


def _with_start(command: Mapping[str, Any], since: Timestamp) -> Document:
    stage = command["pipeline"][0]["$changeStream"]
    if any(name in stage for name in _STARTS):
        return dict(command)
    return _replaced(command, {**stage, "startAtOperationTime": since})


def _restarted(command: Mapping[str, Any], added: Timestamp) -> Document:
    stage = command["pipeline"][0]["$changeStream"]
    rest = {name: value for name, value in stage.items() if name not in _STARTS}
    return _replaced(command, {**rest, "startAtOperationTime": _tick(added)})


def _replaced(command: Mapping[str, Any], stage: Document) -> Document:
    return {**command, "pipeline": [{"$changeStream": stage}, *command["pipeline"][1:]]}


def _tick(moment: Timestamp) -> Timestamp:
    return Timestamp(moment.time, moment.inc + 1)


def _text(token: Mapping[str, Any] | None) -> str:
    return "" if token is None else str(token["_data"])


def refuse_unknown(command: Mapping[str, Any]) -> None:
    """Refuse what the stand-in does not imitate of a change stream."""
    stage = command["pipeline"][0]["$changeStream"]
    if stage.get("fullDocument") == "updateLookup":
        raise Refused.of(20, "IllegalOperation", "the stand-in looks no documents up")
