"""The configuration of a pipeline: a TOML file, overridden on the command line.

`[source]` holds the options of the source (`cdc.options`), `[sink]` where tables and checkpoint
live, `[table]` the templates of the tables' paths under it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc import options as declared
from cdc.delta.routing import Route
from cdc.errors import BadOption

SINK_KEYS = {
    "path": "Folder (or URL that Spark can write) under which all tables live; required.",
    "checkpoint": "Where the stream keeps its offsets; `<path>/_checkpoint` by default.",
    "trigger": "Shortest time between two micro-batches, like `5 seconds`; `0 seconds` by default.",
}
TABLE_KEYS = {
    "changelog": "Template of a changelog's path; empty for none; `{db}/{coll}/changelog`.",
    "mirror": "Template of a mirror's path; empty for none; `{db}/{coll}/mirror`.",
}
_TABLE_DEFAULTS = {"changelog": "{db}/{coll}/changelog", "mirror": "{db}/{coll}/mirror"}
_MIRRORED_IMAGES = ("auto", "required", "update_lookup")


@dataclass(frozen=True, slots=True)
class Config:
    """One pipeline. `source` are options of the source by name, as text, checked."""

    source: Mapping[str, str]
    checkpoint: str
    trigger: str
    changelog: Route | None
    mirror: Route | None


def load(path: str | None, overrides: Iterable[str] = ()) -> Config:
    """The checked configuration. `overrides` are `section.name=value`; without a section, or with
    an unknown one, the name is an option of the source. Raises BadOption."""
    sections: dict[str, dict[str, Any]] = {"source": {}, "sink": {}, "table": {}}
    if path is not None:
        _read(path, sections)
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise BadOption(f"'{override}' sets nothing.", "Write it as name=value.")
        section, _, rest = name.partition(".")
        if section in sections:
            sections[section][rest] = value
        else:
            sections["source"][name] = value
    return _checked(sections)


def _read(path: str, sections: dict[str, dict[str, Any]]) -> None:
    try:
        content = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise BadOption(
            f"There is no configuration file {path}.", "conf/example.toml shows one."
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadOption(f"The configuration file {path} cannot be read: {error}") from error
    for name, values in content.items():
        if name not in sections or not isinstance(values, dict):
            raise BadOption(
                f"{path}: there is no section [{name}].", declared.nearest(name, list(sections))
            )
        sections[name] = dict(_flat(values))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """`document.format = "json"` is a nested table to TOML, and one option to us."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _checked(sections: dict[str, dict[str, Any]]) -> Config:
    for section, known in (("sink", SINK_KEYS), ("table", TABLE_KEYS)):
        for name in sections[section]:
            if name not in known:
                raise BadOption(
                    f"There is no option '{name}' in [{section}].",
                    declared.nearest(name, list(known)),
                )
    source = {name: _text(value) for name, value in sections["source"].items()}
    parsed = declared.parse(source)
    base = str(sections["sink"].get("path", "")).rstrip("/")
    if not base:
        raise BadOption("Option 'path' in [sink] is not set.", SINK_KEYS["path"])
    templates = {**_TABLE_DEFAULTS, **sections["table"]}
    if templates["mirror"] and parsed["images"] not in _MIRRORED_IMAGES:
        raise BadOption(
            f"With images = {parsed['images']} an update may come without the document it led to,"
            " and no mirror can be kept.",
            "Set images to auto, or mirror in [table] to an empty string.",
        )
    return Config(
        source=source,
        checkpoint=str(sections["sink"].get("checkpoint", f"{base}/_checkpoint")),
        trigger=str(sections["sink"].get("trigger", "0 seconds")),
        changelog=Route(base, templates["changelog"]) if templates["changelog"] else None,
        mirror=Route(base, templates["mirror"]) if templates["mirror"] else None,
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
