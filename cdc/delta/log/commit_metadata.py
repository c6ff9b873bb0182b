"""The metadata of a commit: what it states about its table, and how that is written and read.

The userMetadata of each commit of this project states up to which watermark the table is complete.
The rows and this statement become visible in the same instant, so they cannot contradict each
other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from cdc.errors import CdcError
from cdc.model import WATERMARK, Coverage, Namespace, Timestamp, are_equal, timestamp
from cdc.tasks import Group

# The batch before the first one.
NO_BATCH = -1
# Some hundred bytes, unless thousands of collections are listed by name: each commit of each table
# would repeat them.
_LONGEST_OFFSET = 20_000
_MERGE_OPTIONS = {
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
}


@dataclass(frozen=True, slots=True)
class State:
    """The state of one namespace in a table.

    Attributes:
        exact_from: before this time there may be images that are not as of their own time.
        copying: the frontier of an unfinished initial copy, opaque; None: the copy is complete.
        kept: whether there are documents of a collection that was dropped or renamed away.
        whole: for a changelog, the times as of which its rows give the collection.
    """

    exact_from: Timestamp | None = None
    copying: Any = None
    kept: bool = False
    whole: Coverage = field(default_factory=Coverage)

    def exact_after(self, newest: Timestamp | None, watermark: Timestamp) -> Timestamp | None:
        """`exact_from` after the next batch. `newest`: the latest time of an image in it."""
        # Images from the future of an earlier batch are still there until the watermark passes
        # them.
        if self.exact_from and self.exact_from > watermark:
            return max(self.exact_from, newest or self.exact_from)
        return newest

    def to_json(self) -> dict[str, Any]:
        """Only the values that differ from those of a new state."""
        fields: dict[str, Any] = {}
        if self.exact_from is not None:
            fields["exactFrom"] = timestamp.text(self.exact_from)
        if self.copying is not None:
            fields["copying"] = self.copying
        if self.kept:
            fields["kept"] = True
        if whole := self.whole.to_json():
            fields["whole"] = whole
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> State:
        exact_from = fields.get("exactFrom")
        return cls(
            exact_from=exact_from and timestamp.parse(exact_from),
            copying=fields.get("copying"),
            kept=bool(fields.get("kept")),
            whole=Coverage.from_json(fields.get("whole", [])),
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit of ours says: the batch, and the state of the table after it.

    Attributes:
        batch: the number of the batch in the checkpoint.
        watermark: the time up to which the table is complete.
        states: the states of namespaces. One that is not listed is in that of `State()`.
        offset: the batch's end in the checkpoint, as in `Watermark`; one that is very long is not
            stored.
        groups: of a changelog, the summary of the batch's rows in it, with the watermark row. The
            tables that follow the changelog read it; see `cdc.delta.followers`.
        follows: of a table that follows changelogs, those that it has read; see
            `Target.relative_to`.
        rebuilds: how often the table was emptied to be rebuilt from its changelogs.
        after: of a changelog, the batch of the commit before; None in commits of earlier releases.
    """

    batch: int
    watermark: Timestamp
    states: Mapping[Namespace, State] = field(default_factory=dict)
    offset: Any = None
    groups: tuple[Group, ...] = ()
    follows: frozenset[str] = frozenset()
    rebuilds: int = 0
    after: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the commit emptied the table, and no batch was applied to it since."""
        return self.batch == NO_BATCH

    def is_of_the_same(self, other: Commit) -> bool:
        """Whether both are of one batch, with the same end if both state an end."""
        has_one_end = None in (self.offset, other.offset) or are_equal(self.offset, other.offset)
        return (self.batch, self.watermark) == (other.batch, other.watermark) and has_one_end

    def state(self, namespace: Namespace) -> State:
        return self.states.get(namespace, State())

    def text(self) -> str:
        """The commit's userMetadata."""
        fields: dict[str, Any] = {"watermark": timestamp.text(self.watermark), "batch": self.batch}
        states = {str(name): state.to_json() for name, state in sorted(self.states.items())}
        if of := {name: state for name, state in states.items() if state}:
            fields["of"] = of
        if self.offset is not None and len(json.dumps(self.offset)) <= _LONGEST_OFFSET:
            fields["offset"] = self.offset
        if self.groups:
            fields["groups"] = [_without_offset(group).to_json() for group in self.groups]
        if self.follows:
            fields["follows"] = sorted(self.follows)
        if self.rebuilds:
            fields["rebuilds"] = self.rebuilds
        if self.after is not None:
            fields["after"] = self.after
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        # A MERGE takes it from a setting, in which Spark puts the environment's X for "${env:X}".
        return text.replace("$", "\\u0024")

    @classmethod
    def parse(cls, text: str | None) -> Commit | None:
        """Parse userMetadata; None for that of anybody else: OPTIMIZE, a user's own statement."""
        try:
            fields = json.loads(text or "null")
            of = fields.get("of", {}).items()
            groups = map(Group.from_json, fields.get("groups", ()))
            return cls(
                batch=int(fields["batch"]),
                watermark=timestamp.parse(fields["watermark"]),
                states={Namespace.parse(name): State.from_json(state) for name, state in of},
                offset=fields.get("offset"),
                groups=tuple(_with_offset(group, fields.get("offset")) for group in groups),
                follows=frozenset(fields.get("follows", ())),
                rebuilds=int(fields.get("rebuilds", 0)),
                after=None if "after" not in fields else int(fields["after"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, CdcError):
            return None


def _without_offset(group: Group) -> Group:
    """The watermark's group without the end of the batch, which the commit contains already."""
    return _with_offset(group, None)


def _with_offset(group: Group, offset: Any) -> Group:
    if group.op != WATERMARK:
        return group
    [mark] = group.marks
    description = {**json.loads(mark.description or "{}"), "offset": offset}
    text = json.dumps(description, ensure_ascii=False)
    return replace(group, marks=(mark._replace(description=text),))


def merging(spark: SparkSession, transaction: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Give a MERGE the options of `Tables.transaction`, which it takes from the session only."""
    return settings(spark, {_MERGE_OPTIONS[name]: str(each) for name, each in transaction.items()})


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Apply settings to the session for the length of the block, and remove them in any case.

    With a transaction id that remains, Delta would skip a later write of another table in silence.
    """
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
