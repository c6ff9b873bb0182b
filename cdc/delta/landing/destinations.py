"""The rule by which tasks write rows to tables: the layout, in a form that travels to tasks.

All rows about a document go to the changelog of their collection. The rows of a copy also go to its
mirror, in the columns of the mirror. Where the mirror contains none of their keys, these files are
committed without a MERGE.

Without a changelog the rows are *staged*: they go to files in the folder of the mirror, or of the
history if there is no mirror. No commit ever names these files. They are removed as soon as mirror
and history contain the batch. The rows of a copy are not staged if they go to the mirror."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, VariantType

from cdc.delta.columns import BATCH, EVENT, Columns, Image
from cdc.delta.log import Target, is_local, under
from cdc.delta.tables import HARD, ROW_KINDS, Layout, Table
from cdc.model import Namespace
from cdc.tasks import Part, Storage, find_placeholders, is_remote

_CHANGELOG, _MIRROR = "changelog", "mirror"
_READ = "read"
# The columns of copies besides the document, each after the column of the source that it has.
_COPIED = {
    "key": "key",
    "position": "_position",
    "cluster_time": "_cluster_time",
    "cluster_inc": "_cluster_inc",
}


class Copies(NamedTuple):
    """Where the copies of a collection go for its mirror.

    `are_alone` says that they go nowhere else.
    """

    folder: str
    image: Image
    are_alone: bool


class Destinations:
    """The folders of collections, and the columns of their mirrors.

    Args:
        layout: which tables there are; parsed from a configuration.
        former: the folders that tables of earlier versions have, as absolute paths or URLs.
        with_mirrors: whether copies are written for mirrors too.
    """

    def __init__(self, layout: Layout, former: Collection[str], with_mirrors: bool) -> None:
        self._layout, self._former = layout, frozenset(former)
        self._with_mirrors = with_mirrors
        self.folder = lru_cache(maxsize=None)(self._find_folder)
        self.copies = lru_cache(maxsize=None)(self._find_copies)

    @classmethod
    def discover(cls, spark: SparkSession, layout: Layout, with_mirrors: bool) -> Destinations:
        """The destinations of a layout, with the tables of earlier versions that are there."""
        routes = [
            options.routes[kind]
            for options in layout.all()
            for kind in ROW_KINDS
            if kind in options.routes and not options.routes[kind].is_name
        ]
        found = {
            route.own(table).address
            for route in dict.fromkeys(routes)
            for table in under(spark, route.literals())
        }
        return cls(layout, found, with_mirrors)

    @property
    def storage(self) -> Storage:
        return self._layout.storage

    def text(self) -> str:
        """The destinations for another process."""
        former = sorted(self._former)
        return json.dumps([self._layout.text(), former, self._with_mirrors])

    @classmethod
    def parse(cls, text: str) -> Destinations:
        """The inverse of `text`."""
        layout, former, with_mirrors = json.loads(text)
        return cls(Layout.from_text(layout), former, with_mirrors)

    def divide(self, batch: int, namespace: Namespace, rows: pa.RecordBatch) -> Iterator[Part]:
        """Yield what goes where; `rows` of that batch are about documents of the namespace."""
        folder, copies = self.folder(namespace), self.copies(namespace)
        if copies is not None:
            is_copied = pc.equal(rows.column("op"), _READ)
            if copies.are_alone:
                # The dead letters of the others are made of staged rows.
                is_copied = pc.and_not(is_copied, find_placeholders(rows.column("after")))
            every = is_copied.true_count == len(rows)
            if len(copied := rows if every else rows.filter(is_copied)):
                yield Part(copies.folder, mirror_rows(copied, copies.image), is_copy=True)
            if copies.are_alone:
                rows = rows[:0] if every else rows.filter(pc.invert(is_copied))
        if folder is not None and len(rows):
            yield Part(folder, with_batch(rows, batch))

    def _find_folder(self, namespace: Namespace) -> str | None:
        kind = self._layout.of(namespace).row_kind
        table = self._layout.table(kind, namespace) if kind else None
        return self._address(table) if table else None

    def _find_copies(self, namespace: Namespace) -> Copies | None:
        table = self._layout.table(_MIRROR, namespace) if self._with_mirrors else None
        if table is None or not takes_copies(table):
            return None
        options = table.options
        are_alone = options.row_kind == _MIRROR
        return Copies(self._address(table), Image.of_new(options.columns), are_alone)

    def _address(self, table: Table) -> str:
        former = table.target.former
        return former if former in self._former and former else table.target.address


def with_batch(rows: pa.RecordBatch, batch: int) -> pa.RecordBatch:
    """Rows of the source as rows of a changelog."""
    numbers = pa.repeat(pa.scalar(batch, pa.int64()), len(rows))
    names = [*rows.schema.names, BATCH]
    return pa.RecordBatch.from_arrays([*rows.columns, numbers], names=names)


def takes_copies(mirror: Table) -> bool:
    """Whether copies may be written to a mirror as they are.

    Not to one of several collections, to one that keeps tombstones, to one whose columns grow, or
    to one with a VARIANT inside of a typed column.
    """
    options = mirror.options
    is_own = not mirror.is_shared and not mirror.target.is_name
    return is_own and options.delete == HARD and not options.evolves and _is_flat(options.columns)


def _is_flat(typed: Columns | None) -> bool:
    kinds = [column.type for column in typed.columns] if typed else []
    return not any(
        "variant" in kind.simpleString() and not isinstance(kind, VariantType) for kind in kinds
    )


def mirror_rows(rows: pa.RecordBatch, image: Image) -> pa.RecordBatch:
    """The rows of copied documents as rows of a mirror."""
    own = {stored: rows.column(name) for name, stored in _COPIED.items()}
    key = own.pop("key")
    columns = {"key": key, **image.take(key, rows.column("after")), **own}
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def mirror_columns(image: Image, source: StructType) -> StructType:
    """The columns of `mirror_rows`, made of rows with the columns `source`."""
    own = [StructField(stored, source[name].dataType) for name, stored in _COPIED.items()]
    return StructType([own[0], *image.fields(source["after"].dataType), *own[1:]])


def rows_of_copies(
    copies: DataFrame, namespace: Namespace, image: Image, source: StructType
) -> DataFrame:
    """The inverse of `mirror_rows`: the rows of the source of which copies were made.

    Columns that a mirror does not need are null.
    """
    known = {name: F.col(stored) for name, stored in _COPIED.items()}
    known |= {"op": F.lit(_READ), "db": F.lit(namespace.db), "coll": F.lit(namespace.coll)}
    known["after"] = image.document()
    columns = [
        known.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in source
    ]
    return copies.select(*columns)


def obstacles(spark: SparkSession, layout: Layout) -> Iterator[str]:
    """Yield each reason for which tasks cannot write the rows of a layout."""
    for options in layout.all():
        if (kind := options.row_kind) is None:
            continue
        route = options.routes[kind]
        if route.is_name:
            yield f"'{route.template}' is a table of a catalog"
        elif not is_local(spark, Target(route.base)) and not is_remote(route.base):
            yield f"'{route.base}' is no local path and no URL"
        elif kind == _CHANGELOG and options.changelog_form != EVENT:
            yield f"a changelog has the form {options.changelog_form}"
