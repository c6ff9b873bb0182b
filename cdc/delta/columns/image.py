"""The columns in which mirrors and histories store a document.

    document                     _id, document
    columns = {…}                these typed columns and `_rescued`

`_id` is the readable text of the document's `_id`, by the rule of `cdc.model.readable_id`. It is a
function of `key`, which every row has: so it is right in each row, whichever writer made it. A
table that an earlier release created has no such column until it is rebuilt: with a column that is
null in its older rows, a join would lose these rows without notice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from cdc.arrow import readable_ids
from cdc.delta.columns.table_columns import Columns, of_table
from cdc.delta.sql import literal
from cdc.model import SEPARATOR

ID = "_id"
_KEY, _DOCUMENT = "key", "document"
# By its comment the column is recognized: somebody may have added another one of that name.
_ID_FIELD = StructField(ID, StringType(), True, {"comment": "readable text of key"})
_BACKSLASH, _BROKEN = "\\", r"\ud"
# Patterns of LIKE for the keys of `cdc.model.merge_key` that have a shorter text.
_OBJECT_ID = f'{{"$oid":"{"_" * 24}"}}'
_DOUBLE = '{"$numberDouble":"%"}'
_UUID = f'{{"$binary":{{"base64":"{"_" * 22}==","subType":"04"}}}}'
# First digit and number of digits of each part of a UUID's text.
_UUID_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))


@dataclass(frozen=True, slots=True)
class Image:
    """How one table stores documents.

    Attributes:
        typed: its typed columns; None if it stores whole documents.
        has_id: whether it has `_id` beside them. Typed columns have the `_id` that was configured.
    """

    typed: Columns | None
    has_id: bool

    @classmethod
    def of_new(cls, typed: Columns | None) -> Self:
        """The image of a table that is created now."""
        return cls(typed, has_id=typed is None)

    @classmethod
    def of_table(cls, schema: StructType) -> Self:
        """The image of an existing table."""
        typed = of_table(schema)
        comments = {field.name: field.metadata.get("comment") for field in schema}
        return cls(typed, typed is None and comments.get(ID) == _ID_FIELD.metadata["comment"])

    def fields(self, document: DataType) -> list[StructField]:
        """The columns; documents have the type `document` where they are stored whole."""
        if self.typed is not None:
            return self.typed.fields()
        whole = StructField(_DOCUMENT, document)
        return [_ID_FIELD, whole] if self.has_id else [whole]

    def names(self) -> list[str]:
        return [field.name for field in self.fields(StringType())]

    def select(self, rows: DataFrame) -> DataFrame:
        """The rows, which have a `key`, with these columns instead of their `document`."""
        if self.typed is not None:
            return self.typed.select(rows, _DOCUMENT)
        return rows.withColumn(ID, F.expr(id_text(_KEY))) if self.has_id else rows

    def document(self) -> Column:
        """The document of a row with these columns. For typed columns see `Columns.document`."""
        return self.typed.document() if self.typed is not None else F.col(_DOCUMENT)

    def take(self, keys: pa.StringArray, documents: pa.Array) -> dict[str, pa.Array]:
        """The columns of documents, by name. The values are those of `select`; for tasks."""
        if self.typed is not None:
            taken = self.typed.take(documents, _arrow(self.typed))
            return {field.name: taken.field(number) for number, field in enumerate(taken.type)}
        whole = {_DOCUMENT: documents}
        return {ID: readable_ids(keys), **whole} if self.has_id else whole


@lru_cache(maxsize=16)
def _arrow(typed: Columns) -> pa.StructType:
    return to_arrow_type(StructType(typed.fields()), timezone="UTC")


def id_text(key: str) -> str:
    """SQL text for `readable_id` of a key, which is the name of a column; it cannot raise."""
    key = f"substring_index({key}, {literal(SEPARATOR)}, 1)"
    parsed = f"get(from_json(concat('[', {key}, ']'), 'array<string>'), 0)"
    # In JSON a backslash is two. What is left of `\ud` stands for a byte that is not UTF-8.
    is_text = f"NOT contains(replace({key}, {literal(2 * _BACKSLASH)}, ''), {literal(_BROKEN)})"
    escaped = f"if({is_text}, {parsed}, {key})"
    plain = f"substring({key}, 2, length({key}) - 2)"
    digits = f"lower(hex(unbase64(substring({key}, 23, 24))))"
    parts = ", ".join(f"substring({digits}, {begin}, {size})" for begin, size in _UUID_PARTS)
    return f"""CASE WHEN startswith({key}, '"')
    THEN if(contains({key}, {literal(_BACKSLASH)}), coalesce({escaped}, {key}), {plain})
  WHEN {key} LIKE {literal(_OBJECT_ID)} THEN substring({key}, 10, 24)
  WHEN {key} LIKE {literal(_DOUBLE)} THEN substring({key}, 19, length({key}) - 20)
  WHEN {key} LIKE {literal(_UUID)} THEN concat_ws('-', {parts})
  ELSE {key} END"""
