"""A door that many pass at once, and that can be shut to be alone: LMDB's map may only be resized while no
transaction of the process is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """``with gate:`` is one of many inside; ``with gate.alone():`` waits until nobody is."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._shut and self._inside == 0:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Shut the door, wait until everyone has left, and open it again at the end."""
        with self._changed:
            while self._shut:
                self._changed.wait()
            self._shut = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._shut = False
                self._changed.notify_all()
