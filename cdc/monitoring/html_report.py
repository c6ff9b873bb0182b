"""The page of `status --html` and `status --serve`: one file without external resources."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from string import Template

from cdc.delta.landing import NO_EVENTS
from cdc.logs import escape_controls
from cdc.model import Namespace
from cdc.mongo.inspect import COPYING, CopyProgress
from cdc.monitoring.charts import Point, TimeAxis, bars, line, sparkline
from cdc.monitoring.pipeline_status import Problem, Tables, View
from cdc.monitoring.summary import age, lag_of, summarize
from cdc.monitoring.table_stats import TableCommit, TableStats

_PAGE = Template(files(__package__).joinpath("page.html").read_text())
_READ = ("read",)


def render_page(view: View, refresh: float | None = None) -> str:
    """Render a pipeline's status as HTML.

    Args:
        view: The status.
        refresh: After how many seconds a browser loads the page again; None: never.
    """
    axis = _axis(view)
    return _render(
        view.name,
        _describe_state(view),
        view.problems,
        refresh,
        facts=_facts(summarize(view)),
        charts=_charts(view, axis),
        collections="\n".join(_row(view, axis, *each) for each in view.collections),
    )


def render_error(name: str, error: str, refresh: float | None = None) -> str:
    """Render the page of a pipeline whose status cannot be read."""
    return _render(name, ("bad", f"The status cannot be read. {error}"), [], refresh)


def _render(
    name: str,
    state: tuple[str, str],
    problems: Iterable[Problem],
    refresh: float | None,
    **parts: str,
) -> str:
    reload = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh:.0f}">'
    return _PAGE.substitute(
        {"facts": "", "charts": "", "collections": "", **parts},
        name=_text(name),
        state=state[0],
        state_text=_text(state[1]),
        moment=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        refresh=reload,
        problems="\n".join(map(_problem, problems)),
    )


def _describe_state(view: View) -> tuple[str, str]:
    """The class of the state line, which has its colour, and its text."""
    problems, metrics = view.problems, view.metrics
    lag = "" if metrics.lag_seconds is None else f", lag {metrics.lag_seconds:,} s"
    if any(each.is_severe for each in problems):
        return "bad", f"Needs action now{lag}"
    if problems:
        return "doubtful", f"Needs attention{lag}"
    if view.checkpoint.last is None:
        return "idle", "No batch is written yet"
    percent = metrics.snapshot_percent
    if percent is not None and percent < 100:
        return "copying", f"Copying: {percent:.0f} % of the documents{lag}"
    return "good", f"Up to date{lag}"


def _problem(problem: Problem) -> str:
    kind = "bad" if problem.is_severe else "doubtful"
    remedy = problem.remedy[0].upper() + problem.remedy[1:]
    return f'<li class="{kind}"><b>{_text(problem.text)}.</b> {_text(remedy)}</li>'


def _facts(facts: Mapping[str, str]) -> str:
    return "".join(f"<div><dt>{_text(n)}</dt><dd>{_text(t)}</dd></div>" for n, t in facts.items())


# --- over time -----------------------------------------------------------------------------------


def _charts(view: View, axis: TimeAxis) -> str:
    """The charts of all collections together, from the newest commits of their tables."""
    changelogs = [(extent.namespace, tables.changelog) for extent, tables in view.collections]
    mirrors = [tables.mirror for _, tables in view.collections]
    changes = [point for each in changelogs for point in _changes(*each)]
    copied = [point for each in changelogs for point in _rows(*each, _READ)]
    shown = (
        bars("Changes per second", changes, axis),
        bars("Documents copied per second", copied, axis),
        line("Age of changelogs at commit", _ages(t for _, t in changelogs), axis, "s"),
        line("Age of mirrors at commit", _ages(mirrors), axis, "s"),
    )
    return "".join(shown)


def _axis(view: View) -> TimeAxis:
    commits = [
        commit
        for _, tables in view.collections
        for table in (tables.changelog, tables.mirror)
        for commit in _with_rows(table)
    ]
    return TimeAxis.of((each.moment for each in commits), time.time())


def _with_rows(table: TableStats | None) -> list[TableCommit]:
    return [] if table is None else [each for each in table.commits if each.rows]


def _rows(namespace: Namespace, table: TableStats | None, ops: Iterable[str]) -> list[Point]:
    """The rows of a collection with these operations, by commit of its changelog."""
    return [
        Point(commit.moment, group.rows)
        for commit in _with_rows(table)
        for group in commit.commit.groups
        if group.op in ops and (group.db, group.coll) == namespace
    ]


def _changes(namespace: Namespace, table: TableStats | None) -> list[Point]:
    commits = _with_rows(table)
    ops = {group.op for each in commits for group in each.commit.groups}
    return _rows(namespace, table, ops.difference(NO_EVENTS))


def _ages(tables: Iterable[TableStats | None]) -> list[Point]:
    """How far tables lagged at the moment of each commit with rows."""
    commits = [commit for table in tables for commit in _with_rows(table)]
    return [Point(each.moment, each.lag_at_commit) for each in commits]


# --- collections ---------------------------------------------------------------------------------


def _row(view: View, axis: TimeAxis, extent: CopyProgress, tables: Tables) -> str:
    name = extent.namespace
    cells = {
        "collection": f"<b>{_text(str(name))}</b>",
        "phase": _phase(extent),
        "documents": f"{extent.documents:,}",
        "mirror": "" if tables.mirror is None else f"{tables.mirror.rows:,}",
        "changelog": "" if tables.changelog is None else f"{tables.changelog.rows:,}",
        "written": age(tables),
        "lag": _text(lag_of(name, tables, view)),
        "changes": sparkline("changes per second", _changes(name, tables.changelog), axis),
    }
    return "<tr>" + "".join(_cell(*each) for each in cells.items()) + "</tr>"


def _cell(name: str, content: str) -> str:
    return f'<td class="{name}" data-name="{name}">{content}</td>' if content else "<td></td>"


def _phase(extent: CopyProgress) -> str:
    if extent.phase != COPYING or extent.copied is None:
        return extent.phase
    share = 100 * extent.copied
    return f'{extent.phase} {share:.0f} % <progress max="100" value="{share:.0f}"></progress>'


def _text(text: str) -> str:
    return html.escape(escape_controls(text))
