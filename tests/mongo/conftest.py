"""Pipelines without Spark, on the run's own mongod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymongo.database import Database

from jobs.mongod import ReplicaSet
from tests.mongo.capture import Capture, Document


@pytest.fixture
def capture(mongod: ReplicaSet, database: Database[Document]) -> Callable[..., Capture]:
    """`capture("a", "b", …)`: a pipeline over those collections of `database`."""

    def begun(*names: str, uri: str = mongod.uri, **settings: Any) -> Capture:
        return Capture(uri, ",".join(f"{database.name}.{name}" for name in names), **settings)

    return begun
