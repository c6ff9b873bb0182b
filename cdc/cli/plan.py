"""Plan: check whether a run could succeed, and estimate its work.

Makes the same requests to the server as the start of a run, and reads statistics. Does not start
Spark.
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

from cdc.cli.commands import (
    json_option,
    log_level_option,
    pipeline_options,
    print_result,
    run_as_command,
)
from cdc.delta.followers import has_followers
from cdc.errors import CdcError
from cdc.logs import escape_controls
from cdc.model import timestamp
from cdc.mongo.connection import Need, on_shards
from cdc.mongo.inspect import Examination, Work, record_images_command
from cdc.options import SourceOptions
from cdc.pipeline import config as configuration
from cdc.source import LEAST_SPLITS, plan
from cdc.terminal import Terminal

# MiB per second; a low assumption for two cores, documents of a kilobyte, changelog and mirror.
RATE = 20.0
_MIB = 2**20
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of the whole copy. `batch_seconds` is the maximum duration of one micro-batch."""

    bytes: int
    splits: int
    batches: int
    seconds: float
    batch_seconds: float


def estimate(work: list[Work], options: SourceOptions, rate: float) -> Estimate:
    """Estimate the copy at `rate` MiB/s of all tasks together.

    Work without splits is not counted, because it is not copied.
    """
    per_batch = options.snapshot_splits_per_batch or LEAST_SPLITS
    split = options.split_size_mb
    size = sum(each.bytes for each in work if each.splits)
    splits = sum(each.splits for each in work)
    seconds = size / _MIB / rate
    # A split ends at a split point of one shard, and may contain nearly a split of each other one.
    most = per_batch + max((len(each.shards) for each in work), default=1) - 1
    return Estimate(
        size,
        splits,
        math.ceil(splits / per_batch),
        seconds,
        min(seconds, most * split / rate),
    )


# --- terminal output -----------------------------------------------------------------------------


def show(console: Console, found: Examination, copy: Estimate, rate: float) -> None:
    """Print the tables, then a line each for missing collections, copy and oplog."""
    scope = f"database {found.database}" if found.database else "the whole deployment"
    say = console.print
    kind = "" if _names(found.shards) or not found.has_oplog else "replica set "
    say(f"{kind}{found.source}{on_shards(found.shards)}; changes are read from {scope}")
    if found.work:
        say(_collections_table(found.work))
    if not found.has_oplog or any(len(each.shards) > 1 for each in found.work):
        say("sizes over several shards are sums; orphans may be counted")
    if found.missing:
        say(f"not created yet: {', '.join(found.missing)}", soft_wrap=True)
    say(_privileges_table(found))
    say(f"copy: {_describe_copy(copy, rate)}", soft_wrap=True)
    say(f"oplog: {_describe_oplog(found, copy)}", soft_wrap=True)
    say(f"changes: {_describe_method(found)}", soft_wrap=True)
    for warning in warnings(found):
        say(f"WARNING: {escape_controls(warning)}", soft_wrap=True)


def warnings(found: Examination) -> list[str]:
    """What does not prevent a run, but makes its rows less than they could be."""
    return [
        f"{each.namespace} records no pre- and post-images. Of its changes, 'before' is null, and"
        " 'exact' is false where 'after' was read later. From MongoDB 6.0 on:"
        f" {record_images_command(each.namespace)}"
        for each in found.work
        if not each.images
    ]


def _collections_table(work: list[Work]) -> Table:
    table = Table("collection", "documents", "size", "strategy", "splits", "images", "why")
    for each in work:
        images = "on" if each.images else "off"
        size = _size(each.bytes) + on_shards(each.shards)
        row = (str(each.namespace), f"{each.documents:,}", size, each.strategy, f"{each.splits:,}")
        table.add_row(*row, images, each.reason)
    return table


def _privileges_table(found: Examination) -> Table | str:
    if found.lacking is None:
        return "privileges: not checked, because no user is logged in"
    table = Table("privilege", "needed", "found on", "missing on")
    for is_needed, needs in (("yes", found.required), ("no", found.optional)):
        for action, alike in groupby(sorted(needs, key=_get_action), _get_action):
            granted, missing = _describe_needs(alike, found.lacking)
            table.add_row(action, is_needed, granted, missing)
    return table


def _get_action(need: Need) -> str:
    return need.action


def _describe_needs(needs: Iterable[Need], lacking: list[Need]) -> tuple[str, str]:
    """Return the resources of the granted needs and of the missing ones; `*` stands for all."""
    parts: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for need in needs:
        resource = f"{need.db or '*'}.{need.coll or '*'}"
        parts[need in lacking].setdefault(resource, []).append(need.shard)
    granted, missing = (
        _shorten([f"{resource}{on_shards(shards)}" for resource, shards in part.items()])
        for part in parts
    )
    return granted, missing


def _shorten(names: list[str]) -> str:
    rest = [f"and {len(names) - _SHOWN} more"] if names[_SHOWN:] else []
    return "\n".join([*names[:_SHOWN], *rest])


def _describe_copy(copy: Estimate, rate: float) -> str:
    if not copy.splits:
        return "none"
    return (
        f"{_size(copy.bytes)} in {copy.splits:,} splits, {copy.batches:,} micro-batches;"
        f" about {_duration(copy.seconds)} at {rate:g} MiB/s"
    )


def _describe_oplog(found: Examination, copy: Estimate) -> str:
    if not found.has_oplog:
        return "its window is unknown, because a router does not report it"
    if found.window is None:
        return "its window is unknown, see 'Privileges' in docs/start/mongodb.md"
    reach = found.window.seconds
    where = on_shards([found.window.shard])
    text = f"reaches back {_duration(reach)} ({found.window.origin}{where})"
    if copy.batch_seconds > reach:
        return f"{text}, LESS than a micro-batch of the copy: about {_duration(copy.batch_seconds)}"
    if copy.seconds > reach:
        return f"{text}, less than the copy; it must outlast a micro-batch and the longest stop"
    return text


def _describe_method(found: Examination) -> str:
    if found.why_streams is None:
        others = "end the run" if found.requires_oplog else "by change streams"
        return f"read from the oplog; DDL and other exceptions {others}"
    how = "cannot be read from the oplog" if found.requires_oplog else "read by change streams"
    return f"{how}, because {found.why_streams}"


def _size(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / _MIB:,.1f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# --- JSON output ---------------------------------------------------------------------------------


def to_json(found: Examination, copy: Estimate, rate: float) -> dict[str, Any]:
    """Return everything as a JSON object. `held` is null if no user is logged in."""
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
            "reported_by": window.origin,
            "told_by": window.origin,  # the name in the previous release
            "shard": window.shard,
        },
        "changes": {"oplog": found.why_streams is None, "reason": found.why_streams},
        "privileges": [
            {
                **asdict(each),
                "required": each in found.required,
                "held": None if lacking is None else each not in lacking,
            }
            for each in found.needs
        ],
        "warnings": warnings(found),
        "problems": [_problem_to_json(each) for each in found.problems],
    }


def _names(shards: Iterable[str]) -> list[str]:
    """Return the names of shards; the only shard of a replica set has none."""
    return [shard for shard in shards if shard]


def _problem_to_json(error: CdcError) -> dict[str, Any]:
    kind, code = type(error).__name__, error.exit_code
    return {"error": kind, "message": error.message, "remedy": error.remedy, "exit_code": code}


@click.command()
@pipeline_options
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=RATE,
    show_default=True,
    help="Assumed rate of the copy, all tasks together, in MiB/s.",
)
@json_option
@log_level_option()
@run_as_command
def main(path: str | None, overrides: tuple[str, ...], rate: float, json_path: str | None) -> int:
    """Check what a new run would find, without reading documents. Exit code 0: it could succeed.

    Example: mongodb-cdc plan --config conf/local.toml
    """
    config = configuration.load(path, overrides)
    found = plan(config.options, has_followers(config.layout))
    copy = estimate(found.work, config.options, rate)
    result = to_json(found, copy, rate)
    print_result(result, json_path, lambda: show(Terminal(), found, copy, rate))
    for problem in found.problems:
        sys.stderr.write(f"error: {escape_controls(str(problem))}\n")
    return found.problems[0].exit_code if found.problems else 0


if __name__ == "__main__":
    main()
