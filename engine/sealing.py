"""Sealing in the background: once a snapshot stands past old events, they are packed, a little at a time.

A load starts from the snapshot, so what is packed is rarely read. The work takes a small share of the time of its
thread and never holds up an append longer than one segment's commit; what is left when the store is closed is taken
up at the next snapshot.
"""

from __future__ import annotations

import logging
import os
import threading
import time

from tailfold.engine.backend.port import Backend
from tailfold.engine.errors import EngineError

UNSEALED_EVENTS = 256
"""The newest events of a stream stay as they are: they are what is read."""
SHARE = 0.2
"""The share of the time that the work may take."""
SEGMENT_EVENTS = 256
IDLE_S = 1.0
"""The thread ends after this time without work; the next work starts another."""

logger = logging.getLogger("tailfold")


class Sealer:
    """The sealing of one store. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: dict[str, int] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False

    def wake(self, stream: str, snapshot_version: int) -> None:
        """Say that *stream* has a snapshot at this version: what is older than the newest events may be packed."""
        upto = snapshot_version - UNSEALED_EVENTS
        if upto < SEGMENT_EVENTS or self._closed or self._pid != os.getpid():
            return
        with self._changed:
            self._waiting[stream] = upto
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tailfold-seal", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._closed:
                    self._changed.wait(IDLE_S)
                if not self._waiting or self._closed:
                    self._thread = None
                    return
                stream, upto = self._waiting.popitem()
            try:
                again = self._some(stream, upto)
            except (EngineError, MemoryError) as error:
                logger.warning("stream %r could not be sealed: %s", stream, error or "too little memory")
                continue
            except Exception:
                if not self._closed:  # a store that is closed under its feet is no fault
                    logger.exception("stream %r could not be sealed", stream)
                continue
            if again:
                with self._changed:
                    self._waiting.setdefault(stream, upto)

    def _some(self, stream: str, upto: int) -> bool:
        """Seal one segment; return whether there may be more."""
        begun = time.monotonic()
        done = self._backend.seal(stream, upto=upto, most=1)
        pause_s = (time.monotonic() - begun) * (1 / SHARE - 1)
        with self._changed:
            self._changed.wait_for(lambda: self._closed, pause_s)
        return done.segments > 0

    def close(self) -> None:
        """Stop after the segment at hand."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self._pid == os.getpid():
            thread.join()
