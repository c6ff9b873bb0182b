"""A pipeline of its own for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.demo import ReplicaSet
from cdc.pipeline import Config
from cdc.pipeline import config as configuration


@pytest.fixture
def pipeline(mongod: ReplicaSet, tmp_path: Path) -> Callable[..., Config]:
    """Makes the configuration of a pipeline under the test's own folder; small splits, `bson`."""

    def make(collections: str, *overrides: str) -> Config:
        settings = {
            "uri": mongod.uri,
            "collections": collections,
            "sink.path": str(tmp_path / "lakehouse"),
            "document.format": "bson",
            "split.size.mb": "1",
            "snapshot.splits.per.batch": "1",
        }
        for override in overrides:
            name, _, value = override.partition("=")
            settings[name] = value
        return configuration.load(None, [f"{name}={value}" for name, value in settings.items()])

    return make
