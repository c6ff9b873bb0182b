"""`make mutations`: the short form with each mutation, into build/mutations.json and a table."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import click

from cdc.demo import ReplicaSet
from cdc.pipeline import Config, end, session
from cdc.pipeline import config as configuration
from tests.bench.result import machine
from tests.end_to_end.campaign.cluster import OfShards
from tests.end_to_end.campaign.scene import Source
from tests.end_to_end.campaign.single import PARAMETERS, OfOneMember
from tests.end_to_end.mutations.mutation import MANY, MUTATIONS, SHARDS
from tests.end_to_end.mutations.short_form import Outcome, ShortForm
from tests.jvm import INTERPRETED
from tests.mongo.cluster import Cluster

OUT = Path("build/mutations.json")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seed", default=1, show_default=True, envvar="SOAK_SEED")
def main(names: tuple[str, ...], seed: int) -> None:
    """Run the mutations whose names contain one of NAMES, or all, after a run without any."""
    every = ["", *MUTATIONS]
    chosen = [each for each in every if not names or any(name in _label(each) for name in names)]
    outcomes = list[Outcome]()
    with _stage(seed) as form, tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(chosen):
            print(f"{_label(name)}: ", end="", flush=True)
            outcome = form.run(name, Path(folder) / str(number))
            outcomes.append(outcome)
            print(f"{outcome.verdict} after {outcome.seconds:.0f} s. {outcome.example}", flush=True)
            _write(outcome, seed)
    mutations = [each for each in outcomes if each.name]
    survivors = [each for each in mutations if not each.found_by]
    print(f"{len(mutations) - len(survivors)} of {len(mutations)} mutations found")
    wrong = [each.example for each in outcomes if not each.name and each.found_by]
    if survivors or wrong:
        raise SystemExit(1)


@contextmanager
def _stage(seed: int) -> Iterator[ShortForm]:
    with ExitStack() as stack:
        settings = {**INTERPRETED, "spark.sql.shuffle.partitions": "2"}
        spark = session("mutations", master="local[2]", extra=settings)
        stack.callback(end, spark)

        @cache
        def opened(name: str) -> Source:
            if name == SHARDS:
                return OfShards(stack.enter_context(Cluster()))
            if name == MANY:
                return OfShards(stack.enter_context(Cluster()), [8_000])
            return OfOneMember(stack.enter_context(ReplicaSet(set_parameters=PARAMETERS)))

        yield ShortForm(opened, spark, configured, seed)


def configured(collections: str, *options: str) -> Config:
    """The configuration of a pipeline of small splits, with documents as BSON."""
    given = [f"collections={collections}", "document.format=bson", "split.size.mb=1"]
    return configuration.load(None, [*given, "snapshot.splits.per.batch=1", *options])


def _write(outcome: Outcome, seed: int) -> None:
    """Add an outcome to the results, in place of that of an earlier run."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    results[_label(outcome.name)] = {
        "breaks": MUTATIONS[outcome.name].breaks if outcome.name else "",
        "verdict": outcome.verdict,
        "seconds": outcome.seconds,
        "example": outcome.example,
        "seed": seed,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
    }
    OUT.write_text(json.dumps(results, indent=2) + "\n")
    rows = [
        f"| {name} | {each['breaks']} | {each['verdict']} | {each['seconds']:.0f} s |"
        for name, each in results.items()
        if name in MUTATIONS
    ]
    head = ["| defect | the rule that it breaks | result | after |", "| --- | --- | --- | --- |"]
    OUT.with_suffix(".md").write_text("\n".join([*head, *rows, ""]))


def _label(name: str) -> str:
    return name or "no mutation"


if __name__ == "__main__":
    main()
