"""Capture filter and projection: which documents are captured, and which of their fields.

They are the options `filter` and `fields`. This module parses them and applies the projection to
the description of an update. `cdc.mongo.query.projection` translates them to queries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cdc.errors import BadOption
from cdc.model import match_expression
from cdc.model.bson import Element, Json, element, elements
from cdc.model.match_expression import Expression

Path = tuple[str, ...]
_Value = tuple[bytes, Element]  # the bytes of a document, and a value in them
# The field of a row event that contains its marks, see Passes.
PASSES = "passes"
_OMITTED = object()


class FilterMarks(NamedTuple):
    """Whether the images of an event pass the filter; None for an image that does not exist."""

    before: bool | None = None
    after: bool | None = None


_UNKNOWN = FilterMarks()


def filter_marks(event: Mapping[str, Any]) -> FilterMarks:
    """The marks that the server's pipeline set in an event."""
    marks = event.get(PASSES)
    return _UNKNOWN if marks is None else FilterMarks(marks["before"], marks["after"])


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """A capture filter and a projection.

    `text` is the stored form of both; it is empty if all fields of all documents are captured.
    `condition` is the filter as an aggregation expression. Only `fields` are captured, or all but
    them if `excludes` is true. The `_id` is always captured.
    """

    text: str = ""
    condition: Expression | None = None
    fields: tuple[Path, ...] = ()
    excludes: bool = False

    @classmethod
    def from_options(cls, match: str | None, fields: str | None) -> CaptureFilter:
        """Parse the two options. Equivalent spellings have the same `text`. Raises BadOption."""
        options = {}
        if match is not None:
            match_expression.parse(match)
            options["filter"] = json.dumps(json.loads(match))
        if fields is not None:
            items = (item.strip() for item in fields.split(","))
            options["fields"] = ", ".join(sorted(item for item in items if item))
        return cls.parse(json.dumps(options) if options else "")

    @classmethod
    def parse(cls, text: str) -> CaptureFilter:
        """Parse a stored `text`. Raises BadOption."""
        return _parse(text)

    @property
    def error_suffix(self) -> str:
        """A suffix for error messages: the filter's expression may have failed for a document."""
        return " with option 'filter'" if self.condition is not None else ""

    def project_update(self, description: dict[str, Json], image: bytes | None) -> dict[str, Json]:
        """Apply the projection to an event's `updateDescription`.

        Its paths contain positions in arrays. `image`, a state of the document, shows which numbers
        in a path are such positions; without an image, ambiguous fields are omitted.
        """
        projected: dict[str, Json] = {}
        for name, value in description.items():
            if name == "disambiguatedPaths" and isinstance(value, dict):
                projected[name] = {
                    path: part
                    for path, part in value.items()
                    if self._captures(self._field_path(path, image))
                }
            elif isinstance(value, dict):  # updatedFields
                parts = {p: self._project(v, self._field_path(p, image)) for p, v in value.items()}
                projected[name] = {p: part for p, part in parts.items() if part is not _OMITTED}
            elif isinstance(value, list):  # removedFields, truncatedArrays
                projected[name] = [
                    each
                    for each in value
                    if self._captures(self._field_path(_removed_path(each), image))
                ]
            else:
                projected[name] = value
        return projected

    def _field_path(self, path: str, image: bytes | None) -> Path:
        """The path without its positions in arrays.

        If it is unknown whether a number is a position or a field name, it is read in the way that
        omits the value.
        """
        first, *rest = path.split(".")
        names, value = [first], _field(_whole(image), first)
        for name in rest:
            is_position = name.isdigit() and (
                (value is None and self.excludes) or _is_kind(element.ARRAY, value)
            )
            value = _field(value, name)
            names += [] if is_position else [name]
        return tuple(names)

    def _project(self, value: Any, at: Path) -> Any:
        """The captured part of a value, as the server's projection returns it.

        If only fields below the path are captured, a value that is no document is omitted.
        """
        if not self._has_fields_below(at):
            return value if self._captures(at) else _OMITTED
        if isinstance(value, dict) and not _is_wrapped(value):
            parts = ((name, self._project(each, (*at, name))) for name, each in value.items())
            return {name: part for name, part in parts if part is not _OMITTED}
        if isinstance(value, list):
            return [part for each in value if (part := self._project(each, at)) is not _OMITTED]
        return value if self.excludes else _OMITTED

    def _captures(self, at: Path) -> bool:
        """Whether anything at a path is captured."""
        is_listed = any(_is_within(at, each) for each in self.fields)
        return is_listed != self.excludes or (not is_listed and self._has_fields_below(at))

    def _has_fields_below(self, at: Path) -> bool:
        """Whether fields below the path are listed, but not the path itself."""
        is_listed = any(_is_within(at, each) for each in self.fields)
        return not is_listed and any(_is_within(each, at) for each in self.fields)


@lru_cache(maxsize=16)
def _parse(text: str) -> CaptureFilter:
    if not text:
        return CaptureFilter()
    options = json.loads(text)
    condition = match_expression.parse(options["filter"]) if "filter" in options else None
    paths, excludes = _parse_fields(options["fields"]) if "fields" in options else ((), False)
    return CaptureFilter(text, condition, paths, excludes)


def _parse_fields(text: str) -> tuple[tuple[Path, ...], bool]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    excluded = [item.startswith("-") for item in items]
    if not items or any(excluded) != all(excluded):
        raise BadOption(
            "Option 'fields' must list either paths to capture or paths to leave out.",
            "Write all as path, or all as -path, separated by commas.",
        )
    paths = [_parse_path(item.removeprefix("-").strip()) for item in items]
    for path in paths:
        if path == ("_id",) and excluded[0]:
            raise BadOption("Option 'fields' cannot leave out _id.", "Remove it from the list.")
        if any(_is_within(path, other) for other in paths if other is not path):
            raise BadOption(
                f"Option 'fields' lists '{'.'.join(path)}' twice, or with what it is part of."
            )
    return tuple(path for path in paths if path != ("_id",)) or (("_id",),), excluded[0]


def _parse_path(text: str) -> Path:
    path = tuple(text.split("."))
    is_bad = any(not name or name.startswith("$") or "\0" in name for name in path)
    if is_bad or (path[0] == "_id" and len(path) > 1):
        raise BadOption(f"'{text}' in option 'fields' is not the path of a field.")
    if any(name.isdigit() for name in path[1:]):
        raise BadOption(
            f"'{text}' in option 'fields' may be a position in an array.",
            "List only names of fields.",
        )
    return path


def _is_wrapped(value: dict[str, Json]) -> bool:
    """Whether an object is Extended JSON for a value that is not a document."""
    return next(iter(value), "").startswith("$")


def _removed_path(removed: Json) -> str:
    return str(removed["field"] if isinstance(removed, dict) else removed)


def _whole(image: bytes | None) -> _Value | None:
    return None if image is None else (image, Element(element.DOCUMENT, b"", 0, len(image)))


def _is_kind(kind: int, value: _Value | None) -> bool:
    return value is not None and value[1].kind == kind


def _field(value: _Value | None, name: str) -> _Value | None:
    """The field of a document, or the element of an array at a position; None if there is none."""
    if value is None or value[1].kind not in (element.DOCUMENT, element.ARRAY):
        return None
    data, outer = value
    found = enumerate(elements(data, outer.start, outer.stop))
    if outer.kind == element.ARRAY:
        return next(((data, each) for place, each in found if str(place) == name), None)
    return next(((data, each) for _, each in found if each.name == name.encode()), None)


def _is_within(path: Path, outer: Path) -> bool:
    return path[: len(outer)] == outer
