"""A kind of table: what its tables have in common, and other tables have not.

Each kind is one class in a module of its own: changelogs and dead letters in `cdc.delta.landing`,
mirrors and histories in `cdc.delta.followers`. The class also fills the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from pyspark.sql.types import StructType

from cdc.delta.columns import EVENT, Image
from cdc.delta.tables.layout import Options


class Kind:
    """What the properties, the columns and the transactions of a table depend on.

    Attributes:
        name: the name of the kind in layouts, in properties of tables, and in messages.
        form_option: the option of `[table]` that decides `form`; "" if there is none.
        is_typed: whether its documents have the columns that the option `columns` names.
        has_view: whether an SQL view stands beside each of its tables in a catalog.
        properties: properties of a new table, besides those that tables of all kinds have.
    """

    name: ClassVar[str]
    form_option: ClassVar[str] = ""
    is_typed: ClassVar[bool] = False
    has_view: ClassVar[bool] = False
    properties: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def form(self, options: Options) -> str:
        """Return the form of a table's rows, which all of them have; `form_option` sets it."""
        return EVENT

    def transaction(self, batch: int) -> tuple[str, int]:
        """The part of Delta's transaction id that names the kind, and the version of a batch."""
        return self.name, batch

    def new_image(self, options: Options) -> Image:
        """How a new table stores documents."""
        return Image.of_new(options.columns if self.is_typed else None)

    def image(self, schema: StructType, options: Options) -> Image:
        """How an existing table of this schema stores documents."""
        return Image.of_table(schema) if self.is_typed else self.new_image(options)

    def has_tombstones(self, options: Options) -> bool:
        """Whether rows of deleted documents stay in a table, with `_deleted` = true."""
        return False
