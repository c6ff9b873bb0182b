"""Plan: whether a run could succeed, and about how much it has to do, before it is started.

Asks the server for what the run itself would ask for, and for numbers; starts no Spark.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cdc import options as declared
from cdc.errors import CdcError
from cdc.logs import plain
from cdc.model import timestamp
from cdc.mongo.examination import Examination, Work
from cdc.mongo.privileges import Need, on
from cdc.options import SourceOptions
from cdc.source.inquiry import plan
from jobs import config as configuration
from jobs.result import json_option, tell, told
from jobs.terminal import Terminal

# An assumption, on the low side: two cores, documents of a kilobyte, changelog and mirror.
RATE = 20.0
_MIB = 2**20
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """The copy as a whole. `batch_seconds` is what a micro-batch of it takes at most."""

    bytes: int
    splits: int
    batches: int
    seconds: float
    batch_seconds: float


def estimate(work: list[Work], options: SourceOptions, rate: float) -> Estimate:
    """At `rate` MiB/s over all tasks together; work that makes no split is not copied."""
    per_batch, split = options.snapshot_splits_per_batch, options.split_size_mb
    size = sum(each.bytes for each in work if each.splits)
    splits = sum(each.splits for each in work)
    seconds = size / _MIB / rate
    # What ends at one shard's cut may hold nearly as much again of each other one.
    most = per_batch + max((len(each.shards) for each in work), default=1) - 1
    return Estimate(
        size,
        splits,
        math.ceil(splits / per_batch),
        seconds,
        min(seconds, most * split / rate),
    )


# --- on the terminal -----------------------------------------------------------------------------


def show(console: Console, found: Examination, copy: Estimate, rate: float) -> None:
    """The tables, then one line each for copy, oplog and what is missing."""
    scope = f"database {found.database}" if found.database else "the whole deployment"
    say = console.print
    kind = "" if _names(found.shards) else "replica set "
    say(f"{kind}{found.source}{on(found.shards)}; changes are read from {scope}")
    if found.work:
        say(_collections(found.work))
    if any(len(each.shards) > 1 for each in found.work):
        say("sizes over several shards are sums, in which orphans may be counted")
    if found.missing:
        say(f"not there yet: {', '.join(found.missing)}", soft_wrap=True)
    say(_privileges(found))
    say(f"copy: {_copy(copy, rate)}", soft_wrap=True)
    say(f"oplog: {_oplog(found, copy)}", soft_wrap=True)


def _collections(work: list[Work]) -> Table:
    table = Table("collection", "documents", "size", "strategy", "splits", "images", "why")
    for each in work:
        images = "on" if each.images else "off"
        size = _size(each.bytes) + on(each.shards)
        row = (str(each.namespace), f"{each.documents:,}", size, each.strategy, f"{each.splits:,}")
        table.add_row(*row, images, each.reason)
    return table


def _privileges(found: Examination) -> Table | str:
    if found.lacking is None:
        return "privileges: nobody is logged in, so there are none to compare"
    table = Table("privilege", "needed", "found on", "missing on")
    for is_needed, needs in (("yes", found.required), ("no", found.optional)):
        for action, alike in groupby(sorted(needs, key=_action), _action):
            held, lacking = _parted(alike, found.lacking)
            table.add_row(action, is_needed, held, lacking)
    return table


def _action(need: Need) -> str:
    return need.action


def _parted(needs: Iterable[Need], lacking: list[Need]) -> tuple[str, str]:
    """The resources of those that are held, and of those that are not; `*` for all."""
    parts: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for need in needs:
        resource = f"{need.db or '*'}.{need.coll or '*'}"
        parts[need in lacking].setdefault(resource, []).append(need.shard)
    held, missing = (
        _some([f"{resource}{on(shards)}" for resource, shards in part.items()]) for part in parts
    )
    return held, missing


def _some(names: list[str]) -> str:
    rest = [f"and {len(names) - _SHOWN} more"] if names[_SHOWN:] else []
    return "\n".join([*names[:_SHOWN], *rest])


def _copy(copy: Estimate, rate: float) -> str:
    if not copy.splits:
        return "none"
    return (
        f"{_size(copy.bytes)} in {copy.splits:,} splits, {copy.batches:,} micro-batches;"
        f" about {_duration(copy.seconds)} at {rate:g} MB/s"
    )


def _oplog(found: Examination, copy: Estimate) -> str:
    if found.window is None:
        return "its window is unknown, see 'Privileges' in the README"
    reach = found.window.seconds
    where = on([found.window.shard])
    text = f"reaches back {_duration(reach)} ({found.window.told_by}{where})"
    if copy.batch_seconds > reach:
        return f"{text}, LESS than a micro-batch of the copy: about {_duration(copy.batch_seconds)}"
    if copy.seconds > reach:
        return f"{text}, less than the copy; it has to outlast a micro-batch and the longest stop"
    return text


def _size(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / _MIB:,.1f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- for programs --------------------------------------------------------------------------------


def described(found: Examination, copy: Estimate, rate: float) -> dict[str, Any]:
    """All of it as JSON takes it. `held` is null where nobody is logged in."""
    window, lacking = found.window, found.lacking
    return {
        "source": found.source,
        "shards": _names(found.shards),
        "database": found.database,
        "collections": [
            {**asdict(each), "namespace": str(each.namespace), "shards": _names(each.shards)}
            for each in found.work
        ],
        "missing": found.missing,
        "copy": {**asdict(copy), "rate_mb_per_second": rate},
        "oplog": window
        and {
            "hours": window.seconds / 3600,
            "first": timestamp.text(window.first),
            "last": timestamp.text(window.last),
            "told_by": window.told_by,
            "shard": window.shard,
        },
        "privileges": [
            {
                **asdict(each),
                "required": each in found.required,
                "held": None if lacking is None else each not in lacking,
            }
            for each in found.needs
        ],
        "problems": [_problem(each) for each in found.problems],
    }


def _names(shards: Iterable[str]) -> list[str]:
    """A replica set has no shard with a name."""
    return [shard for shard in shards if shard]


def _problem(error: CdcError) -> dict[str, Any]:
    kind, code = type(error).__name__, error.exit_code
    return {"error": kind, "message": error.message, "remedy": error.remedy, "exit_code": code}


@click.command()
@click.option("--config", "path", type=click.Path(), help="TOML file; conf/example.toml shows all.")
@click.option("-o", "--option", "overrides", multiple=True, help="name=value, over the file's.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=RATE,
    show_default=True,
    help="MB/s that a copy is assumed to make, all tasks together.",
)
@json_option
@told
def main(path: str | None, overrides: tuple[str, ...], rate: float, json_path: str | None) -> int:
    """Tell what a new run would meet, without reading documents. Exit code 0: it could succeed.

    Example: mongodb-cdc plan --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    found = plan(config.source)
    copy = estimate(found.work, declared.parse(config.source), rate)
    result = described(found, copy, rate)
    tell(result, json_path, lambda: show(Terminal(), found, copy, rate))
    for problem in found.problems:
        sys.stderr.write(f"error: {plain(str(problem))}\n")
    return found.problems[0].exit_code if found.problems else 0


if __name__ == "__main__":
    main()
