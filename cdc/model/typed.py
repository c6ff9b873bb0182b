"""The rule of typed columns: what of a VARIANT document each of them takes, and what is left.

Of scalars `cdc.model.fit` tells what fits. In an array, a map or a struct each element has to fit,
and may be null; a struct has no other fields than those of its type.

The document is walked as the columns' paths go; of each object that a path leads through, the
fields that nobody knows are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from cdc.model import variant_bytes as v
from cdc.model.fit import MISFIT, Array, Kind, Map, Scalar, Struct, scalar, text
from cdc.model.variant import object_of

Path: TypeAlias = tuple[str, ...]
# Value and metadata.
Variant: TypeAlias = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """A field of the document that columns take, or lead through; the root is the document.

    `typed` and `variant`: the numbers of the columns that take it. `is_kept`: a variant column has
    it, so only what does not fit other columns is left of it. `inner`: its own fields, by their
    numbers in the list of all places, in the order in which objects have them; all are behind it.
    """

    name: bytes = b""
    is_kept: bool = False
    typed: int | None = None
    variant: int | None = None
    inner: range = range(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Columns, and the places where their values are."""

    kinds: tuple[Kind, ...]
    places: tuple[Place, ...]

    @classmethod
    def of(cls, columns: Iterable[tuple[Path, Kind]]) -> Plan:
        """No path leads through what another typed column takes, and none is there twice."""
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
        return cls(tuple(kinds), tuple(_listed(root)))


@dataclass(slots=True)
class _Node:
    typed: int | None = None
    variant: int | None = None
    inner: dict[bytes, _Node] = field(default_factory=dict)


def _listed(root: _Node) -> list[Place]:
    waiting, found = [root], [Place(is_kept=root.variant is not None)]
    for number, node in enumerate(waiting):
        names = sorted(node.inner, key=lambda name: name.translate(v.UTF16))
        first, is_kept = len(found), found[number].is_kept
        found += [Place(name, is_kept or node.inner[name].variant is not None) for name in names]
        waiting += [node.inner[name] for name in names]
        found[number] = replace(
            found[number],
            typed=node.typed,
            variant=node.variant,
            inner=range(first, len(found)),
        )
    return found


@dataclass(frozen=True, slots=True)
class Taken:
    """Of each column what it has, as Arrow takes it, a VARIANT as a struct; and what is left."""

    columns: list[Any]
    rest: Variant | None


def taken(value: bytes, metadata: bytes, plan: Plan) -> Taken:
    """What becomes of a document, whatever it holds."""
    document = _Document(value, metadata, v.dictionary(metadata))
    columns: list[Any] = [None] * len(plan.kinds)
    is_whole = v.stop_of(value, 0, len(value)) == len(value)
    rest = document.take(v.Inner(0, len(value)), 0, plan, columns) if is_whole else value
    if not rest:
        return Taken(columns, None)
    return Taken(columns, v.with_own_names(rest, metadata, document.names))


@dataclass(frozen=True, slots=True)
class _Document:
    value: bytes
    metadata: bytes
    names: Sequence[bytes] | None

    def take(self, there: v.Inner, number: int, plan: Plan, columns: list[Any]) -> bytes | None:
        """Fills in the columns of a place; returns what is left of the value."""
        place = plan.places[number]
        if place.variant is not None:
            columns[place.variant] = self.fitted(there, Scalar.VARIANT)
        if place.typed is not None:
            found = self.fitted(there, plan.kinds[place.typed])
            if found is MISFIT:
                return self._bytes(there)
            columns[place.typed] = found
            return None
        return self._rest(there, number, plan, columns) if place.inner else None

    def _rest(self, there: v.Inner, number: int, plan: Plan, columns: list[Any]) -> bytes | None:
        place = plan.places[number]
        fields = v.fields(self.value, there.start, there.stop, self.names)
        # An empty object would be gone without a trace; a document is there by its key.
        if fields is None or not (fields or place.is_kept or number == 0):
            return self._bytes(there)
        known = {plan.places[inner].name: inner for inner in place.inner}
        left = list[tuple[int, bytes]]()
        for each in fields:
            inner = known.get(self.names[each.id]) if self.names else None
            if inner is not None:
                rest = self.take(each, inner, plan, columns)
            else:
                rest = None if place.is_kept else self._bytes(each)
            if rest is not None:
                left.append((each.id, rest))
        return object_of([id for id, _ in left], [rest for _, rest in left]) if left else None

    def fitted(self, there: v.Inner, kind: Kind) -> Any:
        """The value as a value of that type; None for null, MISFIT if it does not fit."""
        if kind is Scalar.VARIANT:
            found = v.with_own_names(self._bytes(there), self.metadata, self.names)
            return {"value": found[0], "metadata": found[1]}
        if self.value[there.start] == v.NULL:
            return None
        if isinstance(kind, Array):
            return self._array(there, kind)
        if isinstance(kind, Map):
            return self._map(there, kind)
        if isinstance(kind, Struct):
            return self._struct(there, kind)
        return scalar(self._bytes(there), kind)

    def _array(self, there: v.Inner, kind: Array) -> Any:
        found = v.elements(self.value, there.start, there.stop)
        if found is None:
            return MISFIT
        fitted = [self.fitted(each, kind.element) for each in found]
        return MISFIT if MISFIT in fitted else fitted

    def _map(self, there: v.Inner, kind: Map) -> Any:
        found = v.fields(self.value, there.start, there.stop, self.names)
        if found is None or self.names is None:
            return MISFIT
        keys = [text(self.names[each.id]) for each in found]
        fitted = [self.fitted(each, kind.value) for each in found]
        return MISFIT if MISFIT in keys + fitted else list(zip(keys, fitted, strict=True))

    def _struct(self, there: v.Inner, kind: Struct) -> Any:
        found = v.fields(self.value, there.start, there.stop, self.names)
        if found is None or self.names is None:
            return MISFIT
        known = {
            name.encode(): (name, each) for name, each in zip(kind.names, kind.kinds, strict=True)
        }
        fitted = dict.fromkeys(kind.names)
        for each in found:
            if self.names[each.id] not in known:
                return MISFIT
            name, inner = known[self.names[each.id]]
            fitted[name] = self.fitted(each, inner)
        return MISFIT if MISFIT in fitted.values() else fitted

    def _bytes(self, there: v.Inner) -> bytes:
        return self.value[there.start : there.stop]
