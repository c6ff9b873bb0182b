"""The sections of a configuration and their options, and the TOML file that contains them."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from cdc import options as declared
from cdc.delta.tables import KEYS, MATCH, OLD_NAMES
from cdc.errors import BadOption
from cdc.model import quotable_name
from cdc.tasks import STORAGE_KEYS

SINK_KEYS = {
    "path": "Folder (or URL that Spark can write) that contains all tables; required. A relative"
    " path starts at the folder in which the program is started.",
    "checkpoint": "Folder or URL of the stream's offsets; `<path>/_checkpoint` by default.",
    "name": "Name of the pipeline in metrics and on pages; by default the last folder of `path`.",
    "dead.letters.limit": "How many images of a run may be unmappable; no limit by default.",
    "stop.seconds": "How long a stop waits for the batch being written; 20 by default. "
    + declared.explain_duration("s"),
    "write.by": "Who writes the data files of changelogs: `tasks`, which read the source, or"
    " `spark`. By default `auto`: tasks, unless they cannot (tables of a catalog, a store"
    " that pyarrow cannot write, a `form` that is not `event`).",
    "file.size.mb": "Size at which a task begins a new data file; 128 by default.",
    "follow.by": "Which program applies changelogs to mirrors and histories: `replicate` (default),"
    " or `follow`: `mongodb-cdc follow`, which may run elsewhere.",
    "mirror.interval": "Time between two updates of mirrors and histories from the changelogs;"
    " 10 by default, 0 for no pause. " + declared.explain_duration("s"),
    "trigger": "Shortest time between two micro-batches, like `5s` or `5 seconds`; `0 seconds` by"
    " default.",
}
OVERRIDE = "override"
SECTIONS: Mapping[str, Collection[str]] = {
    "source": [option.name for option in declared.OPTIONS],
    "sink": SINK_KEYS,
    "table": KEYS,
    "storage": STORAGE_KEYS,
}
# Its options are those of Spark, without `spark.` in front.
SPARK_SECTION = "spark"
ALL_SECTIONS = (*SECTIONS, SPARK_SECTION)


def read_file(
    path: str, sections: dict[str, dict[str, Any]], overrides: list[dict[str, Any]]
) -> None:
    """Read a file into `sections` and `overrides`.

    Raises BadOption if the file cannot be read, or if an option is in no section. The names of
    options are not checked; see `require_known`.
    """
    try:
        content = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        raise BadOption(
            f"There is no configuration file {path}.",
            "Correct the path; conf/example.toml is an example of such a file.",
        ) from None
    except OSError as error:
        raise BadOption(
            f"The configuration file {path} cannot be read: {error.strerror}.",
            "Name a file that this user can read.",
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadOption(
            f"The configuration file {path} is no TOML: {error}.",
            'Correct that line; write text in quotes, as in uri = "env:MONGODB_URI".',
        ) from error
    given = content.pop(OVERRIDE, [])
    if not _are_tables(given):
        raise BadOption(
            f"{path}: an override is not a section.",
            "Write [[override]] above the options of each.",
        )
    overrides.extend(dict(flatten(values)) for values in given)
    for name, values in content.items():
        _require_section(path, name, values)
        sections[name] = dict(flatten(values))


def _are_tables(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, dict) for each in values)


def _require_section(path: str, name: str, values: Any) -> None:
    if name in ALL_SECTIONS and isinstance(values, dict):
        return
    if name in ALL_SECTIONS:
        raise BadOption(
            f"{path}: '{name}' is not an option but a section.",
            f"Write [{name}] once, and its options below it.",
        )
    option = next((full for full, _ in flatten({name: values})), name)
    if _section_of(option) or not (isinstance(values, dict) or _are_tables(values)):
        raise BadOption(
            f"{path}: option '{option}' is not in a section.",
            f"Write it below [{_section_of(option) or 'source'}].",
        )
    known = [*ALL_SECTIONS, OVERRIDE]
    raise BadOption(f"{path}: there is no section [{name}].", declared.nearest(name, known))


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Join the names of nested tables: TOML parses `document.format = "json"` as a table."""
    for name, value in values.items():
        # The keys of `columns` are names of the user, not options.
        if isinstance(value, dict) and prefix + name != "columns":
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def require_known(section: str, given: Iterable[str], mistakes: declared.Mistakes) -> None:
    """Collect a mistake for each name that the section does not have.

    An unknown name in `[source]` is reported only if it belongs to another section. `cdc.options`
    reports the others, because it does not quote a name that may contain credentials.
    """
    known = [MATCH, *KEYS] if section == OVERRIDE else list(SECTIONS[section])
    old = OLD_NAMES if section in ("table", OVERRIDE) else {}
    for name in given:
        home = _section_of(name)
        if name in known or name in old or (section == "source" and not belongs_elsewhere(name)):
            continue
        shown = f"[[{OVERRIDE}]]" if section == OVERRIDE else f"[{section}]"
        remedy = f"Move it to [{home}], or write -o {home}.{name}=…" if home else ""
        error = BadOption(
            f"There is no option '{quotable_name(name)}' in {shown}.",
            remedy or declared.nearest(name, known),
        )
        mistakes.add(error, f"{section}.{name}")


def belongs_elsewhere(name: str) -> bool:
    """Return whether an option that stands in `[source]` is one of another section."""
    return _section_of(name) not in (None, "source")


def _section_of(name: str) -> str | None:
    return next((section for section, known in SECTIONS.items() if name in known), None)
