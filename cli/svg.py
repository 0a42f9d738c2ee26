"""Plots as SVG text: lines, stacked areas and bars, drawn by hand so that a page needs nothing from elsewhere.

Colours are classes (``c0``, ``c1``, ``limit``), for the page's style to set in light and dark. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 44
ROW = 30
"""Height of a bar with the space around it."""

Points = Sequence[tuple[float, float]]
Form = Callable[[float], str]


class Line(NamedTuple):
    """A line with a dot at each point; the dot's tooltip says its values."""

    name: str
    points: Points


class Layer(NamedTuple):
    """A layer of a stacked plot: one value for each stretch or row."""

    name: str
    values: Sequence[float]


class Limit(NamedTuple):
    """A dashed line across the plot."""

    value: float
    label: str


class Axis(NamedTuple):
    """What an axis says, and how its values are written."""

    label: str
    form: Form
    log: bool = False


class _Scale(NamedTuple):
    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        here = math.log10(max(value, self.low)) if self.log else value
        share = (here - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if not self.log:
            step = _step(self.high - self.low)
            count = int((self.high - self.low) / step + 1e-9)
            return [self.low + i * step for i in range(count + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        digits = (1, 2, 5) if last - first <= 2 else (1,)
        found = [d * 10.0**e for e in range(first, last + 1) for d in digits]
        found = [tick for tick in found if self.low * 0.999 <= tick <= self.high * 1.001]
        return found[:: max(1, math.ceil(len(found) / 7))]


def lines(
    title: str, series: Sequence[Line], x: Axis, y: Axis, *, across: Sequence[Limit] = (), up: Sequence[Limit] = ()
) -> str:
    """Return a plot of lines; *across* and *up* are limits on the y and the x axis."""
    xs = [point[0] for line in series for point in line.points] + [limit.value for limit in up]
    ys = [point[1] for line in series for point in line.points] + [limit.value for limit in across]
    over = _scale(xs, LEFT, WIDTH - RIGHT, x.log)
    beside = _scale(ys, HEIGHT - BOTTOM, TOP, y.log)
    parts = [_axes(over, beside, x, y)]
    for limit in across:
        at = beside.at(limit.value)
        parts.append(f'<line class="limit" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT + 6, at - 5, limit.label, "limit-text"))
    for limit in up:
        at = over.at(limit.value)
        side, anchor = (-5.0, "end") if at > (LEFT + WIDTH - RIGHT) / 2 else (5.0, "start")
        parts.append(f'<line class="limit" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at + side, HEIGHT - BOTTOM - 8, limit.label, "limit-text", anchor))
    for number, line in enumerate(series):
        path = " ".join(f"{over.at(a):.1f},{beside.at(b):.1f}" for a, b in line.points)
        parts.append(f'<polyline class="line c{number}" points="{path}"/>')
        for a, b in line.points:
            said = f"{line.name}: {x.form(a)} → {y.form(b)}"
            parts.append(
                f'<circle class="dot c{number}" cx="{over.at(a):.1f}" cy="{beside.at(b):.1f}" r="3.2">'
                f"<title>{escape(said)}</title></circle>"
            )
    parts.append(_legend([line.name for line in series]))
    return _svg(title, HEIGHT, parts)


def areas(title: str, ends: Sequence[float], layers: Sequence[Layer], x: Axis, y: Axis) -> str:
    """Return a plot of stacked layers over stretches that end at *ends*; the first begins at 0."""
    totals = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)]
    over = _Scale(0.0, ends[-1], LEFT, WIDTH - RIGHT, False)
    beside = _scale([0.0, *totals], HEIGHT - BOTTOM, TOP, False)
    parts = [_axes(over, beside, x, y)]
    below = [0.0] * len(ends)
    starts = [0.0, *ends[:-1]]
    for number, layer in enumerate(layers):
        for i, value in enumerate(layer.values):
            left, right = over.at(starts[i]), over.at(ends[i])
            top, bottom = beside.at(below[i] + value), beside.at(below[i])
            said = f"{layer.name} up to {x.form(ends[i])}: {y.form(value)}"
            parts.append(
                f'<rect class="fill c{number}" x="{left:.1f}" y="{top:.1f}"'
                f' width="{max(0.5, right - left - 0.6):.1f}"'
                f' height="{max(0.0, bottom - top):.1f}"><title>{escape(said)}</title></rect>'
            )
            below[i] += value
    parts.append(_legend([layer.name for layer in layers]))
    return _svg(title, HEIGHT, parts)


def bars(title: str, names: Sequence[str], layers: Sequence[Layer], ends: Sequence[str], form: Form) -> str:
    """Return horizontal stacked bars, one for each of *names*, each with a text at its end."""
    totals = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)]
    height = TOP + ROW * len(names) + 10
    room = max(map(len, ends), default=0) * 7.2 + 10
    over = _Scale(0.0, max(totals, default=0.0) or 1.0, 8.0, WIDTH - 8.0 - room, False)
    parts = []
    for row, name in enumerate(names):
        y = TOP + ROW * row
        parts.append(_text(8, y + 10, name if len(name) <= 48 else f"{name[:47]}…", "tick"))
        at = over.start
        for number, layer in enumerate(layers):
            width = over.at(layer.values[row]) - over.start
            said = f"{name}, {layer.name}: {form(layer.values[row])}"
            parts.append(
                f'<rect class="fill c{number}" x="{at:.1f}" y="{y + 15}" width="{width:.1f}" height="9">'
                f"<title>{escape(said)}</title></rect>"
            )
            at += width
        parts.append(_text(at + 6, y + 24, ends[row], "tick"))
    parts.append(_legend([layer.name for layer in layers], 8))
    return _svg(title, height, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}"'
        f' xmlns="http://www.w3.org/2000/svg">\n<title>{escape(title)}</title>\n{inside}\n</svg>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(names: Sequence[str], x: float = LEFT) -> str:
    if len(names) < 2:
        return ""
    parts = []
    for number, name in enumerate(names):
        parts.append(f'<rect class="fill c{number}" x="{x:.1f}" y="9" width="11" height="11" rx="2"/>')
        parts.append(_text(x + 16, 19, name, "tick"))
        x += 34 + 7.0 * len(name)
    return "".join(parts)


def _axes(over: _Scale, beside: _Scale, x: Axis, y: Axis) -> str:
    parts = []
    for tick in beside.ticks():
        at = beside.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 6, at + 4, y.form(tick), "tick", "end"))
    for tick in over.ticks():
        at = over.at(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        anchor = "end" if at > WIDTH - RIGHT - 14 else "middle"
        parts.append(_text(at, HEIGHT - BOTTOM + 16, x.form(tick), "tick", anchor))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x.label, "label", "middle"))
    return "".join(parts)


def _scale(values: Sequence[float], start: float, end: float, log: bool) -> _Scale:
    if not log:
        high = max(values, default=1.0) or 1.0
        step = _step(high)
        return _Scale(0.0, math.ceil(high / step - 1e-9) * step, start, end, False)
    above = [value for value in values if value > 0] or [1.0]
    low, high = min(above), max(above)
    if high < low * 10:  # less than a decade would have no ticks to read by
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    return _Scale(low / 1.1, high * 1.1, start, end, True)


def _step(span: float) -> float:
    rough = (span or 1.0) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    return float(next(unit * digit for digit in (1, 2, 5, 10) if unit * digit >= rough * 0.999))
