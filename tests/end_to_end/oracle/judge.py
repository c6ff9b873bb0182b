"""The oracles together: all that is wrong with the tables of one collection."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pyarrow.dataset import dataset
from pyspark.sql import DataFrame, SparkSession

from cdc.model import Namespace
from cdc.pipeline import Config
from tests.end_to_end.oracle import changelog, data_files, documents
from tests.end_to_end.oracle.changelog import Row
from tests.end_to_end.oracle.checkpoint import Checkpoint
from tests.end_to_end.oracle.oplog import Truth

CHANGELOG, MIRROR, HISTORY, LIVE = "changelog", "mirror", "history", "live view"
FILES, STATISTICS, COUNTS, SUMMARY = "log and files", "statistics", "counts by delta-rs", "summary"
_COLUMNS = {
    "changelog": changelog.COLUMNS,
    "mirror": documents.MIRROR_COLUMNS,
    "history": documents.HISTORY_COLUMNS,
}
# So many versions of a mirror are compared.
_EARLIER = 40
ORACLES = (CHANGELOG, MIRROR, HISTORY, LIVE, FILES, STATISTICS, COUNTS, SUMMARY)


def violations(
    spark: SparkSession,
    truth: Truth,
    config: Config,
    checkpoint: Checkpoint,
    namespace: Namespace,
) -> list[str]:
    """Everything that is wrong with the tables of a collection, in words, each after the name of
    its oracle; empty if nothing is.

    The changelog is judged as of the last committed batch (one written in part since is not its
    fault), mirror and history as of the last batch that they contain. A mirror that lags after a
    run that was not killed is wrong too: see `lag`. A mirror without a changelog never lags.
    """
    judge = _Judge(spark, truth, config, checkpoint, namespace)
    return list(judge.violations())


def live_violations(
    rows: Sequence[Row],
    truth: Truth,
    config: Config,
    checkpoint: Checkpoint,
    namespace: Namespace,
) -> list[str]:
    """What is wrong with the rows (`key`, `document`) of a live view that was read when the
    changelog was as it is: it is the collection as of the newest batch there."""
    _, batch = data_files.newest(_folder(config, "changelog", namespace))
    frontier = checkpoint.planned()[batch]
    return _named(LIVE, documents.wrong_documents(rows, truth, namespace, frontier))


def earlier_violations(
    truth: Truth, config: Config, checkpoint: Checkpoint, namespace: Namespace
) -> list[str]:
    """What was wrong with a mirror after some of its batches, read by delta-rs: it was the
    collection as of the end of each, also while writers went on. The servers still have to know
    what the collection was then, which they do for five minutes.
    """
    folder, found = _folder(config, MIRROR, namespace), list[str]()
    planned = checkpoint.planned()
    stated = [entry for entry in data_files.read_log(folder) if entry.stated]
    for entry in stated[-_EARLIER:-1]:
        rows = data_files.query(folder, entry.version, "SELECT key, document FROM t")
        frontier = planned[entry.stated["batch"]]
        wrong = documents.wrong_documents(rows, truth, namespace, frontier)
        found += _named(MIRROR, wrong, f"batch {entry.stated['batch']}")
    return found


def lag(config: Config, namespace: Namespace, kind: str = MIRROR) -> int:
    """How many batches a mirror or a history lacks of those that the changelog contains.

    None if there is no changelog: they are written with each batch then.
    """
    if config.table(CHANGELOG, namespace) is None:
        return 0
    newest = [data_files.newest(_folder(config, each, namespace))[1] for each in (CHANGELOG, kind)]
    return newest[0] - newest[1]


class _Judge:
    def __init__(
        self,
        spark: SparkSession,
        truth: Truth,
        config: Config,
        checkpoint: Checkpoint,
        namespace: Namespace,
    ) -> None:
        self._spark, self._truth, self._config = spark, truth, config
        self._namespace = namespace
        self._batch, self._planned = checkpoint.committed(), checkpoint.planned()
        self._known: dict[tuple[str, int], list[Row]] = {}

    def violations(self) -> Iterator[str]:
        frontier = self._planned[: self._batch + 1]
        if not frontier:
            return
        yield from (found := self._wrong_logs())
        if any("missing" in each for each in found):
            return  # nobody can read the rows
        if self._config.table(CHANGELOG, self._namespace) is None:
            yield from self._wrong_mirror_alone()
        else:
            version, _ = self._newest("changelog", self._batch)
            rows, story = self._rows("changelog", version), self._truth.story(self._namespace)
            wrong = changelog.changelog_violations(rows, story, self._namespace, frontier)
            yield from _named(CHANGELOG, wrong)
            yield from self._wrong_documents()
        yield from self._wrong_contents()

    def _wrong_mirror_alone(self) -> Iterator[str]:
        """What is wrong with a mirror that is written with each batch that changes it.

        A kill may have left it a batch ahead of the checkpoint.
        """
        version, contained = self._newest(MIRROR)
        rows, frontier = self._rows(MIRROR, version), self._planned[max(contained, self._batch)]
        wrong = documents.wrong_documents(rows, self._truth, self._namespace, frontier)
        yield from _named(MIRROR, wrong)

    def _wrong_documents(self) -> Iterator[str]:
        for kind in ("mirror", "history"):
            if self._config.table(kind, self._namespace) is None:
                continue
            version, applied = self._newest(kind)
            if applied < 0:
                continue
            rows = self._rows(kind, version)
            # What the changelog had when the table got that batch.
            logged = self._rows("changelog", self._newest("changelog", applied)[0])
            if kind == "mirror":
                frontier = self._planned[applied]
                wrong = documents.wrong_documents(rows, self._truth, self._namespace, frontier)
                yield from _named(MIRROR, wrong)
                yield from _named(MIRROR, documents.wrong_positions(rows, logged))
            else:
                yield from _named(HISTORY, documents.wrong_versions(rows, logged))

    def _wrong_logs(self) -> list[str]:
        found = list[str]()
        for kind, folder in self._folders():
            found += _named(FILES, data_files.log_violations(folder), kind)
            if kind == "changelog":
                found += _named(FILES, data_files.repeated_batches(folder), kind)
        return found

    def _wrong_contents(self) -> Iterator[str]:
        for kind, folder in self._folders():
            yield from _named(STATISTICS, data_files.wrong_statistics(folder), kind)
            version, _ = self._newest(kind)
            if version < 0:
                continue
            rows = self._rows(kind, version)
            if len(rows) != (count := data_files.count_rows(folder, version)):
                yield f"{COUNTS}: {kind}: {count} rows, and {len(rows)} by Spark"
            if kind == "changelog":
                counts = defaultdict[int, Counter[str]](Counter)
                for row in rows:
                    if row["coll"] is not None:
                        counts[row["_batch"]][row["op"]] += 1
                yield from _named(SUMMARY, data_files.wrong_summaries(folder, counts))

    def _folders(self) -> Iterator[tuple[str, Path]]:
        for kind in ("changelog", "mirror", "history"):
            if self._config.table(kind, self._namespace) is not None:
                yield kind, _folder(self._config, kind, self._namespace)

    def _newest(self, kind: str, batch: int | None = None) -> tuple[int, int]:
        return data_files.newest(_folder(self._config, kind, self._namespace), batch)

    def _rows(self, kind: str, version: int) -> list[Row]:
        """The rows of a version; none if it is -1."""
        if version < 0:
            return []
        if (kind, version) not in self._known:
            folder = _folder(self._config, kind, self._namespace)
            reader = self._spark.read.format("delta").option("versionAsOf", version)
            rows = reader.load(str(folder)).selectExpr(*_COLUMNS[kind])
            self._known[kind, version] = collected(rows)
        return self._known[kind, version]


def collected(rows: DataFrame) -> list[Row]:
    """Not by Spark's `collect`: the JVM of the tests cannot hold hundreds of thousands of rows."""
    with tempfile.TemporaryDirectory() as folder:
        rows.write.mode("overwrite").parquet(folder)
        return [row for part in dataset(folder).to_batches() for row in part.to_pylist()]


def _folder(config: Config, kind: str, namespace: Namespace) -> Path:
    table = config.table(kind, namespace)
    assert table is not None
    return Path(table.target.address)


def _named(oracle: str, found: Iterable[str], where: str = "") -> list[str]:
    return [f"{oracle}: {where}: {each}" if where else f"{oracle}: {each}" for each in found]
