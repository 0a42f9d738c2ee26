"""Figures as people read them: three digits, and a unit that fits."""

from __future__ import annotations


def digits(value: float) -> str:
    """Return *value* with three significant digits and commas."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    if magnitude >= 100:
        unit = 10 ** max(0, len(str(int(magnitude))) - 3)
        return f"{round(value / unit) * unit:,}"
    return f"{value:.1f}" if magnitude >= 10 else f"{value:.2f}" if magnitude >= 0.1 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Return a duration in s, ms or µs."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{digits(seconds * factor)} {unit}"
    return f"{digits(seconds * 1e6)} µs"


def size(count: float) -> str:
    """Return bytes in B, KB, MB or GB (powers of 1000)."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if count >= factor:
            return f"{digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def rate(per_s: float) -> str:
    """Return events per second, in millions or thousands."""
    if per_s >= 1e6:
        return f"{digits(per_s / 1e6)} M events/s"
    return f"{digits(per_s / 1e3)} k events/s" if per_s >= 1e3 else f"{digits(per_s)} events/s"


def percent(share: float) -> str:
    """Return a share as per cent; what is there is never shown as nothing."""
    return "<1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")
