"""Filters of a query that a batch read applies to what it reads.

Spark applies every filter again, so a filter that is understood only in part loses no row: the
source reads at least the rows that pass. Spark offers filters only to batch reads.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bson.timestamp import Timestamp
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cdc.model import KeyRange, point_range

# Each key of a snapshot is a task. A longer list is left to Spark.
_MOST_KEYS = 64
_SECONDS = 2**32
_POSITION = re.compile("82([0-9A-F]{8})([0-9A-F]{8})")
_START, _END = Timestamp(0, 0), Timestamp(_SECONDS - 1, _SECONDS - 1)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What is known of the rows that a query needs; None stands for all.

    Attributes:
        ops: the values of `op`.
        keys: ranges of `_id`s that contain those with the values of `key`.
        first: the rows have a `cluster_time` at or after this time.
        last: the rows have a `cluster_time` at or before this time.
        after: the rows have a `position` at or after this time.
        before: the rows have a `position` at or before this time.
    """

    ops: frozenset[str] | None = None
    keys: tuple[KeyRange, ...] | None = None
    first: Timestamp = _START
    last: Timestamp = _END
    after: Timestamp = _START
    before: Timestamp = _END

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> RowFilter:
        """Return what is understood of filters that all have to pass."""
        known = cls()
        for each in filters:
            known = _narrow(known, each)
        return known

    def may_pass(self, op: str, time: Timestamp) -> bool:
        """Whether rows with this `op` and cluster time may pass."""
        has_op = self.ops is None or op in self.ops
        return has_op and self.first.time <= time.time <= self.last.time


def is_offered() -> bool:
    """Whether Spark offers filters: with spark.sql.python.filterPushdown.enabled.

    Otherwise PySpark refuses a reader that accepts filters. The module is that of the process in
    which it offers them.
    """
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules


def _narrow(known: RowFilter, each: Filter) -> RowFilter:
    name, values = _comparison(each)
    if values is not None and name == "op":
        wanted = frozenset(filter(None, values))
        return replace(known, ops=wanted if known.ops is None else known.ops & wanted)
    if values is not None and name == "key" and known.keys is None:
        return replace(known, keys=_key_ranges([value for value in values if value is not None]))
    [value] = values if values is not None and len(values) == 1 else [getattr(each, "value", None)]
    if name == "cluster_time" and isinstance(value, datetime) and value.tzinfo is not None:
        first, last = _seconds(each, value.timestamp())
        return replace(known, first=max(known.first, first), last=min(known.last, last))
    if name == "position" and isinstance(value, str) and (found := _POSITION.match(value)):
        time = Timestamp(int(found[1], 16), int(found[2], 16))
        after = time if isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual) else _START
        before = time if isinstance(each, EqualTo | LessThan | LessThanOrEqual) else _END
        return replace(known, after=max(known.after, after), before=min(known.before, before))
    return known


def _comparison(each: Filter) -> tuple[str | None, Sequence[Any] | None]:
    """Return the column of a filter, and the values if it lists them."""
    [name, *inner] = getattr(each, "attribute", ("",))
    if inner:
        return None, None
    if isinstance(each, EqualTo):
        return name, [each.value]
    if isinstance(each, In):
        return name, each.value
    return name, None


def _key_ranges(keys: Sequence[Any]) -> tuple[KeyRange, ...] | None:
    """Return the ranges of keys without repetition; None if one of them has no range."""
    ranges = [point_range(key) for key in dict.fromkeys(keys)]
    known = dict.fromkeys(each for each in ranges if each is not None)
    return tuple(known) if None not in ranges and len(known) <= _MOST_KEYS else None


def _seconds(each: Filter, value: float) -> tuple[Timestamp, Timestamp]:
    """Return the first and the last cluster time whose second passes a comparison."""
    first, last = 0, _SECONDS - 1
    if isinstance(each, EqualTo | GreaterThanOrEqual):
        first = math.ceil(value)
    if isinstance(each, GreaterThan):
        first = math.floor(value) + 1
    if isinstance(each, EqualTo | LessThanOrEqual):
        last = math.floor(value)
    if isinstance(each, LessThan):
        last = math.ceil(value) - 1
    return (
        Timestamp(min(max(first, 0), _SECONDS - 1), 0),
        Timestamp(min(max(last, 0), _SECONDS - 1), _SECONDS - 1),
    )
