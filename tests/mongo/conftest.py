"""Pipelines without Spark, on the run's own mongod."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo.database import Database

from cdc.demo import ReplicaSet
from tests.mongo.capture import Capture, Document
from tests.mongo.cluster import Cluster
from tests.mongo.stand_in import StandIn

_numbers = itertools.count(1)


@pytest.fixture
def capture(mongod: ReplicaSet, database: Database[Document]) -> Callable[..., Capture]:
    """`capture("a", "b", …)`: a pipeline over those collections of `database`."""

    def begun(*names: str, uri: str = mongod.uri, **settings: Any) -> Capture:
        return Capture(uri, ",".join(f"{database.name}.{name}" for name in names), **settings)

    return begun


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two shards, without a router."""
    with Cluster() as running:
        yield running


@pytest.fixture
def db(cluster: Cluster) -> str:
    """A database of the cluster that no other test uses, with `s1` for its primary shard."""
    name = f"shop{next(_numbers)}"
    cluster.create_database(name)
    return name


@pytest.fixture
def router(cluster: Cluster) -> Iterator[StandIn]:
    """A stand-in for a router of the cluster."""
    with StandIn.of_cluster(cluster) as running:
        yield running
