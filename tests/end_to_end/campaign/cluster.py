"""A cluster of two shards that are read directly, with chunks on the move."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from bson.timestamp import Timestamp

from cdc.demo.mongod import Member
from cdc.model import Namespace
from tests.end_to_end.campaign.scene import Disturbances, Scene
from tests.end_to_end.campaign.upon_the_job import fail_commands
from tests.end_to_end.oracle import OfCluster
from tests.end_to_end.router import Routers, Sharded
from tests.mongo.capture import last_write
from tests.mongo.cluster import Cluster

_WRITERS = 4
_DOCUMENTS_AT_ONCE = 10


class OfShards:
    """The source of a campaign, with new collections for each round: one sharded by range, and one
    by hash. `sizes`: of each round one is the number of their documents."""

    name = "two shards"
    # No oplog has what its shard reports of a transaction across shards, or of a move.
    methods = ("auto", "change_stream")

    def __init__(self, cluster: Cluster, sizes: Sequence[int] = (1_000, 3_000)) -> None:
        self._cluster, self._sizes = cluster, sizes
        self.uri, self.options = cluster.config.uri, ("shards.direct=true",)
        self._both: list[Sharded] = []
        self._keeps_orphans = False

    @contextmanager
    def keeping_orphans(self) -> Iterator[None]:
        """In rounds that begin and end meanwhile, documents stay on shards that gave them away."""
        self._keeps_orphans = True
        try:
            with self._cluster.keeping_orphans():
                yield
        finally:
            self._keeps_orphans = False

    def begin(self, number: int, chance: random.Random) -> Sequence[Namespace]:
        db = f"campaign{number}"
        self._cluster.create_database(db)
        self._both = [
            Sharded(self._cluster, Namespace(db, "orders"), is_hashed=False),
            Sharded(self._cluster, Namespace(db, "parcels"), is_hashed=True),
        ]
        for each in self._both:
            each.create(chance.choice(self._sizes))
        return [each.namespace for each in self._both]

    def load(self, chance: random.Random) -> _Load:
        routers = Routers(self._cluster, self._both, chance.randrange(10**9), _WRITERS)
        routers.keeps_orphans = self._keeps_orphans
        return _Load(routers)

    def truth(self) -> OfCluster:
        return OfCluster(self._cluster)

    def members(self) -> Sequence[Member]:
        sets = (self._cluster.config, *self._cluster.shards.values())
        return [member for each in sets for member in each.members]

    def refuse(self, commands: Sequence[str], times: int, how: Mapping[str, Any]) -> None:
        fail_commands(self.members(), commands, times, how)

    def heal(self) -> None:
        for each in self.members():
            each.thaw()

    def last_write(self) -> Timestamp:
        return max(last_write(self._cluster.clients[shard]) for shard in self._cluster.shards)

    def end(self) -> None:
        for each in self._both:
            self._cluster.drop_collection(*each.namespace)

    def disturbances(self, scene: Scene) -> Disturbances:
        return {
            "server stands still": (1, lambda: _frozen(scene, scene.chance.choice(self.members())))
        }


class _Load:
    """What moves the chunks writes the documents too, one at a time: a pause is shorter."""

    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self.broken, self.refused = list[str](), Counter[str]()

    @property
    def pause(self) -> float:
        return self._routers.pause * _DOCUMENTS_AT_ONCE

    @pause.setter
    def pause(self, seconds: float) -> None:
        self._routers.pause = seconds / _DOCUMENTS_AT_ONCE

    def __enter__(self) -> Self:
        self._routers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._routers.stop()


def _frozen(scene: Scene, member: Member) -> None:
    member.freeze()
    scene.a_while(4.0)
    member.thaw()
