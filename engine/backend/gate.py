"""A door that many pass at once, and that can be shut to be alone: LMDB's map may only be resized, and LMDB only be
closed, while no transaction of the process is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tailfold.engine.errors import StoreClosed

LAST_WAIT_S = 2.0
"""Closing waits so long for transactions of other threads. Not for ever: Ctrl-C at the wrong moment can leave the
door with somebody inside who is not there."""


class Gate:
    """``with gate:`` is one of many inside; ``with gate.alone():`` waits until nobody is."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._shut = False
        self._ended = False

    def __enter__(self) -> None:
        with self._changed:
            while self._shut:
                if self._ended:
                    raise StoreClosed("the store was closed by another thread meanwhile: open it again")
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._shut and self._inside == 0:
                self._changed.notify_all()

    @contextmanager
    def alone(self, *, last: bool = False) -> Iterator[None]:
        """Shut the door, wait until everyone has left, and open it again at the end; or never again, if *last*."""
        deadline = time.monotonic() + LAST_WAIT_S if last else None
        try:
            with self._changed:
                while self._shut and not self._ended and self._wait(deadline):
                    pass
                self._shut = True
                while self._inside and self._wait(deadline):
                    pass
            yield
        finally:  # also if the waiting was interrupted: a door that nobody stands behind would stay shut
            with self._changed:
                self._shut = self._ended = self._ended or last
                self._changed.notify_all()

    def end(self) -> None:
        """Let nobody in any more: who waits outside gets `StoreClosed`."""
        with self._changed:
            self._shut = self._ended = True
            self._changed.notify_all()

    def _wait(self, deadline: float | None) -> bool:
        """Wait for a change; return False once it is past the deadline."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        self._changed.wait(left)
        return True
