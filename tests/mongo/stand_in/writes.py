"""Writes through a router: each statement goes to the shard that owns its document.

Only what a user's own writes need: inserts, and updates and deletes of the documents of one value
of the shard key, of one `_id`, or of all shards (chunk_manager_targeter.cpp, batch_write_exec.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import bson

from cdc.model.keystring import keystring
from tests.mongo.stand_in.reads import on_unsharded
from tests.mongo.stand_in.request import Request
from tests.mongo.stand_in.routing import STALE, Table
from tests.mongo.stand_in.servers import Refused
from tests.mongo.stand_in.wire import RAW, Document, plain

_STATEMENTS = {"insert": "documents", "update": "updates", "delete": "deletes"}
WRITES = frozenset(_STATEMENTS)
_ATTEMPTS = 20


async def write(request: Request) -> Document:
    """Run the statements of a command one after the other. Raises Refused."""
    table = await request.topology.table(request.db, request.coll)
    if table is None:
        return await request.until_routed(request.coll, partial(_write_unsharded, request))
    name, command = _STATEMENTS[request.name], request.command
    is_ordered, reply = bool(command.get("ordered", True)), _Reply()
    for number, statement in enumerate(command[name]):
        await _write_one(request, name, number, statement, reply)
        if reply.errors and is_ordered:
            break
    return reply.document


async def _write_unsharded(request: Request) -> Document:
    """Raises Refused if the shard found the versions stale before it wrote anything."""
    reply = await on_unsharded(request)
    stale = [each for each in reply.get("writeErrors", ()) if each["code"] in STALE]
    if stale and not reply["n"]:
        raise Refused.of(stale[0]["code"], "StaleConfig", str(stale[0]["errmsg"]))
    return reply


async def _write_one(
    request: Request, name: str, number: int, statement: Mapping[str, Any], reply: _Reply
) -> None:
    done: set[str] = set()
    for left in reversed(range(_ATTEMPTS)):
        table = await request.topology.table(request.db, request.coll)
        if table is None:
            raise Refused.of(20, "IllegalOperation", "the collection was dropped or replaced")
        owners = await _owners(request, table, statement)
        sent = {**request.command, name: [statement], "ordered": True}
        if "txnNumber" in sent:
            sent["stmtIds"] = [number]
        is_stale = False
        for shard in [owner for owner in owners if owner not in done]:
            versioned = {**sent, "shardVersion": table.routing.version(shard)}
            servers = await request.topology.shard(shard)
            try:
                answer = (await request.run(servers, versioned, False)).reply
            except Refused as refused:
                if refused.code not in STALE:
                    raise
                is_stale = True
                break
            if any(each["code"] in STALE for each in answer.get("writeErrors", ())):
                is_stale = True
                break
            done.add(shard)
            reply.add(answer, number)
        if not is_stale:
            return
        request.topology.forget(request.db, request.coll, None)
        if not left:
            raise Refused.of(82, "NoProgressMade", "no progress was made executing batch write op")


class _Reply:
    """The reply to a write, summed up from those of the shards."""

    def __init__(self) -> None:
        self.errors: list[Document] = []
        self._counts = {"n": 0}
        self._upserted: list[Document] = []

    def add(self, answer: Mapping[str, Any], number: int) -> None:
        for name in ("n", "nModified"):
            if name in answer:
                self._counts[name] = self._counts.get(name, 0) + int(answer[name])
        self._upserted += [{**each, "index": number} for each in answer.get("upserted", ())]
        self.errors += [{**each, "index": number} for each in answer.get("writeErrors", ())]

    @property
    def document(self) -> Document:
        lists = {"upserted": self._upserted, "writeErrors": self.errors}
        return {**self._counts, **{k: v for k, v in lists.items() if v}, "ok": 1.0}


async def _owners(request: Request, table: Table, statement: Mapping[str, Any]) -> Sequence[str]:
    """Return the shards of a statement, all of them if its filter does not name the shard key."""
    filtered = plain(statement["q"]) if "q" in statement else None
    document = plain(statement) if filtered is None else filtered
    values = [_value(document, path) for path in table.key]
    if filtered is None or not any(_is_condition(each) for each in values):
        return [await _owner(request, table, [each[0] if each else None for each in values])]
    is_many = statement.get("multi", False) or statement.get("limit", 1) == 0
    if not is_many and _is_condition(_value(document, "_id")):
        message = "A single update or delete must name the shard key or the _id"
        raise Refused.of(61, "ShardKeyNotFound", message)
    return table.owners(None)


def _value(document: Any, path: str) -> list[Any]:
    """Return the value at a path as a list of one, an empty list if there is none."""
    for name in path.split("."):
        if not isinstance(document, dict) or name not in document:
            return []
        document = document[name]
    return [document]


def _is_condition(found: list[Any]) -> bool:
    """Whether a filter has no single value for that field."""
    return not found or (isinstance(found[0], dict) and any(k.startswith("$") for k in found[0]))


async def _owner(request: Request, table: Table, values: list[Any]) -> str:
    """Return the shard of the chunk that contains a value of the shard key."""
    for number, kind in enumerate(table.key.values()):
        if kind == "hashed":
            hashing = {"_hashBSONElement": values[number]}
            reply = await request.topology.metadata.run("admin", hashing)
            values[number] = reply.reply["out"]
    place = _order(values)
    for chunk in table.routing.chunks:
        if _order(chunk["min"].values()) <= place < _order(chunk["max"].values()):
            return str(chunk["shard"])
    # The greatest value of all is in the last chunk.
    return str(table.routing.chunks[-1]["shard"])


def _order(values: Any) -> bytes:
    fields = {str(number): value for number, value in enumerate(values)}
    return keystring.encode(bson.encode(fields, codec_options=RAW))[0]
