"""The configuration of a pipeline: a TOML file, overridden on the command line.

`[source]` contains the options of the source (`cdc.options`), `[sink]` the locations of tables and
checkpoint. `[table]` configures the tables (`cdc.delta.tables.layout`). Each `[[override]]`
replaces settings of `[table]` for some collections. `[storage]` says how an object store is reached
(`cdc.tasks.storage`). `[spark]` has settings for the Spark session that a command starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cdc import options as declared
from cdc.delta.followers import has_followers, kinds_of
from cdc.delta.tables import Layout, Table
from cdc.errors import BadOption
from cdc.model import Namespace, quotable_name
from cdc.pipeline.sections import (
    ALL_SECTIONS,
    OVERRIDE,
    SECTIONS,
    SINK_KEYS,
    SPARK_SECTION,
    belongs_elsewhere,
    read_file,
    require_known,
)
from cdc.tasks import S3_SCHEMES, Storage, parse_location, scheme_of

T = TypeVar("T")
AUTO, TASKS, SPARK = "auto", "tasks", "spark"
REPLICATE, FOLLOW = "replicate", "follow"
_MIRRORED_IMAGES = ("auto", "required", "update_lookup")
# Spark accepts more triggers. Only units from microseconds to days make sense.
_TRIGGER = re.compile(
    r"(?:\d+(?:\.\d+)?\s+(?:micro|milli)?(?:second|minute|hour|day)s?\s*)+", re.IGNORECASE
)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SHORT_TRIGGER = re.compile(r"^\s*(\d+)\s*(ms|s|m|h|d)\s*$")
_BACKLOG_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Config:
    """The checked configuration of one pipeline.

    `source` contains the options of the source by name, as text; `options` are the same, parsed.
    `base` is `path` in `[sink]`. `spark` contains settings of Spark by their full names. `name` is
    that of the pipeline in metrics and on pages.
    """

    source: Mapping[str, str]
    options: declared.SourceOptions
    checkpoint: str
    trigger: str
    layout: Layout
    dead_letters_limit: int | None = None
    stop_seconds: int = 20
    write_by: str = AUTO
    file_size_mb: int = 128
    mirror_interval: float = 10.0
    follow_by: str = REPLICATE
    base: str = ""
    name: str = ""
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def backlog_warn(self) -> float:
        """Seconds. A mirror or history that lags its changelog for longer causes a warning."""
        return max(_BACKLOG_SECONDS, 3.0 * self.mirror_interval)

    @property
    def storage(self) -> Storage:
        """The options of `[storage]`."""
        return self.layout.storage

    def table(self, kind: str, namespace: Namespace) -> Table | None:
        """Return the collection's changelog, mirror …; None if it is not configured.

        The table need not exist yet.
        """
        return self.layout.table(kind, namespace)

    def require_table(self, kind: str, namespace: Namespace, instead: str = "") -> Table:
        """Return `table`. Raises BadOption if it is not configured; `instead` ends its remedy."""
        table = self.table(kind, namespace)
        if table is None:
            raise BadOption(
                f"[table] configures no {kind} for {namespace}.",
                f"Set the template '{kind}'{instead}.",
            )
        return table

    def parse_captured(self, name: str) -> Namespace:
        """Parse the full name of a captured collection.

        Raises BadOption if the pipeline does not capture it.
        """
        namespace = Namespace.parse(name)
        if not self.options.selection.matches(namespace):
            raise BadOption(
                f"This pipeline does not capture '{name}'.",
                "Correct the name, or 'collections' in [source].",
            )
        return namespace


def require_followable(layout: Layout, base: str) -> None:
    """Raise BadOption unless another program may apply the changelogs.

    Each mirror and history needs a changelog that it can follow. On S3, two JVMs that commit to one
    table may overwrite each other's commit: Delta has no lock there.
    """
    if scheme_of(base) in S3_SCHEMES:
        raise BadOption(
            "Tables on S3 may be written by one program only: with two, Delta may lose commits.",
            "Leave 'follow.by' in [sink] at replicate, which then applies the changelogs itself.",
        )
    named = [("[table]", layout.default)]
    named += [(f"[[override]] of '{which.text}'", options) for which, options in layout.overrides]
    for name, options in named:
        kinds = kinds_of(options)
        if kinds and "changelog" not in options.routes:
            raise BadOption(
                f"{name} configures a {kinds[0].name} without a changelog, so only replicate can"
                " write it.",
                "Set the template 'changelog' there, or leave 'follow.by' in [sink] at replicate.",
            )


def load(path: str | None, overrides: Iterable[str] = ()) -> Config:
    """Read and check the configuration.

    Args:
        path: The TOML file; None if `overrides` contain everything.
        overrides: Texts `section.name=value`. Without a section, or with an unknown one, the name
            is an option of the source.

    Raises BadOption if the file cannot be read, or if an option is missing, unknown or wrong. The
    error reports all such options, with their lines in the file.
    """
    overrides = list(overrides)
    if path is None and not overrides:
        raise BadOption(
            "There is no configuration.",
            "Name a file with --config; conf/example.toml is an example.",
        )
    sections: dict[str, dict[str, Any]] = {section: {} for section in ALL_SECTIONS}
    by_match: list[dict[str, Any]] = []
    elsewhere = set[str]()
    if path is not None:
        read_file(path, sections, by_match)
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals:
            raise BadOption(f"'{quotable_name(name)}' sets no value.", "Write it as name=value.")
        section, _, rest = name.partition(".")
        if section not in sections:
            section, rest = "source", name
        sections[section][rest] = value
        elsewhere.add(f"{section}.{rest}")
    try:
        return _build_config(sections, by_match)
    except BadOption as error:
        raise (declared.locate(error, path, elsewhere) if path is not None else error) from None


def _build_config(sections: dict[str, dict[str, Any]], overrides: list[dict[str, Any]]) -> Config:
    mistakes = declared.Mistakes()
    for section in SECTIONS:
        require_known(section, sections[section], mistakes)
    for override in overrides:
        require_known(OVERRIDE, override, mistakes)
    given = {
        name: value for name, value in sections["source"].items() if not belongs_elsewhere(name)
    }
    source = declared.canonical({name: to_text(value) for name, value in given.items()})
    parsed = mistakes.check("source", declared.parse, source)
    sink = _parse_sink(sections["sink"], mistakes)
    spark = mistakes.check(SPARK_SECTION, _parse_spark, sections[SPARK_SECTION])
    base = sink["base"]
    storage = {name: to_text(value) for name, value in sections["storage"].items()}
    layout = mistakes.check("", Layout.parse, base or "", sections["table"], overrides, storage)
    mistakes.require_none()
    if has_followers(layout) and parsed.images not in _MIRRORED_IMAGES:
        raise BadOption(
            f"Option 'images' is {parsed.images}: an update may come without its document, so"
            " neither a mirror nor a history can be written.",
            "Set images to auto, or set mirror and history in [table] to empty strings.",
        )
    if any(options.columns for options in layout.all()) and parsed.document_format != "variant":
        raise BadOption(
            f"Option 'columns' is set, but document.format is {parsed.document_format}:"
            " typed columns can be made from variant only.",
            "Set document.format to variant, or remove 'columns'.",
        )
    if sink["follow_by"] == FOLLOW:
        require_followable(layout, base)
    return Config(source=source, options=parsed, layout=layout, spark=spark, **sink)


def _parse_sink(given: Mapping[str, Any], mistakes: declared.Mistakes) -> dict[str, Any]:
    """Return the attributes of `Config` that `[sink]` sets."""

    def parse(name: str, how: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        return mistakes.check(f"sink.{name}", how, given, name, *arguments, **more)

    base = parse("path", _parse_path, None)
    if base is None and not given.get("path"):
        missing = BadOption("Option 'path' in [sink] is not set.", f"Set it: {SINK_KEYS['path']}")
        mistakes.add(missing, "sink.path")
    return {
        "base": base,
        "name": str(given.get("name", "")).strip() or str(base).rpartition("/")[2],
        "checkpoint": parse("checkpoint", _parse_path, f"{base}/_checkpoint"),
        "trigger": parse("trigger", _parse_trigger),
        "dead_letters_limit": parse("dead.letters.limit", _parse_number, None),
        "stop_seconds": parse("stop.seconds", _parse_number, 20, unit="s"),
        "write_by": parse("write.by", _parse_choice, (AUTO, TASKS, SPARK)),
        "file_size_mb": parse("file.size.mb", _parse_number, 128, least=1),
        "mirror_interval": parse("mirror.interval", _parse_number, 10, unit="s"),
        "follow_by": parse("follow.by", _parse_choice, (REPLICATE, FOLLOW)),
    }


def _parse_path(section: Mapping[str, Any], name: str, default: T) -> str | T:
    """Return an absolute path or a URL.

    Delta takes any other path of a new table for a name in the catalog.
    """
    path = str(section.get(name, "")).rstrip("/")
    if not path:
        return default
    location = parse_location(path, name)  # before an error quotes the path
    if re.match(r"~|\$\w", path):
        raise BadOption(
            f"{name} cannot be '{path}': only a shell replaces '~' and variables.",
            "Write it out in full.",
        )
    return location


def _parse_trigger(section: Mapping[str, Any], name: str) -> str:
    text = str(section.get(name, "0 seconds"))
    text = _SHORT_TRIGGER.sub(lambda found: f"{found[1]} {_UNITS[found[2]]}", text)
    if not _TRIGGER.fullmatch(text.removeprefix("interval ")):
        raise BadOption(f"{name} cannot be '{text}'.", "Write it like 5s or 2m.")
    return text


def _parse_choice(section: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    """Return one of the choices; the first is the default."""
    value = str(section.get(name, choices[0]))
    if value not in choices:
        raise BadOption(f"{name} cannot be '{value}'.", f"Use one of {', '.join(choices)}.")
    return value


def _parse_spark(given: Mapping[str, Any]) -> dict[str, str]:
    """Return settings of Spark by their full names."""
    prefix = f"{SPARK_SECTION}."
    for name in given:
        if name.startswith(prefix):
            short = name.removeprefix(prefix)
            raise BadOption(
                f"The options of [{SPARK_SECTION}] have no '{prefix}' in front: '{name}'.",
                f"Write {short} = … in the file, or -o {prefix}{short}=… on the command line.",
            )
    return {prefix + name: to_text(value) for name, value in given.items()}


def _parse_number(
    section: Mapping[str, Any], name: str, default: T, least: int = 0, unit: str = ""
) -> int | T:
    value = section.get(name)
    if value is None:
        return default
    if unit:
        value = declared.expand_duration(name, str(value), unit)
    if str(value).isdecimal() and int(value) >= least:
        return int(value)
    raise BadOption(f"{name} cannot be '{value}'.", f"Set a whole number of at least {least}.")


def to_text(value: Any) -> str:
    """Return the text that the command line would give for a value of TOML."""
    if isinstance(value, list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
