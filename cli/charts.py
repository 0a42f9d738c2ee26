"""Small charts of block characters, for a terminal; in a pipe there are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def drawable() -> bool:
    """Say whether standard output is a terminal that can show block characters."""
    try:
        _LEVELS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return sys.stdout.isatty()


def bar(share: float, width: int) -> str:
    """Return a bar of *share* (0 to 1) of *width* columns, padded to them."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(values: Sequence[float]) -> str:
    """Return one character for each value, from 0 to the largest."""
    top = max(values, default=0.0)
    if top <= 0:
        return ""
    return "".join(_LEVELS[min(7, int(value / top * 8))] for value in values)
