"""Keys of copied files that occur twice, or in other files too."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cdc.delta.followers.merges.key_search import have_common_keys
from cdc.delta.log import LiveFile, added
from cdc.tasks import Part, Storage, open_folder, write_parts

NUMBERS = [str(number) for number in range(8, 13)]


@pytest.mark.parametrize(
    ("copied", "others", "are_common"),
    [
        ([NUMBERS], [], False),
        ([NUMBERS, ["13", "130"]], [], False),
        ([["13", "130"], NUMBERS], [], False),
        ([["b", "a"], ["c"]], [], False),
        ([[*NUMBERS, "12"]], [], True),
        ([["8", *NUMBERS]], [], True),
        ([["a", "b", "a"]], [], True),
        ([NUMBERS, ["12", "13"]], [], True),
        ([NUMBERS, ["13", "8"]], [], True),
        ([["9", "10"], ["9", "11"], ["9", "12"]], [], True),
        ([NUMBERS], [["7", "13"]], False),
        ([NUMBERS], [["1", "2"], ["5", "11", "6"]], True),
    ],
)
def test_a_key_that_occurs_twice_is_found_in_any_order_and_place(
    tmp_path: Path, copied: list[list[str]], others: list[list[str]], are_common: bool
) -> None:
    """Guards: a mirror with two rows of a key."""
    found = [[file_of(tmp_path, keys) for keys in group] for group in (copied, others)]
    folder = open_folder(str(tmp_path), Storage())
    assert have_common_keys(*found, folder) == are_common


def file_of(folder: Path, keys: list[str]) -> LiveFile:
    rows = pa.RecordBatch.from_pydict({"key": keys})
    [file] = write_parts([Part(str(folder), rows)], Storage())
    return LiveFile.of(added(file)["add"])
