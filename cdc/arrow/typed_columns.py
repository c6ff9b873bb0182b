"""Typed columns of many documents, as Arrow arrays.

Compiled functions cast them once this process has had enough documents, and
`cdc.model.typed.typed_columns` the first ones. Both return the same result for any document.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cdc.arrow.casts import Documents, Places
from cdc.arrow.cells import Cells, validity
from cdc.kernel import MISFIT, WORTH, Total
from cdc.model.typed import Plan, typed_columns

_taken = Total()


def take_columns(documents: pa.Array, plan: Plan, kind: pa.StructType) -> pa.Array:
    """Take the typed columns of `plan` from VARIANTs.

    The result is a struct array of type `kind`: the columns and, as its last field, the rescued
    rest; null for a null document. A VARIANT is a struct of two binaries, value and metadata.
    """
    if _taken.add(documents.field(0).nbytes) >= WORTH:
        return convert_at_once(documents, plan, kind)
    return convert_one_by_one(documents, plan, kind)


def convert_one_by_one(documents: pa.Array, plan: Plan, kind: pa.StructType) -> pa.Array:
    """Take the columns of one document after the other, in plain Python."""
    rows = [each and _convert(each, plan, kind) for each in documents.to_pylist()]
    return pa.array(rows, kind)


def convert_at_once(documents: pa.Array, plan: Plan, kind: pa.StructType) -> pa.Array:
    """Take the columns of all documents together, by compiled functions."""
    source = Documents(documents)
    count, places = len(documents), len(plan.places)
    found, sizes = np.empty((3, places, count), np.int64), np.empty((places, count), np.int64)
    status = np.zeros((places, count), np.uint8)
    source.kernel.locate_whole(source.data, source.whole.starts, source.whole.stops, found[0, 0])
    found[1, 0] = source.whole.stops
    columns: list[Any] = [None] * len(plan.kinds)
    for number, place in enumerate(plan.places):
        there = Places(found[0, number], found[1, number], source.whole.rows)
        for column in (place.variant, place.typed):
            if column is not None:
                values = source.cast(there, plan.kinds[column], kind.field(column).type)
                columns[column] = values.array
        if place.typed is not None:
            status[number] = values.status
        if place.inner:
            names = [plan.places[inner].name for inner in place.inner]
            source.find_fields(there, names, place.inner.start, found, sizes[number])
    rest = _write_rest(source, plan, (found, sizes, status), kind.field(len(columns)).type)
    valid = validity(source.is_there)
    return pa.Array.from_buffers(kind, count, [valid], children=[*columns, rest])


def _write_rest(source: Documents, plan: Plan, located: Any, arrow: pa.DataType) -> pa.Array:
    tree = np.array(
        [
            (each.inner.start, each.inner.stop, each.is_in_variant, each.typed is not None)
            for each in plan.places
        ],
        np.int64,
    )
    starts = np.where(_is_taken_whole(plan, *located), -1, source.whole.starts)
    cells = Cells(len(source.whole), len(source.data) + 64)
    left, at = np.empty((len(tree), source.kernel.rescued.LEFT), np.int64), 0
    while at < len(source.whole):
        whole = source.data, starts, source.whole.stops
        at, why = source.kernel.rescued.write_rests(
            *whole, tree, *located, at, left, cells.out, cells.ends
        )
        if why == source.kernel.FULL:
            cells.grow()
    ends = cells.ends.astype(np.int64)
    starts = np.where(ends[1:] > ends[:-1], ends[:-1], -1)
    return source.write_variants(
        cells.out, Places(starts, ends[1:].copy(), source.whole.rows), arrow
    )


def _is_taken_whole(plan: Plan, found: Any, sizes: Any, status: Any) -> Any:
    """Whether the columns of a document contain all of it, which most documents are.

    `write_rests` would find nothing to write for these. To know them by whole columns spares a
    tenth of the conversion.
    """
    is_there = found[0] >= 0
    is_whole = is_there[0].copy()
    for number, place in enumerate(plan.places):
        if place.typed is not None:
            is_whole &= status[number] != MISFIT
        elif place.inner:
            inner = np.count_nonzero(is_there[place.inner.start : place.inner.stop], axis=0)
            # An object without fields is rescued, unless it is the document.
            is_empty = (sizes[number] == 0) & (number > 0)
            is_whole &= ~is_there[number] | ((sizes[number] == inner) & ~is_empty)
    return is_whole


def _convert(document: dict[str, bytes], plan: Plan, kind: pa.StructType) -> dict[str, Any]:
    row = typed_columns.take_columns(document["value"], document["metadata"], plan)
    rest = row.rescued and {"value": row.rescued[0], "metadata": row.rescued[1]}
    names = [kind.field(index).name for index in range(kind.num_fields)]
    return dict(zip(names, [*row.columns, rest], strict=True))
