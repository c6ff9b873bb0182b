"""Writes at a steady rate: updates, inserts and deletes in bulks, to a collection that neither
grows nor shrinks."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from typing import Any

from pymongo import DeleteOne, InsertOne, MongoClient, UpdateOne

from cdc.demo import make_order
from cdc.demo.load import Threads
from cdc.model import Namespace

# Of ten writes; an insert's document is deleted when as many were inserted after it as there were
# at first.
_UPDATES, _INSERTS, _DELETES = 6, 2, 2


class Steady(Threads):
    """`rate` writes a second by one thread, as far as the server takes them: what it has not taken
    is not made up for. A bulk has `bulk` of them, a multiple of 10. `written` is how many so far.
    """

    def __init__(
        self, uri: str, namespace: Namespace, rate: int, documents: int, bulk: int = 250
    ) -> None:
        super().__init__(MongoClient(uri), self._write, 1)
        self._size = bulk
        self._coll = self._client[namespace.db][namespace.coll]
        self._rate, self._documents = rate, documents
        self._numbers = itertools.count(documents)
        self._lock = threading.Lock()
        self._by_second = deque[tuple[int, int]]()
        self.written = 0

    def _write(self, number: int) -> None:
        chance = random.Random(7)
        fresh = deque(range(self._documents))
        due = time.monotonic()
        while not self._stop.is_set():
            reply = self._coll.bulk_write(self._bulk(chance, fresh), ordered=False)
            changed = reply.modified_count + reply.inserted_count + reply.deleted_count
            self._count(changed)
            due = max(due + self._size / self._rate, time.monotonic() - 1.0)
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _bulk(self, chance: random.Random, living: deque[int]) -> list[Any]:
        operations = list[Any]()
        for _ in range(self._size // (_UPDATES + _INSERTS + _DELETES)):
            for key in (living[chance.randrange(len(living))] for _ in range(_UPDATES)):
                state = {"$set": {"status": f"{chance.random()}"}, "$inc": {"n": 1}}
                operations.append(UpdateOne({"_id": key}, state))
            for _ in range(_INSERTS):
                living.append(next(self._numbers))
                operations.append(InsertOne(make_order(living[-1], chance)))
            operations += [DeleteOne({"_id": living.popleft()}) for _ in range(_DELETES)]
        return operations

    def _count(self, changed: int) -> None:
        """The server's seconds are this machine's."""
        with self._lock:
            self.written += changed
            self._by_second.append((int(time.time()), self.written))

    def behind(self, second: int) -> int:
        """How many were made after that second of the server's clock, about; to be asked for ever
        later ones."""
        with self._lock:
            passed = 0
            while self._by_second and self._by_second[0][0] <= second:
                passed = self._by_second.popleft()[1]
            first = self._by_second[0][1] if self._by_second else self.written
            self._by_second.appendleft((second, passed or first))
            return self.written - self._by_second[0][1]
