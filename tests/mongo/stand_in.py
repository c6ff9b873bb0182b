"""A stand-in for a mongos: a proxy in front of a real server that answers like a router.

No mongos can be had with the servers' wheels. The data, the metadata and the times are those of the
real server behind the stand-in. Its own are the identity of a router and the identifiers of
cursors. So a test shows what the connector asks a router for, and what it does with the answers. It
does not show what a real router would answer.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import bson
from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from cdc.demo.mongod import find_free_ports

Document = dict[str, Any]
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_HAS_CHECKSUM = 1
_HELLO = frozenset({"hello", "ismaster", "isMaster"})
# What a router's `hello` has in common with that of a member.
_OF_A_ROUTER = (
    *("isWritablePrimary", "ismaster", "helloOk", "maxBsonObjectSize", "maxMessageSizeBytes"),
    *("maxWriteBatchSize", "localTime", "logicalSessionTimeoutMinutes", "connectionId"),
    *("maxWireVersion", "minWireVersion", "saslSupportedMechs", "speculativeAuthenticate"),
    *("ok", "operationTime", "$clusterTime"),
)
_UNKNOWN_CURSOR = {
    "ok": 0.0,
    "errmsg": "cursor not found",
    "code": 43,
    "codeName": "CursorNotFound",
}
_NO_DATA = {"ok": 0.0, "errmsg": "the stand-in routes metadata only", "code": 20}


class StandIn:
    """A router in front of the server at `host` (`host:port`).

    Attributes:
        host: its own address.
        asked: the databases of all commands, except those of the driver's own monitoring.

    Args:
        server: the address of the real server.
        databases: the databases that are served; all others are refused. None serves all.
    """

    def __init__(self, server: str, databases: frozenset[str] | None = None) -> None:
        self._server, self._databases = server, databases
        self.host = f"127.0.0.1:{find_free_ports(1)[0]}"
        self.asked = set[str]()
        self._own_ids = itertools.count(7_000_000_000)
        self._cursors = dict[int, Int64]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def uri(self) -> str:
        return f"mongodb://{self.host}/"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all connections, like a router that is killed."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    kill = __exit__

    async def _listen(self) -> None:
        host, port = self.host.split(":")
        self._listener = await asyncio.start_server(self._serve, host, int(port))

    async def _end(self) -> None:
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._server.split(":")
        of_server, to_server = await asyncio.open_connection(host, int(port))
        try:
            while True:
                request = await _read(reader)
                command = request.document
                reply = self._answer(command)
                if reply is None:
                    to_server.write(request.with_document(self._to_server(command)))
                    answer = await _read(of_server)
                    document = self._of_server(command, answer.document)
                    writer.write(answer.with_document(document))
                else:
                    writer.write(request.reply(reply))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()
            to_server.close()

    def _answer(self, command: Mapping[str, Any]) -> Document | None:
        """What the router answers by itself; None if the server answers."""
        name, db = next(iter(command)), command.get("$db", "admin")
        if name in _HELLO:
            return None
        self.asked.add(db)
        if self._databases is not None and db not in self._databases:
            return dict(_NO_DATA)
        if name == "getMore" and command["getMore"] not in self._cursors:
            return dict(_UNKNOWN_CURSOR)
        return None

    def _to_server(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        name = next(iter(command))
        if name == "getMore":
            return {**command, "getMore": self._cursors[command["getMore"]]}
        if name == "killCursors":
            known = [self._cursors.get(each, Int64(each)) for each in command["cursors"]]
            return {**command, "cursors": known}
        return command

    def _of_server(self, command: Mapping[str, Any], reply: Mapping[str, Any]) -> Mapping[str, Any]:
        if next(iter(command)) in _HELLO:
            known = {name: reply[name] for name in _OF_A_ROUTER if name in reply}
            return {**known, "msg": "isdbgrid"}
        cursor = reply.get("cursor")
        if not isinstance(cursor, Mapping) or not cursor.get("id"):
            return reply
        if "getMore" in command:
            own = command["getMore"]
        else:
            own = Int64(next(self._own_ids))
            self._cursors[own] = Int64(cursor["id"])
        return {**reply, "cursor": {**cursor, "id": own}}


class _Message(NamedTuple):
    """A message of the wire protocol: its header, what precedes and follows its document."""

    request_id: int
    response_to: int
    code: int
    before: bytes
    document: RawBSONDocument
    after: bytes

    def with_document(self, document: Mapping[str, Any]) -> bytes:
        encoded = document.raw if isinstance(document, RawBSONDocument) else bson.encode(document)
        body = self.before + bytes(encoded) + self.after
        header = _HEADER.pack(16 + len(body), self.request_id, self.response_to, self.code)
        return header + body

    def reply(self, document: Mapping[str, Any]) -> bytes:
        message = _Message(0, self.request_id, _OP_MSG, bytes(5), self.document, b"")
        return message.with_document(document)


async def _read(reader: asyncio.StreamReader) -> _Message:
    size, request_id, response_to, code = _HEADER.unpack(await reader.readexactly(16))
    body = await reader.readexactly(size - 16)
    if code == _OP_MSG:  # flags, then sections: the document is one, and the driver sends it first
        (flags,) = struct.unpack_from("<I", body)
        assert body[4] == 0
        assert not flags & _HAS_CHECKSUM
        begin = 5
    elif code == _OP_QUERY:  # flags, the name of a collection, two numbers
        begin = body.index(b"\0", 4) + 9
    else:
        assert code == _OP_REPLY, code
        begin = 20
    (length,) = struct.unpack_from("<i", body, begin)
    end = begin + length
    document = RawBSONDocument(body[begin:end], _RAW)
    return _Message(request_id, response_to, code, body[:begin], document, body[end:])
