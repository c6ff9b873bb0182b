"""Small charts over time as SVG, in the colours of the page around them.

The page defines the classes of CSS that they use. All charts of a page have the same axis of time.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

# Equal parts of the axis of time, each with one bar or one point, however many commits there are.
PARTS = 60
_WIDTH, _HEIGHT, _TOP, _FLOOR = 320.0, 120.0, 16.0, 104.0
_SPARK_WIDTH, _SPARK_HEIGHT = 120.0, 24.0
_NICE = (1.0, 2.0, 5.0, 10.0)
_LEAST_SECONDS = 60.0
_DAY_SECONDS, _HOUR_SECONDS = 86_400.0, 3_600.0


class Point(NamedTuple):
    """A value at a moment, in seconds since 1970."""

    moment: float
    value: float


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time that all charts of a page show, in seconds since 1970; `end` is after `begin`."""

    begin: float
    end: float

    @classmethod
    def of(cls, moments: Iterable[float], end: float) -> TimeAxis:
        """From the first of the moments to `end`, at least a minute."""
        return cls(min([*moments, end - _LEAST_SECONDS]), end)

    @property
    def part(self) -> float:
        """The seconds of one part."""
        return (self.end - self.begin) / PARTS

    def part_of(self, moment: float) -> int:
        """The number of the part with a moment; the first or last one for moments beyond."""
        return min(PARTS - 1, max(0, int((moment - self.begin) / self.part)))

    def text_of(self, part: int) -> str:
        """When a part begins."""
        return self.text(self.begin + part * self.part)

    def text(self, moment: float) -> str:
        """A moment as precise as this axis needs it."""
        length = self.end - self.begin
        form = "%Y-%m-%d" if length > 30 * _DAY_SECONDS else "%m-%d %H:%M"
        if length < _DAY_SECONDS:
            form = "%H:%M" if length > _HOUR_SECONDS else "%H:%M:%S"
        return datetime.fromtimestamp(moment, UTC).strftime(form)


def rates(points: Iterable[Point], axis: TimeAxis) -> list[float]:
    """The values per second in each part of the axis."""
    sums = [0.0] * PARTS
    for point in points:
        sums[axis.part_of(point.moment)] += point.value
    return [each / axis.part for each in sums]


def bars(title: str, points: Iterable[Point], axis: TimeAxis) -> str:
    """A chart of the values per second; empty without any value."""
    heights = rates(points, axis)
    if not any(heights):
        return ""
    top, width = _round_up(max(heights)), _WIDTH / PARTS
    shapes = "".join(
        f'<rect class="series" x="{number * width:.1f}" y="{_y(height, top):.1f}"'
        f' width="{width - 0.6:.1f}" height="{_FLOOR - _y(height, top):.1f}">'
        f"<title>{axis.text_of(number)}: {_number(height)}</title></rect>"
        for number, height in enumerate(heights)
        if height
    )
    return _chart(title, f"{_number(max(heights))} at most", shapes, top, axis)


def line(title: str, points: Iterable[Point], axis: TimeAxis, unit: str) -> str:
    """A chart of the greatest value in each part of the axis that has one; empty without any."""
    greatest: dict[int, float] = {}
    for point in points:
        number = axis.part_of(point.moment)
        greatest[number] = max(point.value, greatest.get(number, 0.0))
    if not greatest:
        return ""
    top, width = _round_up(max(greatest.values())), _WIDTH / PARTS
    places = [((number + 0.5) * width, number, greatest[number]) for number in sorted(greatest)]
    path = " ".join(f"{x:.1f},{_y(value, top):.1f}" for x, _, value in places)
    shapes = f'<polyline class="line" points="{path}"/>' + "".join(
        f'<circle class="series" cx="{x:.1f}" cy="{_y(value, top):.1f}" r="1.6">'
        f"<title>{axis.text_of(number)}: {_number(value)} {unit}</title></circle>"
        for x, number, value in places
    )
    return _chart(title, f"{_number(places[-1][2])} {unit} last", shapes, top, axis)


def sparkline(title: str, points: Iterable[Point], axis: TimeAxis) -> str:
    """The values per second as bars of a line's height, without scales; empty without any value."""
    heights = rates(points, axis)
    top, width = max(heights), _SPARK_WIDTH / PARTS
    if not top:
        return ""
    shapes = "".join(
        f'<rect class="series" x="{number * width:.1f}" y="{_SPARK_HEIGHT * (1 - share):.1f}"'
        f' width="{width:.1f}" height="{_SPARK_HEIGHT * share:.1f}"/>'
        for number, share in enumerate(height / top for height in heights)
        if share
    )
    label = html.escape(f"{title}, {_number(top)} at most")
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH:.0f} {_SPARK_HEIGHT:.0f}" role="img"'
        f' aria-label="{label}"><title>{label}</title>{shapes}</svg>'
    )


def _chart(title: str, summary: str, shapes: str, top: float, axis: TimeAxis) -> str:
    label = html.escape(f"{title}: {summary}")
    return (
        f"<figure><figcaption><b>{html.escape(title)}</b> <span>{summary}</span></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{label}">'
        f'<line class="grid" x1="0" x2="{_WIDTH:.0f}" y1="{_TOP:.1f}" y2="{_TOP:.1f}"/>'
        f'<line class="grid" x1="0" x2="{_WIDTH:.0f}" y1="{_FLOOR:.1f}" y2="{_FLOOR:.1f}"/>'
        f'{shapes}<text x="0" y="{_TOP - 4:.0f}">{_number(top)}</text>'
        f'<text x="0" y="{_HEIGHT - 3:.0f}">{axis.text(axis.begin)}</text>'
        f'<text x="{_WIDTH:.0f}" y="{_HEIGHT - 3:.0f}" text-anchor="end">{axis.text(axis.end)} UTC'
        "</text></svg></figure>"
    )


def _y(value: float, top: float) -> float:
    return _FLOOR - (_FLOOR - _TOP) * value / top


def _round_up(value: float) -> float:
    """The next number that begins with 1, 2 or 5; 1 for values below it."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * each for each in _NICE if power * each >= value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
