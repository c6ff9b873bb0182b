"""A backfill as the user asks for it: which documents or changes, into which tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from cdc.errors import BadOption
from cdc.model import Namespace, timestamp
from cdc.pipeline.backfill.tables import (
    BackfillResult,
    Part,
    backfill_documents,
    backfill_mirror,
    backfill_window,
    require_whole,
)
from cdc.pipeline.config import Config

INTO = ("mirror", "changelog")


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """What a backfill reads again, and where it writes it.

    Attributes:
        collection: `db.coll`.
        into: the kinds of tables; empty means the mirror, or the changelog if `start` or `end` is
            given.
        part: the documents to read.
        start: if `start` or `end` is given, changes from this time on are read into the changelog
            instead of documents.
        end: changes before this time. Changes after the job's last batch are left to the job.
        at: the time to read documents as of, for a changelog alone; None means the mirror's.
        repair: whether to delete from the mirror what the source lacks.
        dry: whether to write nothing, and only report what would be written.
        run: a name: repeated calls with it add documents to the changelog only once.
    """

    collection: str
    into: tuple[str, ...] = ()
    part: Part = field(default_factory=Part)
    start: str | None = None
    end: str | None = None
    at: str | None = None
    repair: bool = False
    dry: bool = False
    run: str | None = None

    @property
    def window(self) -> Mapping[str, str]:
        """The options of the source that read the changes of a time; empty: documents are read."""
        given = {"from": self.start, "to": self.end}
        return {name: value for name, value in given.items() if value is not None}

    def check(self, config: Config) -> Namespace:
        """Return the collection. Raises BadOption if the request contradicts itself or `config`.

        Needs neither Spark nor the source.
        """
        namespace = config.parse_captured(self.collection)
        unknown = [kind for kind in self.into if kind not in INTO]
        if unknown:
            raise BadOption(
                f"A backfill cannot write into '{unknown[0]}'.", f"Use one of {', '.join(INTO)}."
            )
        self.part.options(config)
        if self.window:
            self._require_bare()
        elif self.at is not None:
            timestamp.parse(self.at)
            if "mirror" in self.kinds:
                raise BadOption(
                    f"A mirror can be repaired only as of its own time, not as of {self.at}.",
                    "Remove --at, or set --into changelog.",
                )
        for kind in self.kinds:
            config.require_table(kind, namespace, ", or name another kind of table with --into")
        if self.repair:
            require_whole(self.part)
        return namespace

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of tables that the backfill writes."""
        if self.window:
            return ("changelog",)
        return self.into or ("mirror",)

    def execute(self, spark: SparkSession, config: Config) -> BackfillResult:
        """Read and write; return the result.

        Raises what `check`, `backfill_mirror`, `backfill_documents` and `backfill_window` raise.
        """
        namespace = self.check(config)
        if self.window:
            count, written = backfill_window(spark, config, namespace, self.window, self.dry)
            if self.end is not None:
                written = min(written, timestamp.parse(self.end))
            return BackfillResult(self.collection, timestamp.text(written), changelog_rows=count)
        done = BackfillResult(self.collection, self.at or "")
        if "mirror" in self.kinds:
            done = backfill_mirror(spark, config, namespace, self.part, self.repair, self.dry)
        if "changelog" in self.kinds:
            done = backfill_documents(spark, config, namespace, self.part, done, self.dry, self.run)
        return done

    def _require_bare(self) -> None:
        is_bare = self.part.is_whole and not self.repair and self.at is None
        if not is_bare or "mirror" in self.into:
            raise BadOption(
                "A time window (--from, --to) is read whole, into the changelog only.",
                "Remove --min, --max, --filter, --repair, --at and --into mirror.",
            )
