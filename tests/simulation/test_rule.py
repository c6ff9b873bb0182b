"""The hand-over rule survives every interleaving that is tried; each rule left out is found out."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cdc.model import Namespace
from tests.simulation.connector import Batch, Connector
from tests.simulation.deployment import LAST_KEY, SELECTED, Deployment, number_of
from tests.simulation.mutants import MUTANTS
from tests.simulation.oracle import Sink, Violation
from tests.soak import soak

STEPS = 15
OPS = ("update", "replace", "delete")

# One thing that happens to a deployment: the name of its method, and what to call it with.
Act = tuple[Any, ...]


class Chance(random.Random):
    """Draws what happens."""

    def name(self) -> Namespace:
        return self.choice(SELECTED)

    def key(self) -> int:
        return self.randint(0, LAST_KEY)

    def keys(self, fewest: int, most: int) -> frozenset[int]:
        return frozenset(self.sample(range(LAST_KEY + 1), self.randint(fewest, most)))

    def member(self) -> int:
        return self.randrange(3)

    def settled(self) -> bool:
        """Whether the majority then has it all."""
        return self.random() < 0.25

    def writes(self) -> list[tuple[Namespace, int, str]]:
        number = self.randint(1, 4)
        return [(self.name(), self.key(), self.choice(OPS)) for _ in range(number)]

    def act(self) -> Act:
        match self.choice(ACTS):
            case "write":
                return "write", self.writes(), self.random() < 0.5
            case "catch_up":
                return "catch_up", self.member()
            case "replicate":
                return "replicate", self.member(), self.randint(1, 6)
            case "drop":
                return "drop", self.name()
            case "rename":
                return "rename", self.name(), self.name()
            case "detour":
                return "detour", self.name(), self.key()
            case "out":
                return "out", self.name(), self.keys(0, 3)
            case "clone":
                return "clone", self.name(), self.name()
        return "fail_over", self.randint(0, 6)

    def acts(self) -> list[Act]:
        """What happens to the deployment before the query does something next."""
        return [self.act() for _ in range(self.randint(0, 3))]


ACTS = [
    *["write"] * 4,
    *["catch_up"] * 3,
    *["fail_over"] * 2,
    *("replicate", "drop", "rename", "detour", "out", "clone"),
]


class Walk:
    """A deployment that is written to while one query captures it."""

    def __init__(self, connector: type[Connector], chance: Chance) -> None:
        self.connector_type, self.chance = connector, chance
        self.deployment = Deployment()
        for name in chance.sample(SELECTED, chance.randint(0, 2)):
            keys = sorted(chance.keys(1, LAST_KEY + 1))
            self.deployment.write([(name, key, "update") for key in keys], False)
        self.happen([("catch_up", 1), ("catch_up", 2)])
        self.begin_anew()

    def begin_anew(self) -> None:
        self.connector = self.connector_type(self.deployment)
        self.sink = Sink(self.deployment)
        self.batch: Batch | None = None

    def happen(self, acts: list[Act]) -> None:
        for name, *arguments in acts:
            getattr(self.deployment, name)(*arguments)

    def go(self) -> None:
        """Some steps; then, left alone, the query comes to the end of the snapshot and to the
        newest change."""
        for _ in range(STEPS):
            self.chance.choice(self.steps())()
        self.happen([("catch_up", 1), ("catch_up", 2)])
        for _ in range(100):
            start = self.connector.start
            if start.is_streaming and number_of(start.time) == self.deployment.head:
                return
            if self.batch is None:
                self.plan([], [], settled=True)
            if self.batch is not None:
                self.finish(0)
        raise Violation("the query does not come to an end")

    def steps(self) -> list[Callable[[], None]]:
        steps = [self.nothing_is_captured]
        if self.connector.start.is_streaming:
            steps.append(self.begin_anew)
        if self.batch is None:
            return [*steps, self.plan_one, self.capture]
        return [*steps, self.read_and_crash, self.read]

    def nothing_is_captured(self) -> None:
        self.happen(self.chance.acts())

    def plan_one(self) -> None:
        self.plan(self.chance.acts(), self.chance.acts(), self.chance.settled())

    def read_and_crash(self) -> None:
        self.happen(self.chance.acts())
        self.apply(self.chance.member(), merge=self.chance.random() < 0.5)

    def read(self) -> None:
        self.happen(self.chance.acts())
        self.finish(self.chance.member())

    def capture(self) -> None:
        self.plan([], self.chance.acts(), self.chance.settled())
        self.happen(self.chance.acts())
        if self.batch is not None:
            self.finish(self.chance.member())

    def plan(self, before: list[Act], listed: list[Act], settled: bool) -> None:
        self.happen(before)
        self.connector.list()
        self.happen(listed)
        if settled:
            self.happen([("catch_up", 1)])
        self.batch = self.connector.plan()

    def apply(self, member: int, merge: bool) -> None:
        assert self.batch is not None
        self.sink.apply(self.batch, self.connector.read(self.batch, member), merge)

    def finish(self, member: int) -> None:
        assert self.batch is not None
        self.apply(member, merge=True)
        self.connector.stored = json.dumps(self.batch.end.to_json())
        self.sink.finish(self.batch)
        self.batch = None


def search(connector: type[Connector], seeds: Iterable[int]) -> None:
    """Raises Violation if an interleaving is found in which the connector breaks its promise."""
    for seed in seeds:
        try:
            Walk(connector, Chance(seed)).go()
        except Violation as violation:
            violation.add_note(f"The seed of this walk is {seed}.")
            raise


def test_no_interleaving_is_found_in_which_a_change_is_lost_doubled_or_out_of_time() -> None:
    search(Connector, range(250))


@pytest.mark.soak
def test_no_interleaving_is_found_in_a_long_search_either() -> None:
    seed, seconds = soak()
    ends = time.monotonic() + seconds
    search(Connector, itertools.takewhile(lambda _: time.monotonic() < ends, itertools.count(seed)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_connector_that_breaks_one_rule_is_found_out(mutant: type[Connector]) -> None:
    with pytest.raises(Violation):
        search(mutant, range(1000))
