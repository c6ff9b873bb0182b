"""The demo's load: orders, and threads that change them in all ways."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pymongo
import pymongo.errors
from bson import Decimal128
from pymongo.database import Database

from cdc.errors import BadOption
from cdc.model import Namespace

_STATES = ("new", "paid", "packed", "sent", "returned")
_BULK = 5_000
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def make_order(number: int, chance: random.Random) -> dict[str, Any]:
    """A nested document of about 480 bytes."""
    lines = [
        {"sku": f"SKU-{chance.randrange(10_000):05d}", "quantity": chance.randrange(1, 9)}
        for _ in range(chance.randrange(1, 6))
    ]
    return {
        "_id": number,
        "customer": {"id": chance.randrange(100_000), "name": f"Customer {number % 9973}"},
        "status": chance.choice(_STATES),
        "total": Decimal128(f"{chance.randrange(100, 1_000_000)}E-2"),
        "ordered": _EPOCH + timedelta(seconds=number),
        "lines": lines,
        "address": {"street": f"{number % 211} Long Street", "city": "Springfield", "zip": "12345"},
        "note": "x" * chance.randrange(60, 160),
    }


def load_orders(uri: str, orders: Namespace | str, documents: int, must_be_new: bool) -> None:
    """Create a collection that records images, and insert `documents` orders.

    `orders` is the collection; as text, `db.coll`.
    With `must_be_new` an existing collection is refused, because it may be someone's. Raises
    BadOption in that case.
    """
    client: pymongo.MongoClient[dict[str, Any]]
    namespace = Namespace.parse(str(orders))
    with pymongo.MongoClient(uri) as client:
        database: Database[dict[str, Any]] = client[namespace.db]
        if must_be_new and namespace.coll in database.list_collection_names():
            raise BadOption(f"{namespace} already exists on this server.", "Drop it first.")
        images = {"enabled": True}
        coll = database.create_collection(namespace.coll, changeStreamPreAndPostImages=images)
        chance = random.Random(1)
        for begin in range(0, documents, _BULK):
            numbers = range(begin, min(begin + _BULK, documents))
            coll.insert_many([make_order(number, chance) for number in numbers], ordered=False)


def drop_orders(uri: str, orders: Namespace | str) -> None:
    """Drop the collection that `load_orders` created."""
    client: pymongo.MongoClient[dict[str, Any]]
    namespace = Namespace.parse(str(orders))
    with pymongo.MongoClient(uri) as client:
        client[namespace.db].drop_collection(namespace.coll)


class Threads:
    """Threads that share a client and run `work`, each with its number, until the block ends.

    `work` must return soon after `_stop` is set.
    """

    def __init__(
        self, client: pymongo.MongoClient[dict[str, Any]], work: Callable[[int], None], count: int
    ) -> None:
        self._client, self._stop = client, threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def stop(self) -> None:
        """End the threads before the block ends."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Writers(Threads):
    """Threads that insert, update, replace, delete and commit transactions until the block ends.

    Each thread pauses for `pause` seconds after every write.
    """

    def __init__(
        self, uri: str, orders: Namespace | str, threads: int = 2, pause: float = 0.004
    ) -> None:
        super().__init__(pymongo.MongoClient(uri), self._write, threads)
        namespace = Namespace.parse(str(orders))
        self._orders = self._client[namespace.db][namespace.coll]
        self._pause = pause
        self._written = [0] * threads

    @property
    def written(self) -> int:
        return sum(self._written)

    def _write(self, number: int) -> None:
        chance = random.Random(number)
        highest = self._orders.estimated_document_count()
        while not self._stop.is_set():
            try:
                self._written[number] += self._one(chance, highest, number)
            except pymongo.errors.PyMongoError as error:
                if not error.has_error_label("TransientTransactionError"):
                    raise
            time.sleep(self._pause)

    def _one(self, chance: random.Random, highest: int, number: int) -> int:
        key = chance.randrange(highest)
        kind = chance.random()
        if kind < 0.25:
            fresh = highest + 1 + 2 * chance.randrange(10**9) + number
            self._orders.replace_one({"_id": fresh}, make_order(fresh, chance), upsert=True)
        elif kind < 0.65:
            self._orders.update_one({"_id": key}, {"$set": {"status": chance.choice(_STATES)}})
        elif kind < 0.75:
            self._orders.replace_one({"_id": key}, make_order(key, chance))
        elif kind < 0.9:
            self._orders.delete_one({"_id": key})
        else:
            return self._transaction(chance, highest)
        return 1

    def _transaction(self, chance: random.Random, highest: int) -> int:
        keys = [chance.randrange(highest) for _ in range(3)]
        with self._client.start_session() as session, session.start_transaction():
            for key in keys:
                change = {"$inc": {"customer.id": 1}}
                self._orders.update_one({"_id": key}, change, session=session)
        return len(keys)
