"""A file of the checkpoint is what Spark has written, or damaged, or somebody else's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.checkpoint.checkpoint import batches, parse_plan, time_of
from cdc.errors import ForeignOffset
from cdc.model import Offset

SAMPLES = sorted((Path(__file__).parents[1] / "model/offsets").glob("*.json"))
ABOUT = '{"batchWatermarkMs":0,"batchTimestampMs":1767225600000,"conf":{"a":"{\\"b\\": 1}"}}'


def stored(sample: Path) -> str:
    return f"v1\n{ABOUT}\n{json.dumps(json.loads(sample.read_text()))}"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_whole_file_is_read_and_what_is_left_of_one_that_was_cut_off_is_damage(
    sample: Path,
) -> None:
    text = stored(sample)
    found = parse_plan(text, "f")
    assert found is not None
    assert found.offset == Offset.from_json(json.loads(sample.read_text()))
    assert found.about == json.loads(ABOUT)
    for length in range(len(text)):
        assert parse_plan(text[:length], "f") is None, text[:length]
        assert parse_plan(text[:length] + "\0" * (len(text) - length), "f") is None, text[:length]


def test_what_is_whole_and_not_ours_is_no_damage() -> None:
    """Guards: a repair throws away what is damaged."""
    text = stored(SAMPLES[0])
    for other in (
        text.replace("v1\n", "v2\n"),
        f"{text}\n{{}}",
        text.replace('"version": 1', '"version": 3'),
        text.replace('"swept"', '"swapped"'),
    ):
        with pytest.raises(ForeignOffset):
            parse_plan(other, "f")


def test_the_batches_are_those_that_are_written_and_whole_in_order(tmp_path: Path) -> None:
    """Guards: a file of a commit says nothing about a batch; names of files sort as text."""
    offsets, commits = tmp_path / "offsets", tmp_path / "commits"
    for folder in (offsets, commits):
        folder.mkdir()
    for number in range(12):
        (offsets / str(number)).write_text(stored(SAMPLES[number % len(SAMPLES)]))
        (commits / str(number)).write_text("v1\n{}")
    (commits / "11").unlink()
    (offsets / "4").write_text("v1\n")
    (offsets / "6").unlink()
    found = batches(str(tmp_path))
    assert [each.batch for each in found] == [0, 1, 2, 3, 5, 7, 8, 9, 10]
    for each in found:
        text = (offsets / str(each.batch)).read_text().splitlines()[2]
        assert each.offset == Offset.from_json(json.loads(text))


def test_the_time_of_a_batch_is_known_as_long_as_its_file_is_whole(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / "7").write_text(stored(SAMPLES[0]))
    (offsets / "8").write_text("v1\n")
    expected = Offset.from_json(json.loads(SAMPLES[0].read_text())).time
    assert [time_of(str(tmp_path), batch) for batch in (6, 7, 8)] == [None, expected, None]
