"""A split lands: its rows become data files, and the driver gets a manifest of them.

Rows about one document go into the files of their changelog. All other rows (DDL, control rows) are
few; they travel in the manifest, because only the driver knows all the tables that they concern.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ForeignManifest
from cdc.model import ROW_EVENTS, Namespace
from cdc.tasks.data_files import DataFile, DataFiles, Part
from cdc.tasks.statistics import is_variant
from cdc.tasks.storage import Storage
from cdc.tasks.summary import Group, merge, split_rows, summarize

# One row for each partition: the batch, the partition, and the fields of `Manifest`.
MANIFEST = "batch bigint, part int, files string, groups string, rows binary, streamed string"
_KINDS = {"string": pa.string(), "binary": pa.binary(), "bigint": pa.int64(), "int": pa.int32()}
_ARROW = pa.schema([(name, _KINDS[kind]) for name, kind in map(str.split, MANIFEST.split(", "))])
_DOCUMENT_OPS = ("read", *ROW_EVENTS)


def share_names(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionary arrays for the names in VARIANTs, which many rows share.

    Parquet stores such a value once, without a comparison per row.
    """
    for number, column in enumerate(schema):
        if is_variant(column.type):
            value, names = column.type.field(0), column.type.field(1)
            shared = names.with_type(pa.dictionary(pa.int32(), names.type))
            schema = schema.set(number, column.with_type(pa.struct([value, shared])))
    return schema


@dataclass(frozen=True, slots=True)
class Manifest:
    """What landed of some splits.

    Attributes:
        files: the data files, which no commit names yet.
        groups: the summary of all rows.
        rows: the rows that are in no file, because they are about no single document.
        streamed: how many slices a change stream had to read instead of the oplog, by the reason.
    """

    files: list[DataFile] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    rows: list[pa.RecordBatch] = field(default_factory=list)
    streamed: Counter[str] = field(default_factory=Counter)

    def to_arrow(self, batch: int, part: int) -> pa.RecordBatch:
        """The manifest of one partition as one row with the columns `MANIFEST`."""
        texts = [
            json.dumps([each.to_json() for each in part]) for part in (self.files, self.groups)
        ]
        row: dict[str, list[Any]] = {"batch": [batch], "part": [part]}
        row |= {"files": [texts[0]], "groups": [texts[1]], "rows": [_pack(self.rows)]}
        row["streamed"] = [json.dumps(self.streamed)]
        return pa.RecordBatch.from_pydict(row, schema=_ARROW)

    @classmethod
    def of(
        cls, batch: int, rows: Iterable[tuple[int, int, str, str, bytes | None, str]]
    ) -> Manifest:
        """The manifest of a whole batch, from the rows of all its partitions.

        Raises ForeignManifest if a row is of another batch, or of a partition that has one already.
        """
        files, groups, others = list[DataFile](), list[Group](), list[pa.RecordBatch]()
        streamed, parts = Counter[str](), set[int]()
        for own_batch, part, own_files, own_groups, own_rows, own_streamed in rows:
            if own_batch != batch:
                raise foreign_manifest(f"it is of batch {own_batch}, and not of {batch}")
            if part in parts:
                raise foreign_manifest(f"partition {part} of batch {batch} has two")
            parts.add(part)
            streamed.update(json.loads(own_streamed))
            files += map(DataFile.from_json, json.loads(own_files))
            groups += map(Group.from_json, json.loads(own_groups))
            others += _unpack(own_rows)
        return cls(files, merge(groups), others, streamed)


def foreign_manifest(reason: str) -> ForeignManifest:
    """The error for a manifest that the tasks of a batch cannot have made."""
    return ForeignManifest(
        f"A manifest of data files was refused: {reason}. Nothing was committed.",
        "Start the run again. If the error returns, somebody else sends results to Spark's driver:"
        " see docs/operate/security.md.",
    )


def land(
    batches: Iterable[pa.RecordBatch],
    divide: Callable[[Namespace, pa.RecordBatch], Iterable[Part]],
    file_bytes: int,
    storage: Storage,
) -> Manifest:
    """Write rows of the source into data files; return their manifest.

    Args:
        batches: the rows.
        divide: gets rows about documents of a namespace, and yields what goes where. All rows are
            counted, also those that go nowhere.
        file_bytes: the size at which a file is complete.
        storage: how folders are reached that are URLs.

    If it fails, it removes its files.
    """
    files, groups, others = DataFiles(file_bytes, storage), list[Group](), list[pa.RecordBatch]()
    # Not a constant of the module: the first array imports pandas.
    document_ops = pa.array(_DOCUMENT_OPS)
    try:
        for batch in batches:
            for (db, coll), rows in split_rows(batch, "db", "coll"):
                groups += summarize(db, coll, rows)
                is_document = pc.is_in(rows.column("op"), document_ops)
                count = is_document.true_count
                if count < len(rows):
                    others.append(rows.filter(pc.invert(is_document)))
                if count:
                    documents = rows if count == len(rows) else rows.filter(is_document)
                    for part in divide(Namespace(db, coll), documents):
                        files.add(part)
            groups = merge(groups)
        return Manifest(files.finish(), groups, others)
    except BaseException:
        files.discard()
        raise


def _pack(rows: list[pa.RecordBatch]) -> bytes | None:
    if not rows:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows[0].schema) as writer:
        for each in rows:
            writer.write_batch(each)
    return bytes(sink.getvalue())


def _unpack(data: bytes | None) -> list[pa.RecordBatch]:
    return [] if data is None else list(pa.ipc.open_stream(data))
