"""One Delta table by its path or by its name in a catalog. No other module makes the difference."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from cdc.delta.log.snapshot import delta_log, listed_snapshot, metadata_of, newest_snapshot
from cdc.delta.sql import literal, quoted
from cdc.errors import TableOwnedElsewhere

_ROOT = re.compile(r"([A-Za-z][\w+.-]+:(//[^/]*)?)?")
_GLOB = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """The place of a table. Nothing is read or written before a method is called.

    Attributes:
        address: a path, or a quoted name such as `` `main`.`sales`.`orders` ``.
        is_name: whether `address` is a name.
        former: the path that earlier versions gave the table; None if it is the same. A table at
            that path stays there. Each method looks for it, except after `settled`.
    """

    address: str
    is_name: bool = False
    former: str | None = field(default=None, compare=False)

    @classmethod
    def named(cls, parts: Sequence[str]) -> Target:
        """A table of a catalog, by the parts of its name, whatever characters they contain.

        In lower case, because catalogs do not distinguish names that differ in case only.
        """
        return cls(".".join(map(quoted, parts)).lower(), is_name=True)

    def __str__(self) -> str:
        return self.address

    def relative_to(self, other: Target) -> str:
        """The table as text that stays true if both tables are moved together; see `resolved`."""
        if self.is_name or other.is_name:
            return self.address
        (root, path), (other_root, other_path) = _parts(self.address), _parts(other.address)
        return posixpath.relpath(path, other_path) if root == other_root else self.address

    def resolved(self, text: str) -> Target:
        """The inverse of `relative_to` this table."""
        if text.startswith("../"):
            root, path = _parts(self.address)
            return Target(root + posixpath.normpath(posixpath.join(path, text)))
        return Target(text, is_name=text.startswith("`"))

    def settled(self, spark: SparkSession) -> Target:
        """The one place of the table, whether it exists or not: the former one if a table is there.

        The result depends on the existing tables alone, so all programs agree. Raises
        TableOwnedElsewhere if there is a table at both places: an earlier version continued beside
        a newer one, and each table contains only a part of the changes.
        """
        return self.settle(lambda target: target.exists(spark))

    def settle(self, exists: Callable[[Target], bool]) -> Target:
        """Like `settled`; `exists` finds out whether there is a table at a place."""
        if self.former is None:
            return self
        here, former = Target(self.address), Target(self.former)
        if not exists(former):
            return here
        if exists(here):
            raise TableOwnedElsewhere(
                f"There are two tables where one is to be: '{here}', and '{former}', the name that"
                " earlier versions gave it.",
                "Remove the one that lacks changes, and go on with this version alone.",
            )
        return former

    def sql(self, spark: SparkSession) -> str:
        """The table in SQL."""
        return self.address if self.is_name else f"delta.{quoted(self._path(spark))}"

    def exists(self, spark: SparkSession) -> bool:
        """Whether there is a Delta table."""
        if self.is_name:
            is_there = bool(spark.catalog.tableExists(self.address))
            return is_there and not self.is_view(spark)
        return _is_table(spark, self._path(spark))

    def is_view(self, spark: SparkSession) -> bool:
        """Whether the name, which is in the catalog, belongs to a view."""
        return spark.catalog.getTable(self.address).tableType == "VIEW"

    def delta(self, spark: SparkSession) -> DeltaTable:
        if self.is_name:
            return DeltaTable.forName(spark, self.address)
        return DeltaTable.forPath(spark, self._path(spark))

    def read(self, spark: SparkSession, version: int | None = None) -> DataFrame:
        """The table's rows, now or at one of its versions."""
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.table(self.address) if self.is_name else reader.load(self._path(spark))

    def create(
        self,
        spark: SparkSession,
        columns: StructType,
        properties: Mapping[str, str],
        cluster: Sequence[str],
        replaces: bool = False,
    ) -> None:
        """Create a table that has a name, clustered by some columns, and its schema (database).

        With `replaces`, a table that exists gets these columns and properties, and loses its rows,
        in one commit. Otherwise raises AnalysisException if the table exists.
        """
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {self.address.rpartition('.`')[0]}")
        declared = ", ".join(map(_declared, columns))
        # Delta's builder takes no name with a catalog.
        spark.sql(
            f"CREATE {'OR REPLACE ' if replaces else ''}TABLE {self.address} ({declared})"
            f" USING delta CLUSTER BY ({', '.join(map(quoted, cluster))})"
            f" TBLPROPERTIES {_property_list(properties)}"
        )

    def snapshot(self, spark: SparkSession) -> Any:
        """The newest version of the existing table, as Delta has it in the JVM."""
        if not self.is_name:
            found = newest_snapshot(spark, delta_log(spark, self._path(spark)))
            if found.version() >= 0:
                return found
        return listed_snapshot(spark, self.delta(spark)._jdt.deltaLog())

    def time_of_list(self, spark: SparkSession) -> float:
        """How many seconds it takes to list the log of the existing table."""
        log = self.delta(spark)._jdt.deltaLog()
        listed_snapshot(spark, log)  # the first one loads classes
        began = time.monotonic()
        listed_snapshot(spark, log)
        return time.monotonic() - began

    def folder(self, spark: SparkSession) -> str:
        """The URL of the existing table's folder, wherever a catalog has put it."""
        return str(self.delta(spark)._jdt.deltaLog().dataPath().toString())

    def properties(self, spark: SparkSession) -> dict[str, str]:
        return dict(metadata_of(self.snapshot(spark))["configuration"])

    def set_property(self, spark: SparkSession, name: str, value: str) -> None:
        """Set a property in one commit, which conflicts with all other commits."""
        spark.sql(
            f"ALTER TABLE {self.sql(spark)} SET TBLPROPERTIES {_property_list({name: value})}"
        )

    def append(self, frame: DataFrame, options: dict[str, Any]) -> None:
        """Add rows to the existing table in one commit."""
        writer = frame.write.format("delta").mode("append").options(**options)
        if self.is_name:
            writer.saveAsTable(self.address)
        else:
            writer.save(self._path(frame.sparkSession))

    def _path(self, spark: SparkSession) -> str:
        return self.settled(spark).address


def _parts(address: str) -> tuple[str, str]:
    """Scheme and authority of a path or URL, and the rest."""
    root = _ROOT.match(address)
    assert root is not None, "it matches any text"
    return root.group(), address[root.end() :]


def is_local(spark: SparkSession, target: Target) -> bool:
    """Whether the table is at a path of this machine, or of a file system that all machines mount.

    A path without a scheme belongs to the default file system of Hadoop, which may be another.
    """
    if target.is_name or not re.match(r"(file:(//)?)?/(?!/)", target.address):
        return False
    _, system = hadoop(spark, target.address)
    return bool(system.getUri().getScheme() == "file")


def hadoop(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """A path as Hadoop has it, and its file system."""
    jvm: Any = spark._jvm
    found = jvm.org.apache.hadoop.fs.Path(path)
    return found, found.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def names_in(spark: SparkSession, target: Target) -> list[str]:
    """The names in the folder of a table known by its path; none if there is no such folder."""
    path, system = hadoop(spark, target.address)
    if not system.exists(path):
        return []
    return [status.getPath().getName() for status in system.listStatus(path)]


def escape_glob(text: str) -> str:
    """Text as part of a Hadoop glob that matches nothing but itself."""
    return _GLOB.sub(r"\\\1", text)


def under(spark: SparkSession, parts: Sequence[str]) -> list[Target]:
    """The tables at the paths that consist of `parts` with any text between them.

    On any file system that Spark can reach.
    """
    glob = "*".join(map(escape_glob, parts))
    # Spark's own API lists files, and a table without rows has none.
    pattern, system = hadoop(spark, f"{glob}/_delta_log")
    found = system.globStatus(pattern)
    paths = [status.getPath().getParent().toString() for status in found or ()]
    return [Target(path) for path in paths if _is_table(spark, path)]


def _is_table(spark: SparkSession, path: str) -> bool:
    """Whether the path has a Delta table of at least one version.

    Delta makes the folder of the log before it writes the first version. A creation that is under
    way, or that was killed, has made the folder alone: Delta's own test accepts that one.
    """
    is_there = DeltaTable.isDeltaTable(spark, path)
    return is_there and int(newest_snapshot(spark, delta_log(spark, path)).version()) >= 0


def like(
    spark: SparkSession, catalog: str | None, schema: re.Pattern[str], table: re.Pattern[str]
) -> list[Target]:
    """The tables of a catalog (None: the session's) whose names match."""
    scope = [catalog] if catalog else []
    schemas = spark.sql("SHOW SCHEMAS" + _within(scope)).collect()
    found = [
        Target.named([*scope, each.namespace, row.tableName])
        for each in schemas
        if schema.fullmatch(each.namespace)
        for row in spark.sql("SHOW TABLES" + _within([*scope, each.namespace])).collect()
        if table.fullmatch(row.tableName) and not row.isTemporary
    ]
    # Spark lists views too.
    return [target for target in found if not target.is_view(spark)]


def _declared(column: StructField) -> str:
    """A column as CREATE TABLE takes it.

    Its comment contains names of fields of documents. In Spark's own text for a comment only quotes
    are escaped: a backslash before a quote ends the comment.
    """
    bare = StructType([StructField(column.name, column.dataType, column.nullable)]).toDDL()
    comment = column.metadata.get("comment")
    return f"{bare} COMMENT {literal(comment)}" if comment else bare


def _within(parts: Sequence[str]) -> str:
    return f" IN {'.'.join(map(quoted, parts))}" if parts else ""


def _property_list(properties: Mapping[str, str]) -> str:
    pairs = (f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    return f"({', '.join(pairs)})"
