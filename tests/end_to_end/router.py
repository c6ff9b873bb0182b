"""A load on a sharded cluster, sent as routers send it: each write goes to the shard that owns the
document, by metadata that may be out of date; chunks move meanwhile, both ways."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from bson.min_key import MinKey
from pymongo.errors import OperationFailure

from cdc.model import Namespace
from tests.mongo.abilities import abilities_of_shards
from tests.mongo.cluster import STALE, Cluster, Document, Routing, Transaction

_PAD = "x" * 800
_REGIONS = 8
_BOXES = 64
_OTHER = {"s1": "s2", "s2": "s1"}
# A chunk or a lock is not what the sender took it for, or somebody else writes to the document.
_TRY_AGAIN = frozenset({*STALE, 24, 112, 246, 251})
# An orphan is in the way; or it takes too long.
_GIVE_UP = frozenset({11000, 50})


@dataclass
class Sharded:
    """A sharded collection, what it holds, and what has been done to it: as its writers know it.

    Keys are integers below twice the number of documents to begin with. Sharded by (region, number)
    or by the hash of `box`.
    """

    cluster: Cluster
    namespace: Namespace
    is_hashed: bool
    documents: dict[int, Document] = field(default_factory=dict)
    keys: int = 0
    log: Counter[tuple[str, int]] = field(default_factory=Counter)
    moves: list[str] = field(default_factory=list)  # to which shard
    hashes: dict[int, int] = field(default_factory=dict)

    def create(self, count: int) -> None:
        """With that many documents, half of them on each shard, in eight chunks (hashed: four)."""
        (db, coll), cluster = self.namespace, self.cluster
        if self.is_hashed:
            self.hashes = cluster.hashes(range(_BOXES))
        key = {"box": "hashed"} if self.is_hashed else {"region": 1, "number": 1}
        cluster.shard_collection(db, coll, key)
        for shard in {chunk["shard"] for chunk in cluster.chunks(db, coll)}:
            images = abilities_of_shards(cluster.clients[shard]).recording
            cluster.clients[shard][db].command({"collMod": coll, **images})
        for region in range(1, _REGIONS) if not self.is_hashed else ():
            bounds = [{"region": r, "number": MinKey()} for r in (region, region + 1)]
            cluster.move(db, coll, bounds[0], "s2" if region % 2 else "s1", bounds[1])
        chance, self.keys = random.Random(1), 2 * count
        self.documents = {k: self.fresh(k, chance) for k in range(0, self.keys, 2)}
        routing = self.routing()
        for shard in cluster.shards:
            owned = [d for d in self.documents.values() if self.owner(d, routing) == shard]
            cluster.run(shard, db, {"insert": coll, "documents": owned}, routing)
        self.log.update(("insert", key) for key in self.documents)

    def fresh(self, key: int, chance: random.Random) -> Document:
        place = chance.randrange(_BOXES if self.is_hashed else _REGIONS)
        where = {"box": place} if self.is_hashed else {"region": place, "number": key}
        return {"_id": key, **where, "n": 0, "pad": _PAD}

    def identity(self, document: Document) -> Document:
        fields = ("_id", "box") if self.is_hashed else ("_id", "region", "number")
        return {name: document[name] for name in fields}

    def routing(self) -> Routing:
        return self.cluster.routing(*self.namespace)

    def owner(self, document: Document, routing: Routing) -> str:
        value = self.hashes[document["box"]] if self.is_hashed else document["region"]
        return routing.owner(value)


@dataclass
class _Write:
    """One write to one document: the command that makes it, and what becomes of the document."""

    of: Sharded
    op: str
    old: Document | None
    new: Document | None

    @property
    def key(self) -> int:
        found = self.new or self.old
        assert found is not None
        return int(found["_id"])

    @property
    def command(self) -> Document:
        coll = self.of.namespace.coll
        if self.op == "insert":
            return {"insert": coll, "documents": [self.new]}
        assert self.old is not None
        query = self.of.identity(self.old)
        if self.op == "delete":
            return {"delete": coll, "deletes": [{"q": query, "limit": 1}]}
        assert self.new is not None
        changed = {k: v for k, v in self.new.items() if self.old.get(k) != v}
        change = self.new if self.op == "replace" else {"$set": changed}
        return {"update": coll, "updates": [{"q": query, "u": change}]}

    def shard(self, routing: Routing) -> str:
        document = self.old or self.new
        assert document is not None
        return self.of.owner(document, routing)

    def done(self) -> None:
        self.of.log[self.op, self.key] += 1
        if self.new is not None:
            self.of.documents[self.key] = self.new
        elif self.of.documents.get(self.key) is self.old:  # else it has arrived elsewhere
            del self.of.documents[self.key]


class Routers:
    """Threads that write single documents, commit transactions across the shards, and move chunks,
    until the block ends. An error of theirs is raised at its end.

    While `keeps_orphans`, a chunk moves only once: it cannot go where its orphans lie. `writers`
    threads write single documents, with so many seconds of `pause` after each, and as many commit
    transactions.
    """

    pause = 0.02

    def __init__(
        self, cluster: Cluster, collections: list[Sharded], seed: int, writers: int = 1
    ) -> None:
        self._cluster, self._collections, self._seed = cluster, collections, seed
        self.transactions = Counter[str]()
        self.keeps_orphans = False
        self._moved: set[tuple[Namespace, str]] = set()
        self._busy: set[tuple[Namespace, int]] = set()
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._errors: list[BaseException] = []
        works = [self._write, self._transact] * writers + [self._move]
        self._threads = [
            threading.Thread(target=self._work, args=(work, number), daemon=True)
            for number, work in enumerate(works)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _work(self, work: Callable[[random.Random], None], number: int) -> None:
        chance = random.Random(self._seed + number)
        try:
            while not self._stop.is_set() and not self._errors:
                work(chance)
        except BaseException as error:
            self._errors.append(error)

    @contextmanager
    def _taken(self, of: Sharded, chance: random.Random) -> Iterator[int]:
        """A key that nobody else writes to meanwhile; there is a document in three of four."""
        with self._lock:
            while True:
                key = chance.randrange(of.keys)
                if key % 2 and chance.random() < 0.7 and key not in of.documents:
                    continue
                if (of.namespace, key) not in self._busy:
                    break
            self._busy.add((of.namespace, key))
        try:
            yield key
        finally:
            self._busy.discard((of.namespace, key))

    # --- single writes ---

    def _write(self, chance: random.Random) -> None:
        of = chance.choice(self._collections)
        with self._taken(of, chance) as key:
            self._single(_some_write(of, key, chance))
        time.sleep(self.pause)

    def _single(self, write: _Write, **options: Any) -> None:
        while True:
            routing = write.of.routing()
            shard = write.shard(routing)
            try:
                reply = self._cluster.run(
                    shard, write.of.namespace.db, {**write.command, **options}, routing
                )
                codes = {error["code"] for error in reply.get("writeErrors", [])}
            except OperationFailure as error:
                codes, reply = {error.code}, error.details or {}
            if not codes:
                assert reply["n"] == 1, (write.op, write.key, reply)
                write.done()
            assert codes <= _TRY_AGAIN | _GIVE_UP, reply
            if not codes & _TRY_AGAIN or options:
                return

    # --- transactions ---

    def _transact(self, chance: random.Random) -> None:
        with ExitStack() as stack:
            routings = {of.namespace.coll: of.routing() for of in self._collections}
            writes: dict[str, list[_Write]] = {}
            arrivals: list[tuple[str, _Write]] = []
            for _ in range(chance.randrange(2, 5)):
                of = chance.choice(self._collections)
                key = stack.enter_context(self._taken(of, chance))
                routing = routings[of.namespace.coll]
                for write in _some_writes(of, key, chance):
                    shard = write.shard(routing)
                    writes.setdefault(shard, []).append(write)
                    if write.op == "insert" and write.key in of.documents:
                        arrivals.append((shard, write))
            commands = {shard: [write.command for write in each] for shard, each in writes.items()}
            db = self._collections[0].namespace.db
            try:
                transaction = self._cluster.transaction(db, routings, **commands)
            except OperationFailure as error:
                if error.code not in _TRY_AGAIN | _GIVE_UP:
                    raise
                self.transactions["refused"] += 1
                return
            time.sleep(chance.choice([0, 0.01, 0.05, 0.2]))
            self._decide(transaction, writes, arrivals, chance)
        time.sleep(0.1)

    def _decide(
        self,
        transaction: Transaction,
        writes: dict[str, list[_Write]],
        arrivals: list[tuple[str, _Write]],
        chance: random.Random,
    ) -> None:
        if chance.random() < 0.1:
            transaction.abort()
            self.transactions["aborted"] += 1
            return
        shards = chance.sample(sorted(writes), len(writes))
        for shard in shards:
            transaction.commit(shard)
            for write in writes[shard]:
                write.done()
            if shard != shards[-1]:
                time.sleep(chance.choice([0, 0.01, 0.05, 0.2]))
                # What has arrived may change before its departure from the other shard is reported.
                for arrival in (write for at, write in arrivals if at == shard):
                    new = {**(arrival.new or {}), "n": -1}
                    self._single(_Write(arrival.of, "update", arrival.new, new), maxTimeMS=500)
        self.transactions["moving" if arrivals else "committed"] += len(shards) > 1

    # --- chunks ---

    def _move(self, chance: random.Random) -> None:
        of = chance.choice(self._collections)
        chunk = chance.choice(of.routing().chunks)
        name = of.namespace, repr(chunk["min"])
        if not self.keeps_orphans:
            self._moved.clear()
        if name not in self._moved:
            self._moved.add(name)
            to = _OTHER[chunk["shard"]]
            with suppress(OperationFailure):
                self._cluster.move(*of.namespace, chunk["min"], to)
                of.moves.append(to)
        time.sleep(chance.uniform(0.4, 0.8))


def _some_write(of: Sharded, key: int, chance: random.Random) -> _Write:
    old = of.documents.get(key)
    if old is None:
        return _Write(of, "insert", None, of.fresh(key, chance))
    op = chance.choice(["update", "update", "update", "replace", "delete"])
    return _Write(of, op, old, None if op == "delete" else {**old, "n": old["n"] + 1})


def _some_writes(of: Sharded, key: int, chance: random.Random) -> list[_Write]:
    """A change of a shard key moves the document if it is now another shard's."""
    old = of.documents.get(key)
    if old is None or chance.random() < 0.5:
        return [_some_write(of, key, chance)]
    routing = of.routing()
    for _ in itertools.repeat(None, 20):
        new = {**of.fresh(key, chance), "n": old["n"] + 1}
        if of.owner(new, routing) != of.owner(old, routing):
            return [_Write(of, "delete", old, None), _Write(of, "insert", None, new)]
    return [_some_write(of, key, chance)]
