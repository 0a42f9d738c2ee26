"""Small SVG plots, drawn by hand: lines over logarithmic axes. Readable on a light and on a dark page.

No library: two kinds of plot do not need one, and what a library writes cannot be read or compared in a diff.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 190, 44, 56
COLOURS = ("#d4380d", "#1677c8", "#2e8b57", "#9254de", "#c08a00", "#d6409f", "#0e9aa7", "#7a869a", "#a0522d")
"""Each has a contrast of 3 to 1 or more on white and on near black."""

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #3b4252; }
.title { font-size: 15px; font-weight: 600; }
.grid { stroke: #8884; stroke-width: 1; }
.frame { fill: none; stroke: #888a; stroke-width: 1; }
.page { fill: #ffffff; }
@media (prefers-color-scheme: dark) { text { fill: #d8dee9; } .page { fill: #14171d; } }
"""

Points = Sequence[tuple[float, float]]


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """Draw each series as a line over two logarithmic axes. Values are above 0; one point is enough."""
    drawn = {name: sorted(points) for name, points in series.items() if points}
    if not drawn:
        raise ValueError(f"nothing to draw in {title!r}")
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    x_axis, y_axis = _Axis(xs, LEFT, WIDTH - RIGHT), _Axis(ys, HEIGHT - BOTTOM, TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(LEFT, 24, title, "title"),
    ]
    for value in x_axis.ticks:
        at = x_axis.place(value)
        out.append(_line(at, TOP, at, HEIGHT - BOTTOM))
        out.append(_text(at, HEIGHT - BOTTOM + 18, short(value), anchor="middle"))
    for value in y_axis.ticks:
        at = y_axis.place(value)
        out.append(_line(LEFT, at, WIDTH - RIGHT, at))
        out.append(_text(LEFT - 8, at + 4, short(value), anchor="end"))
    inner = f'width="{WIDTH - RIGHT - LEFT}" height="{HEIGHT - BOTTOM - TOP}"'
    out.append(f'<rect class="frame" x="{LEFT}" y="{TOP}" {inner}/>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, anchor="middle"))
    out.append(f'<g transform="translate(18 {middle:.0f}) rotate(-90)">{_text(0, 0, y_label, anchor="middle")}</g>')
    for number, (name, points) in enumerate(drawn.items()):
        colour = COLOURS[number % len(COLOURS)]
        width = 3 if number == 0 else 1.8
        places = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        row = TOP + 10 + 20 * number
        out.append(
            f'<line x1="{WIDTH - RIGHT + 14}" y1="{row}" x2="{WIDTH - RIGHT + 36}" y2="{row}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )
        out.append(_text(WIDTH - RIGHT + 42, row + 4, name))
    return "\n".join([*out, "</svg>\n"])


class _Axis:
    """A logarithmic axis from *begin* to *end* on the page, over whole decades."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        if min(values) <= 0:
            raise ValueError("a logarithmic axis has no place for 0 or less")
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(self.low + 1, math.ceil(math.log10(max(values)) - 1e-9))
        self.begin, self.end = begin, end
        self.ticks = [10.0**power for power in range(self.low, self.high + 1)]

    def place(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def short(value: float) -> str:
    """Return a tick as people read it: 0.1, 10, 1 k, 10 M."""
    for unit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    of = f' class="{name}"' if name else ""
    return f'<text{of} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
