"""Tables that an earlier release has written are those of the pipeline, as far as that wrote them.

`releases/` contains what releases have written: the properties of tables, and the metadata of their
first and last commits.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import StructType, VariantType

from cdc.delta.followers import ALL_KINDS, Pending
from cdc.delta.log import Commit, Target
from cdc.delta.tables import Kind, KnownTable, Layout, Table
from cdc.model import Namespace, Offset, timestamp

SAMPLES = Path(__file__).parent / "releases"
CONFIGURED = {
    "history": "{db}/{coll}/history",
    "delete": "soft",
    "columns": {"n": "bigint", "t": "string"},
}


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("sample", [each.stem for each in SAMPLES.iterdir()])
def test_what_a_release_has_stated_of_its_tables_is_understood(sample: str, kind: Kind) -> None:
    """Guards: a batch that is applied again, or is taken for one that was applied."""
    found = json.loads((SAMPLES / f"{sample}.json").read_text())[kind.name]
    layout = Layout.parse("/lake", CONFIGURED)
    name = json.loads(found["properties"]["mongodb-cdc.namespace"])
    table = (
        Table(Target("/lake/_dead_letters"), None, layout.default)
        if name is None
        else layout.table(kind.name, Namespace(*name))
    )
    assert table is not None
    for given in found["commits"]:
        commit = Commit.parse(json.dumps(given))
        assert commit is not None
        assert (commit.batch, commit.batch) == (given["batch"], given["batch"])
        assert Offset.from_json(commit.offset).time == commit.watermark
        assert json.loads(commit.text()) == given
        assert Pending.of([(table.target, commit, 0)]) is None
        columns = StructType(kind.new_image(table.options).fields(VariantType()))
        known = KnownTable.of_schema(kind, table, found["properties"], columns)
        assert known.begin is None
        known = replace(known, last=commit)
        known.require_not_ahead(Commit(commit.batch, commit.watermark, offset=commit.offset))
        if kind.name != "history":  # of another collection, which has no typed columns
            known.require_configured(kind, table, "variant")
    assert commit.watermark == timestamp.parse(found["commits"][-1]["watermark"])
