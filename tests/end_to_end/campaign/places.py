"""Where the tables of a round are: on this disk, or in an object store whose requests fail."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tests.object_store import ObjectStore
from tests.store_faults import StoreFaults

_RATE = 0.05


class Place(Protocol):
    """One after the other is used by a round. `environment`: what programs need to reach it."""

    is_here: bool
    environment: Mapping[str, str]

    def options(self, folder: Path) -> Sequence[str]:
        """By which a pipeline writes there; `folder` is what it has on this disk."""

    def begin(self) -> None:
        """From now on its faults happen."""

    def heal(self, done: Counter[str]) -> None:
        """They do no longer; those since `begin` are counted."""

    def bring(self, folder: Path) -> None:
        """The tables are in that folder from then on."""


class Disk:
    is_here = True
    environment: Mapping[str, str] = MappingProxyType({})

    def options(self, folder: Path) -> Sequence[str]:
        return [f"sink.path={folder}"]

    def begin(self) -> None:
        """It has no faults of its own."""

    def heal(self, done: Counter[str]) -> None:
        """There were none."""

    def bring(self, folder: Path) -> None:
        """They are there."""


class FaultyStore:
    """See `tests.store_faults`; each round has a folder of its own in the bucket."""

    is_here = False

    def __init__(self, store: ObjectStore, faults: StoreFaults) -> None:
        self._store, self._faults = store, faults
        self._rounds, self._counted = 0, Counter[str]()
        self.environment = {"S3_ACCESS": store.access_key, "S3_SECRET": store.secret_key}

    def options(self, folder: Path) -> Sequence[str]:
        self._rounds += 1
        return [
            f"sink.path=s3a://lake/{self._rounds}",
            f"sink.checkpoint={folder / '_checkpoint'}",
            f"storage.endpoint={self._store.endpoint}",
            "storage.access.key=env:S3_ACCESS",
            "storage.secret.key=env:S3_SECRET",
            "sink.follow.by=replicate",  # two programs may not commit there
        ]

    def begin(self) -> None:
        self._counted = Counter(self._faults.counted)
        self._switch(_RATE)

    def heal(self, done: Counter[str]) -> None:
        self._switch(0.0)
        for kind, count in (self._faults.counted - self._counted).items():
            done[f"object store: {kind}"] += count

    def _switch(self, rate: float) -> None:
        urllib.request.urlopen(f"{self._store.endpoint}/faults/{rate}").close()

    def bring(self, folder: Path) -> None:
        client, begin = self._store.client(), f"{self._rounds}/"
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix=begin)
        for key in [each["Key"] for page in pages for each in page.get("Contents", ())]:
            if not key.endswith("/"):  # which stands for a folder
                path = folder / key.removeprefix(begin)
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file("lake", key, str(path))
            client.delete_object(Bucket="lake", Key=key)
