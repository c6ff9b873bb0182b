"""The whole job on a sharded cluster whose shards are read directly, killed and started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bson.timestamp import Timestamp
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.cli import verify
from cdc.model import Namespace
from cdc.pipeline import Config
from tests.end_to_end.job import Phase, run_until
from tests.end_to_end.oracle import Checkpoint, Frontier, OfCluster, violations
from tests.end_to_end.router import Routers, Sharded
from tests.mongo.capture import failing
from tests.mongo.capture import last_write as newest
from tests.mongo.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def test_the_oplogs_of_shards_give_the_documents_of_a_collection_whose_chunks_move(
    cluster: Cluster,
) -> None:
    """Guards: what the oracles take for the truth where shards do not know an earlier time."""
    orders = Namespace("shop", "orders")
    cluster.create_database(orders.db)
    cluster.fill(*orders)

    def update(shard: str, key: int) -> None:
        change = {"q": {"k": key}, "u": {"$inc": {"n": 1}}, "multi": False}
        reply = cluster.run(shard, orders.db, {"update": orders.coll, "updates": [change]})
        assert reply["n"] == 1, reply

    for to, other in (("s1", "s2"), ("s2", "s1")):
        update(other, 60)
        cluster.move(*orders, {"k": 50}, to)
        update(to, 60)
        found = OfCluster(cluster).replay(orders, last_write(cluster))
        assert sorted(map(bytes, found)) == sorted(cluster.contents(*orders))


@pytest.mark.soak
def test_a_job_on_shards_killed_under_writers_and_moving_chunks_loses_and_doubles_nothing(
    cluster: Cluster, spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """Guards: transactions across shards, changes of a shard key that move a document, chunks that
    move both ways during the copy and after it, orphans left over, batches read again."""
    cluster.create_database("shop")
    orders = Sharded(cluster, Namespace("shop", "orders"), is_hashed=False)
    parcels = Sharded(cluster, Namespace("shop", "parcels"), is_hashed=True)
    both, truth = [orders, parcels], OfCluster(cluster)
    orders.create(3_000)
    parcels.create(2_000)
    names = ",".join(str(each.namespace) for each in both)
    config = pipeline(names, f"uri={cluster.config.uri}", "shards.direct=true")
    checkpoint = Checkpoint(config)

    def run(reached: Phase, longer: float = 0.0) -> None:
        run_until(reached, checkpoint, config, tmp_path, longer)
        for each in both:
            found = violations(spark, truth, config, checkpoint, each.namespace)
            assert found[:20] == []

    with slow_to_report_transactions(cluster), Routers(cluster, both, seed=3) as routers:
        with cluster.keeping_orphans():
            routers.keeps_orphans = True
            run(lambda seen: len(seen) >= 3 and not seen[-1].is_streaming, longer=1)
            moves_meanwhile(both)
            assert verified(config, orders) == 0
        routers.keeps_orphans = False
        run(lambda seen: bool(seen) and seen[-1].is_streaming)
        moves_meanwhile(both)
        begun = len(checkpoint.planned())

        def several_more(seen: list[Frontier]) -> bool:
            if len(seen) < begun + 3 or not seen[-1].is_streaming:
                return False
            routers.stop()
            reached = seen[checkpoint.committed()]
            return reached.is_streaming and reached.time >= last_write(cluster)

        run(several_more)
    moves_meanwhile(both)
    assert routers.transactions["moving"] >= 10
    assert routers.transactions["committed"] >= 10
    assert routers.transactions["aborted"] >= 1
    assert any(offset.late for offset in checkpoint.planned()), "no transaction was in doubt"
    for each in both:
        assert reported(truth, each) == each.log, "the oracle misreads the oplogs"
    assert verified(config, *both) == 0


def verified(config: Config, *collections: Sharded) -> int:
    """The exit code of `mongodb-cdc verify`."""
    options = [f"{name}={value}" for name, value in config.source.items()]
    options += [f"sink.path={config.checkpoint.removesuffix('/_checkpoint')}"]
    arguments = [item for option in options for item in ("-o", option)]
    for each in collections:
        arguments += ["--collection", str(each.namespace)]
    result = CliRunner().invoke(verify.main, arguments)
    assert result.output.count(": equal;") == len(collections), result.output
    return result.exit_code


def moves_meanwhile(collections: list[Sharded]) -> None:
    """Chunks of each collection have moved since, both ways."""
    for each in collections:
        assert set(each.moves) == {"s1", "s2"}, each.namespace
        each.moves.clear()


def reported(truth: OfCluster, collection: Sharded) -> Counter[tuple[str, int]]:
    return Counter((event.op, event.key) for event in truth.story(collection.namespace))


def last_write(cluster: Cluster) -> Timestamp:
    return max(newest(cluster.clients[shard]) for shard in cluster.shards)


@contextmanager
def slow_to_report_transactions(cluster: Cluster) -> Iterator[None]:
    """What the connector hears of a shard's transactions is older than what it hears of its time:
    so many a batch ends at a time at which a transaction across shards is not reported by all."""
    slow = {"failCommands": ["find"], "namespace": "config.transactions", "appName": "mongodb-cdc"}
    with ExitStack() as stack:
        for shard in cluster.shards:
            slowly = failing(
                cluster.clients[shard], "alwaysOn", blockConnection=True, blockTimeMS=100, **slow
            )
            stack.enter_context(slowly)
        yield
