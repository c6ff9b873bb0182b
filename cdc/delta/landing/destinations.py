"""The rule by which tasks write rows to tables: the layout, in a form that travels to tasks.

All rows about a document go to the changelog of their collection. The rows of a copy also go to its
mirror, in the columns of the mirror. Where the mirror contains none of their keys, these files are
committed without a MERGE."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantType

from cdc.delta.columns import BATCH, EVENT, Columns, Image
from cdc.delta.log import Target, is_local, under
from cdc.delta.tables import HARD, Layout, Table
from cdc.model import Namespace
from cdc.tasks import Part, Storage, is_remote

_CHANGELOG, _MIRROR = "changelog", "mirror"
_READ = "read"


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
        self.changelog = lru_cache(maxsize=None)(self._find_changelog)
        self.mirror = lru_cache(maxsize=None)(self._find_mirror)

    @classmethod
    def discover(cls, spark: SparkSession, layout: Layout, with_mirrors: bool) -> Destinations:
        """The destinations of a layout, with the tables of earlier versions that are there."""
        routes = [
            options.routes[kind]
            for options in layout.all()
            for kind in (_CHANGELOG, _MIRROR)
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
        folder, mirror = self.changelog(namespace), self.mirror(namespace)
        if folder is not None:
            yield Part(folder, with_batch(rows, batch))
        if mirror is not None:
            is_copied = pc.equal(rows.column("op"), _READ)
            copied = rows if is_copied.true_count == len(rows) else rows.filter(is_copied)
            if len(copied):
                yield Part(mirror[0], mirror_rows(copied, mirror[1]), is_copy=True)

    def _find_changelog(self, namespace: Namespace) -> str | None:
        return self._address(self._layout.table(_CHANGELOG, namespace))

    def _find_mirror(self, namespace: Namespace) -> tuple[str, Image] | None:
        table = self._layout.table(_MIRROR, namespace) if self._with_mirrors else None
        if table is None or not takes_copies(table):
            return None
        address = self._address(table)
        assert address is not None, "the table has one"
        return address, Image.of_new(table.options.columns)

    def _address(self, table: Table | None) -> str | None:
        if table is None:
            return None
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
    key = rows.column("key")
    columns = {
        "key": key,
        **image.take(key, rows.column("after")),
        "_position": rows.column("position"),
        "_cluster_time": rows.column("cluster_time"),
        "_cluster_inc": rows.column("cluster_inc"),
    }
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def obstacles(spark: SparkSession, layout: Layout) -> Iterator[str]:
    """Yield each reason for which tasks cannot write the changelogs of a layout."""
    for options in layout.all():
        route = options.routes.get(_CHANGELOG)
        if route is None:
            if options.routes:
                yield f"there is no changelog beside a table of the kind {min(options.routes)}"
        elif route.is_name:
            yield f"'{route.template}' is a table of a catalog"
        elif not is_local(spark, Target(route.base)) and not is_remote(route.base):
            yield f"'{route.base}' is no local path and no URL"
        elif options.changelog_form != EVENT:
            yield f"a changelog has the form {options.changelog_form}"
