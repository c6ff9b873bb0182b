"""Whether the tables contain all changes before a time: what lacks some is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from click.testing import CliRunner

from cdc.checkpoint import Checkpoint
from cdc.cli import status
from cdc.errors import BadOption
from cdc.model import Timestamp
from cdc.monitoring import Tables, View, find_lacks
from cdc.pipeline import Config
from cdc.pipeline import config as configuration
from tests.monitoring.example_view import view

GIVEN = ["uri=mongodb://127.0.0.1:1", "collections=shop\\..*", "sink.path=/lake"]


def config(*more: str) -> Config:
    return configuration.load(None, [*GIVEN, *more])


def _with_tables(seen: View, change: Callable[[Tables], Tables]) -> View:
    [(extent, tables)] = seen.collections
    return replace(seen, collections=[(extent, change(tables))])


def test_tables_contain_what_came_before_t_of_the_last_batch_and_no_more() -> None:
    seen = view()
    assert seen.metrics.time is not None
    until, after = seen.metrics.time, Timestamp(seen.metrics.time.time + 1, 0)
    assert find_lacks(config(), seen, until) == []
    assert [text.partition(": ")[2] for text in find_lacks(config(), seen, after)] == [
        f"its {kind} contains the changes up to {until.time}:{until.inc} only"
        for kind in ("changelog", "mirror")
    ]


def test_a_mirror_that_lags_lacks_changes_that_its_changelog_contains() -> None:
    seen = view(changed=["insert"])
    assert seen.metrics.time is not None
    [text] = find_lacks(config(), seen, seen.metrics.time)
    assert "its mirror contains the changes up to" in text
    assert find_lacks(config(), seen, seen.times[5]) == []
    [text] = find_lacks(config(), replace(seen, times={}), seen.times[5])
    assert "its mirror contains the changes up to an unknown time only" in text


def test_a_mirror_that_does_not_exist_yet_and_a_copy_that_is_not_complete_lack_changes() -> None:
    early = Timestamp(1, 1)
    new = _with_tables(view(), lambda tables: replace(tables, followers={}))
    [text] = find_lacks(config(), new, early)
    assert "its mirror contains the changes up to an unknown time only" in text
    seen = view()
    [(extent, tables)] = seen.collections
    copying = replace(seen, collections=[(replace(extent, phase="copying"), tables)])
    [text] = find_lacks(config(), copying, early)
    assert text.endswith("its copy is not complete (copying)")
    begun = replace(seen, checkpoint=Checkpoint(0, None, None))
    assert find_lacks(config(), begun, early)


def test_a_mirror_without_a_changelog_is_written_with_each_batch() -> None:
    alone = _with_tables(view(), lambda tables: replace(tables, changelog=None))
    assert alone.metrics.time is not None
    assert find_lacks(config("table.changelog="), alone, alone.metrics.time) == []


@pytest.mark.parametrize("mirror", ["main.{db}.{coll}", "{db}/all/mirror"])
def test_what_cannot_be_read_is_refused_and_not_taken_for_complete(mirror: str) -> None:
    unread = _with_tables(view(), lambda tables: replace(tables, followers={}))
    with pytest.raises(BadOption, match="cannot be read"):
        find_lacks(config(f"table.mirror={mirror}"), unread, Timestamp(1, 1))


def test_a_time_that_is_none_is_refused_before_anything_is_read() -> None:
    options = [item for each in GIVEN for item in ("-o", each)]
    done = CliRunner().invoke(status.main, [*options, "--contains", "yesterday"])
    assert done.exit_code == 2
    assert "neither a time in ISO-8601 nor a cluster time" in done.stderr
