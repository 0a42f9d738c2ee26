"""Long reads are told to the kernel: LMDB maps the data file for random reads, which a full fold is not.

With random access advised, every page that is not in memory is a read of its own: that is what single reads
want, and a fold of a long history from the disk takes 8 times as long as with the kernel's read-ahead. So once a
thread has read a few thousand events one after another, the kernel is told that it may read ahead, and told
otherwise again by the first read after a pause. Only a hint: whatever goes wrong with it changes no answer.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path

LONG_EVENTS = 2048
"""A thread that has read so many events of a stream one after another goes on, most likely."""
PAUSE_S = 0.5
"""After this time without a page of a long read, none is going on."""

_MADV_NORMAL, _MADV_RANDOM = 0, 1


class ReadAhead:
    """The advice for the map of one environment. Thread-safe; does nothing where there is no /proc or madvise."""

    def __init__(self, data_file: Path, map_bytes: Callable[[], int]) -> None:
        """Take the file that is mapped, and how to ask for the size of the map, which changes as it grows."""
        self._file = data_file
        self._map_bytes = map_bytes
        self._reads = threading.local()
        self._advising = threading.Lock()
        self._known: tuple[int, int, int] | None = None
        """Size of the map, and where it begins and ends."""
        self._ahead = False
        self._last_s = 0.0

    def page(self, what: Hashable, at: int, then: int) -> None:
        """Take note that this thread has read a page of *what*, from *at* to where the next one begins: *then*.

        Both are versions or positions, and go up or down.
        """
        reads = self._reads
        events = abs(then - at)
        reads.events = reads.events + events if getattr(reads, "next", None) == (what, at) else events
        reads.next = (what, then)
        if reads.events > LONG_EVENTS:
            self._last_s = time.monotonic()
            self._advise(ahead=True)
        elif self._ahead and time.monotonic() - self._last_s > PAUSE_S:
            self._advise(ahead=False)

    def _advise(self, *, ahead: bool) -> None:
        size = self._map_bytes()
        if self._ahead == ahead and (not ahead or (self._known is not None and self._known[0] == size)):
            return
        with self._advising:
            self._ahead = ahead
            if self._known is None or self._known[0] != size:
                self._known = (size, *_where(self._file))  # LMDB maps anew for random reads when the map grows
            _, begin, end = self._known
            if end > begin:
                _madvise(begin, end - begin, _MADV_NORMAL if ahead else _MADV_RANDOM)


def _where(file: Path) -> tuple[int, int]:
    """Return where *file* is mapped in this process; nowhere if that cannot be told."""
    if sys.platform != "linux":
        return 0, 0
    try:
        inode = str(file.stat().st_ino)
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[4] == inode and fields[5].endswith(file.name):
                begin, end = fields[0].split("-")
                return int(begin, 16), int(end, 16)
    except (OSError, ValueError):
        pass
    return 0, 0


def _madvise(address: int, size: int, advice: int) -> None:
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
