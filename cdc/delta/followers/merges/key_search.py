"""Finds the rows of keys in the data files of a mirror.

A file, or a part of it, is read only if its statistics do not exclude the keys, and of it only the
columns `key` and `_position`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from cdc.delta.followers.merges.last_changes import Bounds, LastChanges, as_mask, bounds_of
from cdc.delta.log import LiveFile, UnsuitableTable, read_vector
from cdc.tasks import Folder

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_KEY, _POSITION = "key", "_position"
# So many keys are compared at once with those of a copy: each time a hash table is built of these.
_AT_ONCE = 1_000_000


def find_outdated(
    files: Sequence[LiveFile], folder: Folder, changes: LastChanges
) -> tuple[dict[int, BitMap], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Find the rows that changes replace or delete.

    Returns the rows that each file lacks afterwards, under the file's index, for those files that
    lose some; and for each change whether the mirror contains a later one of its key.

    Raises UnsuitableTable.
    """
    outdated, is_stale = dict[int, BitMap](), np.zeros(len(changes.keys), bool)
    keys, positions = (changes.rows.column(name).combine_chunks() for name in (_KEY, "position"))
    for number, each in enumerate(files):
        if not _between(changes.keys, each.bounds(_KEY)):
            continue
        lacking, found = read_vector(folder, each.vector), list[_Numbers]()
        for group in _groups(folder, each, partial(_between, changes.keys)):
            index = pc.index_in(group.keys, value_set=keys)
            [rows] = np.nonzero(_without(as_mask(index.is_valid()), lacking, group.begin))
            if len(rows):
                which = index.take(rows)
                there = group.positions().take(rows)
                is_later = as_mask(pc.greater(positions.take(which), there))
                found.append(rows[is_later] + group.begin)
                is_stale[which.to_numpy()[~is_later]] = True
        if any(map(len, found)):
            outdated[number] = lacking | BitMap(np.concatenate(found).astype(np.uint32))
    return outdated, is_stale


def have_common_keys(copies: Sequence[LiveFile], files: Sequence[LiveFile], folder: Folder) -> bool:
    """Whether a key of the files of a copy is in other files too, or twice in those of the copy.

    Raises UnsuitableTable.
    """
    bounds = [each.bounds(_KEY) for each in copies]
    concerned = [each for each in files if any(_overlap(each.bounds(_KEY), b) for b in bounds)]
    read = [_read_keys(folder, each) for each in copies]
    read.sort(key=lambda keys: (len(keys[0].as_py()), keys[0].as_py()) if len(keys) else (0, ""))
    copied = pa.concat_arrays(read)
    if not _increase(copied) and pc.count_distinct(copied).as_py() < len(copied):
        return True
    found = pc.min_max(copied).as_py()
    return any(
        pc.any(pc.is_in(there, value_set=copied)).as_py()
        for there in _many(_keys_within(folder, concerned, (found["min"], found["max"])))
    )


def _read_keys(folder: Folder, file: LiveFile) -> pa.Array:
    return pa.concat_arrays(
        [chunk for group in _groups(folder, file) for chunk in group.keys.chunks]
    )


def _increase(keys: pa.Array) -> bool:
    """Whether each key is longer than the one before, or as long and greater.

    So are the numbers, ids and dates of ranges in the order of their index. Such keys are distinct,
    which is quicker to see than by counting.
    """
    one, other = keys.slice(0, max(0, len(keys) - 1)), keys.slice(1)
    size, next_size = pc.binary_length(one), pc.binary_length(other)
    is_greater = pc.and_(pc.equal(size, next_size), pc.less(one, other))
    return bool(pc.all(pc.or_(pc.less(size, next_size), is_greater)).as_py())


def _keys_within(folder: Folder, files: Sequence[LiveFile], bounds: Bounds) -> Iterator[pa.Array]:
    """Yield the keys of the parts of files that may contain one between the bounds."""
    for each in files:
        lacking = read_vector(folder, each.vector)
        for group in _groups(folder, each, lambda own: _overlap(own, bounds)):
            is_there = _without(np.ones(len(group.keys), bool), lacking, group.begin)
            yield from group.keys.filter(pa.array(is_there)).chunks


def _many(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yield the same values in longer arrays."""
    waiting, count = list[pa.Array](), 0
    for each in arrays:
        waiting.append(each)
        count += len(each)
        if count >= _AT_ONCE:
            yield pa.concat_arrays(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_arrays(waiting)


class _Group(NamedTuple):
    """A row group: the keys of its rows, the number of its first row, and where to read more."""

    keys: pa.ChunkedArray
    begin: int
    number: int
    file: pq.ParquetFile

    def positions(self) -> pa.ChunkedArray:
        return self.file.read_row_group(self.number, columns=[_POSITION]).column(_POSITION)


def _groups(
    folder: Folder, file: LiveFile, is_wanted: Callable[[Bounds], bool] = lambda _: True
) -> Iterator[_Group]:
    """Yield the row groups of a file whose keys lie between bounds that are wanted."""
    if file.is_elsewhere:
        raise UnsuitableTable("it contains files of another folder")
    with closing(folder.open(file.name)) as stream, pq.ParquetFile(stream) as parquet:
        begin = 0
        for number in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(number)
            if is_wanted(bounds_of(about, _KEY)):
                rows = parquet.read_row_group(number, columns=[_KEY])
                yield _Group(rows.column(_KEY), begin, number, parquet)
            begin += about.num_rows


def _between(keys: Sequence[str], bounds: Bounds) -> bool:
    """Whether one of the keys, which are sorted, lies between the bounds."""
    least, greatest = bounds
    first = 0 if least is None else bisect.bisect_left(keys, least)
    return first < len(keys) and (greatest is None or keys[first] <= greatest)


def _overlap(one: Bounds, other: Bounds) -> bool:
    return not (_ends_before(one, other) or _ends_before(other, one))


def _ends_before(one: Bounds, other: Bounds) -> bool:
    return one[1] is not None and other[0] is not None and one[1] < other[0]


def _without(
    mask: np.ndarray[Any, np.dtype[np.bool_]], lacking: BitMap, begin: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A mask over rows of a file, the first of which has the number `begin`, without some rows."""
    gone = BitMap(range(begin, begin + len(mask))) & lacking if lacking else lacking
    mask[np.array(gone.to_array(), np.int64) - begin] = False
    return mask
