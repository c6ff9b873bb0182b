"""Random writes of all kinds, seeded."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, OperationFailure
from pymongo.results import UpdateResult

Document = dict[str, Any]

# Names that are numbers, contain a dot or are empty look like parts of a path.
_NAMES = ("a", "b", "list", "deep", "0", "12", "x.y", "", "ü", "long" * 20)
# Updates can name only these: the others are reached by pipelines.
_PLAIN = ("a", "b", "list", "deep", "0", "12", "ü", "long" * 20)
# Fields whose value fits many operators: a number, and arrays.
_FITTING = ("number", "number", "list", "rows", "rows.1.a", "deep.list", "deep.b.12.a.1")

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

# Operators of an update, each with its value. A path is put before it.
_Value = Callable[["Writer"], Any]
_OPERATORS: tuple[tuple[str, _Value], ...] = (
    ("$set", lambda own: own.value(2)),
    ("$set", lambda own: own.value(2)),
    ("$setOnInsert", lambda own: own.value(1)),
    ("$unset", lambda own: 1),
    ("$unset", lambda own: 1),
    ("$inc", lambda own: own.choice((1, 2.5, Int64(2**40), Decimal128("0.5")))),
    ("$mul", lambda own: own.choice((2, 0.5, Int64(3)))),
    ("$min", lambda own: own.value(0)),
    ("$max", lambda own: own.value(0)),
    ("$bit", lambda own: {own.choice(("xor", "and", "or")): own.choice((5, Int64(2**33 + 1)))}),
    ("$currentDate", lambda own: own.choice((True, {"$type": "timestamp"}))),
    ("$rename", lambda own: own.choice(("renamed0", "renamed1", "deep.renamed", "12"))),
    ("$push", lambda own: own.value(1)),
    ("$push", lambda own: {"$each": [3, 1, 2], "$sort": own.choice((1, -1)), "$slice": -3}),
    ("$push", lambda own: {"$each": [], "$slice": own.choice((0, 1, 2, -2))}),
    ("$push", lambda own: {"$each": [{"a": 2}, {"a": 1}], "$sort": {"a": 1}, "$slice": 5}),
    ("$push", lambda own: {"$each": [own.value(1)], "$position": own.choice((0, 1, 3, -1))}),
    ("$addToSet", lambda own: own.choice(range(5))),
    ("$addToSet", lambda own: {"$each": [1, own.value(1)]}),
    ("$pop", lambda own: own.choice((1, -1))),
    ("$pull", lambda own: own.choice(({"$lt": 20}, {"a": 1}, {"$in": [1, 5]}))),
    ("$pullAll", lambda own: [1, 2, 3]),
)
# The ways to write. A writer counts those that have changed something.
KINDS = frozenset(
    (
        *(operator for operator, _ in _OPERATORS),
        *("$[]", "$[each]", "$", "pipeline", "upsert", "upsert by a pipeline", "update of many"),
        *("insert", "replace", "delete", "delete of many", "bulk", "transaction"),
        *("find and delete", "find and replace", "find and update"),
    )
)
# Writes too large to be made as often as the others.
LARGE_KINDS = frozenset(("large transaction", "large document"))
# A change has two images in its event, which may have 16 MiB; a document may have as many.
_TWICE, _ONCE = 8 * 2**20 - 2000, 16 * 2**20 - 2000

# Options that capture a part of what is written.
_LENGTH = '{"$cond": [{"$isArray": ["$list"]}, {"$size": "$list"}, 2]}'
CAPTURED = {
    "a match": {"filter": '{"number": {"$gt": 0}, "a": {"$ne": null}}'},
    "an expression": {"filter": f'{{"$expr": {{"$lt": ["$number", {_LENGTH}]}}}}'},
    "some fields": {"fields": "number, rows.a, deep.list, list"},
    "all but some fields": {"fields": "-rows, -deep.b, -number"},
    "a match and fields": {"filter": '{"a": {"$exists": true}}', "fields": "deep, 0, ü"},
}


class Writer:
    """Writes to collections at random; the same seed gives the same commands.

    The server refuses some of them, because an operator does not fit the document. That is part of
    the plan.

    Attributes:
        refused: how many were refused.
        done: how many changed something, by their kind.
    """

    def __init__(
        self,
        collections: list[Collection[Document]],
        seed: int,
        common_keys: bool = False,
        has_large: bool = False,
    ) -> None:
        self._collections, self._random = collections, random.Random(seed)
        self._keys = _COMMON if common_keys else _KEYS
        self._has_large = has_large
        self.refused = 0
        self.done = Counter[str]()

    def write(self, count: int) -> int:
        """Make about `count` writes, each alone, in a bulk or in a transaction; return how many."""
        kinds: list[Callable[[], int]] = [self._one] * 8 + [self._bulk, self._transaction]
        made = 0
        while made < count:
            if self._has_large and self._random.random() < 0.0004:
                made += self.choice((self.write_large_transaction, self.write_large_document))()
            made += self.choice(kinds)()
        return made

    def choice(self, choices: Any) -> Any:
        return self._random.choice(choices)

    def _one(self, session: ClientSession | None = None) -> int:
        collection = self.choice(self._collections)
        choices = (self._insert, self._update, self._update, self._pipeline, self._replace)
        write = self.choice((*choices, *choices, self._find_and_modify, self._delete))
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
            kind = self._random.randrange(6)
            if kind == 0:
                operations.append(InsertOne(self._document()))
            elif kind == 1:
                operations.append(ReplaceOne(self._filter(), self._body(), upsert=True))
            elif kind == 2:
                operations.append(DeleteOne(self._filter()))
            elif kind == 3:
                operations.append(UpdateMany({"a": {"$lt": 9}}, {"$inc": {"a": 5}}))
            elif kind == 4:
                operations.append(DeleteMany({"a": self.value(0)}))
            else:
                operations.append(UpdateOne(self._filter(), {"$inc": {"a": 1}}, upsert=True))
        try:
            self.choice(self._collections).bulk_write(operations, ordered=False)
            self.done["bulk"] += 1
        except BulkWriteError:
            self.refused += 1
        return requests

    def _transaction(self) -> int:
        count = self._random.randint(1, 12)
        with self._client.start_session() as session:
            session.start_transaction()
            try:
                for _ in range(count):
                    self._one(session)
                session.commit_transaction()
                self.done["transaction"] += 1
            except OperationFailure:
                if session.in_transaction:
                    session.abort_transaction()
        return count

    def write_large_transaction(self) -> int:
        """Up to 20,000 operations, in one entry of the oplog or in several, and of all types."""
        count, pad = self._random.randint(100, 6500), "x" * self._random.choice((0, 10, 5000))
        first, coll = self.choice(self._collections), self.choice(self._collections)
        documents = [{"_id": f"many{number}", "many": 0, "pad": pad} for number in range(count)]
        with self._client.start_session() as session, session.start_transaction():
            coll.insert_many(documents, session=session)
            first.update_one({"_id": "one"}, {"$inc": {"n": 1}}, upsert=True, session=session)
            coll.update_many({"many": 0}, {"$inc": {"many": 1}, "$set": {"b": 1}}, session=session)
            coll.delete_many({"many": 1}, session=session)
        self.done["large transaction"] += 1
        return 3 * count + 1

    def write_large_document(self) -> int:
        """Documents as large as the server or, with both images, an event takes them."""
        coll = self.choice(self._collections)
        for size in (_TWICE - self._random.randrange(2000), _ONCE - self._random.randrange(2000)):
            coll.insert_one({"_id": "large", "list": [1, 2, 3], "text": "y" * size})
            if size < _TWICE:
                coll.update_one({"_id": "large"}, {"$set": {"n": 1, "list.1": 5}})
                coll.replace_one({"_id": "large"}, {"n": 2, "text": "z" * size})
            coll.delete_one({"_id": "large"})
        self.done["large document"] += 1
        return 6

    @property
    def _client(self) -> Any:
        return self._collections[0].database.client

    def _insert(self, collection: Collection[Document], session: ClientSession | None) -> None:
        collection.insert_one(self._document(), session=session)
        self.done["insert"] += 1

    def _replace(self, collection: Collection[Document], session: ClientSession | None) -> None:
        result = collection.replace_one(self._filter(), self._body(), upsert=True, session=session)
        self._count(result, "replace")

    def _delete(self, collection: Collection[Document], session: ClientSession | None) -> None:
        if self._random.random() < 0.1 and session is None:
            result = collection.delete_many({"a": self.value(0)})
            self.done["delete of many"] += result.deleted_count
        else:
            result = collection.delete_one(self._filter(), session=session)
            self.done["delete"] += result.deleted_count

    def _find_and_modify(
        self, collection: Collection[Document], session: ClientSession | None
    ) -> None:
        kind, is_new = self._random.randrange(3), self.choice((True, False))
        if kind == 0:
            found = collection.find_one_and_delete(self._filter(), session=session)
            self.done["find and delete"] += found is not None
        elif kind == 1:
            found = collection.find_one_and_replace(
                self._filter(), self._body(), upsert=True, return_document=is_new, session=session
            )
            self.done["find and replace"] += found is not None
        else:
            found = collection.find_one_and_update(
                self._filter(), self._operators(), return_document=is_new, session=session
            )
            self.done["find and update"] += found is not None

    def _update(self, collection: Collection[Document], session: ClientSession | None) -> None:
        kind, value = self._random.randrange(12), self.value(1)
        update = partial(collection.update_one, session=session)
        if kind == 0 and session is None:
            changed = collection.update_many({}, {"$set": {"many": self._random.randrange(9)}})
            self._count(changed, "update of many")
        elif kind == 1:
            filters = [{"each": {"$lt": 50}}]
            change = {"$set": {"list.$[each]": value}}
            self._count(update(self._filter(), change, array_filters=filters), "$[each]")
        elif kind == 2:
            positional = {**self._filter(), "list": {"$exists": True, "$lt": 90}}
            self._count(update(positional, {"$set": {"list.$": value}}), "$")
        elif kind == 3:
            path = self.choice(("list.$[]", "deep.list.$[]", "deep.b.12.a.$[].$[]"))
            self._count(update(self._filter(), {"$set": {path: value}}), "$[]")
        elif kind == 4:
            change = {"$inc": {"rows.$[each].a": 1}, "$unset": {"rows.$[each].b": 1}}
            filters = [{"each.a": {"$lt": 50}}]
            self._count(update(self._filter(), change, array_filters=filters), "$[each]")
        else:
            change, is_upsert = self._operators(), self._random.random() < 0.3
            self._count(update(self._filter(), change, upsert=is_upsert), *change)

    def _count(self, result: UpdateResult, *kinds: str) -> None:
        """Count what an update has done."""
        if result.upserted_id is not None:
            self.done.update(("upsert", *(kind for kind in kinds if kind == "$setOnInsert")))
        elif result.modified_count:
            self.done.update(kind for kind in kinds if kind != "$setOnInsert")

    def _pipeline(self, collection: Collection[Document], session: ClientSession | None) -> None:
        name = self.choice(_NAMES)
        literal = {"$literal": self.value(2)}
        choices: list[list[Document]] = [
            [{"$replaceWith": {"$setField": {"field": name, "input": "$$ROOT", "value": literal}}}],
            [{"$replaceWith": {"$unsetField": {"field": {"$literal": name}, "input": "$$ROOT"}}}],
            [{"$set": {"list": {"$slice": [{"$ifNull": ["$list", [1, 2]]}, 2]}}}],
            [{"$set": {"list": {"$concatArrays": [{"$ifNull": ["$list", []]}, [literal]]}}}],
            [{"$set": {"deep.list": {"$reverseArray": {"$ifNull": ["$deep.list", [1, 2, 3]]}}}}],
            [{"$set": {"deep": {"$mergeObjects": ["$deep", {"0": literal, "n": 1}]}}}],
            [{"$unset": ["a", "deep.b"]}],
            [{"$replaceWith": {"_id": "$_id", "deep": "$deep", "list": "$list", "n": literal}}],
        ]
        is_upsert = self._random.random() < 0.1
        stages = self.choice(choices)
        result = collection.update_one(self._filter(), stages, upsert=is_upsert, session=session)
        by = "pipeline" if result.upserted_id is None else "upsert by a pipeline"
        self.done[by] += bool(result.modified_count or result.upserted_id is not None)

    def _operators(self) -> Document:
        """A few operators on different paths."""
        update: Document = {}
        used = set[str]()
        for _ in range(self._random.randint(1, 4)):
            path = self._path()
            operator, make = self.choice(_OPERATORS)
            value = make(self)
            # Two operators on one path are refused.
            paths = (path, value) if operator == "$rename" else (path,)
            fields = {each.split(".")[0] for each in paths}
            if used.isdisjoint(fields):
                used |= fields
                update.setdefault(operator, {})[path] = value
        return update

    def _path(self) -> str:
        """A path, also to places in arrays, and beyond their end."""
        names = [self.choice((*_PLAIN, *_FITTING))]
        while self._random.random() < 0.5 and len(names) < 5:
            names.append(self.choice((*_PLAIN, "0", "1", "4", "7")))
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
        body = {name: self.value(3) for name in names}
        if self._random.random() < 0.6:
            body["list"] = [self.value(1) for _ in range(self._random.randrange(8))]
        if self._random.random() < 0.6:
            body["deep"] = {"list": [{"a": 1, "0": [1, 2]}, 5], "b": {"12": {"a": [[1], [2]]}}}
        if self._random.random() < 0.6:
            body["number"] = self.choice((1, Int64(7), 70))
        if self._random.random() < 0.6:
            body["rows"] = [{"a": self._random.randrange(60), "b": 1} for _ in range(3)]
        return body

    def value(self, depth: int) -> Any:
        """A value, at most so deep."""
        number = self._random.randrange(100)
        if depth and number < 30:
            values = [self.value(depth - 1) for _ in range(number % 6)]
            return values if number % 2 else dict(zip(_NAMES, values, strict=False))
        simple: tuple[Any, ...] = (
            *(number, number, number, float(number), Int64(2**40), "text", "ü" * number, None),
            *(True, ObjectId(b"\1" * 12), Decimal128("1.50"), Binary(b"\0\1"), Regex("^a", "i")),
            *(datetime.datetime(2021, 2, 3), Timestamp(number, 1), Code("x"), MinKey(), MaxKey()),
            *("x" * 600, -number, float("nan"), Int64(-1)),
        )
        return self.choice(simple)
