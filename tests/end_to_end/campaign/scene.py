"""Where a disturbance happens, and what one is."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pyspark.sql import SparkSession

from cdc.demo.mongod import Member
from cdc.model import Namespace
from cdc.pipeline import Config
from tests.end_to_end.campaign.supervised import Supervised
from tests.end_to_end.oracle import Truth

# By kind: how often, beside the others; and what does it. It is over when the function returns,
# but for processes that have to be started again.
Disturbances = Mapping[str, tuple[float, Callable[[], object]]]

# Lets so many of the connector's next commands of these names fail, as the data of the server's
# fail point `failCommand` say: with an error's code, unanswered, or late.
Refuse = Callable[[Sequence[str], int, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Scene:
    """One round, to one thread that disturbs it. `follower` is the process that applies the
    changelogs, if the job does not; `has_tables`: they are on this disk."""

    job: Supervised
    config: Config
    namespaces: Sequence[Namespace]
    spark: SparkSession
    chance: random.Random
    follower: Supervised | None = None
    has_tables: bool = True

    def a_while(self, most: float = 3.0) -> None:
        time.sleep(self.chance.uniform(0.1, most))


class Load(Protocol):
    """Writers, until the block ends, with so many seconds of pause after each write. `broken`
    reports in words what should not have befallen them, and `refused` counts the writes
    whose outcome they do not know."""

    pause: float
    broken: list[str]
    refused: Mapping[str, int]

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


class Source(Protocol):
    """Servers that a campaign runs against: one at a time, with one round at a time. `methods`: by
    which changes can be read, as values of `read.by`."""

    name: str
    uri: str
    options: Sequence[str]
    methods: Sequence[str]

    def begin(self, number: int, chance: random.Random) -> Sequence[Namespace]:
        """Makes the collections of a round, and fills them."""

    def load(self, chance: random.Random) -> Load: ...

    def members(self) -> Sequence[Member]:
        """All members of all servers."""

    def truth(self) -> Truth:
        """Of the collections of this round."""

    def refuse(self, commands: Sequence[str], times: int, how: Mapping[str, Any]) -> None:
        """See `Refuse`."""

    def disturbances(self, scene: Scene) -> Disturbances:
        """What befalls the servers and the way to them."""

    def heal(self) -> None:
        """All servers are there and reached again, and have what was written."""

    def last_write(self) -> Timestamp: ...

    def end(self) -> None:
        """Drops what `begin` has made."""


def at_random(
    scene: Scene,
    disturbances: Disturbances,
    is_over: Callable[[], bool],
    pause: float,
    heal: Callable[[], object],
    done: Counter[str],
) -> None:
    """Lets one after the other befall it, at most so many seconds apart, and counts in `done` how
    often each did. Not counted is one that the servers, disturbed by others, have not let happen.
    """
    kinds = list(disturbances)
    weights = [weight for weight, _ in disturbances.values()]
    while not is_over():
        scene.a_while(pause)
        [kind] = scene.chance.choices(kinds, weights)
        _, disturb = disturbances[kind]
        try:
            disturb()
        except PyMongoError:
            heal()
        else:
            done[kind] += 1
