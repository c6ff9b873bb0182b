"""The filter's expression against the server's own match."""

from __future__ import annotations

import datetime
import math
import random
from typing import Any

from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from pymongo.database import Database

from cdc.model import match_expression

Document = dict[str, Any]
_MOMENT = datetime.datetime(2026, 1, 31, 12)
_LEAVES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 1.0, 1.5, math.nan, math.inf, Int64(2), Decimal128("1.00")),
    *("", "a", "b", "ab", "A", "$a", Decimal128("NaN"), _MOMENT, ObjectId(b"123456789012")),
    *(Timestamp(1, 1), b"bytes", Binary(b"b", 5), Regex("a"), MinKey(), MaxKey()),
]
_COMPARED = [leaf for leaf in _LEAVES if not isinstance(leaf, (Regex, MinKey, MaxKey))]
_ORDERED = [leaf for leaf in _COMPARED if leaf is not None and str(leaf).lower() != "nan"]
_NAMES = ("a", "b", "c")


def _value(draw: random.Random, depth: int) -> Any:
    kind = draw.random()
    if depth and kind < 0.25:
        return {name: _value(draw, depth - 1) for name in draw.sample(_NAMES, draw.randrange(3))}
    if depth and kind < 0.5:
        return [_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return draw.choice(_LEAVES)


def _documents(draw: random.Random, count: int) -> list[Document]:
    return [
        {"_id": n, **{name: _value(draw, 3) for name in draw.sample(_NAMES, draw.randrange(4))}}
        for n in range(count)
    ]


def _condition(draw: random.Random) -> Any:
    operator = draw.choice(
        ["", "$eq", "$ne", "$in", "$nin", "$gt", "$gte", "$lt", "$lte", "$exists", "$not", "$regex"]
    )
    if operator == "":
        return draw.choice(_COMPARED)
    if operator in ("$eq", "$ne"):
        return {operator: draw.choice([*_COMPARED, [1, 2], {"a": 1}, []])}
    if operator in ("$in", "$nin"):
        return {operator: draw.sample(_COMPARED, draw.randrange(4))}
    if operator == "$exists":
        return {operator: draw.random() < 0.5}
    if operator == "$regex":
        return {operator: draw.choice(["^a", "b$", "A"]), "$options": draw.choice(["", "i"])}
    if operator == "$not":
        return {operator: {"$gt": draw.choice(_ORDERED)}}
    return {operator: draw.choice(_ORDERED)}


def _match(draw: random.Random, depth: int = 2) -> Document:
    if depth and draw.random() < 0.3:
        name = draw.choice(["$and", "$or", "$nor"])
        return {name: [_match(draw, depth - 1) for _ in range(draw.randrange(1, 3))]}
    paths = [".".join(draw.choices(_NAMES, k=draw.choice([1, 1, 1, 2, 2, 3]))) for _ in range(2)]
    return {path: _condition(draw) for path in paths[: draw.randrange(1, 3)]}


def test_a_filter_passes_what_a_find_would(database: Database[Document]) -> None:
    draw = random.Random(12)
    documents = _documents(draw, 600)
    database.c.insert_many(documents)
    wrong = []
    for _ in range(400):
        match = _match(draw)
        text = json_util.dumps(match, json_options=json_util.CANONICAL_JSON_OPTIONS)
        wanted = {d["_id"] for d in database.c.find(match, {"_id": 1})}
        found = {
            d["_id"] for d in database.c.find({"$expr": match_expression.parse(text)}, {"_id": 1})
        }
        if wanted != found:
            wrong.append((match, [documents[n] for n in sorted(wanted ^ found)[:3]]))
    assert wrong == []
