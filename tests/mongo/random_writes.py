"""Random writes of all kinds, seeded."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure

Document = dict[str, Any]

# Names that are numbers, contain a dot or are empty look like parts of a path.
_NAMES = ("a", "b", "list", "deep", "0", "12", "x.y", "", "ü", "long" * 20)
# Updates can name only these: the others are reached by pipelines.
_PLAIN = ("a", "b", "list", "deep", "0", "12", "ü", "long" * 20)

# Keys of the types that most collections have, and of all others.
_COMMON: tuple[Callable[[int], Any], ...] = (
    lambda number: number,
    lambda number: f"key{number}",
    lambda number: Int64(2**40 + number),
    lambda number: ObjectId(bytes([number]) * 12),
    lambda number: Binary(bytes([number] * 16), 4),
    lambda number: datetime.datetime(1960 + number, 1, 1),
    lambda number: -number * 1000,
    lambda number: bool(number % 2),
    lambda number: f"ü\0{number}",
)
_KEYS = (
    *_COMMON,
    lambda number: number + 0.5,
    lambda number: {"a": number, "b": [f"{number}"]},
    lambda number: Decimal128(f"{number}.25"),
    lambda number: None,
    lambda number: MaxKey(),
    lambda number: Int64(-(2**63)),
    lambda number: Binary(bytes([number] * 300)),
)


class Writer:
    """Writes to collections at random; the same seed gives the same commands.

    The server refuses some of them, because an operator does not fit the document. That is part of
    the plan.
    """

    def __init__(
        self, collections: list[Collection[Document]], seed: int, common_keys: bool = False
    ) -> None:
        self._collections, self._random = collections, random.Random(seed)
        self._keys = _COMMON if common_keys else _KEYS
        self.refused = 0

    def write(self, count: int) -> None:
        """Make `count` writes, each alone, in a bulk or in a transaction."""
        kinds: list[Callable[[], int]] = [self._one] * 8 + [self._bulk, self._transaction]
        while count > 0:
            count -= self._random.choice(kinds)()

    def _one(self, session: ClientSession | None = None) -> int:
        collection = self._random.choice(self._collections)
        choices = (self._insert, self._update, self._update, self._pipeline, self._replace)
        write = self._random.choice((*choices, *choices, self._find_and_modify, self._delete))
        try:
            write(collection, session)
        except OperationFailure:
            self.refused += 1
            if session is not None:
                raise  # the transaction is gone
        return 1

    def _bulk(self) -> int:
        requests = self._random.randint(2, 12)
        operations: list[Any] = []
        for _ in range(requests):
            kind = self._random.randrange(4)
            if kind == 0:
                operations.append(InsertOne(self._document()))
            elif kind == 1:
                operations.append(ReplaceOne(self._filter(), self._body(), upsert=True))
            elif kind == 2:
                operations.append(DeleteOne(self._filter()))
            else:
                operations.append(UpdateOne(self._filter(), {"$inc": {"a": 1}}, upsert=True))
        try:
            self._random.choice(self._collections).bulk_write(operations, ordered=False)
        except BulkWriteError:
            self.refused += 1
        return requests

    def _transaction(self) -> int:
        client = self._collections[0].database.client
        count = self._random.randint(1, 12)
        with client.start_session() as session:
            session.start_transaction()
            try:
                for _ in range(count):
                    self._one(session)
                session.commit_transaction()
            except OperationFailure:
                if session.in_transaction:
                    session.abort_transaction()
        return count

    def _insert(self, collection: Collection[Document], session: ClientSession | None) -> None:
        collection.insert_one(self._document(), session=session)

    def _replace(self, collection: Collection[Document], session: ClientSession | None) -> None:
        collection.replace_one(self._filter(), self._body(), upsert=True, session=session)

    def _delete(self, collection: Collection[Document], session: ClientSession | None) -> None:
        if self._random.random() < 0.1 and session is None:
            collection.delete_many({"a": self._value(0)})
        else:
            collection.delete_one(self._filter(), session=session)

    def _find_and_modify(
        self, collection: Collection[Document], session: ClientSession | None
    ) -> None:
        kind = self._random.randrange(3)
        if kind == 0:
            collection.find_one_and_delete(self._filter(), session=session)
        elif kind == 1:
            collection.find_one_and_replace(self._filter(), self._body(), session=session)
        else:
            collection.find_one_and_update(
                self._filter(), self._operators(), return_document=True, session=session
            )

    def _update(self, collection: Collection[Document], session: ClientSession | None) -> None:
        kind = self._random.randrange(12)
        is_upsert = self._random.random() < 0.2
        if kind == 0 and session is None:
            collection.update_many({}, {"$set": {"many": self._random.randrange(9)}})
        elif kind == 1:
            change = {"$set": {"list.$[each]": self._value(1)}}
            filters = [{"each": {"$lt": 50}}]
            collection.update_one(self._filter(), change, array_filters=filters, session=session)
        elif kind == 2:
            positional = {**self._filter(), "list": {"$exists": True, "$lt": 90}}
            change = {"$set": {"list.$": self._value(1)}}
            collection.update_one(positional, change, session=session)
        else:
            collection.update_one(
                self._filter(), self._operators(), upsert=is_upsert, session=session
            )

    def _pipeline(self, collection: Collection[Document], session: ClientSession | None) -> None:
        name = self._random.choice(_NAMES)
        literal = {"$literal": self._value(2)}
        choices: list[list[Document]] = [
            [{"$replaceWith": {"$setField": {"field": name, "input": "$$ROOT", "value": literal}}}],
            [{"$replaceWith": {"$unsetField": {"field": {"$literal": name}, "input": "$$ROOT"}}}],
            [{"$set": {"list": {"$slice": [{"$ifNull": ["$list", [1, 2]]}, 2]}}}],
            [{"$set": {"list": {"$concatArrays": [{"$ifNull": ["$list", []]}, [literal]]}}}],
            [{"$set": {"deep.list": {"$reverseArray": {"$ifNull": ["$deep.list", [1, 2, 3]]}}}}],
            [{"$set": {"deep": {"$mergeObjects": ["$deep", {"0": literal, "n": 1}]}}}],
            [{"$unset": ["a", "deep.b"]}],
        ]
        collection.update_one(self._filter(), self._random.choice(choices), session=session)

    def _operators(self) -> Document:
        """A few operators on different paths."""
        update: Document = {}
        used = set[str]()
        for _ in range(self._random.randint(1, 4)):
            path = self._path()
            if path.split(".")[0] in used:
                continue
            used.add(path.split(".")[0])
            operator, value = self._random.choice(
                (
                    ("$set", self._value(2)),
                    ("$set", self._value(2)),
                    ("$setOnInsert", self._value(1)),
                    ("$unset", 1),
                    ("$unset", 1),
                    ("$inc", self._random.choice((1, 2.5, Int64(2**40)))),
                    ("$mul", 2),
                    ("$min", self._random.randrange(100)),
                    ("$max", self._random.randrange(100)),
                    ("$bit", {"xor": 5}),
                    ("$currentDate", True),
                    ("$rename", f"renamed{self._random.randrange(3)}"),
                    ("$push", self._value(1)),
                    ("$push", {"$each": [3, 1, 2], "$sort": 1, "$slice": -3}),
                    ("$push", {"$each": [self._value(1)], "$position": 1}),
                    ("$addToSet", self._random.randrange(5)),
                    ("$pop", self._random.choice((1, -1))),
                    ("$pull", {"$lt": 20}),
                    ("$pullAll", [1, 2, 3]),
                )
            )
            update.setdefault(operator, {})[path] = value
        return update

    def _path(self) -> str:
        """A path, also to places in arrays, and beyond their end."""
        names = [self._random.choice(_PLAIN)]
        while self._random.random() < 0.5 and len(names) < 5:
            names.append(self._random.choice((*_PLAIN, "0", "1", "4", "7")))
        return ".".join(names)

    def _filter(self) -> Document:
        return {"_id": self._key()}

    def _key(self) -> Any:
        number = self._random.randrange(60)
        return self._keys[number % len(self._keys)](number)

    def _document(self) -> Document:
        return {"_id": self._key(), **self._body()}

    def _body(self) -> Document:
        """A document's fields but its `_id`."""
        names = self._random.sample([name for name in _NAMES if name], self._random.randint(0, 6))
        body = {name: self._value(3) for name in names}
        if self._random.random() < 0.6:
            body["list"] = [self._value(1) for _ in range(self._random.randrange(8))]
        if self._random.random() < 0.6:
            body["deep"] = {"list": [{"a": 1, "0": [1, 2]}, 5], "b": {"12": {"a": [[1], [2]]}}}
        return body

    def _value(self, depth: int) -> Any:
        number = self._random.randrange(100)
        if depth and number < 30:
            values = [self._value(depth - 1) for _ in range(number % 6)]
            return values if number % 2 else dict(zip(_NAMES, values, strict=False))
        simple: tuple[Any, ...] = (
            *(number, number, number, float(number), Int64(2**40), "text", "ü" * number, None),
            *(True, ObjectId(b"\1" * 12), Decimal128("1.50"), Binary(b"\0\1"), Regex("^a", "i")),
            *(datetime.datetime(2021, 2, 3), Timestamp(number, 1), Code("x"), MinKey(), MaxKey()),
            *("x" * 600, -number, float("nan"), Int64(-1)),
        )
        return self._random.choice(simple)
