"""Faults of every kind at random, under writers of every kind; the oracle decides after each
round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from cdc.pipeline import Config
from tests.end_to_end.campaign.cluster import OfShards
from tests.end_to_end.campaign.places import Disk, FaultyStore
from tests.end_to_end.campaign.rounds import Campaign
from tests.end_to_end.campaign.routers import OfRouters
from tests.end_to_end.campaign.scene import Source
from tests.end_to_end.campaign.trio import OfTrio
from tests.mongo.cluster import Cluster
from tests.mongo.trio import three_members
from tests.object_store import object_store
from tests.soak import choose_seed, soak
from tests.store_faults import StoreFaults

_ROUND_SECONDS = 300.0
# So many rounds write to the disk where one writes to an object store.
_OF_DISK = 3


@pytest.fixture(scope="module")
def three() -> Iterator[OfTrio]:
    # A member that was killed has to recover what was written since its last checkpoint.
    often = ("--syncdelay", "10")
    with three_members(oplog_megabytes=16_384, arguments=often) as running:
        yield OfTrio(running)


@pytest.fixture(scope="module")
def shards() -> Iterator[OfShards]:
    with Cluster() as running:
        yield OfShards(running)


@pytest.fixture(scope="module")
def routers() -> Iterator[OfRouters]:
    with Cluster() as running, OfRouters(running) as both:
        yield both


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyStore]:
    faults = StoreFaults(choose_seed())
    with object_store(faults) as running:
        yield FaultyStore(running, faults)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_campaign_of_faults_loses_and_doubles_no_change(
    three: OfTrio, spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    """By one of the methods, in each run another one; the soak takes all."""
    method = three.methods[choose_seed() % len(three.methods)]
    campaign = Campaign(three, spark, pipeline, seed=8, methods=[method])
    campaign.round(tmp_path, seconds=15)
    assert campaign.report.violations == []
    assert campaign.report.faults.total() >= 3
    assert campaign.report.events_checked >= 500


@pytest.mark.soak
@pytest.mark.parametrize("source", ["three", "shards", "routers"])
def test_a_campaign_of_faults_loses_and_doubles_no_change(
    source: str,
    store: FaultyStore,
    request: pytest.FixtureRequest,
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
) -> None:
    seed, seconds = soak()
    of: Source = request.getfixturevalue(source)
    campaign = Campaign(of, spark, pipeline, seed, places=[*_OF_DISK * [Disk()], store])
    campaign.report.ends = ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        campaign.round(tmp_path, min(_ROUND_SECONDS, seconds))
        campaign.report.written()
        campaign.report.show(Console())
        assert campaign.report.violations == []
