"""An existing table of a pipeline: its properties, its columns and its newest commit.

The properties are written when the table is created. Later runs compare them with their
configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.columns import EVENT, Columns, Image
from cdc.delta.log import (
    CHECKPOINT_INTERVAL,
    NO_BATCH,
    Commit,
    find_newest,
    require_contained,
    schema_of,
)
from cdc.delta.tables.kind import Kind
from cdc.delta.tables.layout import Table
from cdc.delta.tables.ownership import identity
from cdc.errors import BadOption, ForeignOffset
from cdc.model import timestamp

_DOCUMENT = "mongodb-cdc.document"
_FORM = "mongodb-cdc.form"
_BEGIN = "mongodb-cdc.begin"
# The log of a table that gets a commit each second would else have 2.6 million files. Files of data
# that a version needs are kept as long, by default.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 7 days",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
}
# No thread of ours writes the checkpoints of a table in a catalog.
_NAMED_PROPERTIES = {**_PROPERTIES, "delta.checkpointInterval": "100"}


# A new table needs the rows of its changelogs that belong to no batch, too.
BEFORE_ALL = NO_BATCH - 1


class Begin(NamedTuple):
    """Where a table that follows changelogs begins.

    Attributes:
        after: the number of the last batch that it does not need; BEFORE_ALL if the table was
            created to be rebuilt.
        changelog: the changelog, see `Target.relative_to`; None if the table contains several
            collections.
    """

    after: int
    changelog: str | None


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table that exists.

    Attributes:
        document: the SQL type of its images.
        form: see `Kind.form`.
        last: its newest commit by this pipeline, if there is one.
        image: how it stores documents; of no meaning for tables that have no such columns.
        names: the names of all columns.
        begin: where it began, if it was created to follow changelogs.
        version: a version of the table that contains what `last` states: the one that it made, or
            a later one in which nobody else has applied a batch; None if it is not known.
        undone: see `NewestCommit`.
    """

    table: Table
    document: str
    form: str
    last: Commit | None
    image: Image
    names: frozenset[str]
    begin: Begin | None
    version: int | None = None
    undone: int | None = None

    @classmethod
    def read(
        cls, spark: SparkSession, kind: Kind, table: Table, properties: Mapping[str, str]
    ) -> Self:
        newest = find_newest(spark, table.target)
        # Not the columns as Spark reads them: Delta would list the log once more.
        schema = schema_of(table.target.snapshot(spark))
        known = cls.of_schema(kind, table, properties, schema)
        if newest is None:
            return known
        return replace(known, last=newest.commit, version=newest.version, undone=newest.undone)

    @classmethod
    def of_schema(
        cls, kind: Kind, table: Table, properties: Mapping[str, str], schema: StructType
    ) -> Self:
        """A table without what its commits state."""
        image, names = kind.image(schema, table.options), frozenset(schema.names)
        document, form = properties[_DOCUMENT], properties.get(_FORM, EVENT)
        return cls(table, document, form, None, image, names, begin_of(properties))

    @property
    def columns(self) -> Columns | None:
        """Its typed columns; None if it contains whole documents."""
        return self.image.typed

    def require_configured(
        self, kind: Kind, table: Table, document: str, with_columns: bool = True
    ) -> None:
        """Raise BadOption if the configuration does not fit the table.

        It must demand the same type of images, the same form and, `with_columns`, the same columns.
        """
        if self.document != document:
            raise BadOption(
                f"The table at '{table.target}' holds documents as {self.document}, not as"
                f" {document}.",
                "Keep the option 'document.format', or start anew with other paths and checkpoint.",
            )
        form = kind.form(table.options)
        if self.form != form:
            raise BadOption(
                f"The {kind.name} at '{table.target}' has the form {self.form}, not {form}.",
                f"Keep the option '{kind.form_option}', or start anew with other paths"
                " and checkpoint.",
            )
        if with_columns and (changed := self.find_changed_columns(kind, table)) is not None:
            raise BadOption(
                f"The {kind.name} at '{table.target}' has other columns than 'columns' says:"
                f" {', '.join(changed)}.",
                "Columns may only be added to a table that is there. Make it again from its"
                " changelog: mongodb-cdc follow --rebuild --collection, with its name.",
            )

    def find_changed_columns(self, kind: Kind, table: Table) -> list[str] | None:
        """Return the columns that have to be different to fit the configuration; None if none."""
        configured = kind.new_image(table.options).typed
        wanted = {column.name: column for column in configured.columns} if configured else {}
        own = {column.name: column for column in self.columns.columns} if self.columns else {}
        changed = [
            name
            for name, column in own.items()
            if wanted.get(name, column if column.is_evolved else None) != column
        ]
        if changed or bool(wanted) != bool(own):
            return changed or ["none" if wanted else "typed ones"]
        return None

    def is_as_new(self, kind: Kind, table: Table) -> bool:
        """Whether a table that the configuration creates now would have the same columns."""
        has_id = kind.new_image(table.options).has_id
        return self.find_changed_columns(kind, table) is None and self.image.has_id == has_id

    def require_whole(self) -> None:
        """Raise TableRestored if the table lacks its newest commit."""
        if self.last is not None:
            require_contained(self.table.target, self.last, self.undone)

    def require_not_ahead(self, now: Commit) -> None:
        """Raise ForeignOffset if the table is ahead of the checkpoint.

        Delta would skip the batch in silence, although this checkpoint gives the number other rows.
        """
        last = self.last
        if last is None or last.batch < now.batch or last.is_of_the_same(now):
            return
        raise ForeignOffset(
            f"The table at '{self.table.target}' holds batch {last.batch} up to"
            f" {timestamp.text(last.watermark)}; the checkpoint is only at batch {now.batch},"
            f" {timestamp.text(now.watermark)}.",
            "Let mongodb-cdc repair-checkpoint go on from what the tables hold, put the checkpoint"
            " back that belongs to them, or start anew: a new checkpoint and other paths.",
        )


def begin_of(properties: Mapping[str, str]) -> Begin | None:
    """Where a table with these properties began, if it was created to follow changelogs."""
    return Begin(*json.loads(properties[_BEGIN])) if _BEGIN in properties else None


def properties_of_new(
    pipeline: str, kind: Kind, table: Table, document: str, begin: Begin | None
) -> dict[str, str]:
    """Return the properties of a table that is to be created.

    `document` is the SQL type of its images.
    """
    own = {**identity(pipeline, kind.name, table), _DOCUMENT: document}
    own |= {_FORM: kind.form(table.options)}
    own |= {_BEGIN: json.dumps(begin)} if begin else {}
    properties = _NAMED_PROPERTIES if table.target.is_name else _PROPERTIES
    return {**properties, **kind.properties, **own}
