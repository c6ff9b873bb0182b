"""The record of shard keys in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson.timestamp import Timestamp

from cdc.checkpoint import Folder, LocalFiles, RecordedKeys
from cdc.errors import UnsuitableSource
from cdc.model import Namespace, ShardKey

A, B = Namespace("shop", "a"), Namespace("shop", "b")
T = Timestamp(5, 0)
BY_N = ShardKey(("n",), b"1", Timestamp(1, 0))
BY_M = ShardKey(("n", "m"), b"2", Timestamp(5, 0))


@pytest.fixture
def record(tmp_path: Path) -> RecordedKeys:
    return RecordedKeys(Folder(LocalFiles(), str(tmp_path)))


def test_a_collection_keeps_the_shard_key_that_its_first_documents_had(
    record: RecordedKeys,
) -> None:
    """Guards: a refined shard key, and a collection that is sharded later."""
    record.require_same({A: BY_N}, [A, B], [], T)
    assert record.read() == {A: ("n",), B: ()}
    record.require_same({A: BY_N}, [A], [], T)
    for keys, name in (({A: BY_M}, A), ({A: BY_N, B: BY_N}, B)):
        with pytest.raises(UnsuitableSource, match=f"{name} got another shard key"):
            record.require_same(keys, [name], [], T)
    assert record.read() == {A: ("n",), B: ()}


def test_a_dropped_collection_may_come_back_with_another_shard_key(record: RecordedKeys) -> None:
    record.require_same({A: BY_N}, [A], [], T)
    record.require_same({}, [A], [], T)  # dropped since
    record.require_same({}, [A], [A], T)
    record.require_same({A: BY_M}, [A], [], T)
    assert record.read() == {A: ("n", "m")}


def test_a_shard_key_of_after_the_batch_is_that_of_a_later_one(record: RecordedKeys) -> None:
    """Guards: a collection that is dropped, and sharded anew, before its last changes are read."""
    late = BY_M._replace(since=Timestamp(5, 1))
    record.require_same({A: BY_N}, [A], [], T)
    record.require_same({A: late, B: late}, [A, B], [], T)
    assert record.read() == {A: ("n",), B: ()}
    for name in (A, B):
        with pytest.raises(UnsuitableSource, match=f"{name} got another shard key"):
            record.require_same({name: late}, [name], [], Timestamp(5, 1))
