"""Tables that an earlier release has written are those of the pipeline, as far as that wrote them.

`releases/` contains what releases have written: the properties of tables, and the metadata of their
first and last commits.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.delta.followers import Pending
from cdc.delta.log import Commit, Target
from cdc.delta.tables import Layout, Table
from cdc.delta.tables.known_table import KnownTable, configured_image
from cdc.model import Namespace, Offset, timestamp

SAMPLES = Path(__file__).parent / "releases"
CONFIGURED = {
    "history": "{db}/{coll}/history",
    "delete": "soft",
    "columns": {"n": "bigint", "t": "string"},
}


@pytest.mark.parametrize("kind", ["changelog", "mirror", "history", "dead_letters"])
@pytest.mark.parametrize("sample", [each.stem for each in SAMPLES.iterdir()])
def test_what_a_release_has_stated_of_its_tables_is_understood(sample: str, kind: str) -> None:
    """Guards: a batch that is applied again, or is taken for one that was applied."""
    found = json.loads((SAMPLES / f"{sample}.json").read_text())[kind]
    layout = Layout.parse("/lake", CONFIGURED)
    name = json.loads(found["properties"]["mongodb-cdc.namespace"])
    table = (
        Table(Target("/lake/_dead_letters"), None, layout.default)
        if name is None
        else layout.table(kind, Namespace(*name))
    )
    assert table is not None
    for given in found["commits"]:
        commit = Commit.parse(json.dumps(given))
        assert commit is not None
        assert (commit.batch, commit.batch) == (given["batch"], given["batch"])
        assert Offset.from_json(commit.offset).time == commit.watermark
        assert json.loads(commit.text()) == given
        assert Pending.of([(table.target, commit, 0)]) is None
        columns = configured_image(kind, table)
        known = KnownTable.of(table, found["properties"], commit, columns, frozenset())
        assert known.begin is None
        known.require_not_ahead(Commit(commit.batch, commit.watermark, offset=commit.offset))
        if kind != "history":  # of another collection, which has no typed columns
            known.require_configured(kind, table, "variant")
    assert commit.watermark == timestamp.parse(found["commits"][-1]["watermark"])
