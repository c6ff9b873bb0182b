"""Program `demo`: replicate a MongoDB under load and verify the tables."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from cdc.cli.commands import LEFT, STDOUT, json_option, print_result, run_as_command
from cdc.cli.verify import show
from cdc.delta.sink import BatchReport
from cdc.demo import ReplicaSet, Writers, drop_orders, load_orders
from cdc.errors import CdcError
from cdc.model import Namespace
from cdc.monitoring import Display
from cdc.pipeline import Config, Replication, Verdict, mirrored_until, session, verify
from cdc.pipeline import config as configuration
from cdc.source import preflight
from cdc.terminal import Terminal

ORDERS = Namespace("mongodb_cdc_demo", "orders")
_STREAM_SECONDS = 8.0
_DEADLINE_SECONDS = 600.0


@dataclass(slots=True)
class Measurements:
    """The result of the demo. `snapshot_seconds` begin after the start of Spark; the rate is that
    of documents per second on the whole path, MongoDB to Delta."""

    documents: int = 0
    snapshot_seconds: float = 0.0
    snapshot_rate: float = 0.0
    changes: int = 0
    writes: int = 0
    batches: int = 0
    equal: bool = False


@contextlib.contextmanager
def _server(uri: str | None, console: Console) -> Iterator[str]:
    if uri is not None:
        yield uri
        return
    console.print("starting a MongoDB with one member in a temporary folder")
    with ReplicaSet() as replica_set:
        yield replica_set.uri


def run(uri: str | None, documents: int, json_path: str | None, console: Console) -> int:
    """Run the demo and return its exit code.

    It always stops everything that it started and removes its folder.
    """
    with (
        tempfile.TemporaryDirectory(prefix="mongodb-cdc-demo-") as folder,
        _server(uri, console) as server,
    ):
        with console.status(f"loading {documents:,} orders"):
            load_orders(server, ORDERS, documents, must_be_new=uri is not None)
        overrides = [
            f"uri={server}",
            f"collections={ORDERS}",
            f"sink.path={folder}/lakehouse",
            # Small splits: the copy of a small collection takes several batches to watch.
            "split.size.mb=2",
            "snapshot.splits.per.batch=4",
            # The demo ends soon: the mirror is to be worth a comparison by then.
            "sink.mirror.interval=1",
        ]
        config = configuration.load(None, overrides)
        try:
            spark = session("mongodb-cdc demo")
            measured, verdict = _replicate(spark, config, server, console)
            _sample(spark, config, console)
            spark.stop()
        finally:
            drop_orders(server, ORDERS)
    print_result(asdict(measured), json_path, lambda: show(console, [verdict]))
    return 0 if verdict.is_equal else LEFT


def _replicate(
    spark: SparkSession, config: Config, server: str, console: Console
) -> tuple[Measurements, Verdict]:
    """Replicate under load until some seconds after the hand-over, then verify under load."""
    measured = Measurements()
    began = time.monotonic()
    handed_over: list[float] = []
    expected = {c.namespace: c.documents for c in preflight(config.options)}
    with Display(console, expected) as display, Writers(server, ORDERS) as writers:

        def on_batch(report: BatchReport) -> None:
            display.show_batch(report)
            counts = report.counts.get(ORDERS, {})
            read = counts.get("read", 0)
            measured.documents += read
            measured.changes += sum(counts.values()) - read
            measured.batches += 1
            if not report.copying and measured.documents and not handed_over:
                handed_over.append(time.monotonic())

        replication = Replication(spark, config, on_batch=on_batch)
        query = replication.query
        try:
            deadline = began + _DEADLINE_SECONDS
            while query.isActive and time.monotonic() < deadline:
                display.show_status(replication.status())
                streamed = time.monotonic() - handed_over[0] if handed_over else 0.0
                if streamed > _STREAM_SECONDS and mirrored_until(spark, config, ORDERS):
                    break
                time.sleep(0.5)
            if query.isActive and not handed_over:
                raise CdcError(f"The copy was not complete after {_DEADLINE_SECONDS:.0f} s.")
            # Writers and replication continue meanwhile: that is the purpose of the demo.
            verdict = verify(spark, config, ORDERS) if query.isActive else None
        finally:
            replication.stop()
        measured.writes = writers.written
    assert verdict is not None  # `stop` has raised the error of a query that ended by itself
    measured.snapshot_seconds = round(handed_over[0] - began, 2)
    measured.snapshot_rate = round(measured.documents / measured.snapshot_seconds)
    measured.equal = verdict.is_equal
    console.print(
        f"{measured.documents:,} documents copied and {measured.changes:,} changes applied in"
        f" {measured.batches} batches, while {measured.writes:,} writes went on"
    )
    return measured, verdict


def _sample(spark: SparkSession, config: Config, console: Console) -> None:
    tables = config.table("changelog", ORDERS), config.table("mirror", ORDERS)
    changelog, mirror = (table.target.read(spark) for table in tables if table)
    console.print("\nlast rows of the changelog", style="bold")
    rows = changelog.filter("op <> 'read'").orderBy("position", ascending=False).limit(8)
    _print(console, rows.selectExpr("op", "cluster_time", "key", *_brief("before", "after")))
    console.print("\nfirst rows of the mirror", style="bold")
    mirror = mirror.orderBy("key").limit(5)
    _print(console, mirror.selectExpr("key", *_brief("document")))


def _brief(*columns: str) -> list[str]:
    return [
        f"variant_get({name}, '$.status', 'string') || ' ' ||"
        f" variant_get({name}, '$.total', 'string') AS {name}"
        for name in columns
    ]


def _print(console: Console, frame: DataFrame) -> None:
    table = Table(*frame.columns)
    for row in frame.collect():
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(table)


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
@run_as_command
def main(uri: str | None, documents: int, json_path: str | None) -> int:
    """Load orders, keep writing, replicate and verify. Exit code 6: the tables differ.

    Example: mongodb-cdc demo --json demo.json
    """
    return run(uri, documents, json_path, Terminal(stderr=json_path == STDOUT))


if __name__ == "__main__":
    main()
