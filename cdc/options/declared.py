"""Every option of the source, declared once: name, type, default and one sentence.

The README's table is printed from `OPTIONS`, and a test compares `conf/example.toml` with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `choices` limits a string, `least` a number; `default` None means required or
    absent, as the sentence says."""

    name: str
    kind: type
    default: Any
    says: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    required: bool = False


MODES = ("initial", "snapshot", "latest", "timestamp", "token", "earliest")
OPTIONS = (
    Option(
        "uri",
        str,
        None,
        "Connection string of a replica set; `env:NAME` and `file:PATH` read it from there, on"
        " each machine that connects.",
        required=True,
    ),
    Option(
        "collections",
        str,
        None,
        "What to capture: full names `db.coll`, regular expressions on the full name, several"
        " separated by commas, or a JSON list.",
        required=True,
    ),
    Option(
        "missing.collections",
        str,
        "fail",
        "When a name or an expression in `collections` matches no collection, in a new run or as it"
        " is added: `fail` ends the run and names the nearest ones; `wait` goes on without, and"
        " captures from birth what is created later.",
        choices=("fail", "wait"),
    ),
    Option(
        "mode",
        str,
        "initial",
        "Where a stream without checkpoint begins: `initial` copies everything and goes on with"
        " changes, `snapshot` copies everything as of one time, which lies behind the start, and"
        " ends there; `latest` begins now, `timestamp` and `token` at `start`, `earliest` with the"
        " oldest change that the oplog holds.",
        choices=MODES,
    ),
    Option(
        "start",
        str,
        None,
        "With `mode = timestamp`: the first moment to read changes of, ISO-8601 or a cluster time"
        " `t:i`. With `mode = token`: the resume token or the `position` to go on behind.",
    ),
    Option(
        "images",
        str,
        "auto",
        "Images of a change: `auto` takes recorded pre- and post-images and looks up a missing"
        " `after`, `required` also refuses collections that do not record them, `when_available`"
        " never looks up, `update_lookup` always does, `off` asks for none.",
        choices=("auto", "required", "when_available", "update_lookup", "off"),
    ),
    Option(
        "filter",
        str,
        None,
        'Which documents to capture: a match in Extended JSON, `{"region": "EU"}`, applied by the'
        " server to what is copied and to changes; see *Filter and fields*.",
    ),
    Option(
        "fields",
        str,
        None,
        "Which fields of them: paths separated by commas, `name, address.city`, or all but those:"
        " `-ssn, -card.number`. The `_id` is always told.",
    ),
    Option(
        "on.replaced",
        str,
        "resync",
        "When a collection's content is replaced without row events (`$out`, a rename onto it,"
        " convertToCapped; resharded in the midst of its copy): `resync` copies it anew, `fail`"
        " ends the run.",
        choices=("resync", "fail"),
    ),
    Option(
        "on.oversize",
        str,
        "lookup",
        "Where an event exceeds 16 MiB with its images and the server cannot split it: `lookup`"
        " leaves out the images that do not fit, reads a missing `after` by key and marks the row,"
        " `fail` ends the run.",
        choices=("lookup", "fail"),
    ),
    Option(
        "document.format",
        str,
        "variant",
        "Type of `before` and `after`: `variant`, `json` (text) or `bson` (binary).",
        choices=("variant", "json", "bson"),
    ),
    Option(
        "document.json",
        str,
        "relaxed",
        "With `document.format = json`: `relaxed` or `canonical` Extended JSON v2.",
        choices=("relaxed", "canonical"),
    ),
    Option(
        "shards.direct",
        bool,
        False,
        "Whether `uri` leads to a sharded cluster (a mongos or its config servers), of which each"
        " shard is read by itself.",
    ),
    Option(
        "on.history.lost",
        str,
        "fail",
        "When the oplog does not reach back to the next change: `fail` ends the run; `resync`"
        " copies all collections again; `skip` goes on with the oldest change that there is. The"
        " last two leave a `gap` row.",
        choices=("fail", "resync", "skip"),
    ),
    Option(
        "oplog.window.warn",
        int,
        25,
        "Percent of the oplog's time below which the log warns, every minute, that the next changes"
        " will leave it; 0 for never.",
        least=0,
    ),
    Option("split.size.mb", int, 64, "Size of a snapshot split.", least=1),
    Option(
        "snapshot.splits.per.batch",
        int,
        8,
        "Snapshot splits in a micro-batch: more is faster, fewer keeps changes fresher meanwhile.",
        least=1,
    ),
    Option(
        "stream.parallelism",
        int,
        4,
        "Time slices that a micro-batch's changes are read in, on each shard; few changes are read"
        " in one.",
        least=1,
    ),
    Option(
        "max.events.per.batch",
        int,
        100_000,
        "Changes in a micro-batch, about; a larger transaction goes alone.",
        least=1,
    ),
    Option(
        "max.mb.per.batch",
        int,
        256,
        "Size of a micro-batch's changes in the oplog (images are not in it), about.",
        least=1,
    ),
    Option(
        "max.mb.per.second",
        int,
        None,
        "How fast the tasks of a batch read documents and changes from all servers together; each"
        " gets an equal share, so it needs `max.cursors`, the number of cores that Spark has for"
        " the job. Without it, as fast as they can.",
        least=1,
    ),
    Option(
        "max.cursors",
        int,
        None,
        "Tasks by which a batch is read at most, each of which has a cursor open at a time. Without"
        " it a task for each split and slice, of which as many run at once as Spark has cores.",
        least=1,
    ),
    Option(
        "snapshot.at",
        str,
        None,
        "Batch reads only: the cluster time `t:i` to read at; the live edge if absent.",
    ),
    Option(
        "snapshot.from",
        str,
        None,
        "Batch reads of one collection only: reads the documents from this frontier on.",
    ),
    Option(
        "snapshot.below",
        str,
        None,
        "Batch reads of one collection only: reads the documents below this frontier, as a mirror's"
        " commit tells it.",
    ),
    Option(
        "from",
        str,
        None,
        "Batch reads only: reads the changes from this time on, instead of documents; ISO-8601 or"
        " `t:i`.",
    ),
    Option(
        "to",
        str,
        None,
        "With `from`: the time up to which changes are read, itself not included; the live edge if"
        " absent.",
    ),
    Option(
        "emit.watermark",
        bool,
        False,
        "Adds control rows: a `watermark` to each micro-batch, for sinks that record its time, a"
        " `resync` where a collection's content is told anew, and a `void` where one that was to be"
        " copied is gone.",
    ),
    Option(
        "comment",
        str,
        "mongodb-cdc",
        "Borne by the cursors of tasks, and that of a stream which waits for changes, where the"
        " server shows them: in `$currentOp`, its profiler and log.",
    ),
    Option("server.timeout.ms", int, 30_000, "How long to look for a server.", least=1),
    Option(
        "heartbeat.interval",
        int,
        60,
        "Seconds after which a micro-batch is made though nothing has changed, so that the offset"
        " stays within the oplog.",
        least=0,
    ),
    Option(
        "retry.seconds",
        int,
        120,
        "How long a task, or the start of a run, goes on trying without progress before it fails.",
        least=0,
    ),
)
