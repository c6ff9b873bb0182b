"""Typed columns: the values that they take from a VARIANT document, and the rescued rest.

`cdc.model.typed.casts` decides which scalars fit a type. In an array, a map or a struct each
element must fit or be null. A struct must not have other fields than those of its type.

The document is traversed along the paths of the columns. In each object on a path, the fields that
belong to no column are rescued unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from cdc.model.encoding import pack_object
from cdc.model.encoding import variant_bytes as v
from cdc.model.typed.casts import MISFIT, Array, Kind, Map, Scalar, Struct, scalar, text

Path: TypeAlias = tuple[str, ...]
# The value and the metadata.
Variant: TypeAlias = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """A field of the document that is on the path of a column; the root is the document itself.

    `typed` and `variant` are the numbers of the columns that take the field. `is_in_variant`: a
    variant column contains it, so only values that do not fit other columns are rescued from it.
    `inner`: its own fields, as indices in the list of all places, in the order of names in an
    object; all of them come later in that list.
    """

    name: bytes = b""
    is_in_variant: bool = False
    typed: int | None = None
    variant: int | None = None
    inner: range = range(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """The types of the columns, and the places of their values."""

    kinds: tuple[Kind, ...]
    places: tuple[Place, ...]

    @classmethod
    def of(cls, columns: Iterable[tuple[Path, Kind]]) -> Plan:
        """Plan columns. The caller must pass no path twice, and none below another typed column."""
        kinds = list[Kind]()
        root = _Node()
        for number, (path, kind) in enumerate(columns):
            kinds.append(kind)
            node = root
            for name in path:
                node = node.inner.setdefault(name.encode(), _Node())
            if kind is Scalar.VARIANT:
                node.variant = number
            else:
                node.typed = number
        return cls(tuple(kinds), tuple(_list_places(root)))


@dataclass(slots=True)
class _Node:
    typed: int | None = None
    variant: int | None = None
    inner: dict[bytes, _Node] = field(default_factory=dict)


def _list_places(root: _Node) -> list[Place]:
    waiting, places = [root], [Place(is_in_variant=root.variant is not None)]
    for number, node in enumerate(waiting):
        names = sorted(node.inner, key=lambda name: name.translate(v.UTF16))
        first, is_in_variant = len(places), places[number].is_in_variant
        places += [
            Place(name, is_in_variant or node.inner[name].variant is not None) for name in names
        ]
        waiting += [node.inner[name] for name in names]
        places[number] = replace(
            places[number],
            typed=node.typed,
            variant=node.variant,
            inner=range(first, len(places)),
        )
    return places


@dataclass(frozen=True, slots=True)
class TypedRow:
    """The columns of a document, as Arrow values, a VARIANT as a struct; and the rescued rest."""

    columns: list[Any]
    rescued: Variant | None


def take_columns(value: bytes, metadata: bytes, plan: Plan) -> TypedRow:
    """Split a document into columns and the rest. Never raises: damaged bytes are rescued."""
    document = _Document(value, metadata, v.dictionary(metadata))
    columns: list[Any] = [None] * len(plan.kinds)
    is_whole = v.stop_of(value, 0, len(value)) == len(value)
    rest = document.take(v.Inner(0, len(value)), 0, plan, columns) if is_whole else value
    if not rest:
        return TypedRow(columns, None)
    return TypedRow(columns, v.trim_dictionary(rest, metadata, document.names))


@dataclass(frozen=True, slots=True)
class _Document:
    value: bytes
    metadata: bytes
    names: Sequence[bytes] | None

    def take(self, there: v.Inner, number: int, plan: Plan, columns: list[Any]) -> bytes | None:
        """Fill in the columns of a place; return the rest of the value, None if nothing remains."""
        place = plan.places[number]
        if place.variant is not None:
            columns[place.variant] = self.cast(there, Scalar.VARIANT)
        if place.typed is not None:
            cast = self.cast(there, plan.kinds[place.typed])
            if cast is MISFIT:
                return self._bytes(there)
            columns[place.typed] = cast
            return None
        return self._take_fields(there, number, plan, columns) if place.inner else None

    def _take_fields(
        self, there: v.Inner, number: int, plan: Plan, columns: list[Any]
    ) -> bytes | None:
        place = plan.places[number]
        fields = v.fields(self.value, there.start, there.stop, self.names)
        # Rescue an empty object, or it would be lost. An empty document still has its key.
        if fields is None or not (fields or place.is_in_variant or number == 0):
            return self._bytes(there)
        known = {plan.places[inner].name: inner for inner in place.inner}
        left = list[tuple[int, bytes]]()
        for each in fields:
            inner = known.get(self.names[each.id]) if self.names else None
            if inner is not None:
                rest = self.take(each, inner, plan, columns)
            else:
                rest = None if place.is_in_variant else self._bytes(each)
            if rest is not None:
                left.append((each.id, rest))
        return pack_object([id for id, _ in left], [rest for _, rest in left]) if left else None

    def cast(self, there: v.Inner, kind: Kind) -> Any:
        """Cast the value to that type; None for null, MISFIT if it does not fit."""
        if kind is Scalar.VARIANT:
            value, metadata = v.trim_dictionary(self._bytes(there), self.metadata, self.names)
            return {"value": value, "metadata": metadata}
        if self.value[there.start] == v.NULL:
            return None
        if isinstance(kind, Array):
            return self._cast_array(there, kind)
        if isinstance(kind, Map):
            return self._cast_map(there, kind)
        if isinstance(kind, Struct):
            return self._cast_struct(there, kind)
        return scalar(self._bytes(there), kind)

    def _cast_array(self, there: v.Inner, kind: Array) -> Any:
        elements = v.elements(self.value, there.start, there.stop)
        if elements is None:
            return MISFIT
        values = [self.cast(each, kind.element) for each in elements]
        return MISFIT if MISFIT in values else values

    def _cast_map(self, there: v.Inner, kind: Map) -> Any:
        fields = v.fields(self.value, there.start, there.stop, self.names)
        if fields is None or self.names is None:
            return MISFIT
        keys = [text(self.names[each.id]) for each in fields]
        values = [self.cast(each, kind.value) for each in fields]
        return MISFIT if MISFIT in keys + values else list(zip(keys, values, strict=True))

    def _cast_struct(self, there: v.Inner, kind: Struct) -> Any:
        fields = v.fields(self.value, there.start, there.stop, self.names)
        if fields is None or self.names is None:
            return MISFIT
        known = {
            name.encode(): (name, each) for name, each in zip(kind.names, kind.kinds, strict=True)
        }
        values = dict.fromkeys(kind.names)
        for each in fields:
            if self.names[each.id] not in known:
                return MISFIT
            name, inner = known[self.names[each.id]]
            values[name] = self.cast(each, inner)
        return MISFIT if MISFIT in values.values() else values

    def _bytes(self, there: v.Inner) -> bytes:
        return self.value[there.start : there.stop]
