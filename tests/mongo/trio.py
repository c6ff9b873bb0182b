"""Three members that know each other by a network of the test's own, for a test to break."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from cdc.demo import ReplicaSet
from cdc.demo.mongod import Member as Server
from tests.mongo.capture import Client, Document, until
from tests.mongo.network import Network

MAJORITY = WriteConcern("majority", wtimeout=30_000)
# A member that does not answer is noticed within a second or two.
QUICK = "heartbeatFrequencyMS=500&serverMonitoringMode=poll"
# A member may have to catch up with what was written without it.
HEAL_SECONDS = 180.0


class Trio:
    """Three members that know each other, and that the connector knows, by a network of the test's;
    the test itself goes around it."""

    def __init__(self, replica_set: ReplicaSet, network: Network, client: Client) -> None:
        self.replica_set, self.network, self.client = replica_set, network, client
        self.uri = f"mongodb://{','.join(network.hosts)}/?replicaSet={replica_set.name}&{QUICK}"
        self._numbers = itertools.count(1)

    def fresh(self) -> Database[Document]:
        return self.client.get_database(f"test{next(self._numbers)}", write_concern=MAJORITY)

    @property
    def members(self) -> list[Server]:
        return self.replica_set.members

    def others(self, primary: Server) -> list[Server]:
        return [each for each in self.members if each is not primary]

    def replicates(self, follower: Server, stops: str = "off") -> None:
        with follower.client() as client:
            client.admin.command({"configureFailPoint": "stopReplProducer", "mode": stops})

    def lead(self, chosen: Server) -> None:
        """Has that member elected, and waits until it takes writes."""

        def leads() -> bool:
            if chosen.hello().get("isWritablePrimary"):
                return True
            # Again and again: on a busy machine another member that misses its heartbeats may be
            # elected right after it.
            with chosen.client() as client, suppress(OperationFailure):
                client.admin.command("replSetStepUp")
            return False

        until(leads, HEAL_SECONDS)

    def heal(self) -> None:
        """Everybody is there again, and has what a majority has."""
        self.network.restore()
        for each in self.members:
            each.thaw()
            if each.process.poll() is not None:
                each.launch()
        for each in self.members:
            until(each.is_data_bearing, HEAL_SECONDS)
            self.replicates(each)
        everywhere = WriteConcern(len(self.members), wtimeout=30_000)
        until(partial(self._is_written, everywhere), HEAL_SECONDS)

    def _is_written(self, concern: WriteConcern) -> bool:
        try:
            self.client["healed"]["a"].with_options(write_concern=concern).insert_one({})
        except PyMongoError:
            return False
        return True


@contextmanager
def three_members(**settings: Any) -> Iterator[Trio]:
    """Fails over within two seconds; `settings` are those of the replica set."""
    parameters = {"enableTestCommands": True}
    with ReplicaSet(
        members=3, set_parameters=parameters, election_timeout_ms=1000, **settings
    ) as replica_set:
        network = Network([each.port for each in replica_set.members])
        try:
            with replica_set.client() as client:
                until(lambda: _is_led_through(client, network))
            uri = f"mongodb://{','.join(network.hosts)}/?replicaSet={replica_set.name}"
            with MongoClient[Document](uri) as client:
                yield Trio(replica_set, network, client)
        finally:
            network.close()


def _is_led_through(client: Client, network: Network) -> bool:
    """Has the members know each other by the network's addresses; not while they elect."""
    with suppress(PyMongoError):
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["settings"] |= {"heartbeatIntervalMillis": 250, "chainingAllowed": False}
        for entry, host in zip(config["members"], network.hosts, strict=True):
            entry["host"] = host
        client.admin.command("replSetReconfig", config)
        return True
    return False
