"""Looking at the clock, the garbage collector and the process. Nothing here knows of stores."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


def timed_ms(work: Callable[[], T]) -> tuple[float, T]:
    """Return how long *work* took, in milliseconds, and what it gave."""
    begun = time.perf_counter()
    result = work()
    return (time.perf_counter() - begun) * 1000, result


def median_ms(work: Callable[[], object], repeats: int, *, at_most_s: float = 2.0) -> tuple[float, int]:
    """Return the median of *repeats* runs of *work* in milliseconds, and how many there were.

    Fewer, but at least one, once *at_most_s* is spent. What *work* gave is let go before the next one.
    """
    found: list[float] = []
    gc.collect()  # what earlier work left behind is not this one's
    begun = time.perf_counter()
    while len(found) < repeats and (not found or time.perf_counter() - begun < at_most_s):
        found.append(timed_ms(work)[0])
    return statistics.median(found), len(found)


def clock_cost_ns() -> float:
    """Return what measuring nothing measures, in nanoseconds: the least of several tries."""
    look = time.perf_counter_ns
    found = []
    for _ in range(20):
        spent = 0
        for _ in range(1000):
            begun = look()
            spent += look() - begun
        found.append(spent / 1000)
    return min(found)


class Collector:
    """Counts the time that Python's garbage collector takes inside the ``with``."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._seen)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gc.callbacks.remove(self._seen)

    def _seen(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._begun


def drop_from_cache(path: Path) -> None:
    """Ask the system to forget a file's pages, so that the next read comes from the disk; not all systems do."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def process_peak_bytes() -> int | None:
    """Return the peak of this process's resident memory, or None where the system does not say."""
    if sys.platform != "linux":
        return None
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
