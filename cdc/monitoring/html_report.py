"""The page of `status --html`: one file without external resources."""

from __future__ import annotations

import html
import io
from datetime import UTC, datetime
from string import Template

import numpy
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cdc.logs import escape_controls
from cdc.monitoring import TableCommit, View

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>mongodb-cdc: $title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .2rem .8rem; text-align: left; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.warning { background: #fff3cd; padding: .4rem .8rem; margin: .3rem 0 }
h1, .warning { overflow-wrap: anywhere }
svg { max-width: 100%; height: auto }
.wide { overflow-x: auto }
</style>
<h1>$title</h1>
<p>As of $moment.</p>
$warnings
<div class="wide"><table>$facts</table></div>
$plots
<div class="wide"><table>$collections</table></div>
</html>
""")
_COLUMNS = ("collection", "documents", "phase", "copied", "mirror", "changelog")
_MOST_BARS, _PARTS = 30, 60


def render_page(view: View, facts: dict[str, str]) -> str:
    """Render a pipeline's status as HTML.

    Args:
        view: The status.
        facts: The lines of the page's first table, by label.
    """
    return _PAGE.substitute(
        title=_text(view.path),
        moment=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        warnings="\n".join(f'<p class="warning">{_text(each)}</p>' for each in view.warnings),
        facts="".join(f"<tr><th>{_text(n)}</th><td>{_text(t)}</td></tr>" for n, t in facts.items()),
        plots=_plots(view),
        collections=_collections(view),
    )


def _text(text: str) -> str:
    return html.escape(escape_controls(text))


def _collections(view: View) -> str:
    rows = ["".join(f"<th>{name}</th>" for name in _COLUMNS)]
    for extent, tables in view.collections:
        numbers = ["" if extent.copied is None else f"{extent.copied:.0%}"]
        for table in (tables.mirror, tables.changelog):
            numbers.append("" if table is None else f"{table.rows:,}")
        cells = [f"<td>{_text(str(extent.namespace))}</td>"]
        cells += [f'<td class="number">{extent.documents:,}</td>', f"<td>{extent.phase}</td>"]
        cells += [f'<td class="number">{number}</td>' for number in numbers]
        rows.append("".join(cells))
    return "\n".join(f"<tr>{row}</tr>" for row in rows)


# --- plots ---------------------------------------------------------------------------------------


def _plots(view: View) -> str:
    """The four plots as one SVG element."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    (lag, throughput), (copies, oplog) = figure.subplots(2, 2)
    made = sorted(view.commits_with_rows, key=lambda each: each.moment)
    _lag(lag, made)
    _throughput(throughput, made)
    _copies(copies, view)
    _oplog(oplog, view)
    file = io.StringIO()
    figure.savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]


def _lag(axes: Axes, made: list[TableCommit]) -> None:
    axes.set_title("seconds from a batch's time to its commit")
    axes.plot([_day(each.moment) for each in made], [each.lag_at_commit for each in made], ".-")
    _set_time_axis(axes)


def _throughput(axes: Axes, made: list[TableCommit]) -> None:
    """Plot the rows per second into all tables together, in intervals of equal length."""
    axes.set_title("rows written, per second")
    if made:
        rows, ends = numpy.histogram(
            [each.moment for each in made], _PARTS, weights=[each.rows or 0 for each in made]
        )
        axes.stairs(rows / (ends[1] - ends[0]), list(map(_day, ends)), fill=True)
    _set_time_axis(axes)


def _copies(axes: Axes, view: View) -> None:
    axes.set_title("copied, percent")
    shares = [(e.namespace, e.copied) for e, _ in view.collections if e.copied is not None]
    shares = shares[:_MOST_BARS]
    # matplotlib reads a dollar sign as the start of a formula.
    names = [escape_controls(str(name)).replace("$", r"\$") for name, _ in shares]
    axes.barh(range(len(shares)), [100 * copied for _, copied in shares])
    axes.set_yticks(range(len(shares)), names)
    axes.set_xlim(0, 100)
    axes.invert_yaxis()


def _oplog(axes: Axes, view: View) -> None:
    axes.set_title("hours of the oplog: in total, and left after T")
    left = view.metrics.oplog_left
    if left is not None and left.percent > 0:
        axes.barh([0], [100 * left.hours / left.percent], color="#ddd")
        axes.barh([0], [left.hours])
    axes.set_yticks([])


def _day(moment: float) -> float:
    """A time in seconds since 1970 as matplotlib's number of days."""
    return float(dates.date2num(datetime.fromtimestamp(moment, UTC)))


def _set_time_axis(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    locator = dates.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
