"""Group commit: appends that wait while a commit runs share the next one.

Threads: every writer queues its append and waits for the right to lead; whoever gets it commits all that
is queued, its own included, so a lone writer commits on its own thread, with no hand-off. Coroutines: all
appends that one turn of the event loop produces are committed together; a lone one is committed in place,
several at once on a worker thread, so that the loop goes on while the disk works.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from tailfold.engine.backend.port import Append, Appended
from tailfold.engine.errors import EngineError, OutcomeUnknown

Commit = Callable[[Sequence[Append]], list[Appended | EngineError]]
Outcome = Appended | Exception
"""What came of an append: its place, or why it was not written."""

GROUP_MAX = 256
"""Appends in one commit at most: the sessions of one group prepare their next appends while the disk works
on the other groups."""


class _Slot:
    __slots__ = ("append", "outcome")

    def __init__(self, append: Append) -> None:
        self.append = append
        self.outcome: Outcome | None = None

    def result(self) -> Appended:
        outcome, self.outcome = self.outcome, None
        if isinstance(outcome, Exception):
            raise outcome  # not held any more: its traceback leads here, and a cycle would keep what it holds
        assert outcome is not None
        return outcome


class GroupCommit:
    """Gathers appends of threads and coroutines into batches for one backend."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._leading = threading.Lock()
        self._queue: list[_Slot] = []
        self._queued = threading.Lock()
        self._turns: dict[asyncio.AbstractEventLoop, _LoopTurns] = {}

    def submit(self, append: Append) -> Appended:
        """Commit *append*, together with whatever waits; return when it is durable, or raise its refusal."""
        slot = _Slot(append)
        with self._queued:
            self._queue.append(slot)
        while slot.outcome is None:
            with self._leading:
                if slot.outcome is None:
                    with self._queued:
                        batch, self._queue = self._queue[:GROUP_MAX], self._queue[GROUP_MAX:]
                    self._run(batch)
        return slot.result()

    def submit_soon(self, append: Append) -> asyncio.Future[Outcome]:
        """Queue *append* for a coroutine: the future gives its outcome, once that is durable.

        Cancelling the wait does not take the append back. A future and not a coroutine: with a thousand sessions,
        each layer of coroutines is one more object for the garbage collector to walk over.
        """
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            # Loops end and new ones come (one a run in the CLI, one a test): keep only the living.
            self._turns = {known: t for known, t in self._turns.items() if not known.is_closed()}
            turns = self._turns[loop] = _LoopTurns(self, loop)
        return turns.queue(append)

    def lead(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Commit *appends* as the leader, after whoever leads now."""
        with self._leading:
            return self._outcomes(appends)

    def _run(self, batch: list[_Slot]) -> None:
        try:
            outcomes = self._outcomes([slot.append for slot in batch])
        except BaseException:
            # Ctrl-C on the leader's thread: the others only know that they do not know.
            for slot in batch:
                slot.outcome = _interrupted()
            raise
        for slot, outcome in zip(batch, outcomes, strict=True):
            slot.outcome = outcome

    def _outcomes(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        try:
            return self._commit(appends)
        except Exception as error:
            # The transaction was rolled back as a whole: everyone in it learns why, none may hang.
            return [error] * len(appends)


class _LoopTurns:
    """The queue of one event loop. Only touched on its thread."""

    __slots__ = ("_appends", "_futures", "_group", "_loop", "_task")

    def __init__(self, group: GroupCommit, loop: asyncio.AbstractEventLoop) -> None:
        self._group = group
        self._loop = loop
        self._appends: list[Append] = []
        self._futures: list[asyncio.Future[Outcome]] = []
        """Of each of the appends, in their order."""
        self._task: asyncio.Task[None] | None = None

    def queue(self, append: Append) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._appends.append(append)
        self._futures.append(future)
        if self._task is None:
            self._task = self._loop.create_task(self._flush())
        return future

    async def _flush(self) -> None:
        try:
            while self._appends:
                appends, self._appends = self._appends[:GROUP_MAX], self._appends[GROUP_MAX:]
                futures, self._futures = self._futures[:GROUP_MAX], self._futures[GROUP_MAX:]
                outcomes: Sequence[Outcome] | None = None
                try:
                    if len(appends) == 1:
                        outcomes = self._group.lead(appends)
                    else:
                        outcomes = await self._loop.run_in_executor(None, self._group.lead, appends)
                except (KeyboardInterrupt, SystemExit):
                    outcomes = [_interrupted()] * len(appends)
                    raise
                finally:
                    _settle(futures, outcomes)
        finally:
            self._task = None


def _settle(futures: list[asyncio.Future[Outcome]], outcomes: Sequence[Outcome] | None) -> None:
    if outcomes is None:  # the loop is shutting down around a commit that still runs
        for future in futures:
            future.cancel()
        return
    for future, outcome in zip(futures, outcomes, strict=True):
        if not future.done():  # else the waiter was cancelled
            future.set_result(outcome)


def _interrupted() -> OutcomeUnknown:
    return OutcomeUnknown("the commit was interrupted; read the stream to see")
