"""What of a document its typed columns do not take; and the document, made of both again.

The document is walked as the columns' paths go: each object that a path leads through is taken
apart into a map, of which the fields that nobody knows are left over as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, MapType, StructType

from cdc.delta.fit import (
    family_of,
    fields,
    fitted,
    is_missing,
    let,
    present,
    told_back,
)
from cdc.delta.target import literal, quoted
from cdc.delta.typed_column import TypedColumn

RESCUED = "_rescued"
_NO_FIELDS = "CAST(map() AS map<string,variant>)"


def taken(rows: DataFrame, document: str, columns: Sequence[TypedColumn]) -> DataFrame:
    """The rows with the columns and `_rescued` in place of the column `document`.

    In steps, for Spark works out once what a step names, and in one expression as often as it is
    written there.
    """
    others = [quoted(name) for name in rows.columns if name != document]
    root = _places(columns)
    levels = list(root.levels())
    places = [place for level in levels for place in level]
    rows = rows.selectExpr(*others, f"{quoted(document)} AS {root.value}")
    for level in levels:
        rows = _with(rows, {place.fields: fields(place.value) for place in level if place.inner})
        rows = _with(rows, {name: text for place in level for name, text in place.values_inside()})
    rows = _with(rows, {each.family: family_of(each.value) for each in places if each.is_scalar})
    rows = _with(rows, {each.fitted: each.fitted_text() for each in places if each.typed})
    for level in reversed(levels):
        rows = _with(rows, {place.rest: place.rest_text() for place in level if place.inner})
        rows = _with(rows, {place.left: place.left_text() for place in level})
    found = {name: text for place in places for name, text in place.found()}
    named = [f"{found[column.name]} AS {quoted(column.name)}" for column in columns]
    return rows.selectExpr(*others, *named, f"{root.left} AS {RESCUED}")


def document_text(columns: Sequence[TypedColumn]) -> str:
    """The VARIANT that the columns of a row and its `_rescued` were made of, as SQL text."""
    return f"coalesce({_places(columns).whole(RESCUED)}, to_variant_object({_NO_FIELDS}))"


@dataclass(slots=True)
class _Place:
    """A field of the document that columns take, or lead through; the root is the document.

    `is_kept`: a variant column has it, so only what does not fit other columns is left of it.
    All names begin with an underscore, as that of no typed column does but `_id`.
    """

    number: int
    is_kept: bool = False
    typed: TypedColumn | None = None
    variant: TypedColumn | None = None
    inner: dict[str, _Place] = field(default_factory=dict)

    @property
    def value(self) -> str:
        return f"_value{self.number}"

    @property
    def fields(self) -> str:
        return f"_fields{self.number}"

    @property
    def family(self) -> str:
        return f"_family{self.number}"

    @property
    def fitted(self) -> str:
        return f"_fitted{self.number}"

    @property
    def rest(self) -> str:
        return f"_rest{self.number}"

    @property
    def left(self) -> str:
        return f"_left{self.number}"

    @property
    def is_scalar(self) -> bool:
        return self.typed is not None and not isinstance(
            self.typed.type, ArrayType | MapType | StructType
        )

    def levels(self) -> Iterator[list[_Place]]:
        level = [self]
        while level:
            yield level
            level = [place for above in level for place in above.inner.values()]

    def values_inside(self) -> Iterator[tuple[str, str]]:
        for name, place in self.inner.items():
            yield place.value, f"{self.fields}[{literal(name)}]"

    def found(self) -> Iterator[tuple[str, str]]:
        if self.typed is not None:
            yield self.typed.name, self.fitted
        if self.variant is not None:
            yield self.variant.name, self.value

    def fitted_text(self) -> str:
        assert self.typed is not None
        return fitted(self.value, self.typed.type, self.family if self.is_scalar else None)

    def rest_text(self) -> str:
        """Of an object, the fields that are left, or left of."""
        rest = present({name: place.left for name, place in self.inner.items()})
        return rest if self.is_kept else f"map_concat({self._others(self.fields)}, {rest})"

    def left_text(self) -> str:
        """What is left of the value, null for nothing."""
        if self.typed is not None:
            return f"if({self.fitted} IS NULL AND NOT {is_missing(self.value)}, {self.value}, NULL)"
        if not self.inner:
            return "CAST(NULL AS variant)"
        is_whole = f"{self.fields} IS NULL"
        if self.number and not self.is_kept:
            # An empty object would be gone without a trace; a document is there by its key.
            is_whole += f" OR size({self.fields}) = 0"
        return f"if({is_whole}, {self.value}, {_object(self.rest)})"

    def whole(self, rescued: str) -> str:
        """The value of which `rescued` is left, if that is anything; null if there was none."""
        if self.variant is not None:
            return quoted(self.variant.name)
        if self.typed is not None:
            return f"coalesce({told_back(quoted(self.typed.name), self.typed.type)}, {rescued})"
        inner = {
            name: place.whole(f"{self.fields}[{literal(name)}]")
            for name, place in self.inner.items()
        }
        every = f"map_concat({self._others(self.fields)}, {present(inner)})"
        whole = let(self.rest, every, f"coalesce({_object(self.rest)}, {self.value})")
        known = f"coalesce({fields(self.value)}, {_NO_FIELDS})"
        return let(self.value, rescued, let(self.fields, known, whole))

    def _others(self, there: str) -> str:
        names = ", ".join(map(literal, self.inner))
        return f"map_filter({there}, (name, each) -> name NOT IN ({names}))"


def _places(columns: Iterable[TypedColumn]) -> _Place:
    root, count = _Place(0), 1
    # A variant comes before what is inside of it.
    for column in sorted(columns, key=lambda column: (len(column.path), not column.is_variant)):
        place = root
        for name in column.path:
            if name not in place.inner:
                place.inner[name] = _Place(count, place.is_kept)
                count += 1
            place = place.inner[name]
        if column.is_variant:
            place.variant, place.is_kept = column, True
        else:
            place.typed = column
    return root


def _with(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    if not columns:
        return rows
    return rows.selectExpr("*", *(f"{text} AS {name}" for name, text in columns.items()))


def _object(values: str) -> str:
    return f"if(size({values}) > 0, to_variant_object({values}), NULL)"
