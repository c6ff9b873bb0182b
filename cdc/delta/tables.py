"""The Delta tables of one pipeline: which exist, whose they are, and what their last commit said.

A table names its pipeline, its namespace and its kind in its properties. They and the last commit
are read once per table and run: after that this process is the only writer, and remembers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from cdc.delta.commit import Commit, newest_commit
from cdc.delta.routing import Route
from cdc.errors import BadOption, ForeignOffset, TableOwnedElsewhere
from cdc.model import timestamp
from cdc.model.selection import Namespace

_PIPELINE = "mongodb-cdc.pipeline"
_NAMESPACE = "mongodb-cdc.namespace"
_KIND = "mongodb-cdc.table"
_DOCUMENT = "mongodb-cdc.document"


@dataclass(frozen=True, slots=True)
class _Known:
    document: str
    last: Commit | None


@dataclass(slots=True)
class Tables:
    """All tables of one kind that one pipeline writes under one route. One thread at a time.

    `pipeline` identifies the checkpoint, not the job's name: Delta skips a (transaction id,
    version) that it has seen, and a new checkpoint counts its batches from 0 again.
    """

    kind: str
    route: Route
    pipeline: str
    _known: dict[Namespace, _Known] = field(default_factory=dict)

    @property
    def transaction_id(self) -> str:
        return f"mongodb-cdc/{self.pipeline}/{self.kind}"

    def path(self, namespace: Namespace) -> str:
        return self.route.path(namespace)

    def known(self) -> list[Namespace]:
        """The namespaces that have a table of this pipeline. Complete after `discover`."""
        return sorted(self._known)

    def last(self, namespace: Namespace) -> Commit | None:
        """What the table's last commit of ours says; None without such a commit or table."""
        known = self._known.get(namespace)
        return known.last if known else None

    def discover(self, spark: SparkSession) -> None:
        """Get to know the tables of earlier runs; those of others are passed over.

        Must be called before the first batch. Costs about 0.3 s per table, once.
        """
        for path in _matching(spark, f"{self.route.glob()}/_delta_log"):
            properties = _properties(spark, path)
            if properties.get(_PIPELINE) == self.pipeline and properties.get(_KIND) == self.kind:
                self._remember(spark, Namespace(*json.loads(properties[_NAMESPACE])), properties)

    def claim(self, spark: SparkSession, namespace: Namespace, document: str, now: Commit) -> None:
        """Make sure that this batch may go to the namespace's table, there or not. Writes nothing.

        `document` is the SQL type of the images. Raises TableOwnedElsewhere; BadOption if the table
        holds images of another type; ForeignOffset if it is ahead of the checkpoint.
        """
        path = self.path(namespace)
        if namespace not in self._known:
            if not DeltaTable.isDeltaTable(spark, path):
                return
            properties = _properties(spark, path)
            self._require_ours(path, namespace, properties)
            self._remember(spark, namespace, properties)
        known = self._known[namespace]
        if known.document != document:
            raise BadOption(
                f"The table at '{path}' holds documents as {known.document}, not as {document}.",
                "Keep the option 'document.format', or start anew with other paths and checkpoint.",
            )
        _require_not_ahead(path, known.last, now)

    def create(
        self,
        spark: SparkSession,
        namespace: Namespace,
        schema: StructType,
        document: str,
        properties: Mapping[str, str],
    ) -> None:
        """Create the namespace's table unless it is known. `claim` must have passed."""
        if namespace in self._known:
            return
        builder = DeltaTable.create(spark).location(self.path(namespace)).addColumns(schema)
        ours = self._identity(namespace) | {_DOCUMENT: document}
        for name, value in {**properties, **ours}.items():
            builder = builder.property(name, value)
        # Not "if not exists": a table that another pipeline made meanwhile has to fail here.
        builder.execute()
        self._known[namespace] = _Known(document, None)

    def committed(self, namespace: Namespace, commit: Commit) -> None:
        """To be called after each commit, also after one that Delta skipped as already done."""
        self._known[namespace] = replace(self._known[namespace], last=commit)

    def _identity(self, namespace: Namespace) -> dict[str, str]:
        return {
            _PIPELINE: self.pipeline,
            _KIND: self.kind,
            _NAMESPACE: json.dumps(namespace),
        }

    def _remember(
        self, spark: SparkSession, namespace: Namespace, properties: Mapping[str, str]
    ) -> None:
        newest = newest_commit(spark, self.path(namespace))
        self._known[namespace] = _Known(properties[_DOCUMENT], newest and newest[1])

    def _require_ours(self, path: str, namespace: Namespace, properties: Mapping[str, str]) -> None:
        if self._identity(namespace).items() <= properties.items():
            return
        if _PIPELINE in properties:
            found = (
                f"is the {properties.get(_KIND)} of {properties.get(_NAMESPACE)} "
                f"of pipeline '{properties[_PIPELINE]}'"
            )
        else:
            found = "was not made by mongodb-cdc"
        raise TableOwnedElsewhere(
            f"The table at '{path}' {found}; the {self.kind} of {namespace} "
            f"for this checkpoint (pipeline '{self.pipeline}') cannot go there.",
            "Choose another path, or remove the table and the checkpoint it was written by.",
        )


def _require_not_ahead(path: str, last: Commit | None, now: Commit) -> None:
    """Delta would skip the batch as done, in silence, though this checkpoint means other rows."""
    if (
        last is None
        or last.batch < now.batch
        or (last.batch == now.batch and last.watermark == now.watermark)
    ):
        return
    raise ForeignOffset(
        f"The table at '{path}' holds batch {last.batch} up to {timestamp.text(last.watermark)}; "
        f"the checkpoint is only at batch {now.batch}, {timestamp.text(now.watermark)}.",
        "Restore the checkpoint that belongs to the tables, or start anew: a new checkpoint and "
        "other paths.",
    )


def _properties(spark: SparkSession, path: str) -> dict[str, str]:
    detail = DeltaTable.forPath(spark, path).detail().select("properties").head()
    return dict(detail.properties) if detail else {}


def _matching(spark: SparkSession, glob: str) -> list[str]:
    """The parents of the folders that match a Hadoop glob, on any file system Spark can reach."""
    # Spark's own API lists files, and a table without rows has none.
    jvm: Any = spark._jvm
    pattern = jvm.org.apache.hadoop.fs.Path(glob)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    found = pattern.getFileSystem(configuration).globStatus(pattern)
    return [status.getPath().getParent().toString() for status in found or ()]
