"""The bell: how one reader, a thread or a coroutine, sleeps until the store may hold something new."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from typing import TypeVar

from tailfold.engine.backend.port import Backend

T = TypeVar("T")


class Bell:
    """Rung by the backend after every commit. Clear it, look, and only then wait: nothing is missed."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._sleeper: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def hang(self, backend: Backend, owner: T) -> weakref.finalize[[], T]:
        """Have *backend* ring it until the result is called, or *owner* is gone."""
        ending = weakref.finalize(owner, backend.watch(self.ring))
        ending.atexit = False
        return ending

    def ring(self) -> None:
        """Wake who waits; from any thread."""
        self._rung.set()
        sleeper = self._sleeper
        if sleeper is not None:
            with suppress(RuntimeError):  # its loop has ended
                sleeper[0].call_soon_threadsafe(sleeper[1].set)

    def clear(self) -> None:
        """Forget that it was rung: before looking."""
        self._rung.clear()

    def wait(self, timeout_s: float | None) -> None:
        """Block until it is rung, or for *timeout_s*."""
        self._rung.wait(timeout_s)

    async def wait_async(self, timeout_s: float | None) -> None:
        """Like `wait`, for a coroutine."""
        event = asyncio.Event()
        self._sleeper = asyncio.get_running_loop(), event
        try:
            if not self._rung.is_set():  # looked at only now that a ring would be heard
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await event.wait()
        finally:
            self._sleeper = None
