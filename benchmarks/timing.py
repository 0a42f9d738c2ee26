"""Percentiles, and the raw limit of the disk: a write and an fdatasync of the same bytes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path


def percentile(sorted_s: Sequence[float], share: float) -> float:
    """Return the value below which *share* of the sorted durations lie, in ms."""
    index = min(len(sorted_s) - 1, int(len(sorted_s) * share))
    return sorted_s[index] * 1000


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this program since it was started.

    Not getrusage: its figure survives exec, so a child would report its parent's peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summary(durations_s: list[float]) -> dict[str, float]:
    """Return p50, p99 and mean of durations, in ms."""
    ordered = sorted(durations_s)
    mean = sum(ordered) / len(ordered) * 1000
    return {"p50_ms": percentile(ordered, 0.5), "p99_ms": percentile(ordered, 0.99), "mean_ms": mean}


class TwoFlushes:
    """What LMDB pays at the least: some pages written and flushed, then the meta page, flushed too."""

    PAGES = 8

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.pwrite(self._handle, bytes(4096 * 256), 0)
        os.fsync(self._handle)
        self._meta = os.open(path, os.O_RDWR | os.O_DSYNC)
        self._at = 2
        self.durations_s: list[float] = []

    def commit(self) -> None:
        pages = bytes(4096 * self.PAGES)
        start = time.perf_counter()
        os.pwrite(self._handle, pages, 4096 * self._at)
        os.fdatasync(self._handle)
        os.pwrite(self._meta, pages[:96], 0)
        self.durations_s.append(time.perf_counter() - start)
        self._at = 2 + (self._at + self.PAGES) % 240

    def close(self) -> None:
        os.close(self._handle)
        os.close(self._meta)


class RawFile:
    """Appends bytes to a plain file with write + fdatasync: what any durable log pays at the least."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.durations_s: list[float] = []

    def append(self, data: bytes) -> None:
        start = time.perf_counter()
        os.write(self._handle, data)
        os.fdatasync(self._handle)
        self.durations_s.append(time.perf_counter() - start)

    def close(self) -> None:
        os.close(self._handle)
