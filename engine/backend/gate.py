"""A door that many pass at once, and that can be shut to be alone: LMDB's map may only be resized, and LMDB only be
closed, while no transaction of the process is open.

Passing it takes no lock, so that Ctrl-C can leave none held: who is inside stands in a dictionary, by its thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from tailfold.engine.errors import StoreClosed

STALE_AFTER_S = 1.0
"""Who waits so long for somebody looks whether that one is really inside: Ctrl-C at the wrong moment can leave the
name of a thread that has left."""
_SLEEP_MOST_S = 0.01
_HERE = str(Path(__file__).parent)


class Gate:
    """``with gate:`` is one of many inside; ``with gate.alone():`` waits until nobody else is."""

    def __init__(self) -> None:
        self._inside: dict[int, int] = {}
        """By thread, how often it is inside: what runs in a transaction may begin another."""
        self._shut = False
        self._ended = False
        self._standing = threading.Lock()
        """Held by who stands alone."""

    def __enter__(self) -> None:
        me, inside = get_ident(), self._inside
        if me in inside:
            inside[me] += 1
            return
        pause_s = 0.0
        while True:
            if not self._shut:
                inside[me] = 1
                if not self._shut:  # looked at again: who shuts the door looks who is inside after that
                    return
                inside.pop(me, None)
            if self._ended:
                raise StoreClosed("the store was closed by another thread meanwhile: open it again")
            pause_s = _sleep(pause_s)

    def __exit__(self, *_: object) -> None:
        me, inside = get_ident(), self._inside
        left = inside.get(me, 1) - 1
        if left:
            inside[me] = left
        else:
            inside.pop(me, None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Shut the door, wait until everyone else has left, and open it again at the end.

        Raises `StoreClosed` once it is shut for ever.
        """
        with self._standing:
            if self._ended:
                raise StoreClosed("the store was closed by another thread meanwhile: open it again")
            try:
                self._shut = True
                self._wait_for_others()
                yield
            finally:  # also if the waiting was interrupted: a door that nobody stands behind would stay shut
                self._shut = self._ended

    def end(self) -> None:
        """Let nobody in any more: who waits outside gets `StoreClosed`."""
        self._ended = self._shut = True

    def wait_until_empty(self) -> None:
        """Wait until nobody else is inside or stands alone, after `end`. May be interrupted, and called again."""
        with self._standing:
            self._shut = True  # who stood alone may have opened it just before the end
            self._wait_for_others()

    def _wait_for_others(self) -> None:
        me = get_ident()
        look_at = time.monotonic() + STALE_AFTER_S
        pause_s = 0.0
        while any(thread != me for thread in list(self._inside)):
            pause_s = _sleep(pause_s)
            if time.monotonic() > look_at:
                for thread in list(self._inside):
                    if thread != me and not _is_inside(thread):
                        self._inside.pop(thread, None)
                look_at = time.monotonic() + STALE_AFTER_S


def _is_inside(thread: int) -> bool:
    """Say whether a thread is at work in this folder: else it has left, or is gone."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_HERE) and frame.f_code.co_filename != __file__:
            return True
        frame = frame.f_back
    return False


def _sleep(pause_s: float) -> float:
    """Sleep, and return for how long the next time: the door is shut for a moment, or for long."""
    time.sleep(pause_s)
    return min(_SLEEP_MOST_S, pause_s * 2 or 0.0001)
