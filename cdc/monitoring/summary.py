"""The status of a pipeline and of its collections as text."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from cdc.checkpoint import Checkpoint
from cdc.model import Namespace, Timestamp, timestamp
from cdc.monitoring.pipeline_status import Tables, View


def summarize(view: View) -> dict[str, str]:
    """The status of the whole pipeline as text, by label."""
    metrics = view.metrics
    return {
        "batches": f"{_batches(view.checkpoint)} ({view.path})",
        "T": "none yet" if metrics.time is None else _moment(metrics.time),
        "live edge": "unknown" if metrics.live_edge is None else _moment(metrics.live_edge),
        "lag": "none yet" if metrics.time is None else known(metrics.lag_seconds, "{:,} s"),
        "freshness": _freshness(view),
        "changes": known(metrics.events_per_second, "{:,.1f} events/s in the last batches"),
        "oplog": known(metrics.oplog_left, "{0.hours:.1f} hours ({0.percent:.0f} %) left"),
        "copied": known(metrics.snapshot_percent, "{:.1f} %"),
        "dead letters": known(view.letters, "{:,}"),
    }


def _freshness(view: View) -> str:
    changelog, mirror = view.freshness
    if changelog is None:
        return "none yet" if view.metrics.time is None else "unknown"
    followers = "" if mirror is None else f", mirrors and histories {mirror:,} s"
    return f"changelogs and live views {changelog:,} s{followers}"


def _batches(checkpoint: Checkpoint) -> str:
    if checkpoint.planned is None:
        return "none yet"
    if checkpoint.last is None:
        return f"{checkpoint.planned} is planned, none is written"
    last = checkpoint.last
    if last.moment is None:
        text = f"{last.batch} is written, and began {time.time() - last.began:,.0f} s ago"
    else:
        text = f"{last.batch} was written {time.time() - last.moment:,.0f} s ago"
    if checkpoint.planned == last.batch:
        return text
    return f"{text}, {checkpoint.planned} is planned"


def _moment(at: Timestamp) -> str:
    return f"{second(at.time)} ({timestamp.text(at)})"


def age(tables: Tables) -> str:
    """When changelog or mirror were last written; empty if they were not."""
    newest = [each.newest for each in (tables.changelog, tables.mirror) if each and each.newest]
    if not newest:
        return ""
    return f"{time.time() - max(made.moment for made in newest):,.0f} s ago"


def lag_of(namespace: Namespace, tables: Tables, view: View) -> str:
    """The batches that mirror and history lack, and their freshness.

    Empty if they lack nothing, or if it is not known.
    """
    freshness = view.followers_freshness(namespace, tables)
    return ", ".join(
        f"{kind} {each.batches:,} batch{'' if each.batches == 1 else 'es'},"
        f" {known(freshness[kind], '{:,} s')}"
        for kind, each in tables.backlogs(namespace).items()
        if each.batches
    )


def second(moment: float) -> str:
    """Return a moment, in seconds since 1970, as ISO-8601."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def known(value: Any, form: str) -> str:
    """Return a value in a form of `str.format`; `unknown` for None."""
    return "unknown" if value is None else form.format(value)
