"""Program `demo`: a collection under load is replicated, killed, restarted, verified, and read as
of a time."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Self

import click
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdc.api import Pipeline
from cdc.checkpoint import checkpoint
from cdc.cli.commands import (
    STDOUT,
    json_option,
    log_level_option,
    print_result,
    run_as_command,
)
from cdc.demo import ReplicaSet, Replicate, Writers, drop_orders, load_orders
from cdc.errors import LEFT, CdcError
from cdc.model import Namespace, Timestamp, timestamp
from cdc.monitoring import Display
from cdc.pipeline import Replication, Verdict
from cdc.source import query_status
from cdc.terminal import Terminal

ORDERS = Namespace("mongodb_cdc_demo", "orders")
_NAME = str(ORDERS)
_URI = "MONGODB_CDC_DEMO_URI"
_DEADLINE_SECONDS = 600.0
# Each look at a table is a Spark query.
_POLL_SECONDS = 1.0
_PAUSE_SECONDS = 0.02
_SAMPLE_ROWS = 5


@dataclass(slots=True)
class Measurements:
    """The result of the demo; documents, changes and doubled ones are rows of the changelog."""

    documents: int = 0
    changes: int = 0
    doubled: int = 0
    writes: int = 0
    killed_batch: int = 0
    batches: int = 0
    equal: bool = False
    seconds: float = 0.0


@contextlib.contextmanager
def _server(uri: str | None) -> Iterator[str]:
    if uri is not None:
        yield uri
        return
    with ReplicaSet() as replica_set:
        yield replica_set.uri


class Story:
    """The steps of the demo with a pipeline that these options describe.

    In its `with` block a Spark session starts in a thread, beside the first steps, which need none.
    """

    def __init__(self, console: Console, options: Mapping[str, str]) -> None:
        self.measured = Measurements()
        self._console, self._options = console, options
        self._pipeline = Pipeline.from_options(options)
        self._path = self._pipeline.config.checkpoint
        self._steps = 0
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._spark = self._threads.submit(lambda: self._pipeline.spark)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()
        self._pipeline.__exit__(*error)

    def tell(self, title: str, text: str) -> None:
        """Print the next step."""
        self._steps += 1
        head = Text(f"\n{self._steps}. {title}: ", "bold")
        self._console.print(head.append(text, "not bold"), soft_wrap=True)

    def run(self, writers: Writers) -> Verdict:
        """All steps after the collection was loaded, while the writers continue."""
        past = self._copy_and_kill()
        self.tell("Restart", "the next run repeats that batch, with the same content, and goes on")
        self._restart()
        # The application goes on writing. The run has ended, so that it takes no time from the
        # queries.
        [verdict] = self._pipeline.verify(_NAME)
        self._show_verdict(verdict)
        self.measured.writes = writers.written
        writers.stop()  # what follows is about the past
        self._show_changes()
        self._travel(past)
        return verdict

    def _copy_and_kill(self) -> Timestamp:
        """Run `replicate`, read what it writes while it follows changes, and kill it in a batch.

        Returns the end of the last written batch.
        """
        self.tell("Copy", "replicate copies the collection, while an application writes to it")
        with Replicate([f"{name}={value}" for name, value in self._options.items()]) as first:
            is_copied = partial(checkpoint.complete_until, self._path, ORDERS)
            first.wait_until(is_copied, _DEADLINE_SECONDS)
            self._spark.result()
            is_mirrored = partial(self._pipeline.mirrored_until, _NAME)
            first.wait_until(is_mirrored, _DEADLINE_SECONDS, _POLL_SECONDS)
            count = self._pipeline.live(_NAME).count()
            first.wait_until(self._is_in_a_batch, _DEADLINE_SECONDS)
            first.kill()
        self._console.show_cursor()
        self.tell(
            "Live view",
            f"{count:,} documents were read meanwhile, as fresh as the changelog, whatever the"
            " mirror lacks",
        )
        now = checkpoint.read(self._path)
        assert now.last is not None, "a batch was written before the kill"
        assert now.planned is not None, "it was killed in a batch"
        self.measured.killed_batch = now.planned
        self.tell(
            "Kill",
            f"kill -9 of replicate (process {first.pid}) and all its children; they were writing"
            f" batch {now.planned}",
        )
        return now.last.offset.time

    def _is_in_a_batch(self) -> bool:
        """Whether a batch is planned and not written."""
        now = checkpoint.read(self._path)
        return now.last is not None and now.planned != now.last.batch

    def _restart(self) -> None:
        """Replicate from the checkpoint until the mirror has a change made after the kill."""
        pipeline, last = self._pipeline, checkpoint.read(self._path).last
        assert last is not None, "a batch was written before the kill"
        killed, deadline = last.offset.time, time.monotonic() + _DEADLINE_SECONDS
        collections = query_status(pipeline.config.options, last.offset, None).collections
        with (
            Display(self._console, collections) as display,
            pipeline.run(on_batch=display.show_batch) as replication,
            _watching(replication, display),
        ):
            while (pipeline.mirrored_until(_NAME) or killed) <= killed:
                if not replication.is_active() or time.monotonic() > deadline:
                    raise CdcError("The second run did not get to the changes.")
                time.sleep(_POLL_SECONDS)

    def _show_changes(self) -> None:
        """Count the changelog, and show some of its last rows."""
        measured, changelog = self.measured, self._read("changelog")
        is_read = F.col("op") == "read"
        [counts] = changelog.agg(
            F.count_if(is_read).alias("documents"),
            F.count_if(~is_read).alias("changes"),
            (F.count("*") - F.count_distinct("position", "key")).alias("doubled"),
        ).collect()
        measured.documents, measured.changes, measured.doubled = counts
        self.tell(
            "Changes",
            f"the changelog has {measured.documents:,} copied documents and {measured.changes:,}"
            f" changes, {measured.doubled} of them twice; last rows of the changelog",
        )
        rows = changelog.filter("op <> 'read'")
        brief = _brief("before"), _brief("after")
        rows = rows.select("op", "cluster_time", "key", *brief, "position")
        newest = rows.where("before <> after").orderBy("position", ascending=False)
        self._print(newest.limit(_SAMPLE_ROWS).drop("position"))

    def _show_verdict(self, verdict: Verdict) -> None:
        """Show the comparison of the mirror with MongoDB."""
        last = checkpoint.read(self._path).last
        self.measured.batches = last.batch + 1 if last else 0
        self.measured.equal = verdict.is_equal
        self.tell(
            "Verify",
            f"{'equal' if verdict.is_equal else 'DIFFERENT'}: {verdict.documents:,} documents of"
            f" the mirror compared with MongoDB at T={verdict.at}, under load;"
            f" {verdict.missing + verdict.extra + verdict.differing} differ",
        )

    def _travel(self, past: Timestamp) -> None:
        """Compare orders as of the time of the kill with those of now."""
        then = self._pipeline.as_of(_NAME, past).persist()
        self.tell(
            "Time travel",
            f"{then.count():,} documents as of T={timestamp.text(past)}, just before the kill;"
            " orders that were changed since",
        )
        now = self._read("mirror").select("key", F.col("document").alias("now"))
        both = then.select("key", "document").join(now, "key")
        states = both.select("key", _brief("document", "then"), _brief("now"))
        self._print(states.where("then <> now").orderBy("key").limit(_SAMPLE_ROWS))
        then.unpersist()

    def _read(self, kind: str) -> DataFrame:
        return self._pipeline.table(kind, _NAME).read(self._pipeline.spark)

    def _print(self, frame: DataFrame) -> None:
        table = Table(*frame.columns)
        for row in frame.collect():
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        self._console.print(table)


def _brief(column: str, alias: str | None = None) -> Column:
    """Status and total of an order."""
    parts = [F.expr(f"variant_get({column}, '$.{each}', 'string')") for each in ("status", "total")]
    return F.concat_ws(" ", *parts).alias(alias or column)


@contextlib.contextmanager
def _watching(replication: Replication, display: Display) -> Iterator[None]:
    """Show the status until the block ends."""
    is_over = threading.Event()

    def show() -> None:
        while not is_over.wait(_POLL_SECONDS) and replication.query.isActive:
            display.show_status(replication.status())

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run(uri: str | None, documents: int, json_path: str | None, console: Console) -> int:
    """Run the demo and return its exit code.

    It always stops everything that it started and removes its folder.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mongodb-cdc-demo-") as folder, _server(uri) as server:
        os.environ[_URI] = server  # not in the arguments of a process, which all users can see
        story = Story(
            console,
            {
                "uri": f"env:{_URI}",
                "collections": _NAME,
                "sink.path": f"{folder}/lakehouse",
                # Small splits: the copy of a small collection takes several batches to watch.
                "split.size.mb": "2",
                "snapshot.splits.per.batch": "4",
                # Queries share the machine with the run: its pauses leave them most of it.
                "sink.trigger": "2 seconds",
                # The demo ends soon: the mirror is to be worth a comparison by then.
                "sink.mirror.interval": "3",
            },
        )
        where = "your replica set" if uri else "a MongoDB with one member, in a temporary folder"
        with story:
            story.tell("Load", f"{documents:,} orders into {where}")
            load_orders(server, ORDERS, documents, must_be_new=uri is not None)
            try:
                with Writers(server, ORDERS, pause=_PAUSE_SECONDS) as writers:
                    verdict = story.run(writers)
            finally:
                drop_orders(server, ORDERS)
    story.measured.seconds = round(time.monotonic() - began, 1)
    is_whole = verdict.is_equal and not story.measured.doubled
    end = f"\n{story.measured.writes:,} writes went on; {story.measured.seconds:.0f} s in all"
    print_result(asdict(story.measured), json_path, lambda: console.print(end))
    return 0 if is_whole else LEFT


@click.command()
@click.option("--uri", help="Your own replica set instead of the embedded server.")
@click.option(
    "--documents",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    help="Orders to load before the start.",
)
@json_option
@log_level_option("warning")
@run_as_command
def main(uri: str | None, documents: int, json_path: str | None) -> int:
    """Replicate orders under load, kill the run, restart and verify it. Exit code 6: tables differ.

    Example: mongodb-cdc demo --json demo.json
    """
    return run(uri, documents, json_path, Terminal(stderr=json_path == STDOUT))


if __name__ == "__main__":
    main()
