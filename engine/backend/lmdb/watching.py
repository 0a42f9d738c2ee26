"""The watcher: wakes whoever waits for commits, of this process or another, without busy waiting.

One thread an environment, only while somebody watches. On Linux it sleeps on inotify of the data file; elsewhere,
and where the system has no inotify left, it looks at the number of the last transaction every 20 ms.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform == "linux":
    from inotify_simple import INotify, flags

POLL_S = 0.02
"""Between two looks, where nothing tells that the file has changed."""
LOOK_AGAIN_FIRST_S = 0.0001
LOOK_AGAIN_GROWTH = 4
"""The file changes a moment before readers can see the transaction: look again after 0.1, 1.6, 6, 26, … ms."""
LOOK_AGAIN_MOST_S = 1.0
"""At the latest; also how long an idle thread outlives its last watch."""


class Watcher:
    """Calls everyone who watches whenever the number of the last transaction has changed."""

    def __init__(self, file: Path, last_transaction: Callable[[], int]) -> None:
        """Watch *file*; *last_transaction* says the number of the last one that readers can see."""
        self._file = file
        self._last = last_transaction
        self._lock = threading.Lock()
        self._wakes: dict[object, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._bell: int | None = None

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call *wake* after every commit from now on; return what ends that."""
        token = object()
        with self._lock:
            self._wakes[token] = wake
            if self._thread is None and not self._ended.is_set():
                self._start()
        # No lock in what ends it: it may be called by the garbage collector, in any thread, at any point. The
        # thread sees for itself that nobody is left.
        wakes = self._wakes
        return lambda: (wakes.pop(token, None), None)[1]

    def wake_all(self) -> None:
        """Wake everyone once, to look for themselves."""
        for wake in list(self._wakes.values()):
            wake()

    def end(self) -> None:
        """End the thread: on return it does not touch the environment any more."""
        with self._lock:
            self._ended.set()
            thread = self._thread
            if self._bell is not None:
                os.write(self._bell, b"\1" + bytes(7))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        """Start the thread; the file is watched, and the last transaction noted, before this returns."""
        waiting = self._changes() if sys.platform == "linux" else self._ticks()
        next(waiting)
        self._thread = threading.Thread(
            target=self._run, args=(waiting, self._last()), name="tailfold-watcher", daemon=True
        )
        self._thread.start()

    def _run(self, waiting: Iterator[bool], seen: int) -> None:
        for _ in waiting:
            with self._lock:
                if self._ended.is_set() or not self._wakes:
                    self._thread = None
                    waiting.close()  # type: ignore[attr-defined]
                    return
            last = self._last()
            if last != seen:
                seen = last
                self.wake_all()

    def _ticks(self) -> Iterator[bool]:
        """Yield every 20 ms, the first time at once."""
        while True:
            yield False
            self._ended.wait(POLL_S)

    def _changes(self) -> Iterator[bool]:
        """Yield whenever the file was written to, and a few times after that; the first time at once."""
        inotify = _inotify(self._file)
        if inotify is None:
            yield from self._ticks()
            return
        bell = self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            poll = select.poll()
            poll.register(inotify.fileno(), select.POLLIN)
            poll.register(bell, select.POLLIN)
            pause_s = LOOK_AGAIN_MOST_S
            while True:
                yield True
                if pause_s == LOOK_AGAIN_FIRST_S:
                    time.sleep(pause_s)  # poll counts in milliseconds
                    pause_s *= LOOK_AGAIN_GROWTH**2
                elif poll.poll(pause_s * 1000):
                    inotify.read(timeout=0)
                    pause_s = LOOK_AGAIN_FIRST_S
                else:
                    pause_s = min(LOOK_AGAIN_MOST_S, pause_s * LOOK_AGAIN_GROWTH)
        finally:
            self._bell = None  # the thread holds the lock here, and so does who rings it
            os.close(bell)
            inotify.close()


def _inotify(file: Path) -> INotify | None:
    """Watch *file*; None where the user has no instance or watch left, or the system none to give."""
    try:
        inotify = INotify(nonblocking=True)
    except OSError:
        return None
    try:
        inotify.add_watch(file, flags.MODIFY)
    except OSError:
        inotify.close()
        return None
    return inotify
