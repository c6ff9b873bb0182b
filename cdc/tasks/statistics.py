"""Delta's statistics of a data file, from the metadata that Parquet's writer collects.

A bound is written only where it is one: readers skip a file whose bounds exclude a value, so a
bound that is too narrow loses rows, and a missing bound costs only time.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

Statistics: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

# Delta cuts text at this length. A longer bound helps no query, and each commit would repeat it.
_LONGEST_TEXT = 32
_GREATEST_CHARACTER = "\U0010ffff"
_MILLISECOND = datetime.timedelta(milliseconds=1)


def columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Parquet's names of the columns whose statistics `file_statistics` reads."""
    return [".".join(path) for path in _leaves(schema) if path is not None]


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """Return Delta's statistics of a file as JSON, as the `stats` of an `add` action has them.

    Columns of text, integers and timestamps get bounds; every column gets the number of its nulls.
    Documents, raw bytes, lists and maps get neither.

    Args:
        metadata: the metadata of the file.
        schema: its columns.
    """
    least, greatest, nulls = Statistics(), Statistics(), Statistics()
    for number, path in enumerate(_leaves(schema)):
        if path is None:
            continue
        parts = [each.statistics for each in _column_chunks(metadata, number)]
        if all(part is not None and part.has_null_count for part in parts):
            _put(nulls, path, sum(part.null_count for part in parts))
        bounds = _bounds(parts)
        if bounds is not None:
            _put(least, path, bounds[0])
            _put(greatest, path, bounds[1])
    found = {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _leaves(fields: Iterable[pa.Field], above: Path = ()) -> Iterator[Path | None]:
    """The names that lead to each column of a Parquet file, in its order.

    None for a column without statistics. Parquet itself joins the names with dots, so that a name
    with a dot would be taken for two.
    """
    for field in fields:
        kind, path = field.type, (*above, field.name)
        if pa.types.is_struct(kind) and not is_variant(kind):
            yield from _leaves([kind.field(number) for number in range(kind.num_fields)], path)
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            yield from [None] * _count_leaves(kind)
        else:
            yield path


def _count_leaves(kind: pa.DataType) -> int:
    if pa.types.is_map(kind):
        return _count_leaves(kind.key_type) + _count_leaves(kind.item_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_count_leaves(kind.field(number).type) for number in range(kind.num_fields))


def is_variant(kind: pa.DataType) -> bool:
    """Whether a column contains documents as VARIANT: a struct of two required binaries.

    A struct of a user that has fields of these names has nullable ones.
    """
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    parts = [kind.field(number) for number in range(2)]
    names = [part.name for part in parts]
    return names == ["value", "metadata"] and not any(part.nullable for part in parts)


def _column_chunks(metadata: pq.FileMetaData, number: int) -> Iterator[pq.ColumnChunkMetaData]:
    for group in range(metadata.num_row_groups):
        yield metadata.row_group(group).column(number)


def _bounds(parts: list[pq.Statistics | None]) -> tuple[Any, Any] | None:
    """The bounds of a column over all row groups; None if one of them has none."""
    found = []
    for part in parts:
        if part is None or not part.has_null_count:
            return None
        if part.num_values == 0:  # nothing but nulls
            continue
        if not part.has_min_max:
            return None
        try:
            found.append((part.min, part.max))
        except (OverflowError, ValueError):  # a time that Python has not, text that is not UTF-8
            return None
    if not found:
        return None
    least, greatest = min(low for low, _ in found), max(high for _, high in found)
    low, high = round_down(least), round_up(greatest)
    return None if low is None or high is None else (low, high)


def round_down(value: Any) -> Any:
    """Return a JSON value that is at most `value`; None if there is none."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, datetime.datetime):
        return _timestamp_text(value)
    return value if _is_integer(value) else None


def round_up(value: Any) -> Any:
    """Return a JSON value that is at least `value`; None if there is none."""
    if isinstance(value, str):
        return _cut_up(value)
    if isinstance(value, datetime.datetime):
        if value.microsecond % 1000 == 0:
            return _timestamp_text(value)
        is_last = value > datetime.datetime.max.replace(tzinfo=datetime.UTC) - _MILLISECOND
        return None if is_last else _timestamp_text(value + _MILLISECOND)
    return value if _is_integer(value) else None


def _is_integer(value: Any) -> bool:
    # Floating-point numbers have NaN, which Spark takes for the greatest and Parquet ignores.
    return isinstance(value, int) and not isinstance(value, bool)


def _cut_up(text: str) -> str | None:
    """Cut text to a bound from above, by code points, which is the order of UTF-8 bytes."""
    if len(text) <= _LONGEST_TEXT:
        return text
    if text[_LONGEST_TEXT] == _GREATEST_CHARACTER:
        return None
    return text[:_LONGEST_TEXT] + _GREATEST_CHARACTER


def _timestamp_text(value: datetime.datetime) -> str:
    utc = value.astimezone(datetime.UTC)
    return utc.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _put(tree: Statistics, path: Path, value: Any) -> None:
    *parents, name = path
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[name] = value
