"""A deliberate defect is found: one of those of `make mutations`.

Without the oracles, or with a scene in which a defect has no effect, these tests fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.demo import ReplicaSet
from tests.end_to_end.campaign.single import PARAMETERS, OfOneMember
from tests.end_to_end.mutations import MUTATIONS
from tests.end_to_end.mutations.__main__ import configured
from tests.end_to_end.mutations.short_form import ShortForm

_SAMPLE = {"manifest counted twice": "summary"}
# The job writes batches until it has caught up with the writers, which on a busy machine takes
# minutes. The oracles then read all that was written meanwhile.
_PAUSE_SECONDS = 2.0


@pytest.fixture(scope="module")
def one_member() -> Iterator[OfOneMember]:
    with ReplicaSet(set_parameters=PARAMETERS) as server:
        yield OfOneMember(server)


def test_there_are_mutations_of_each_part_and_each_names_the_rule_that_it_breaks() -> None:
    assert len(MUTATIONS) >= 20
    packages = {each.module.rpartition(".")[0] for each in MUTATIONS.values()}
    assert {"cdc.mongo.plan", "cdc.mongo.read", "cdc.tasks", "cdc.delta.landing"} <= packages
    assert all(each.breaks.endswith(".") for each in MUTATIONS.values())
    assert _SAMPLE.keys() <= MUTATIONS.keys()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", _SAMPLE)
def test_a_deliberate_defect_is_found(
    name: str, one_member: OfOneMember, spark: SparkSession, tmp_path: Path
) -> None:
    form = ShortForm(lambda _: one_member, spark, configured, seed=1, pause=_PAUSE_SECONDS)
    outcome = form.run(name, tmp_path / "round")
    assert outcome.is_reached
    assert _SAMPLE[name] in outcome.found_by, outcome
