"""Every option of the source, declared once: name, type, default and one sentence.

The README's table is printed from `OPTIONS`, and a test compares `conf/example.toml` with it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from cdc.errors import BadOption
from cdc.model import timestamp, token
from cdc.model.excerpt import Excerpt
from cdc.model.selection import Selection
from cdc.model.uri import require_given

T = TypeVar("T")
MODES = ("initial", "snapshot", "latest", "timestamp", "token", "earliest")
_STARTS = {"timestamp": timestamp.parse, "token": token.parse}


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as an attribute of `SourceOptions` declares it.

    `choices` limits a string, `least` a number. `default` None means required or absent, as the
    sentence says.
    """

    attribute: str
    kind: type
    default: Any
    says: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    required: bool = False

    @property
    def name(self) -> str:
        """The name that users write: `retry.seconds` for `retry_seconds`, `from` for `from_`."""
        return self.attribute.rstrip("_").replace("_", ".")


def _option(default: T, says: str, *, choices: tuple[str, ...] = (), least: int | None = None) -> T:
    return field(default=default, metadata={"says": says, "choices": choices, "least": least})


def _required(says: str, *, secret: bool = False) -> str:
    declared: str = field(repr=not secret, metadata={"says": says, "required": True})
    return declared


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one source, checked: an attribute per option, and what is parsed of them.

    An option's name is its attribute's, with dots: see `Option.name`. `selection` is parsed from
    `collections`, `capture` from `filter` and `fields`. The `repr` contains no credentials. The
    constructor raises BadOption for options that are malformed or contradict each other, BadToken
    for a malformed token. It does not check `choices` and `least`: `cdc.options.parse` does.
    """

    uri: str = _required(
        "Connection string of a replica set; `env:NAME` and `file:PATH` read it from there, on"
        " each machine that connects.",
        secret=True,
    )
    collections: str = _required(
        "What to capture: full names `db.coll`, regular expressions on the full name, several"
        " separated by commas, or a JSON list.",
    )
    missing_collections: str = _option(
        "fail",
        "When a name or an expression in `collections` matches no collection, in a new run or as it"
        " is added: `fail` ends the run and names the nearest ones; `wait` goes on without, and"
        " captures from birth what is created later.",
        choices=("fail", "wait"),
    )
    mode: str = _option(
        "initial",
        "Where a stream without checkpoint begins: `initial` copies everything and goes on with"
        " changes, `snapshot` copies everything as of one time, which lies behind the start, and"
        " ends there; `latest` begins now, `timestamp` and `token` at `start`, `earliest` with the"
        " oldest change that the oplog holds.",
        choices=MODES,
    )
    start: str | None = _option(
        None,
        "With `mode = timestamp`: the first moment to read changes of, ISO-8601 or a cluster time"
        " `t:i`. With `mode = token`: the resume token or the `position` to go on behind.",
    )
    images: str = _option(
        "auto",
        "Images of a change: `auto` takes recorded pre- and post-images and looks up a missing"
        " `after`, `required` also refuses collections that do not record them, `when_available`"
        " never looks up, `update_lookup` always does, `off` asks for none.",
        choices=("auto", "required", "when_available", "update_lookup", "off"),
    )
    filter: str | None = _option(
        None,
        'Which documents to capture: a match in Extended JSON, `{"region": "EU"}`, applied by the'
        " server to what is copied and to changes; see *Filter and fields*.",
    )
    fields: str | None = _option(
        None,
        "Which fields of them: paths separated by commas, `name, address.city`, or all but those:"
        " `-ssn, -card.number`. The `_id` is always told.",
    )
    on_replaced: str = _option(
        "resync",
        "When a collection's content is replaced without row events (`$out`, a rename onto it,"
        " convertToCapped; resharded in the midst of its copy): `resync` copies it anew, or goes on"
        " with its changes in a mode that copies nothing; `fail` ends the run.",
        choices=("resync", "fail"),
    )
    on_oversize: str = _option(
        "lookup",
        "Where an event exceeds 16 MiB with its images and the server cannot split it: `lookup`"
        " leaves out the images that do not fit, reads a missing `after` by key and marks the row,"
        " `fail` ends the run.",
        choices=("lookup", "fail"),
    )
    document_format: str = _option(
        "variant",
        "Type of `before` and `after`: `variant`, `json` (text) or `bson` (binary).",
        choices=("variant", "json", "bson"),
    )
    document_json: str = _option(
        "relaxed",
        "With `document.format = json`: `relaxed` or `canonical` Extended JSON v2.",
        choices=("relaxed", "canonical"),
    )
    shards_direct: bool = _option(
        False,
        "Whether `uri` leads to a sharded cluster (a mongos or its config servers), of which each"
        " shard is read by itself.",
    )
    on_history_lost: str = _option(
        "fail",
        "When the oplog does not reach back to the next change: `fail` ends the run; `resync`"
        " copies all collections again; `skip` goes on with the oldest change that there is. The"
        " last two leave a `gap` row.",
        choices=("fail", "resync", "skip"),
    )
    oplog_window_warn: int = _option(
        25,
        "Percent of the oplog's time below which the log warns, every minute, that the next changes"
        " will leave it; 0 for never.",
        least=0,
    )
    split_size_mb: int = _option(
        64,
        "Size of a snapshot split.",
        least=1,
    )
    snapshot_splits_per_batch: int = _option(
        8,
        "Snapshot splits in a micro-batch: more is faster, fewer keeps changes fresher meanwhile.",
        least=1,
    )
    stream_parallelism: int = _option(
        4,
        "Time slices that a micro-batch's changes are read in, on each shard; few changes are read"
        " in one.",
        least=1,
    )
    max_events_per_batch: int = _option(
        100_000,
        "Changes in a micro-batch, about; a larger transaction goes alone.",
        least=1,
    )
    max_mb_per_batch: int = _option(
        256,
        "Size of a micro-batch's changes in the oplog (images are not in it), about.",
        least=1,
    )
    max_mb_per_second: int | None = _option(
        None,
        "How fast the tasks of a batch read documents and changes from all servers together; each"
        " gets an equal share, so it needs `max.cursors`, the number of cores that Spark has for"
        " the job. Without it, as fast as they can.",
        least=1,
    )
    max_cursors: int | None = _option(
        None,
        "Tasks by which a batch is read at most, each of which has a cursor open at a time. Without"
        " it a task for each split and slice, of which as many run at once as Spark has cores.",
        least=1,
    )
    snapshot_at: str | None = _option(
        None,
        "Batch reads only: the cluster time `t:i` to read at; the live edge if absent.",
    )
    snapshot_from: str | None = _option(
        None,
        "Batch reads of one collection only: reads the documents from this frontier on.",
    )
    snapshot_below: str | None = _option(
        None,
        "Batch reads of one collection only: reads the documents below this frontier, as a mirror's"
        " commit tells it.",
    )
    from_: str | None = _option(
        None,
        "Batch reads only: reads the changes from this time on, instead of documents; ISO-8601 or"
        " `t:i`.",
    )
    to: str | None = _option(
        None,
        "With `from`: the time up to which changes are read, itself not included; the live edge if"
        " absent.",
    )
    emit_watermark: bool = _option(
        False,
        "Adds control rows: a `watermark` to each micro-batch, for sinks that record its time, a"
        " `resync` where a collection's content is told anew, one with `from` and `to` where"
        " changes before its copy are missing, and a `void` where one that was to be copied is"
        " gone.",
    )
    comment: str = _option(
        "mongodb-cdc",
        "Borne by the cursors of tasks, and that of a stream which waits for changes, where the"
        " server shows them: in `$currentOp`, its profiler and log.",
    )
    server_timeout_ms: int = _option(
        30_000,
        "How long to look for a server.",
        least=1,
    )
    heartbeat_interval: int = _option(
        60,
        "Seconds after which a micro-batch is made though nothing has changed, so that the offset"
        " stays within the oplog.",
        least=0,
    )
    retry_seconds: int = _option(
        120,
        "How long a task, or the start of a run, goes on trying without progress before it fails.",
        least=0,
    )

    selection: Selection = field(init=False, repr=False, compare=False)
    capture: Excerpt = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_given(self.uri)
        _check_rate(self)
        _check_start(self.mode, self.start)
        _check_window(self)
        selection = Selection.parse(self.collections)
        selection.require_possible()
        # The only way to set an attribute of a frozen dataclass.
        object.__setattr__(self, "selection", selection)
        object.__setattr__(self, "capture", Excerpt.of(self.filter, self.fields))

    def of_batch_reads(self) -> dict[str, str]:
        """The options that are set and that a stream does not take, by name."""
        given = {
            "snapshot.at": self.snapshot_at,
            "snapshot.from": self.snapshot_from,
            "snapshot.below": self.snapshot_below,
            "from": self.from_,
            "to": self.to,
        }
        return {name: value for name, value in given.items() if value is not None}


def _check_rate(options: SourceOptions) -> None:
    if options.max_mb_per_second is not None and options.max_cursors is None:
        raise BadOption(
            "Option 'max.mb.per.second' is set, but 'max.cursors' is not: of many splits each would"
            " be read at a share of that rate, and only some of them at once.",
            "Set max.cursors to the number of cores that Spark has for the job.",
        )


def _check_start(mode: str, start: str | None) -> None:
    if mode in _STARTS and start is None:
        raise BadOption(f"Option 'mode' is {mode}, but 'start' is not set.", "Set 'start'.")
    if mode not in _STARTS and start is not None:
        raise BadOption(
            f"Option 'start' is set, but 'mode' is {mode}.", "Set mode to timestamp or token."
        )
    if start is not None:
        _STARTS[mode](start)


def _check_window(options: SourceOptions) -> None:
    begin = timestamp.parse(options.from_) if options.from_ else None
    end = timestamp.parse(options.to) if options.to else None
    if end is not None and begin is None:
        raise BadOption("Option 'to' is set, but 'from' is not.", "Set both.")
    if begin is None:
        return
    if end is not None and end <= begin:
        raise BadOption("Option 'to' is not later than 'from'.", "Correct one of them.")
    for name in options.of_batch_reads():
        if name not in ("from", "to"):
            raise BadOption(f"Options 'from' and '{name}' exclude each other.", "Remove one.")


def _declared() -> tuple[Option, ...]:
    kinds = get_type_hints(SourceOptions)
    return tuple(
        Option(
            each.name,
            _kind(kinds[each.name]),
            None if each.default is dataclasses.MISSING else each.default,
            **each.metadata,
        )
        for each in dataclasses.fields(SourceOptions)
        if each.metadata
    )


def _kind(hint: Any) -> type:
    """The type of a value that is set."""
    [kind] = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    assert isinstance(kind, type)
    return kind


OPTIONS = _declared()
