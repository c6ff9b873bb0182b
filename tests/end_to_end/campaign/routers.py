"""A cluster of two shards that is read through two routers. They are stand-ins, see
`tests.mongo.stand_in`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from tests.end_to_end.campaign.cluster import OfShards
from tests.end_to_end.campaign.scene import Disturbances, Scene
from tests.end_to_end.oracle import ThroughRouters
from tests.mongo.cluster import Cluster
from tests.mongo.stand_in import StandIn


class OfRouters(OfShards):
    """The source of a campaign."""

    name = "two shards through routers"
    methods = ("change_stream",)

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._routers = [StandIn.of_cluster(cluster) for _ in range(2)]
        hosts = ",".join(router.host for router in self._routers)
        self.uri, self.options = f"mongodb://{hosts}/", ("server.timeout.ms=5000",)

    def __enter__(self) -> Self:
        for router in self._routers:
            router.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for router in self._routers:
            router.__exit__()

    def truth(self) -> ThroughRouters:
        return ThroughRouters(self._cluster)

    def refuse(self, commands: Sequence[str], times: int, how: Mapping[str, Any]) -> None:
        for router in self._routers:
            if "errorCode" in how:
                router.faults.fail(how["errorCode"], *commands, times=times)
            elif "closeConnection" in how:
                router.faults.cut(*commands, times=times)
            else:
                router.faults.delay(how["blockTimeMS"] / 1000, *commands, times=times)

    def heal(self) -> None:
        super().heal()
        for router in self._routers:
            router.faults.cold.clear()

    def disturbances(self, scene: Scene) -> Disturbances:
        return {
            **super().disturbances(scene),
            "router killed": (1, lambda: self._killed(scene)),
            "shard without promises": (1, lambda: self._cold(scene)),
        }

    def _killed(self, scene: Scene) -> None:
        """Another one starts at its address."""
        number = scene.chance.randrange(len(self._routers))
        killed = self._routers[number]
        killed.kill()
        scene.a_while()
        started = StandIn.of_cluster(self._cluster, host=killed.host)
        self._routers[number] = started.__enter__()

    def _cold(self, scene: Scene) -> None:
        """No router hears of a shard how far it is."""
        shard = scene.chance.choice(list(self._cluster.shards))
        for router in self._routers:
            router.faults.cold.add(shard)
        scene.a_while(6.0)
        for router in self._routers:
            router.faults.cold.discard(shard)
