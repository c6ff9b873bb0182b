"""A replica set of one member, for what needs no fault of the servers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from bson.timestamp import Timestamp

from cdc.demo import ReplicaSet, load_orders
from cdc.demo.mongod import Member
from cdc.model import Namespace
from tests.end_to_end.campaign.load import Writers
from tests.end_to_end.campaign.scene import Disturbances, Scene
from tests.end_to_end.campaign.upon_the_job import fail_commands
from tests.end_to_end.oracle import OfReplicaSet
from tests.mongo.capture import last_write

_DOCUMENTS = 6_000
# Transactions have several entries in the oplog, as those of more than 16 MB always do.
PARAMETERS = {
    "enableTestCommands": True,
    "maxNumberOfTransactionOperationsInSingleOplogEntry": 2,
}


class OfOneMember:
    """The source of a campaign, with a new database for each round."""

    name = "one member"
    methods = ("oplog", "change_stream")
    options: Sequence[str] = ()

    def __init__(self, server: ReplicaSet) -> None:
        self._server, self._client = server, server.client()
        self.uri = server.uri
        self._orders = Namespace("", "")
        self._began = Timestamp(0, 0)

    def begin(self, number: int, chance: random.Random) -> Sequence[Namespace]:
        self._began = last_write(self._client)
        self._orders = Namespace(f"round{number}", "orders")
        load_orders(self.uri, self._orders, _DOCUMENTS, must_be_new=True)
        return [self._orders]

    def load(self, chance: random.Random) -> Writers:
        return Writers(self.uri, self._orders, chance)

    def members(self) -> Sequence[Member]:
        return self._server.members

    def truth(self) -> OfReplicaSet:
        return OfReplicaSet(self._client, self._began)

    def refuse(self, commands: Sequence[str], times: int, how: Mapping[str, Any]) -> None:
        fail_commands(self.members(), commands, times, how)

    def heal(self) -> None:
        """Nothing happens to the server."""

    def last_write(self) -> Timestamp:
        return last_write(self._client)

    def end(self) -> None:
        self._client.drop_database(self._orders.db)

    def disturbances(self, scene: Scene) -> Disturbances:
        return {}
