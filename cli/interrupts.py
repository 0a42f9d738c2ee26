"""Ctrl-C, held back where it would be lost: Python passes over what is raised in its hooks, callbacks of the import
system and finalizers. Where signals cannot be held back (Windows), nothing is.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")
_CAN = hasattr(signal, "pthread_sigmask")


def hold_back() -> None:
    """Let Ctrl-C wait until `let_through`."""
    if _CAN:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def let_through() -> None:
    """Let it come; raise KeyboardInterrupt if it has come meanwhile."""
    if _CAN:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block."""
    try:
        hold_back()  # it raises what came just before: then, too, what comes next is let through
        yield
    finally:
        let_through()


def run_async(make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run the coroutine that *make* gives, as `asyncio.run` does.

    A loop that is interrupted while it is made complains when it is thrown away; so does a coroutine not begun.
    """
    import asyncio  # late: the command line begins with this module

    with held_back():
        runner = asyncio.Runner()
        runner.get_loop()
    with runner:
        coroutine = make()
        try:
            return runner.run(coroutine)
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
