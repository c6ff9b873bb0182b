"""What is told of the captured collections: which documents, and which of their fields.

The options `filter` and `fields`. How a server is asked for it says `cdc.mongo.excerpts`; here is
what the options mean, and what they leave of the description of an update.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cdc.errors import BadOption
from cdc.model import element, filter
from cdc.model.element import Element, elements
from cdc.model.extended_json import Json
from cdc.model.filter import Expression

Path = tuple[str, ...]
_Value = tuple[bytes, Element]  # where it lies in which bytes
# In a row event: see Passes.
PASSES = "passes"
_NOTHING = object()


class Passes(NamedTuple):
    """Whether an event's images pass the filter; None where there is no such image."""

    before: bool | None = None
    after: bool | None = None


_UNKNOWN = Passes()


def passes(event: Mapping[str, Any]) -> Passes:
    """What the server has marked an event with."""
    marks = event.get(PASSES)
    return _UNKNOWN if marks is None else Passes(marks["before"], marks["after"])


@dataclass(frozen=True, slots=True)
class Excerpt:
    """`text` says all of it, and is empty for all of all documents. `fields` are to be told alone,
    or, with `excludes`, to be left out. The `_id` is always told."""

    text: str = ""
    condition: Expression | None = None
    fields: tuple[Path, ...] = ()
    excludes: bool = False

    @classmethod
    def of(cls, match: str | None, fields: str | None) -> Excerpt:
        """From the two options, however they are spelled. Raises BadOption."""
        told = {}
        if match is not None:
            filter.parse(match)
            told["filter"] = json.dumps(json.loads(match))
        if fields is not None:
            items = (item.strip() for item in fields.split(","))
            told["fields"] = ", ".join(sorted(item for item in items if item))
        return cls.parse(json.dumps(told) if told else "")

    @classmethod
    def parse(cls, text: str) -> Excerpt:
        """From the `text` of one. Raises BadOption."""
        return _parsed(text)

    def of_update(self, description: dict[str, Json], image: bytes | None) -> dict[str, Json]:
        """An event's `updateDescription` without what it says of other fields. It tells paths with
        places in arrays; of `image`, a state of the document, is known what is such a place."""
        told: dict[str, Json] = {}
        for name, value in description.items():
            if name == "disambiguatedPaths" and isinstance(value, dict):
                told[name] = {p: v for p, v in value.items() if self._tells_of(self._at(p, image))}
            elif isinstance(value, dict):  # updatedFields
                parts = {p: self._part(v, self._at(p, image)) for p, v in value.items()}
                told[name] = {path: part for path, part in parts.items() if part is not _NOTHING}
            elif isinstance(value, list):  # removedFields, truncatedArrays
                told[name] = [v for v in value if self._tells_of(self._at(_path(v), image))]
            else:
                told[name] = value
        return told

    def _at(self, path: str, image: bytes | None) -> Path:
        """Without places in arrays. What may be one, and is not known to be, is taken for what
        leaves it out."""
        first, *rest = path.split(".")
        names, value = [first], _field(_whole(image), first)
        for name in rest:
            is_place = name.isdigit() and (
                (value is None and self.excludes) or _is(element.ARRAY, value)
            )
            value = _field(value, name)
            names += [] if is_place else [name]
        return tuple(names)

    def _part(self, value: Any, at: Path) -> Any:
        """What is told of a value, as a projection would: none of what is no document where only
        fields of documents are asked for."""
        if not self._is_divided(at):
            return value if self._tells_of(at) else _NOTHING
        if isinstance(value, dict) and not _is_wrapped(value):
            parts = ((name, self._part(each, (*at, name))) for name, each in value.items())
            return {name: part for name, part in parts if part is not _NOTHING}
        if isinstance(value, list):
            return [part for each in value if (part := self._part(each, at)) is not _NOTHING]
        return value if self.excludes else _NOTHING

    def _tells_of(self, at: Path) -> bool:
        """Whether anything at a path is told."""
        is_listed = any(_is_within(at, each) for each in self.fields)
        return is_listed != self.excludes or (not is_listed and self._is_divided(at))

    def _is_divided(self, at: Path) -> bool:
        """Whether fields below a path decide, and not the path."""
        is_listed = any(_is_within(at, each) for each in self.fields)
        return not is_listed and any(_is_within(each, at) for each in self.fields)


def by(text: str) -> str:
    """For the message of an error, which may come of an expression that fails for a document."""
    return " with option 'filter'" if Excerpt.parse(text).condition is not None else ""


@lru_cache(maxsize=16)
def _parsed(text: str) -> Excerpt:
    if not text:
        return Excerpt()
    told = json.loads(text)
    condition = filter.parse(told["filter"]) if "filter" in told else None
    paths, excludes = _fields(told["fields"]) if "fields" in told else ((), False)
    return Excerpt(text, condition, paths, excludes)


def _fields(text: str) -> tuple[tuple[Path, ...], bool]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    excluded = [item.startswith("-") for item in items]
    if not items or any(excluded) != all(excluded):
        raise BadOption(
            "Option 'fields' has to list paths to be told, or to be left out.",
            "Write all as path, or all as -path, separated by commas.",
        )
    paths = [_checked(item.removeprefix("-").strip()) for item in items]
    for path in paths:
        if path == ("_id",) and excluded[0]:
            raise BadOption("Option 'fields' cannot leave out _id.", "Take it off the list.")
        if any(_is_within(path, other) for other in paths if other is not path):
            raise BadOption(f"Option 'fields' lists '{'.'.join(path)}' and what it is part of.")
    return tuple(path for path in paths if path != ("_id",)) or (("_id",),), excluded[0]


def _checked(text: str) -> Path:
    path = tuple(text.split("."))
    is_bad = any(not name or name.startswith("$") or "\0" in name for name in path)
    if is_bad or (path[0] == "_id" and len(path) > 1):
        raise BadOption(f"'{text}' in option 'fields' is not the path of a field.")
    if any(name.isdigit() for name in path[1:]):
        raise BadOption(
            f"'{text}' in option 'fields' may be a place in an array.", "Name fields alone."
        )
    return path


def _is_wrapped(value: dict[str, Json]) -> bool:
    """Whether it is Extended JSON for something that is no document."""
    return next(iter(value), "").startswith("$")


def _path(removed: Json) -> str:
    return str(removed["field"] if isinstance(removed, dict) else removed)


def _whole(image: bytes | None) -> _Value | None:
    return None if image is None else (image, Element(element.DOCUMENT, b"", 0, len(image)))


def _is(kind: int, value: _Value | None) -> bool:
    return value is not None and value[1].kind == kind


def _field(value: _Value | None, name: str) -> _Value | None:
    """The field of a document, or the place in an array."""
    if value is None or value[1].kind not in (element.DOCUMENT, element.ARRAY):
        return None
    data, outer = value
    found = enumerate(elements(data, outer.start, outer.stop))
    if outer.kind == element.ARRAY:
        return next(((data, each) for place, each in found if str(place) == name), None)
    return next(((data, each) for _, each in found if each.name == name.encode()), None)


def _is_within(path: Path, outer: Path) -> bool:
    return path[: len(outer)] == outer
