"""The wire protocol: messages as a driver and a server send them, and connections to a server."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

Document = dict[str, Any]
# Values of a command or a reply that are documents stay the bytes that they were.
RAW: CodecOptions[RawBSONDocument] = CodecOptions(
    document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_HEADER = struct.Struct("<iiii")
_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013
_HAS_CHECKSUM, _MORE_TO_COME = 1, 2
_REPLY_OF_QUERY = struct.Struct("<iqii")


class Message(NamedTuple):
    """One message: a command with its arguments, or a reply.

    Attributes:
        request_id: the number that a reply repeats.
        is_query: a driver's first `hello`, in a form older than that of commands.
        wants_reply: the sender waits for a reply.
        document: the command; documents that came in sections of their own are lists in it.
    """

    request_id: int
    is_query: bool
    wants_reply: bool
    document: Document


def encode(document: Mapping[str, Any], request_id: int, response_to: int = 0) -> bytes:
    body = bytes(5) + bson.encode(document, codec_options=RAW)
    return _HEADER.pack(16 + len(body), request_id, response_to, _OP_MSG) + body


def encode_reply(document: Mapping[str, Any], to: Message) -> bytes:
    if not to.is_query:
        return encode(document, 0, to.request_id)
    body = _REPLY_OF_QUERY.pack(8, 0, 0, 1) + bson.encode(document, codec_options=RAW)
    return _HEADER.pack(16 + len(body), 0, to.request_id, _OP_REPLY) + body


async def read(reader: asyncio.StreamReader) -> Message:
    """Raises IncompleteReadError at the end of the connection."""
    size, request_id, _, code = _HEADER.unpack(await reader.readexactly(16))
    body = await reader.readexactly(size - 16)
    if code == _OP_QUERY:  # flags, the name of a collection, two numbers
        begin = body.index(b"\0", 4) + 9
        return Message(request_id, True, True, _top(_document(body, begin)))
    assert code == _OP_MSG, code
    (flags,) = struct.unpack_from("<I", body)
    assert not flags & _HAS_CHECKSUM
    document: Document = {}
    for part in _sections(body):
        document.update(part)
    return Message(request_id, False, not flags & _MORE_TO_COME, document)


def _sections(body: bytes) -> Iterator[Document]:
    at = 4
    while at < len(body):
        kind, at = body[at], at + 1
        if kind == 0:
            document = _document(body, at)
            yield _top(document)
            at += len(document.raw)
            continue
        (size,) = struct.unpack_from("<i", body, at)
        name_ends = body.index(b"\0", at + 4)
        name, begin, at = body[at + 4 : name_ends].decode(), name_ends + 1, at + size
        documents = []
        while begin < at:
            documents.append(_document(body, begin))
            begin += len(documents[-1].raw)
        yield {name: documents}


def _document(body: bytes, begin: int) -> RawBSONDocument:
    (length,) = struct.unpack_from("<i", body, begin)
    return RawBSONDocument(body[begin : begin + length], RAW)


def _top(document: RawBSONDocument) -> Document:
    return dict(document.items())


def plain(value: Any) -> Any:
    """Turn raw documents into dictionaries, at every depth."""
    if isinstance(value, RawBSONDocument):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


class Connection:
    """A connection to a server, for one command at a time."""

    _ids = itertools.count(1)

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> Self:
        host, port = address.rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def command(self, document: Mapping[str, Any]) -> Document:
        self._writer.write(encode(document, next(self._ids)))
        await self._writer.drain()
        return (await read(self._reader)).document

    def close(self) -> None:
        self._writer.close()


class Connections:
    """Connections to servers by their addresses; one that is free is used again."""

    def __init__(self) -> None:
        self._free = defaultdict[str, list[Connection]](list)

    async def command(self, address: str, document: Mapping[str, Any]) -> Document:
        """Raises OSError or EOFError if the server does not answer."""
        free = self._free[address]
        connection = free.pop() if free else await Connection.open(address)
        try:
            reply = await connection.command(document)
        except BaseException:
            connection.close()
            raise
        free.append(connection)
        return reply

    def forget(self, address: str) -> None:
        """Close the free connections to a server that has ended one: it may have ended all."""
        for connection in self._free.pop(address, []):
            connection.close()

    def close(self) -> None:
        for address in list(self._free):
            self.forget(address)
