"""Offset: the progress of a run, as Spark stores it in the checkpoint.

An offset is a cluster time T and a frontier. After the batch that ends there, every document below
the frontier has been emitted exactly as of T, with every change up to T. Nothing else has been
emitted. `hand_over` contains the rule by which an offset moves.

The frontier is a key of (namespace, _id) over all selected collections in the order of their full
names. So it does not grow with the number of documents or collections:

* Namespaces up to and including `swept` are done: their events pass unfiltered.
* `copying` is the one collection between: it is done below its key, and not from that key on.
* Namespaces after `swept` have not been read, and none of their events are emitted.
* `again` lists collections that are to be copied although the sweep has passed their names. Their
  content was replaced without row events, or they were not selected before. They are copied before
  the sweep continues. None of their events after `since` are emitted until then.

`shards` are the shards whose changes have been read up to T. They are the shards of the cluster
since `topology_time`. A replica set is one shard without a name.

`late` lists, for each shard, times after T whose events belong before T and have been emitted. A
read sees a transaction across shards from its commit timestamp on. Each shard reports the
transaction at a time of its own, a little later. With `late`, a batch contains such a transaction
completely, as a read at T does.

`shard_keys` is set if the column `key` contains the shard keys, see `merge_key`. It has one entry
for each collection that is sharded by other fields than `_id`: these fields. It is the only part of
an offset that grows with the number of collections.

`position` is set if a run starts after a given event. The events after T, up to and including
this position, are then not emitted.

If `gap` is set, the batch that ended here read nothing, and the changes after `gap` up to T are
lost. If `empties` is set too, all mirrors are emptied, because everything is copied again; only
such an offset has this field in its JSON.
`silent` lists the shards that do not report the DDL of the batch, because another shard reports it.
`scans` lists what the batch that ended here scanned, with at most one entry for each of its splits.
A replay reads the same incarnations, even if their names belong to other collections by then.

The JSON also has `readable`, for people who read the progress of a query. Nothing reads it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bson.timestamp import Timestamp

from cdc.errors import CdcError, ForeignOffset
from cdc.model import timestamp
from cdc.model.merge_key import merge_key
from cdc.model.selection import Namespace
from cdc.model.split import MAX_KEY, MIN_KEY

VERSION = 4
NEVER = Timestamp(0, 0)
# Of a key in a text for people. A key may have 16 MB.
_LONGEST_KEY = 80

Times = tuple[
    tuple[str, tuple[Timestamp, ...]], ...
]  # by shard; a shard without times has no entry


# Sorted names with the sorted fields of their shard keys.
ShardKeys = tuple[tuple[Namespace, tuple[str, ...]], ...] | None


@dataclass(frozen=True, slots=True)
class Copying:
    """A collection that is done below `below` (BSON of `{"_id": K}`), and not from there on.

    `uuid` identifies the incarnation. `collation` is BSON of its default collation, or None.
    `shard` is the one shard that contains the collection, or empty if it is not on one shard of a
    cluster. The offset contains all three because a replayed batch must read what was planned, even
    after the collection is gone.
    """

    namespace: Namespace
    uuid: bytes
    collation: bytes | None
    below: bytes = MIN_KEY
    shard: str = ""


class Again(NamedTuple):
    """A collection to be copied again.

    None of its events after `since` are emitted before its copy. `since` is None in an offset of
    version 1, which did not record it.
    """

    namespace: Namespace
    since: Timestamp | None


@dataclass(frozen=True, slots=True)
class Scan:
    """The part of one collection that a batch scans: the documents in [copying.below, upper)."""

    copying: Copying
    upper: bytes


@dataclass(frozen=True, slots=True)
class Offset:
    """The progress of a run; the module describes the fields.

    `source` identifies the source, so that the checkpoint of another one is recognized. `selection`
    and `capture_text` are the texts of the selection and capture filter that apply up to here.
    """

    time: Timestamp
    source: str
    selection: str
    capture_text: str = ""
    swept: str | None = None  # None: every possible name
    copying: Copying | None = None
    again: tuple[Again, ...] = ()
    scans: tuple[Scan, ...] = ()
    silent: tuple[str, ...] = ()
    shards: tuple[str, ...] = ("",)
    topology_time: Timestamp = NEVER
    late: Times = ()
    position: str = ""
    gap: Timestamp | None = None
    shard_keys: ShardKeys = None
    empties: bool = False

    def late_of(self, shard: str) -> tuple[Timestamp, ...]:
        return dict(self.late).get(shard, ())

    def is_of(self, selection: str, capture_text: str) -> bool:
        """Whether the offset has this selection and this capture filter."""
        return (self.selection, self.capture_text) == (selection, capture_text)

    @property
    def is_streaming(self) -> bool:
        """Whether the initial copy and all later copies are complete."""
        return self.swept is None and self.copying is None and not self.again

    def passes_whole(self, namespace: Namespace) -> bool:
        """Whether all of a namespace's events are emitted after this offset."""
        return namespace not in self.apart and self.has_reached(namespace)

    @property
    def apart(self) -> frozenset[Namespace]:
        """The collections that the sweep has reached and whose copy is not complete."""
        copying = [self.copying.namespace] if self.copying else []
        return frozenset([*copying, *(each.namespace for each in self.again)])

    def has_reached(self, namespace: Namespace) -> bool:
        """Whether the sweep is at the name, or has passed it."""
        return self.swept is None or str(namespace) <= self.swept

    @property
    def readable(self) -> str:
        """The time and the frontier as a text for people."""
        time = datetime.fromtimestamp(self.time.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.copying is not None:
            below = "" if self.copying.below == MIN_KEY else _readable_key(self.copying.below)
            return f"{time}, copying {self.copying.namespace}{below}"
        if self.again:
            return f"{time}, to be copied again: {', '.join(str(c.namespace) for c in self.again)}"
        if self.swept == "":
            return f"{time}, before the copy"
        if self.swept is not None:
            return f"{time}, copied up to {self.swept}"
        return time

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "readable": self.readable,
            "time": timestamp.text(self.time),
            "source": self.source,
            "collections": self.selection,
            "excerpt": self.capture_text,
            "swept": self.swept,
            "copying": _copying_to_json(self.copying) if self.copying else None,
            "again": [_again_to_json(each) for each in self.again],
            "scans": [_scan_to_json(scan) for scan in self.scans],
            "silent": list(self.silent),
            "shards": list(self.shards),
            "topology_time": timestamp.text(self.topology_time),
            "late": {shard: [timestamp.text(at) for at in times] for shard, times in self.late},
            "position": self.position,
            "gap": None if self.gap is None else timestamp.text(self.gap),
            "shard_keys": _keys_to_json(self.shard_keys),
            **({"empties": True} if self.empties else {}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Offset:
        """Parse what `to_json` writes, or wrote in an earlier version.

        Raises ForeignOffset for anything else.
        """
        version = data.get("version", VERSION) if isinstance(data, dict) else VERSION
        # JSON's true is equal to 1 in Python.
        if type(version) is not int or version not in range(1, VERSION + 1):
            raise ForeignOffset(
                f"The checkpoint contains an offset of version {version!r}; this release"
                f" reads versions up to {VERSION}.",
                "Run the release that wrote the checkpoint, or start with a new checkpoint.",
            )
        try:
            data = _upgrade(data)
            offset = cls(
                time=timestamp.parse(data["time"]),
                source=_text(data["source"]),
                selection=_text(data["collections"]),
                capture_text=_text(data["excerpt"]),
                swept=None if data["swept"] is None else _text(data["swept"]),
                copying=_copying_from_json(data["copying"]) if data["copying"] else None,
                again=tuple(_again_from_json(each) for each in data["again"]),
                scans=tuple(_scan_from_json(scan) for scan in data["scans"]),
                silent=tuple(_text(shard) for shard in data["silent"]),
                shards=tuple(_text(shard) for shard in data["shards"]),
                topology_time=timestamp.parse(data["topology_time"]),
                late=tuple(
                    (shard, tuple(timestamp.parse(at) for at in times))
                    for shard, times in data["late"].items()
                ),
                position=_text(data["position"]),
                gap=None if data["gap"] is None else timestamp.parse(data["gap"]),
                shard_keys=_keys_from_json(data["shard_keys"]),
                empties=data.get("empties", False),
            )
            given = {"readable": _text(data["readable"])}
            if {
                **offset.to_json(),
                **given,
            } != data:  # other fields, or another spelling of a value
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError, CdcError) as error:
            raise ForeignOffset(
                "The checkpoint contains an offset that this source did not write.",
                "Use the checkpoint folder that belongs to this pipeline, or a new one.",
            ) from error
        return offset


def are_equal(one: Any, other: Any) -> bool:
    """Whether two stored offsets are equal, even if different releases wrote them."""
    try:
        return one == other or Offset.from_json(one) == Offset.from_json(other)
    except ForeignOffset:
        return False


def beginning(
    time: Timestamp, source: str, selection: str, capture_text: str = "", position: str = ""
) -> Offset:
    """Return the first offset of a run with an initial snapshot: nothing is emitted or swept."""
    return Offset(time, source, selection, capture_text, swept="", position=position)


def streaming(
    time: Timestamp, source: str, selection: str, capture_text: str = "", position: str = ""
) -> Offset:
    """Return the first offset of a run without a snapshot.

    The run emits every change after `time` and after `position`.
    """
    return Offset(time, source, selection, capture_text, position=position)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def encode_key(key: bytes) -> str:
    """Return a frontier key as base64; Extended JSON would lose the type of some keys."""
    return base64.b64encode(key).decode()


def decode_key(text: str) -> bytes:
    """The inverse of `encode_key`. Raises ValueError."""
    return base64.b64decode(text, validate=True)


def _upgrade(data: dict[str, Any]) -> dict[str, Any]:
    """Return an offset of any version in the current version."""
    if data["version"] == 1:
        if not isinstance(data["again"], list):
            raise TypeError
        again = [{"namespace": name, "since": None} for name in data["again"]]
        data = {**data, "version": 2, "again": again}
    if data["version"] == 2:
        data = {**data, "version": 3, "readable": ""}
    if data["version"] == 3:
        data = {**data, "version": VERSION, "shard_keys": None}
    return data


def _readable_key(below: bytes) -> str:
    """Return where a copy continues, as the column `key` shows it; at most 80 characters."""
    if below == MAX_KEY:
        return " from its end on"
    key = merge_key(below)
    return f" from _id {key if len(key) <= _LONGEST_KEY else key[:_LONGEST_KEY] + '…'} on"


def _again_to_json(again: Again) -> dict[str, Any]:
    since = None if again.since is None else timestamp.text(again.since)
    return {"namespace": str(again.namespace), "since": since}


def _again_from_json(data: dict[str, Any]) -> Again:
    since = None if data["since"] is None else timestamp.parse(data["since"])
    return Again(Namespace.parse(data["namespace"]), since)


def _keys_to_json(keys: ShardKeys) -> dict[str, list[str]] | None:
    return None if keys is None else {str(name): list(fields) for name, fields in keys}


def _keys_from_json(data: Any) -> ShardKeys:
    if data is None:
        return None
    if not isinstance(data, dict):
        raise TypeError
    return tuple((Namespace.parse(n), tuple(map(_text, fields))) for n, fields in data.items())


def _copying_to_json(copying: Copying) -> dict[str, Any]:
    return {
        "namespace": str(copying.namespace),
        "uuid": copying.uuid.hex(),
        "collation": base64.b64encode(copying.collation).decode() if copying.collation else None,
        "below": encode_key(copying.below),
        "shard": copying.shard,
    }


def _copying_from_json(data: dict[str, Any]) -> Copying:
    collation = data["collation"]
    return Copying(
        namespace=Namespace.parse(data["namespace"]),
        uuid=bytes.fromhex(data["uuid"]),
        collation=base64.b64decode(collation) if collation else None,
        below=decode_key(data["below"]),
        shard=_text(data["shard"]),
    )


def _scan_to_json(scan: Scan) -> dict[str, Any]:
    return {**_copying_to_json(scan.copying), "upper": encode_key(scan.upper)}


def _scan_from_json(data: dict[str, Any]) -> Scan:
    return Scan(_copying_from_json(data), decode_key(data["upper"]))
