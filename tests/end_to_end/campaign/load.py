"""Writers of every kind, which go on through whatever befalls the servers."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from pymongo import DeleteOne, InsertOne, MongoClient, ReplaceOne, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from cdc.demo import make_order
from cdc.demo.load import Threads
from cdc.model import Namespace

_MAJORITY = WriteConcern("majority", wtimeout=5_000)
_HOT = 1
# Of the documents that were not there at first; an order's number is also a time.
_LEAST_NEW, _MOST_NEW = 10**6, 10**9
_BULK, _RANGE = 600, 1_500
_LARGE_BYTES = 2 * 2**20
_THREADS = 4
_REST_SECONDS = 0.2


class Writers(Threads):
    """Threads that write to a collection until the block ends. What a server refuses or does not
    answer may or may not have happened: the oplog knows. `broken`: what else has ended a thread.
    `pause`: seconds after each write, which may be of hundreds of documents."""

    pause = 0.5

    def __init__(self, uri: str, namespace: Namespace, chance: random.Random) -> None:
        super().__init__(MongoClient(uri, timeoutMS=10_000), self._run, _THREADS)
        self._seed = chance.randrange(10**9)
        database = self._client.get_database(namespace.db, write_concern=_MAJORITY)
        self._coll = database[namespace.coll]
        self._documents = self._coll.estimated_document_count()
        self.refused = Counter[str]()
        self.broken = list[str]()

    def _run(self, number: int) -> None:
        try:
            self._write(random.Random(f"{self._seed} {number}"))
        except Exception as error:
            self.broken.append(f"a writer ended: {error!r}")

    def _write(self, chance: random.Random) -> None:
        kinds, weights = zip(*_KINDS.items(), strict=True)
        while not self._stop.is_set():
            [kind] = chance.choices(kinds, weights)
            try:
                kind(self._coll, chance, self._documents)
            except PyMongoError as error:
                self.refused[type(error).__name__] += 1
                time.sleep(_REST_SECONDS)
            time.sleep(self.pause)


Orders = Collection[dict[str, Any]]
Kind = Callable[[Orders, random.Random, int], object]


def _new(chance: random.Random) -> int:
    return chance.randrange(_LEAST_NEW, _MOST_NEW)


def _insert(coll: Orders, chance: random.Random, documents: int) -> None:
    coll.insert_one(make_order(_new(chance), chance))


def _update(coll: Orders, chance: random.Random, documents: int) -> None:
    key = chance.randrange(documents)
    coll.update_one({"_id": key}, {"$set": {"status": f"{chance.random()}"}, "$inc": {"n": 1}})


def _replace(coll: Orders, chance: random.Random, documents: int) -> None:
    key = chance.randrange(documents)
    coll.replace_one({"_id": key}, make_order(key, chance))


def _upsert(coll: Orders, chance: random.Random, documents: int) -> None:
    key = chance.randrange(2 * documents)
    coll.replace_one({"_id": key}, make_order(key, chance), upsert=True)


def _delete(coll: Orders, chance: random.Random, documents: int) -> None:
    coll.delete_one({"_id": chance.randrange(documents)})


def _find_and_delete(coll: Orders, chance: random.Random, documents: int) -> None:
    coll.find_one_and_delete({"_id": {"$gt": _new(chance)}})


def _hot(coll: Orders, chance: random.Random, documents: int) -> None:
    """One key again and again, deleted now and then."""
    for _ in range(chance.randrange(1, 20)):
        coll.update_one({"_id": _HOT}, {"$inc": {"n": 1}}, upsert=True)
    if chance.random() < 0.1:
        coll.delete_one({"_id": _HOT})


def _many(coll: Orders, chance: random.Random, documents: int) -> None:
    first = chance.randrange(documents)
    coll.update_many({"_id": {"$gte": first, "$lt": first + _RANGE}}, {"$inc": {"n": 1}})


def _bulk(coll: Orders, chance: random.Random, documents: int) -> None:
    operations = list[Any]()
    for _ in range(_BULK):
        key, fresh = chance.randrange(documents), _new(chance)
        operations += chance.choices(
            [
                InsertOne(make_order(fresh, chance)),
                UpdateOne({"_id": key}, {"$inc": {"n": 1}}),
                ReplaceOne({"_id": key}, make_order(key, chance), upsert=True),
                DeleteOne({"_id": key}),
            ],
            [2, 6, 2, 1],
        )
    coll.bulk_write(operations, ordered=chance.random() < 0.5)


def _large(coll: Orders, chance: random.Random, documents: int) -> None:
    key = chance.randrange(documents)
    document = {**make_order(key, chance), "pad": "x" * chance.randrange(_LARGE_BYTES)}
    coll.replace_one({"_id": key}, document, upsert=True)


def _transaction(coll: Orders, chance: random.Random, documents: int) -> None:
    """Of a few documents or of some hundreds, and one in five is taken back."""
    count = 3 if chance.random() < 0.9 else 300
    with coll.database.client.start_session() as session:
        session.start_transaction(write_concern=_MAJORITY)
        for _ in range(count):
            key = chance.randrange(documents)
            if chance.random() < 0.3:
                coll.delete_one({"_id": key}, session=session)
                coll.insert_one(make_order(key, chance), session=session)
            else:
                coll.update_one({"_id": key}, {"$inc": {"n": 1}}, session=session)
        if chance.random() < 0.2:
            session.abort_transaction()
        else:
            session.commit_transaction()


_KINDS: dict[Kind, float] = {
    _insert: 10,
    _update: 20,
    _replace: 6,
    _upsert: 8,
    _delete: 8,
    _find_and_delete: 2,
    _hot: 4,
    _many: 8,
    _bulk: 8,
    _large: 0.5,
    _transaction: 4,
}
