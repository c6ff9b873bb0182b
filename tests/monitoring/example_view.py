"""The status of a pipeline that needs no attention, but for what a test lets it report."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdc.checkpoint import Checkpoint
from cdc.checkpoint.checkpoint import WrittenBatch
from cdc.delta.log import Commit, State
from cdc.model import Namespace, Offset, Timestamp
from cdc.mongo.inspect import CopyProgress, Metrics
from cdc.mongo.topology import Remaining
from cdc.monitoring import TableCommit, Tables, TableStats, View
from cdc.tasks import Group

_OFFSET = json.loads((Path(__file__).parents[1] / "model/offsets/v1_streaming.json").read_text())


def view(**reported: Any) -> View:
    """See the module."""
    namespace, now = Namespace("shop", "a<b>$c"), int(time.time())
    at, written = Timestamp(now - 5, 1), now - reported.pop("quiet", 3.0)
    commit = Commit(7, at, {namespace: State(exact_from=reported.pop("exact_from", None))})
    landed = TableStats(
        2, (TableCommit(commit, 8, now - 3.0, 2), TableCommit(commit, 7, now - 9.0, 2))
    )
    changed = tuple(Group(*namespace, op, 1) for op in reported.pop("changed", ()))
    commits = [
        TableCommit(Commit(n, at, groups=changed), n, now - 3000.0 / n, 2) for n in (7, 6, 5)
    ]
    tables = Tables(TableStats(2, tuple(commits)), {"mirror": replace(landed, applied=5)})
    lag, left = reported.pop("lag", 5), reported.pop("left", Remaining(48.0, 90.0, ""))
    return View(
        name=reported.pop("name", "shop"),
        path="/lake",
        checkpoint=Checkpoint(7, WrittenBatch(7, Offset.from_json(_OFFSET), written, written)),
        metrics=Metrics(at, Timestamp(at.time + lag, 1), lag, 1.0, left, 100.0),
        collections=[(CopyProgress(namespace, 2, "streaming", 1.0), tables)],
        letters=reported.pop("letters", 0),
        oplog_warn=25.0,
        stall_seconds=120.0,
        times={5: Timestamp(now - 70, 1)},
    )
