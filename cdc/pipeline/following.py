"""The program that applies changelogs to mirrors and histories, beside the one that writes them.

It finds the batches of a pipeline by its checkpoint and its tables alone, and never connects to
MongoDB. It may run any number of times at once, also beside a `replicate` that applies batches
itself: each batch is in each table once, see `cdc.delta.followers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from pyspark.sql import SparkSession

from cdc.checkpoint import REPAIR, Folder, HadoopFiles, is_held
from cdc.delta.followers import KINDS, Backlog, FollowerKind, Followers, FollowerThread
from cdc.delta.landing import CHANGELOG
from cdc.delta.log import LogCheckpoints
from cdc.delta.tables import Table, Tables
from cdc.errors import BadOption, CheckpointDamaged, CheckpointMissing
from cdc.model import Namespace
from cdc.pipeline.access import Access
from cdc.pipeline.config import Config, require_followable
from cdc.pipeline.layouts import read_layouts
from cdc.pipeline.replication import row_columns, writes_by_tasks


class Following:
    """The mirrors and histories of a pipeline whose changelogs another program writes.

    Raises CheckpointMissing if `replicate` never ran, CheckpointDamaged if the checkpoint does not
    name its pipeline, and BadOption if a table has no changelog.
    """

    def __init__(self, spark: SparkSession, config: Config) -> None:
        require_followable(config.layout, config.base)
        self._spark, self._interval = spark, config.mirror_interval
        self._folder = Folder(HadoopFiles(spark), config.checkpoint)
        pipeline = _require_pipeline(self._folder)
        self._columns = row_columns(config)
        place = config.layout, pipeline, read_layouts(self._folder, config.base)
        self._kinds = {kind: Tables(kind, *place) for kind in KINDS}
        self._changelogs = Tables(CHANGELOG, *place)
        self._checkpoints = LogCheckpoints()
        by_files = writes_by_tasks(spark, config)
        self._followers = Followers(self._kinds, self._changelogs, self._checkpoints, by_files)
        self._thread: FollowerThread | None = None
        self.last: int | None = None

    def start(self) -> None:
        """Look for batches and apply them, in a thread, until `stop`."""
        waits = partial(is_held, self._folder)
        self._thread = FollowerThread(
            self._spark, self._followers, self._interval, self.find, waits
        )

    def has_caught_up(self) -> bool:
        """Whether all is applied that there was when the thread last looked for batches.

        Raises the error that ended the thread.
        """
        return self._thread is not None and self._thread.has_caught_up()

    def backlog(self) -> Backlog:
        """The batches that were found and are not applied yet."""
        return self._followers.backlog()

    def stop(self, seconds: float) -> bool:
        """End after the commits that are about to be made; return whether that took no longer.

        Raises the error that ended the thread.
        """
        has_ended = self._thread is None or self._thread.end(seconds, is_complete=False)
        self._checkpoints.close(seconds)
        return has_ended

    def find(self, spark: SparkSession) -> None:
        """Find the batches that the checkpoint contains by now, and tables that appeared.

        Raises ChangelogTooShort, TableRestored, and BadOption if a table has not the configured
        form.
        """
        last = self._last_batch()
        if last is not None and last != self.last:
            self._discover(spark)
            self._require_fitting()
            self._followers.recover(spark, last + 1, self._columns)
            self.last = last

    def rebuild(self, namespaces: Iterable[Namespace]) -> list[Table]:
        """Rebuild the mirrors and histories of collections from their changelogs; return them.

        A table that several collections share is rebuilt as a whole. One whose columns are not
        those of the configuration gets these. Raises RebuildRefused before
        any of the tables is emptied. A call that is killed is completed by the next run of the
        followers.
        """
        last = self._last_batch()
        if last is None:
            raise CheckpointMissing(
                f"The checkpoint {self._folder.path} contains no batch yet.",
                "Run mongodb-cdc replicate first.",
            )
        self._discover(self._spark)
        found = [(kind, table) for name in namespaces for kind, table in self._tables_of(name)]
        self._require_fitting({table for _, table in found})
        self._followers.begin(last + 1, self._columns)
        for kind, table in dict.fromkeys(found):
            self._followers.require_possible(self._spark, kind, table)
        for kind, table in dict.fromkeys(found):
            self._followers.empty(self._spark, kind, table)
        self._followers.apply(self._spark)
        self._checkpoints.close()
        return [table for _, table in dict.fromkeys(found)]

    def _tables_of(self, namespace: Namespace) -> list[tuple[FollowerKind, Table]]:
        found = {kind: tables.of(namespace) for kind, tables in self._kinds.items()}
        if not any(found.values()):
            raise BadOption(
                f"[table] configures neither a mirror nor a history for {namespace}.",
                "Name a collection that has one, or set the template 'mirror' or 'history'.",
            )
        return [(kind, table) for kind, table in found.items() if table is not None]

    def _discover(self, spark: SparkSession) -> None:
        for tables in (self._changelogs, *self._kinds.values()):
            tables.discover(spark)

    def _require_fitting(self, rebuilt: Collection[Table] = ()) -> None:
        document = self._columns["after"].dataType.simpleString()
        for tables in (self._changelogs, *self._kinds.values()):
            tables.require_configured(document, rebuilt)
            tables.require_whole(rebuilt)

    def _last_batch(self) -> int | None:
        """The last batch that all of its changelogs contain."""
        following = self._folder.next_batch()
        return following - 1 if following else None


def check_following(access: Access, config: Config) -> None:
    """Check that `Following` can start.

    Raises what its constructor does, and NeedsSpark if only Spark can read the checkpoint.
    """
    require_followable(config.layout, config.base)
    _require_pipeline(Folder(access.files, config.checkpoint))


def _require_pipeline(folder: Folder) -> str:
    """Return the id of the pipeline.

    Raises CheckpointMissing, and CheckpointDamaged if the checkpoint does not name its pipeline.
    """
    if not folder.is_begun():
        raise CheckpointMissing(
            f"There is no checkpoint at {folder.path} yet.",
            "Run mongodb-cdc replicate first, or set 'checkpoint' in [sink] to its checkpoint.",
        )
    if (pipeline := folder.pipeline()) is None:
        raise CheckpointDamaged(f"{folder.path} does not name its pipeline.", REPAIR)
    return pipeline
