"""The JSON schema of a pipeline's file, for editors: `python -m tests.reference` renews it."""

from __future__ import annotations

import json
from typing import Any

from cdc import options
from cdc.delta.tables import KEYS, MATCH, layout
from cdc.options import STARTING_POSITION, Option
from cdc.pipeline.sections import SINK_KEYS
from cdc.tasks import STORAGE_KEYS

# Options that jobs set themselves, or that only batch reads accept.
NOT_CONFIGURED = {
    "emit.watermark",
    *("snapshot.at", "snapshot.from", "snapshot.below", "from", "to"),
}
_DURATION = {"type": ["integer", "string"], "pattern": r"^\s*\d+\s*(ms|s|m|h|d)?\s*$"}
_SINK: dict[str, Any] = {
    "dead.letters.limit": {"type": "integer", "minimum": 0},
    "stop.seconds": _DURATION,
    "write.by": {"enum": ["auto", "tasks", "spark"]},
    "file.size.mb": {"type": "integer", "minimum": 1},
    "follow.by": {"enum": ["replicate", "follow"]},
    "mirror.interval": _DURATION,
}
_TEXT = {"type": "string"}


def text() -> str:
    """The schema, as the file contains it."""
    table = {name: _of_key(key) for name, key in KEYS.items()}
    sections = {
        "source": _section(_source(), ["uri", "collections"]),
        "sink": _section(
            {name: _SINK.get(name, _TEXT) | {"description": SINK_KEYS[name]} for name in SINK_KEYS},
            ["path"],
        ),
        "table": _section(table),
        "override": {"type": "array", "items": _section({MATCH: _TEXT, **table}, [MATCH])},
        "storage": _section(
            {name: _TEXT | {"description": doc} for name, doc in STORAGE_KEYS.items()}
        ),
        "spark": {"type": "object"},
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Pipeline of mongodb-cdc",
        **_object(sections),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    found: dict[str, Any] = {STARTING_POSITION: _TEXT}
    for option in options.OPTIONS:
        if option.name not in NOT_CONFIGURED:
            found |= dict.fromkeys([option.name, *option.aliases], _of_option(option))
    # A list of names, or a text with commas.
    found["collections"] |= {"type": ["string", "array"], "items": _TEXT}
    return found


def _of_option(option: Option) -> dict[str, Any]:
    about = {"description": option.description}
    if option.default is not None:
        about |= {"default": option.default}
    if option.choices:
        return about | {"enum": list(option.choices)}
    if option.unit:
        return about | _DURATION
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    limits = {"minimum": option.least, "maximum": option.most}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    return about | {"type": names[option.kind], **given}


def _of_key(key: layout.Key) -> dict[str, Any]:
    about = {"description": key.doc, "default": key.default}
    if key.choices:
        return about | {"enum": list(key.choices)}
    names = {bool: "boolean", dict: "object", list: "array", str: "string"}
    return about | {"type": names[type(key.default)]}


def _section(named: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """A section: TOML parses `document.format = "json"` as a table in a table."""
    nested: dict[str, Any] = {}
    for name, value in named.items():
        *tables, last = name.split(".")
        inner = nested
        for each in tables:
            inner = inner.setdefault(each, {})
        inner[last] = value | {"_": None}
    return _nest(nested) | ({"required": required} if required else {})


def _nest(named: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in named.items():
        is_option = "_" in value
        found[name] = {k: v for k, v in value.items() if k != "_"} if is_option else _nest(value)
    return _object(found)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
