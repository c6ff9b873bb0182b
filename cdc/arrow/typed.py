"""Typed columns of many documents, as Arrow arrays: by compiled functions if there are enough of
them, else by the rule of `cdc.model.typed` itself. Both make the same of any document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cdc.arrow.cells import Cells, validity
from cdc.arrow.fitted import Documents, Places
from cdc.kernel.reply import WORTH
from cdc.model import typed
from cdc.model.typed import Plan


def taken(documents: pa.Array, plan: Plan, kind: pa.StructType) -> pa.Array:
    """A struct of the columns and, as its last field, of what is left; null for a null. VARIANTs
    are structs of their value and their metadata, both binaries."""
    if documents.field(0).nbytes >= WORTH:
        return at_once(documents, plan, kind)
    return one_by_one(documents, plan, kind)


def one_by_one(documents: pa.Array, plan: Plan, kind: pa.StructType) -> pa.Array:
    rows = [each and _row(each, plan, kind) for each in documents.to_pylist()]
    return pa.array(rows, kind)


def at_once(documents: pa.Array, plan: Plan, kind: pa.StructType) -> pa.Array:
    source = Documents(documents)
    count, places = len(documents), len(plan.places)
    found, sizes = np.full((3, places, count), -1), np.full((places, count), -1)
    status = np.zeros((places, count), np.uint8)
    source.kernel.sound(source.data, source.whole.starts, source.whole.stops, found[0, 0])
    found[1, 0] = source.whole.stops
    columns: list[Any] = [None] * len(plan.kinds)
    for number, place in enumerate(plan.places):
        there = Places(found[0, number], found[1, number], source.whole.rows)
        for column in (place.variant, place.typed):
            if column is not None:
                fitted = source.fitted(there, plan.kinds[column], kind.field(column).type)
                columns[column] = fitted.array
        if place.typed is not None:
            status[number] = fitted.status
        if place.inner:
            names = [plan.places[inner].name for inner in place.inner]
            source.fields(there, names, place.inner.start, found, sizes[number])
    rest = _rest(source, plan, (found, sizes, status), kind.field(len(columns)).type)
    valid = validity(source.is_there)
    return pa.Array.from_buffers(kind, count, [valid], children=[*columns, rest])


def _rest(source: Documents, plan: Plan, located: Any, arrow: pa.DataType) -> pa.Array:
    tree = np.array(
        [
            (each.inner.start, each.inner.stop, each.is_kept, each.typed is not None)
            for each in plan.places
        ],
        np.int64,
    )
    cells = Cells(len(source.whole), len(source.data) + 64)
    left, at = np.empty((len(tree), source.kernel.rest.LEFT), np.int64), 0
    while at < len(source.whole):
        whole = source.data, source.whole.starts, source.whole.stops
        at, why = source.kernel.rest.rests(*whole, tree, *located, at, left, cells.out, cells.ends)
        if why == source.kernel.FULL:
            cells.grow()
    ends = cells.ends.astype(np.int64)
    starts = np.where(ends[1:] > ends[:-1], ends[:-1], -1)
    return source.variants(cells.out, Places(starts, ends[1:].copy(), source.whole.rows), arrow)


def _row(document: dict[str, bytes], plan: Plan, kind: pa.StructType) -> dict[str, Any]:
    found = typed.taken(document["value"], document["metadata"], plan)
    rest = found.rest and {"value": found.rest[0], "metadata": found.rest[1]}
    names = [kind.field(index).name for index in range(kind.num_fields)]
    return dict(zip(names, [*found.columns, rest], strict=True))
