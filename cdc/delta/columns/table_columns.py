"""Typed columns of a document, and `_rescued`, which contains all other values.

    columns = { total = "decimal(18,2)", city = "string from address.city" }

Each value of a document is in exactly one place: in its column if it fits there (see
`cdc.model.typed.casts`), else in `_rescued`, a VARIANT object that contains it where the document
does. So columns and `_rescued` together are the document, with two exceptions. A typed column does
not distinguish a null from a missing field, and a number keeps its value there, not its own type. A
column of type variant takes any value, also null."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, VariantType

from cdc.delta.columns import arrow_columns, typed_column
from cdc.delta.columns.rescued import RESCUED, document_text
from cdc.delta.columns.typed_column import TypedColumn, folded, is_storable, path_text
from cdc.delta.sql import quoted
from cdc.errors import BadOption

# The only name of its kind that every document has; all others are kept for the tables' own.
_ID = "_id"
_KEY, _DOCUMENT = "key", "document"
# No typed column has a name that begins like this.
_TAKEN = "_taken"


@dataclass(frozen=True, slots=True)
class Columns:
    """The typed columns of one table, in their order.

    Raises BadOption for columns that cannot be stored: a reserved name, two names that differ in
    case only, or two columns for one value.
    """

    columns: tuple[TypedColumn, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise BadOption("There is no column in 'columns'.", "Name one, or leave it out.")
        seen = set[str]()
        for column in self.columns:
            _require_name(column)
            if folded(column.name) in seen:
                raise BadOption(f"The column '{column.name}' is there twice, but for its case.")
            seen.add(folded(column.name))
        for column in self.columns:
            _require_own_place(column, self.columns)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Columns:
        """From names and texts like `string` or `string from address.city`. Raises BadOption."""
        found = []
        for name, text in texts.items():
            if not isinstance(text, str):
                raise BadOption(
                    f"The column '{name}' has no text as its type.",
                    f'Write it like {name} = "decimal(18,2)".',
                )
            kind, path = typed_column.parse(text)
            found.append(TypedColumn(name, kind, (name,) if path is None else path))
        return cls(tuple(found))

    def plus(self, more: Iterable[TypedColumn]) -> Columns:
        return Columns((*self.columns, *more))

    def fields(self) -> list[StructField]:
        """The columns, then `_rescued`."""
        rescued = StructField(RESCUED, VariantType(), True)
        return [*(column.field() for column in self.columns), rescued]

    def select(self, rows: DataFrame, document: str) -> DataFrame:
        """Return the rows with their typed columns and `_rescued` after their other columns.

        `document` is the name of their VARIANT column, which is left out. For a null in it all are
        null. `_rescued` is null if there is no other value. No value in a document can raise an
        error.
        """
        others = [F.col(quoted(name)) for name in rows.columns if name != document]
        taken = arrow_columns.taken(F.col(quoted(document)), self.columns, RESCUED)
        rows = rows.select(*others, taken.alias(_TAKEN))
        found = [F.col(_TAKEN)[field.name].alias(field.name) for field in self.fields()]
        return rows.select(*others, *found)

    def take(self, documents: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
        """Convert VARIANTs into a struct of type `kind`: the columns and `_rescued`. For tasks.

        The values are those of `select`; `kind` is `fields` as an Arrow type.
        """
        return arrow_columns.take_columns(documents, self.columns, kind)

    def document(self) -> Column:
        """The VARIANT that the columns and `_rescued` of a row were made from.

        An empty object where all of them are null.
        """
        return F.expr(document_text(self.columns))


def of_table(schema: StructType) -> Columns | None:
    """The typed columns of an existing table; None if it has none."""
    found = map(typed_column.of_field, schema.fields)
    columns = tuple(column for column in found if column is not None)
    return Columns(columns) if columns else None


def has_room(name: str, columns: Iterable[TypedColumn]) -> bool:
    """Whether a column of that name may be added to these."""
    return (
        is_storable(name)
        and not _is_reserved(name)
        and folded(name) not in {folded(column.name) for column in columns}
    )


def _require_name(column: TypedColumn) -> None:
    name = column.name
    is_whole = column.is_variant and not column.path
    if _is_reserved(name) and not (folded(name) == _DOCUMENT and is_whole):
        raise BadOption(
            f"'{name}' cannot be a typed column: the name is kept for the table itself.",
            f'Give it another name: x = "string from {path_text((name,))}".',
        )
    if not is_storable(name):
        raise BadOption(
            f"'{name}' cannot be a column: Delta takes none of ' ,;{{}}()', tab, line end and '='.",
            "Give it another name, and say where it is with 'from'.",
        )
    if not column.path and not column.is_variant:
        raise BadOption(f"The column '{name}' is the whole document: its type is variant.")


def _is_reserved(name: str) -> bool:
    return folded(name) in (_KEY, _DOCUMENT) or (name.startswith("_") and name != _ID)


def _require_own_place(column: TypedColumn, columns: Iterable[TypedColumn]) -> None:
    """A value has one column. A variant column beside typed ones contains all of it."""
    for other in columns:
        is_inside = other.path[: len(column.path)] == column.path and other is not column
        if is_inside and (
            not column.is_variant or (other.is_variant and other.path == column.path)
        ):
            raise BadOption(
                f"The columns '{column.name}' and '{other.name}' take the same value,"
                f" '{path_text(other.path)}'.",
                "Leave out one of them, or let the outer one be a variant.",
            )
