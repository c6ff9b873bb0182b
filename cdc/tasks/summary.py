"""Summary of a batch: what a sink must know about rows that it does not see.

A task summarizes its own rows by namespace and operation. The driver merges the summaries of all
tasks, so no Spark job counts anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model import MARKING, WATERMARK, Timestamp, timestamp
from cdc.model.encoding import PLACEHOLDER_JSON, RAW, UNMAPPABLE, unmappable_variant, variant_tree

# The dictionary of a placeholder contains nothing but its two names.
_PLACEHOLDER_NAMES = unmappable_variant("", b"")[1]


class Mark(NamedTuple):
    """A row that states what became of a namespace, or the watermark.

    `time` and `inc` are its cluster time.
    """

    position: str
    description: str | None
    time: int
    inc: int


@dataclass(frozen=True, slots=True)
class Group:
    """All rows of a batch with one namespace and one operation.

    Attributes:
        db, coll: the namespace; None where the rows have none.
        op: the operation.
        rows: how many rows there are.
        least, greatest: the bounds of their keys; None if no row has a key.
        across_shards: how many of them are part of a transaction of a cluster.
        inexact: how many are not exact.
        unmappable: how many images are placeholders of documents that cannot be mapped.
        oldest, newest: microseconds of the oldest and newest commit in MongoDB.
        exact_from: the greatest time at which an image was taken, if it was taken later.
        marks: the rows themselves, for operations that mark namespaces and for the watermark.
    """

    db: str | None
    coll: str | None
    op: str
    rows: int
    least: str | None = None
    greatest: str | None = None
    across_shards: int = 0
    inexact: int = 0
    unmappable: int = 0
    oldest: int = 0
    newest: int = 0
    exact_from: Timestamp | None = None
    marks: tuple[Mark, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields that have a value other than null, 0 and none."""
        time = self.exact_from and timestamp.text(self.exact_from)
        fields = {**asdict(self), "exact_from": time}
        return {name: value for name, value in fields.items() if value not in (None, 0, ())}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Group:
        text = data.get("exact_from")
        marks = tuple(Mark(*mark) for mark in data.get("marks", ()))
        own = {"marks": marks, "exact_from": text and timestamp.parse(text)}
        return cls(**{"db": None, "coll": None, **data, **own})


def summarize(db: str | None, coll: str | None, rows: pa.RecordBatch) -> list[Group]:
    """Summarize rows of one namespace."""
    return [_summarize_part(db, coll, op, part) for (op,), part in split_rows(rows, "op")]


def merge(groups: Iterable[Group]) -> list[Group]:
    """Merge groups of the same namespace and operation."""
    found: dict[tuple[str | None, str | None, str], Group] = {}
    for group in groups:
        name = group.db, group.coll, group.op
        found[name] = _add(found[name], group) if name in found else group
    return list(found.values())


def _add(one: Group, other: Group) -> Group:
    leasts = [each for each in (one.least, other.least) if each is not None]
    greatests = [each for each in (one.greatest, other.greatest) if each is not None]
    times = [each for each in (one.exact_from, other.exact_from) if each is not None]
    return replace(
        one,
        rows=one.rows + other.rows,
        least=min(leasts, default=None),
        greatest=max(greatests, default=None),
        across_shards=one.across_shards + other.across_shards,
        inexact=one.inexact + other.inexact,
        unmappable=one.unmappable + other.unmappable,
        oldest=min(one.oldest, other.oldest),
        newest=max(one.newest, other.newest),
        exact_from=max(times, default=None),
        marks=one.marks + other.marks,
    )


def split_rows(
    rows: pa.RecordBatch, *names: str
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Divide rows by the values of columns of text, in the order of their first rows.

    Yields the values (None for null) and the rows that have them, in their order.
    """
    if len(rows) and all(_is_one_text(rows.column(name)) for name in names):  # most rows
        yield tuple(rows.column(name)[0].as_py() for name in names), rows
        return
    codes = np.zeros(len(rows), np.int64)
    for name in names:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    for number in np.argsort(first):
        part = rows.filter(pa.array(inverse == number))
        row = int(first[number])
        yield tuple(rows.column(name)[row].as_py() for name in names), part


def _is_one_text(column: pa.Array) -> bool:
    """Whether all values are the same, and none is null: a third of the time of a dictionary."""
    return bool(pc.equal(column, column[0]).true_count == len(column))


def _summarize_part(db: str | None, coll: str | None, op: str, rows: pa.RecordBatch) -> Group:
    keys = pc.min_max(rows.column("key"))
    wall, cluster = rows.column("wall_time"), rows.column("cluster_time")
    committed = pc.min_max(pc.coalesce(wall, cluster).cast(pa.int64()))
    shards = pc.struct_field(rows.column("txn"), "shard")
    inexact = rows.filter(pc.invert(rows.column("exact")))
    return Group(
        db=db,
        coll=coll,
        op=op,
        rows=len(rows),
        least=keys["min"].as_py(),
        greatest=keys["max"].as_py(),
        across_shards=len(shards) - shards.null_count,
        inexact=len(inexact),
        unmappable=sum(
            find_placeholders(rows.column(name)).true_count for name in ("before", "after")
        ),
        oldest=committed["min"].as_py(),
        newest=committed["max"].as_py(),
        exact_from=_find_exact_from(inexact.column("description")),
        marks=_marks(rows) if op in (WATERMARK, *MARKING) else (),
    )


def _marks(rows: pa.RecordBatch) -> tuple[Mark, ...]:
    seconds = pc.divide(rows.column("cluster_time").cast(pa.int64()), 1_000_000)
    names = "position", "description", "cluster_inc"
    position, description, increment = (rows.column(name).to_pylist() for name in names)
    return tuple(map(Mark, position, description, seconds.to_pylist(), increment))


def _find_exact_from(descriptions: pa.Array) -> Timestamp | None:
    texts = descriptions.unique().drop_null().to_pylist()
    found = (json.loads(text).get("exactFrom") for text in texts)
    return max((timestamp.parse(text) for text in found if text is not None), default=None)


def find_placeholders(images: pa.Array) -> pa.BooleanArray:
    """Whether each document could not be mapped; never null. Raw bytes are never mapped."""
    if pa.types.is_string(images.type):
        return pc.fill_null(pc.match_substring_regex(images, PLACEHOLDER_JSON), False)
    found = np.zeros(len(images), bool)
    if pa.types.is_struct(images.type):
        names = pc.struct_field(images, "metadata")
        if pa.types.is_dictionary(names.type):
            is_one = pc.equal(names.dictionary, _PLACEHOLDER_NAMES)
            named = is_one.take(names.indices) if is_one.true_count else pa.array([], pa.bool_())
        else:
            named = pc.equal(names, _PLACEHOLDER_NAMES)
        for number in np.flatnonzero(pc.fill_null(named, False)):
            found[number] = _is_placeholder(images[int(number)].as_py())
    return pa.array(found)


def _is_placeholder(image: Mapping[str, bytes]) -> bool:
    tree = variant_tree.tree(image["value"], image["metadata"])
    if not isinstance(tree, dict) or tree.keys() != {RAW, UNMAPPABLE}:
        return False
    return isinstance(tree[RAW], bytes) and isinstance(tree[UNMAPPABLE], str)
