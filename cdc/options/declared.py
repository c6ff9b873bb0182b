"""Every option of the source, declared once: name, type, default and description.

The table of docs/reference/options.md is printed from `OPTIONS`. A test compares
`conf/example.toml` with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cdc.errors import BadOption
from cdc.model import CaptureFilter, Selection, require_uri, resume_token, timestamp
from cdc.options.option import list_options, optional, required

MODES = ("initial", "snapshot", "latest", "timestamp", "token", "earliest")
_STARTS = {"timestamp": timestamp.parse, "token": resume_token.parse}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of one source, with one attribute per option.

    The name of an option is the name of its attribute with dots, see `Option.name`. `selection` is
    parsed from `collections`, `capture` from `filter` and `fields`. The `repr` contains no
    credentials. The constructor raises BadOption if options are malformed or contradict each other,
    and BadToken if a token is malformed. It does not check `choices` and `least`:
    `cdc.options.parse` does.
    """

    uri: str = required(
        "Connection string of a replica set, or of the mongos of a sharded cluster. `env:NAME`"
        " reads it from an environment variable, `file:PATH` from a file, on each machine that"
        " connects.",
        secret=True,
        aliases=("connection.uri",),
    )
    collections: str = required(
        "Collections to capture: full names `db.coll` or regular expressions on the full name,"
        " separated by commas or as a JSON list.",
    )
    missing_collections: str = optional(
        "fail",
        "If a name or an expression in `collections` matches no collection when a run is new or"
        " when the item is added: `fail` ends the run and names the most similar collections;"
        " `wait` continues, and captures collections created later from their creation on.",
        choices=("fail", "wait"),
    )
    mode: str = optional(
        "initial",
        "Where a stream without a checkpoint begins. `initial` copies everything and continues with"
        " changes. `snapshot` copies everything as of one time, which is later than the start of"
        " the run, and ends. `latest` begins now, `timestamp` and `token` begin at `start`,"
        " `earliest` with the oldest change in the oplog. Instead of `mode` and `start`,"
        " `startingPosition` may name a mode without a start, a time, or a token.",
        choices=MODES,
    )
    start: str | None = optional(
        None,
        "With `mode = timestamp`: the time of the first changes to read, as ISO-8601 or as a"
        " cluster time `t:i`. With `mode = token`: the resume token or the `position` of the last"
        " change before the start.",
    )
    images: str = optional(
        "auto",
        "Images of a change: `auto` uses recorded pre- and post-images and looks up a missing"
        " `after`; `required` also refuses collections that do not record images; `when_available`"
        " never looks up; `update_lookup` always looks up; `off` requests no images.",
        choices=("auto", "required", "when_available", "update_lookup", "off"),
    )
    read_by: str = optional(
        "auto",
        "How changes are read: `auto` reads the oplog and the recorded pre-images in bulk where"
        " that gives the same rows, and a change stream for everything else; `change_stream`"
        " always reads a change stream; `oplog` ends the run where `auto` reads a change stream.",
        choices=("auto", "change_stream", "oplog"),
    )
    oplog_verify: float = optional(
        0.0,
        "Share, from 0 to 1, of the slices read from the oplog that are read by a change stream"
        " too. No row leaves the task before it was compared in every column. A slice that is read"
        " again is chosen again.",
        least=0,
        most=1,
    )
    oplog_on_difference: str = optional(
        "fail",
        "If a compared row differs: `fail` ends the run, and names the positions of both rows;"
        " `change_stream` logs them, and emits the rest of the slice from the change stream, unless"
        " `read.by` is `oplog`: then it ends the run too.",
        choices=("fail", "change_stream"),
    )
    filter: str | None = optional(
        None,
        'Documents to capture: a match in Extended JSON, such as `{"region": "EU"}`. The server'
        " applies it to copied documents and to changes; see *Filter and fields*.",
    )
    fields: str | None = optional(
        None,
        "Fields to capture: paths separated by commas, such as `name, address.city`; or fields to"
        " leave out: `-ssn, -card.number`. The `_id` is always captured.",
    )
    on_replaced: str = optional(
        "resync",
        "If the content of a collection is replaced without row events (by `$out`, a rename onto"
        " it, convertToCapped, or resharding during its copy): `resync` copies it again, or goes on"
        " with its changes in a mode that copies nothing; `fail` ends the run. Through a mongos,"
        " another shard key replaces the content too; a mode that copies nothing ends then.",
        choices=("resync", "fail"),
    )
    on_oversize: str = optional(
        "lookup",
        "If an event with its images exceeds 16 MiB and the server cannot split it: `lookup` omits"
        " the images that do not fit, reads a missing `after` by key and marks the row; `fail` ends"
        " the run.",
        choices=("lookup", "fail"),
    )
    document_format: str = optional(
        "variant",
        "Type of `before` and `after`: `variant`, `json` (text) or `bson` (binary).",
        choices=("variant", "json", "bson"),
    )
    document_json: str = optional(
        "relaxed",
        "With `document.format = json`: `relaxed` or `canonical` Extended JSON v2.",
        choices=("relaxed", "canonical"),
    )
    shards_direct: bool = optional(
        False,
        "Whether `uri` names a sharded cluster (a mongos or the config servers) whose shards are"
        " read directly. Otherwise a mongos in `uri` reads them.",
    )
    on_history_lost: str = optional(
        "fail",
        "If the oplog no longer contains the next change: `fail` ends the run; `resync` copies all"
        " collections again; `skip` continues with the oldest change in the oplog. `resync` and"
        " `skip` write a `gap` row.",
        choices=("fail", "resync", "skip"),
    )
    oplog_window_warn: int = optional(
        25,
        "Threshold in percent of the oplog's time window. If less of it is left before the next"
        " changes are removed, the log warns every minute; 0 turns the warning off.",
        least=0,
    )
    split_size_mb: int = optional(
        64,
        "Largest size of a snapshot split in MiB. A collection that is cut by a sample has 1, 2, 4,"
        " 8, or a multiple of 8 splits. If there are many, a task reads neighbouring splits up to"
        " 32 MiB as one.",
        least=1,
    )
    snapshot_splits_per_batch: int | None = optional(
        None,
        "Maximum number of snapshot splits in a micro-batch. More splits make the copy faster;"
        " fewer let changes arrive earlier during the copy. If absent, `replicate` sets four times"
        " the cores that Spark has when the run starts, from 8 to 1,000; other streams have 8.",
        least=1,
    )
    stream_parallelism: int | None = optional(
        None,
        "Maximum number of time slices, on each shard, in which the changes of a micro-batch are"
        " read. A slice has at least 1,000 changes. If absent, `replicate` sets the number of cores"
        " that Spark has when the run starts, from 4 to 64; other streams have 4.",
        least=1,
    )
    max_events_per_batch: int = optional(
        100_000,
        "Approximate maximum number of changes in a micro-batch. A micro-batch that reaches the"
        " newest change may have a tenth more. A larger transaction is a micro-batch of its own.",
        least=1,
        aliases=("maxEventsPerTrigger",),
    )
    max_mb_per_batch: int = optional(
        256,
        "Approximate maximum size of a micro-batch's changes in the oplog, in MiB. The oplog does"
        " not contain images.",
        least=1,
    )
    max_mb_per_second: int | None = optional(
        None,
        "Maximum rate, in MiB per second, at which all tasks of a batch together read documents and"
        " changes. Each task gets an equal share; therefore it requires `max.cursors`, set to the"
        " number of cores that Spark has for the job. Unlimited if absent.",
        least=1,
    )
    max_cursors: int | None = optional(
        None,
        "Maximum number of tasks that read a batch. Each task has one open cursor at a time. If"
        " absent, there is a task for each split and slice, and Spark runs as many at once as it"
        " has cores.",
        least=1,
    )
    snapshot_at: str | None = optional(
        None,
        "Batch reads only: the cluster time `t:i` to read at; the live edge if absent.",
    )
    snapshot_from: str | None = optional(
        None,
        "Batch reads of one collection only: reads the documents at and above this frontier.",
    )
    snapshot_below: str | None = optional(
        None,
        "Batch reads of one collection only: reads the documents below this frontier, as recorded"
        " in a commit of a mirror.",
    )
    from_: str | None = optional(
        None,
        "Batch reads only: reads changes instead of documents, from this time on; ISO-8601 or"
        " `t:i`.",
    )
    to: str | None = optional(
        None,
        "With `from`: reads the changes before this time; the live edge if absent.",
    )
    emit_watermark: bool = optional(
        False,
        "Adds control rows: a `watermark` to each micro-batch, for sinks that record its time; a"
        " `resync` before the content of a collection is emitted again, and one with `from` and"
        " `to` if changes before its copy are missing; a `void` if a collection to be copied no"
        " longer exists.",
    )
    comment: str = optional(
        "mongodb-cdc",
        "Comment on the cursors of tasks, and on the cursor with which a stream waits for changes."
        " The server shows it in `$currentOp`, its profiler and its log.",
    )
    server_timeout_ms: int = optional(
        30_000,
        "Time to wait until a server is found.",
        least=1,
        unit="ms",
    )
    heartbeat_interval: int = optional(
        60,
        "Time after which a micro-batch is made although nothing has changed. Otherwise the"
        " oplog could lose the position of the offset.",
        least=0,
        unit="s",
    )
    retry_seconds: int = optional(
        120,
        "Time for which a task, or the start of a run, is retried without progress before it"
        " fails.",
        least=0,
        unit="s",
    )

    selection: Selection = field(init=False, repr=False, compare=False)
    capture: CaptureFilter = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_uri(self.uri)
        _check_rate(self)
        _check_start(self.mode, self.start)
        _check_window(self)
        selection = Selection.parse(self.collections)
        selection.require_possible()
        # The only way to set an attribute of a frozen dataclass.
        object.__setattr__(self, "selection", selection)
        object.__setattr__(self, "capture", CaptureFilter.from_options(self.filter, self.fields))

    @property
    def copies(self) -> bool:
        """Whether a stream with these options copies the collections."""
        return self.mode in ("initial", "snapshot")

    def list_batch_only(self) -> dict[str, str]:
        """Return the options that are set although only batch reads accept them, by name."""
        given = {
            "snapshot.at": self.snapshot_at,
            "snapshot.from": self.snapshot_from,
            "snapshot.below": self.snapshot_below,
            "from": self.from_,
            "to": self.to,
        }
        return {name: value for name, value in given.items() if value is not None}

    def require_stream(self) -> None:
        """Raise BadOption if an option is set that only batch reads accept."""
        for name in self.list_batch_only():
            raise BadOption(f"Option '{name}' is for batch reads.", "Remove it.")


def _check_rate(options: SourceOptions) -> None:
    if options.max_mb_per_second is not None and options.max_cursors is None:
        raise BadOption(
            "Option 'max.mb.per.second' is set, but 'max.cursors' is not. The rate would be divided"
            " among all splits, although only some of them are read at once.",
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
        raise BadOption("Option 'to' is set, but 'from' is not.", "Set 'from', or remove 'to'.")
    if begin is None:
        return
    if end is not None and end <= begin:
        raise BadOption("Option 'to' is not later than 'from'.", "Set 'to' to a later time.")
    for name in options.list_batch_only():
        if name not in ("from", "to"):
            raise BadOption(f"Options 'from' and '{name}' exclude each other.", "Remove one.")


OPTIONS = list_options(SourceOptions)
