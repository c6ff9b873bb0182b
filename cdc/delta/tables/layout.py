"""The layout: which tables a pipeline writes for which collection (`[table]`, overrides)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cdc.delta.columns import EVENT, FORMS, Columns
from cdc.delta.log import Target
from cdc.delta.tables.routing import Route, require_disjoint
from cdc.errors import BadOption
from cdc.model import Namespace, Selection
from cdc.options import Mistakes, current_names
from cdc.tasks import Storage

LETTERS = "dead_letters"
TRACK = "track.history.columns"
# The names that these had in the release before.
OLD_NAMES = {"dead_letters": "dead.letters", "track_history_columns": TRACK}
TRUNCATE, KEEP, FAIL = "truncate", "keep", "fail"
HARD, SOFT = "hard", "soft"
_TRUTH = ("true", "false")
# A task writes the rows of a collection into the folder of the first of these that it has.
ROW_KINDS = ("changelog", "mirror", "history")


class Key(NamedTuple):
    """A key of `[table]`: its default, the values it may have (empty: any), and what it says.

    `kind` is the kind of table whose template it is; "" if it is no template.
    """

    default: Any
    choices: tuple[str, ...]
    doc: str
    kind: str = ""


KEYS: Mapping[str, Key] = {
    "changelog": Key(
        "{db}/{coll}/changelog", (), "Template of changelogs; empty for none.", "changelog"
    ),
    "mirror": Key("{db}/{coll}/mirror", (), "Template of mirrors; empty for none.", "mirror"),
    "history": Key(
        "", (), "Template of histories, like `{db}/{coll}/history`; see *History*.", "history"
    ),
    "dead.letters": Key(
        "_dead_letters",
        (),
        "Template of the table of what could not be mapped; empty for none.",
        LETTERS,
    ),
    "form": Key(
        EVENT,
        FORMS,
        "`cdf`: changelogs have the form of a change data feed; `debezium`: their rows also have"
        " the fields of Debezium's events.",
    ),
    "delete": Key(
        HARD, (HARD, SOFT), "`soft`: deleted documents stay in the mirror, `_deleted` = true."
    ),
    "columns": Key(
        {}, (), "Typed columns of mirrors and histories, and their types, instead of `document`."
    ),
    "schema.evolution": Key(
        False, (), "With `columns`: whether new fields at the top of documents become columns."
    ),
    TRACK: Key(
        [], (), "Of `columns` those whose changes begin a version in a history; none: all changes."
    ),
    "on.drop": Key(
        TRUNCATE,
        (TRUNCATE, KEEP, FAIL),
        "A dropped collection's mirror is emptied, kept as it is, or the run ends.",
    ),
    "on.rename": Key(
        TRUNCATE, (TRUNCATE, KEEP, FAIL), "The same for a collection that got another name."
    ),
}
MATCH = "match"
# The key of each kind of table.
_TEMPLATES = {key.kind: name for name, key in KEYS.items() if key.kind}


def table() -> str:
    """The keys as a table in Markdown, for the documents."""
    defaults = {name: str(key.default).lower() for name, key in KEYS.items()}
    rows = [
        f"| `{name}` | {f'`{default}`' if default else '(empty)'} | {KEYS[name].doc} |"
        for name, default in defaults.items()
    ]
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows, ""])


@dataclass(frozen=True, slots=True)
class Options:
    """The options of some collections. A kind of table without a route is not written."""

    routes: Mapping[str, Route]
    changelog_form: str = EVENT
    columns: Columns | None = None
    evolves: bool = False
    track: tuple[str, ...] | None = None
    delete: str = HARD
    on_drop: str = TRUNCATE
    on_rename: str = TRUNCATE

    @property
    def row_kind(self) -> str | None:
        """The kind of table into whose folder tasks write rows; None if nothing stores them.

        Without a changelog no commit names the files of these rows. They are removed when the
        mirror and the history contain the batch.
        """
        return next((kind for kind in ROW_KINDS if kind in self.routes), None)

    @classmethod
    def parse(
        cls,
        given: Mapping[str, Any],
        base: str,
        only: Namespace | None = None,
        shared: Collection[tuple[str, str]] = (),
    ) -> Options:
        """Parse keys of `[table]`; missing keys have their defaults. Raises BadOption.

        Args:
            given: the keys.
            base: the option `sink.path`.
            only: the one collection that the options apply to; None for several.
            shared: kinds and templates whose tables also contain other collections, in spite of
                `only`.
        """
        mistakes = Mistakes()
        values = {
            name: mistakes.check(name, _checked, name, given.get(name, key.default))
            for name, key in KEYS.items()
        }
        mistakes.require_none()
        columns = _columns(values["columns"])
        return cls(
            changelog_form=values["form"],
            routes={
                kind: Route(base, values[key], None if (kind, values[key]) in shared else only)
                for kind, key in _TEMPLATES.items()
                if values[key]
            },
            columns=columns,
            evolves=values["schema.evolution"],
            track=_tracked(values[TRACK], columns),
            delete=values["delete"],
            on_drop=values["on.drop"],
            on_rename=values["on.rename"],
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A table, whether it exists or not.

    `namespace` None: the table contains several collections, and each row names its own.
    """

    target: Target
    namespace: Namespace | None
    options: Options = field(compare=False)

    @property
    def is_shared(self) -> bool:
        return self.namespace is None


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a pipeline. The first override that selects a collection applies to it.

    `storage` says how tables are reached whose place is a URL.

    Raises BadOption if tables of different kinds could have the same place.
    """

    default: Options
    overrides: tuple[tuple[Selection, Options], ...] = ()
    storage: Storage = field(default_factory=Storage, compare=False)
    _given: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        require_disjoint(
            dict.fromkeys(
                (kind, route) for options in self.all() for kind, route in options.routes.items()
            )
        )
        self.letters()

    @classmethod
    def parse(
        cls,
        base: str,
        table: Mapping[str, Any],
        overrides: Sequence[Mapping[str, Any]] = (),
        storage: Mapping[str, str] | None = None,
    ) -> Layout:
        """From `[table]`, the list of `[[override]]`, and `[storage]`. Raises BadOption."""
        table = current_names(table, OLD_NAMES, are_old=True)
        overrides = [current_names(each, OLD_NAMES, are_old=True) for each in overrides]
        given = [dict(table), *({**table, **override} for override in overrides)]
        uses = Counter(
            (kind, str(each.get(key, KEYS[key].default)))
            for each in given
            for kind, key in _TEMPLATES.items()
        )
        shared = {use for use, count in uses.items() if count > 1 or use[0] == LETTERS}
        mistakes = Mistakes()
        default = mistakes.check("table", Options.parse, table, base)
        mistakes.require_none()  # each override has the options of the table, but for its own
        others = [mistakes.check("override", _override, base, each, shared) for each in given[1:]]
        mistakes.require_none()
        return cls(
            default,
            tuple(others),
            Storage(dict(storage or {})),
            json.dumps(
                [base, dict(table), [dict(override) for override in overrides], storage or {}]
            ),
        )

    def text(self) -> str:
        """The layout for another process: what `parse` made it of, as JSON. Without secrets."""
        return self._given

    @classmethod
    def from_text(cls, text: str) -> Layout:
        """The inverse of `text`."""
        return cls.parse(*json.loads(text))

    def letters(self) -> list[Target]:
        """The tables of dead letters: one, unless overrides name others.

        Raises BadOption if a template has fields.
        """
        routes = (options.routes.get(LETTERS) for options in self.all())
        return sorted({route.fixed for route in routes if route})

    def of(self, namespace: Namespace) -> Options:
        for selection, options in self.overrides:
            if selection.matches(namespace):
                return options
        return self.default

    def table(self, kind: str, namespace: Namespace) -> Table | None:
        """The namespace's table of that kind, whether it exists or not; None if it has none."""
        options = self.of(namespace)
        if (route := options.routes.get(kind)) is None:
            return None
        return Table(route.target(namespace), None if route.is_shared else namespace, options)

    def all(self) -> Iterator[Options]:
        yield self.default
        yield from (options for _, options in self.overrides)


def _override(
    base: str, given: Mapping[str, Any], shared: Collection[tuple[str, str]]
) -> tuple[Selection, Options]:
    match = given.get(MATCH)
    if not isinstance(match, str) or not match:
        raise BadOption(
            "An [[override]] does not say for which collections it is.",
            f"Set {MATCH} to a full name or a regular expression on it.",
        )
    selection = Selection.parse(match)
    is_one = len(selection.names) == 1 and not selection.patterns
    keys = {name: value for name, value in given.items() if name != MATCH}
    return selection, Options.parse(keys, base, selection.names[0] if is_one else None, shared)


def _columns(given: Any) -> Columns | None:
    if not isinstance(given, Mapping):
        raise BadOption(
            "'columns' is no table of names and types.",
            'Write columns = { total = "decimal(18,2)", city = "string from address.city" }.',
        )
    return Columns.parse(given) if given else None


def _tracked(given: Any, columns: Columns | None) -> tuple[str, ...] | None:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BadOption(f"'{TRACK}' is no list of columns.", f'Write {TRACK} = ["total"].')
    names = {field.name for field in columns.fields()} if columns else set()
    if unknown := [name for name in given if name not in names]:
        raise BadOption(
            f"'{TRACK}' names what 'columns' does not: {', '.join(unknown)}.",
            "Name typed columns, or '_rescued', which holds everything else.",
        )
    return tuple(given) or None


def _checked(name: str, value: Any) -> Any:
    if isinstance(KEYS[name].default, bool):
        if (text := str(value).lower()) not in _TRUTH:
            raise BadOption(
                f"Option '{name}' of a table cannot be '{value}'.", "Use true or false."
            )
        return text == "true"
    choices = KEYS[name].choices
    if KEYS[name].kind and (not isinstance(value, str) or value.lower() in _TRUTH):
        raise BadOption(
            f"Option '{name}' of a table cannot be '{str(value).lower()}'.",
            f"Write a template like {KEYS[name].default or '{db}/{coll}/history'}, or an empty text"
            " for none.",
        )
    if choices and value not in choices:
        raise BadOption(
            f"Option '{name}' of a table cannot be '{value}'.", f"Use one of {', '.join(choices)}."
        )
    return value
