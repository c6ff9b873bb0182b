"""The hand-over rule survives every interleaving that is tried; each rule left out is found out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cdc.model.selection import Namespace
from tests.simulation.connector import Batch, Connector
from tests.simulation.deployment import LAST_KEY, SELECTED, Deployment, number_of
from tests.simulation.mutants import MUTANTS
from tests.simulation.oracle import Sink, Violation

NAMES = st.sampled_from(SELECTED)
KEYS = st.integers(0, LAST_KEY)
MEMBERS = st.integers(0, 2)
WRITES = st.lists(
    st.tuples(NAMES, KEYS, st.sampled_from(["update", "replace", "delete"])), min_size=1, max_size=4
)


def act(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Act]:
    return st.tuples(st.just(name), *arguments)


# One thing that happens to a deployment: the name of its method, and what to call it with.
Act = tuple[Any, ...]
ACTS = st.one_of(
    *(act("write", WRITES, st.booleans()) for _ in range(4)),
    *(act("catch_up", MEMBERS) for _ in range(3)),
    act("replicate", MEMBERS, st.integers(1, 6)),
    act("drop", NAMES),
    act("rename", NAMES, NAMES),
    act("detour", NAMES, KEYS),
    act("out", NAMES, st.frozensets(KEYS, max_size=3)),
    *(act("fail_over", st.integers(0, 6)) for _ in range(2)),
)
# What a query does next, with what happens to the deployment before it does.
MEANWHILE = st.lists(ACTS, max_size=3)
# Whether the majority then has it all.
SETTLED = st.sampled_from([False, False, False, True])


class Machine(RuleBasedStateMachine):
    """A deployment that is written to while one query captures it."""

    connector_type: type[Connector] = Connector

    @initialize(filled=st.dictionaries(NAMES, st.frozensets(KEYS, min_size=1), max_size=2))
    def begin(self, filled: dict[Namespace, frozenset[int]]) -> None:
        self.deployment = Deployment()
        for name, keys in filled.items():
            self.deployment.write([(name, key, "update") for key in sorted(keys)], False)
        self.happen([("catch_up", 1), ("catch_up", 2)])
        self.new_query()

    def new_query(self) -> None:
        self.connector = self.connector_type(self.deployment)
        self.sink = Sink(self.deployment)
        self.batch: Batch | None = None

    def happen(self, acts: list[Act]) -> None:
        for name, *arguments in acts:
            getattr(self.deployment, name)(*arguments)

    @rule(acts=MEANWHILE)
    def nothing_is_captured(self, acts: list[Act]) -> None:
        self.happen(acts)

    @precondition(lambda self: self.connector.start.is_streaming)
    @rule()
    def begin_anew(self) -> None:
        self.new_query()

    @precondition(lambda self: self.batch is None)
    @rule(before=MEANWHILE, listed=MEANWHILE, settled=SETTLED)
    def plan(self, before: list[Act], listed: list[Act], settled: bool) -> None:
        self.happen(before)
        self.connector.list()
        self.happen(listed)
        if settled:
            self.happen([("catch_up", 1)])
        self.batch = self.connector.plan()

    @precondition(lambda self: self.batch is not None)
    @rule(before=MEANWHILE, member=MEMBERS, merge=st.booleans())
    def read_and_crash(self, before: list[Act], member: int, merge: bool) -> None:
        self.happen(before)
        self.apply(member, merge)

    @precondition(lambda self: self.batch is not None)
    @rule(before=MEANWHILE, member=MEMBERS)
    def read(self, before: list[Act], member: int) -> None:
        self.happen(before)
        self.finish(member)

    @precondition(lambda self: self.batch is None)
    @rule(listed=MEANWHILE, settled=SETTLED, planned=MEANWHILE, member=MEMBERS)
    def capture(self, listed: list[Act], settled: bool, planned: list[Act], member: int) -> None:
        self.plan([], listed, settled)
        self.happen(planned)
        if self.batch is not None:
            self.finish(member)

    def apply(self, member: int, merge: bool) -> None:
        assert self.batch is not None
        self.sink.apply(self.batch, self.connector.read(self.batch, member), merge)

    def finish(self, member: int) -> None:
        assert self.batch is not None
        self.apply(member, merge=True)
        self.connector.stored = json.dumps(self.batch.end.to_json())
        self.sink.finish(self.batch)
        self.batch = None

    def teardown(self) -> None:
        """Left alone, the query comes to the end of the snapshot and to the newest change."""
        if not hasattr(self, "sink"):
            return
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


def search(connector: type[Connector], examples: int) -> None:
    """Raises Violation if an interleaving is found in which the connector breaks its promise."""
    machine = type("Machine", (Machine,), {"connector_type": connector})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=15,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_interleaving_is_found_in_which_a_change_is_lost_doubled_or_out_of_time() -> None:
    search(Connector, examples=600)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_connector_that_breaks_one_rule_is_found_out(mutant: type[Connector]) -> None:
    with pytest.raises(Violation):
        search(mutant, examples=3000)
