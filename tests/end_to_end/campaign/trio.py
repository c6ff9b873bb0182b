"""A replica set of three members: they die, stand still, lose their writes, or are not reached."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bson.timestamp import Timestamp
from pymongo.errors import NotPrimaryError, PyMongoError
from pymongo.write_concern import WriteConcern

from cdc.demo import load_orders
from cdc.demo.mongod import Member
from cdc.model import Namespace
from tests.end_to_end.campaign.load import Writers
from tests.end_to_end.campaign.scene import Disturbances, Scene
from tests.end_to_end.campaign.upon_the_job import fail_commands
from tests.end_to_end.oracle import OfReplicaSet
from tests.mongo.capture import last_write, until
from tests.mongo.trio import HEAL_SECONDS, Trio

_DOCUMENTS = (3_000, 10_000, 30_000)
# A member that does not answer is left for another within seconds.
_QUICK = ("server.timeout.ms=5000",)


class OfTrio:
    """The source of a campaign, with a new database for each round."""

    name = "three members"
    methods = ("auto", "oplog", "change_stream")

    def __init__(self, trio: Trio) -> None:
        self._trio = trio
        self.uri, self.options = trio.uri, _QUICK
        self._orders = Namespace("", "")
        self._began = Timestamp(0, 0)

    def begin(self, number: int, chance: random.Random) -> Sequence[Namespace]:
        self._began = last_write(self._trio.client)
        self._orders = Namespace(f"campaign{number}", "orders")
        load_orders(self.uri, self._orders, chance.choice(_DOCUMENTS), must_be_new=True)
        return [self._orders]

    def load(self, chance: random.Random) -> Writers:
        return Writers(self.uri, self._orders, chance)

    def members(self) -> Sequence[Member]:
        return self._trio.members

    def truth(self) -> OfReplicaSet:
        return OfReplicaSet(self._trio.client, self._began)

    def refuse(self, commands: Sequence[str], times: int, how: Mapping[str, Any]) -> None:
        fail_commands(self.members(), commands, times, how)

    def heal(self) -> None:
        self._trio.heal()

    def last_write(self) -> Timestamp:
        return last_write(self._trio.client)

    def end(self) -> None:
        self._trio.client.drop_database(self._orders.db)

    def disturbances(self, scene: Scene) -> Disturbances:
        def primary() -> Member:
            return self._trio.replica_set.wait_writable()

        def secondary() -> Member:
            return scene.chance.choice(self._trio.others(primary()))

        return {
            "primary killed": (4, lambda: _killed(scene, primary())),
            "secondary killed": (3, lambda: _killed(scene, secondary())),
            "primary steps down": (6, lambda: _steps_down(primary())),
            "primary stands still": (3, lambda: _frozen(scene, primary())),
            "secondary stands still": (3, lambda: _frozen(scene, secondary())),
            "writes rolled back": (4, lambda: self._rolled_back(scene, primary())),
            "network cut": (6, lambda: self._cut(scene)),
            "network silent": (4, lambda: self._silent(scene)),
            "network slow": (4, lambda: self._slow(scene)),
        }

    def _rolled_back(self, scene: Scene, primary: Member) -> None:
        """The primary goes on taking writes that nobody replicates, and answers reads meanwhile;
        then another one is elected, and it has to take the other's writes instead."""
        others = self._trio.others(primary)
        for other in others:
            self._trio.replicates(other, "alwaysOn")
        with suppress(PyMongoError), primary.client(timeoutMS=5_000) as client:
            alone = client.get_database(self._orders.db, write_concern=WriteConcern(1, j=True))
            for key in range(50):
                alone[self._orders.coll].update_one({"_id": key}, {"$set": {"doomed": True}})
        scene.a_while(1.0)
        freezes = scene.chance.random() < 0.5
        primary.freeze() if freezes else primary.kill()
        for other in others:
            self._trio.replicates(other)
        until(lambda: any(each.hello().get("isWritablePrimary") for each in others), HEAL_SECONDS)
        primary.thaw() if freezes else _started(primary)

    def _cut(self, scene: Scene) -> None:
        self._trio.network.cut()
        scene.a_while(4.0)
        self._trio.network.restore()

    def _silent(self, scene: Scene) -> None:
        self._trio.network.silence()
        scene.a_while(8.0)
        self._trio.network.restore()

    def _slow(self, scene: Scene) -> None:
        self._trio.network.delay = scene.chance.uniform(0.01, 0.2)
        scene.a_while(4.0)
        self._trio.network.delay = 0.0


def _killed(scene: Scene, member: Member) -> None:
    member.kill()
    scene.a_while()
    _started(member)


def _started(member: Member) -> None:
    """Its writes since the last checkpoint are recovered before it answers."""
    member.launch()
    until(member.hello, HEAL_SECONDS)


def _frozen(scene: Scene, member: Member) -> None:
    member.freeze()
    scene.a_while(5.0)
    member.thaw()


def _steps_down(primary: Member) -> Any:
    # By force also where no other has all its writes: then they are rolled back.
    step = {"replSetStepDown": 3, "secondaryCatchUpPeriodSecs": 2, "force": True}
    with primary.client() as client, suppress(NotPrimaryError):
        return client.admin.command(step)
