"""When a snapshot is due. A policy sees what has gathered since the last one, and what that one cost."""

from __future__ import annotations

from typing import Protocol

import msgspec
from tailfold.snapshots.limits import (
    ASSUMED_EVENT_US,
    ASSUMED_READ_BYTES_PER_S,
    RESUME_BUDGET_MS,
    SHARE_OF_EVENT_BYTES,
    SHARE_OF_TIME,
    STREAMS_MOST,
    STREAMS_SNAPSHOT_BYTES_MOST,
)

ANY_NUMBER = 1 << 62


class Progress(msgspec.Struct, frozen=True, gc=False):
    """What has gathered since the last snapshot (or the start)."""

    events: int
    event_bytes: int
    """Record bytes of those events."""
    fold_s: float
    """Measured time of folding them."""
    last_snapshot_bytes: int
    """Bytes that the last snapshot wrote; 0 if there is none yet."""
    last_snapshot_s: float
    """Time that the last snapshot took to encode and hand over."""
    streams: int = 1
    """Over how many streams the events are spread: each fork in a chain of forks is one."""


class Policy(Protocol):
    """Decides whether a snapshot is due. Pure: the same progress gives the same answer."""

    def due(self, progress: Progress) -> bool:
        """Say whether a snapshot should be written now."""

    def reach(self, progress: Progress) -> int:
        """Return how many more events may be folded before it wants to be asked again; at least 1."""


class CostBased:
    """Due when folding what has gathered would take longer than the resume budget, and writing pays.

    The cost of a resume is estimated from events, bytes and the measured fold time, whichever is largest.
    A snapshot pays when it is a small share of the bytes and of the time that have gathered since the last. Events
    that are spread over many forks cost a look-up a fork: then a small snapshot is due earlier.
    """

    def __init__(self, resume_budget_ms: float = RESUME_BUDGET_MS) -> None:
        """Aim at folding at most *resume_budget_ms* of events on a resume; above 0."""
        if not resume_budget_ms > 0:
            raise ValueError(f"resume_budget_ms is above 0, not {resume_budget_ms}")
        self.resume_budget_ms = resume_budget_ms

    def due(self, progress: Progress) -> bool:
        """Say whether a snapshot should be written now."""
        if progress.streams >= STREAMS_MOST:
            return progress.last_snapshot_bytes <= STREAMS_SNAPSHOT_BYTES_MOST
        estimate_ms = max(
            progress.events * ASSUMED_EVENT_US / 1000,
            progress.event_bytes / ASSUMED_READ_BYTES_PER_S * 1000,
            progress.fold_s * 1000,
        )
        if estimate_ms < self.resume_budget_ms:
            return False
        if progress.last_snapshot_bytes > progress.event_bytes * SHARE_OF_EVENT_BYTES:
            return False
        work_s = max(progress.fold_s, progress.events * ASSUMED_EVENT_US / 1e6)
        return progress.last_snapshot_s <= work_s * SHARE_OF_TIME

    def reach(self, progress: Progress) -> int:
        """Return a page: the estimate does not jump."""
        return ANY_NUMBER

    def __repr__(self) -> str:
        return f"CostBased({self.resume_budget_ms:g} ms)"


class every:  # noqa: N801 - reads as a word: every(1000)
    """Due after every *n* events, whatever they cost."""

    def __init__(self, n: int) -> None:
        """Count *n* events, from 1."""
        if type(n) is not int or n < 1:
            raise ValueError(f"every(n) counts from 1, in whole numbers, not {n!r}")
        self.n = n

    def due(self, progress: Progress) -> bool:
        """Say whether a snapshot should be written now."""
        return progress.events >= self.n

    def reach(self, progress: Progress) -> int:
        """Return what is left of the *n* events."""
        return max(1, self.n - progress.events)

    def __repr__(self) -> str:
        return f"every({self.n})"


class _Never:
    def due(self, progress: Progress) -> bool:
        return False

    def reach(self, progress: Progress) -> int:
        return ANY_NUMBER

    def __repr__(self) -> str:
        return "never"


never: Policy = _Never()
"""Write no snapshots. Those that are there are still used."""
