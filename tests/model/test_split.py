"""Small neighbouring splits are read as one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import bson
from bson.timestamp import Timestamp

from cdc import options as declared
from cdc.model import MAX_KEY, MIN_KEY, KeyRange, Namespace, SnapshotSplit, StreamSplit
from cdc.model import join_neighbours as joined
from cdc.source.translation import make_partitions

KEYS = [MIN_KEY, *(bson.encode({"_id": number}) for number in range(4)), MAX_KEY]
SPLITS = [
    SnapshotSplit(Namespace("shop", "orders"), b"uuid", KeyRange(*keys), Timestamp(7, 1))
    for keys in pairwise(KEYS)
]


def ranges(splits: list[SnapshotSplit], most: int) -> list[tuple[int, int]]:
    """Each split by the places of its bounds."""
    found = joined(splits, most)
    assert all(isinstance(each, SnapshotSplit) for each in found)
    return [
        (KEYS.index(each.range.lower), KEYS.index(each.range.upper))
        for each in found
        if isinstance(each, SnapshotSplit)
    ]


def test_neighbours_are_joined_up_to_a_number_and_each_key_stays_in_one_split() -> None:
    assert ranges(SPLITS, 0) == ranges(SPLITS, 1)
    assert ranges(SPLITS, 1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert ranges(SPLITS, 2) == [(0, 2), (2, 4), (4, 5)]
    assert ranges(SPLITS, 9) == [(0, 5)]
    assert joined(SPLITS, 9) == [replace(SPLITS[0], range=KeyRange(MIN_KEY, MAX_KEY))]


def test_many_small_splits_are_read_by_few_tasks_and_few_splits_by_one_each() -> None:
    """Guards: a core that waits because a small copy is one task; a task for each megabyte."""
    keys = [MIN_KEY, *(bson.encode({"_id": number}) for number in range(431)), MAX_KEY]
    many = [replace(SPLITS[0], range=KeyRange(*each)) for each in pairwise(keys)]

    def tasks(count: int, megabytes: int) -> int:
        given = {"uri": "mongodb://h", "collections": "a.b", "split.size.mb": str(megabytes)}
        found = make_partitions(many[:count], declared.parse(given))
        assert sum(len(each.splits) for each in found) == len(found)
        return len(found)

    assert tasks(432, 1) == 16
    assert tasks(54, 8) == 18
    assert tasks(31, 1) == 31
    assert tasks(432, 32) == 432
    assert tasks(432, 64) == 432


def test_splits_of_other_times_places_and_kinds_are_not_joined() -> None:
    """Guards: documents as of another time, of another incarnation, or between two ranges."""
    first, second = SPLITS[:2]
    for other in (
        replace(second, at=Timestamp(8, 1)),
        replace(second, uuid=b"other"),
        replace(second, namespace=Namespace("shop", "other")),
        replace(second, shard="one"),
        replace(second, capture_text="other"),
        replace(second, collation=b"other"),
        SPLITS[2],
        StreamSplit(Timestamp(1, 1), Timestamp(7, 1), None, b""),
    ):
        assert joined([first, other], 9) == [first, other]
    assert joined([], 9) == []
