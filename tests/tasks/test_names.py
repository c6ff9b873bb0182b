"""The names that VARIANTs share: those of another collection, or of a row that went elsewhere, are
in no file."""

from __future__ import annotations

from pathlib import Path

import bson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.arrow import cells
from cdc.kernel import Places
from cdc.mongo.read import Documents, Run
from cdc.tasks import Part, Storage, arrow_batches, land, share_names, write_parts
from tests.kernel.arrow import VARIANT, options, schema
from tests.kernel.canonical import canonical, canonical_rows
from tests.kernel.test_encoded_documents import SPLIT, one_by_one
from tests.kernel.test_encoded_events import change, of

SCHEMA = share_names(pa.schema([("n", pa.int64()), ("after", VARIANT)]))
DOCUMENTS = [{"a": n} if n % 3 else {f"secret{n}": n} for n in range(12)]


def rows() -> pa.RecordBatch:
    """The documents; each that has other names than the one before begins a new dictionary."""
    encoded = [
        cells.encode_images(
            Places.concatenate([bson.encode(each)]),
            SCHEMA.field("after").type,
            "variant",
            "relaxed",
        )
        for each in DOCUMENTS
    ]
    images = pa.table({"after": pa.chunked_array(encoded)}).unify_dictionaries()["after"]
    columns = [pa.array(range(len(DOCUMENTS))), images.combine_chunks()]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def written(folder: Path, *batches: pa.RecordBatch) -> tuple[bytes, list[dict[str, object]]]:
    """The bytes of the file of these rows, and its rows with their images as trees."""
    [file] = write_parts([Part(str(folder), batch) for batch in batches], Storage())
    found = pq.read_table(Path(file.path)).to_pylist()
    return Path(file.path).read_bytes(), [
        {**row, "after": row["after"] and canonical(**row["after"])} for row in found
    ]


def test_names_of_rows_that_were_filtered_away_are_in_no_file(tmp_path: Path) -> None:
    whole, expected = written(tmp_path / "whole", rows())
    assert b"secret0" in whole
    mask = [number % 3 != 0 or number == 6 for number in range(len(DOCUMENTS))]
    kept = rows().filter(pa.array(mask))
    content, found = written(tmp_path / "kept", kept.slice(0, 5), kept.slice(5))
    assert found == [row for row, is_kept in zip(expected, mask, strict=True) if is_kept]
    assert b"secret6" in content
    for number in (0, 3, 9):
        assert b"secret%d" % number not in content


@pytest.mark.parametrize("nulls", [range(12), range(3), [0, 3, 6, 9]])
def test_a_row_without_a_document_has_the_names_of_none(nulls: list[int], tmp_path: Path) -> None:
    images = rows().column("after")
    mask = pa.array([number in nulls for number in range(len(DOCUMENTS))])
    parts = [images.field(0), images.field(1)]
    fields = [images.type.field(0), images.type.field(1)]
    given = pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    batch = pa.RecordBatch.from_arrays([pa.array(range(12)), given], schema=SCHEMA)
    _, expected = written(tmp_path / "whole", rows())
    content, found = written(tmp_path / "some", batch, rows())
    assert found[12:] == expected
    assert [row["after"] for row in found[:12]] == [
        None if number in nulls else expected[number]["after"] for number in range(12)
    ]
    content, _ = written(tmp_path / "alone", batch)
    for number in nulls:
        assert b"secret%d" % number not in content


def test_events_of_two_collections_share_no_names() -> None:
    events = [
        change(ns={"db": "db", "coll": f"c{n % 2}"}, fullDocument={"_id": n, f"own{n % 2}": n})
        for n in range(20)
    ]
    located = of(events)
    parts = arrow_batches.split_by_collection(Run(located, located.has(0)))
    assert [len(part) for part in parts] == [10, 10]
    for number, part in enumerate(parts):
        assert [bson.decode(event.after)["_id"] for event in part] == [*range(number, 20, 2)]
    [alone] = arrow_batches.split_by_collection(parts[0])
    assert alone is parts[0]


def test_a_copy_that_is_encoded_at_once_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Guards: all its rows have no image before, so that column has no names at all."""
    documents = [bson.encode({"_id": n, "x": "y" * 100, f"v{n % 5}": n}) for n in range(3000)]
    batches = arrow_batches.encode_documents(
        Documents(Places.concatenate(documents), None),
        SPLIT,
        options("variant"),
        share_names(schema("variant")),
    )
    folder = str(tmp_path / "table")
    manifest = land(batches, lambda _, rows: [Part(folder, rows)], 2**27, Storage())
    [file] = manifest.files
    expected = canonical_rows(one_by_one(documents, "variant", None).to_pylist())
    assert canonical_rows(pq.read_table(Path(file.path)).to_pylist()) == expected
