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

GROUP_MAX = 256
"""Appends in one commit at most: the sessions of one group prepare their next appends while the disk works
on the other groups."""


class _Slot:
    __slots__ = ("append", "future", "outcome")

    def __init__(self, append: Append, future: asyncio.Future[Appended | Exception] | None = None) -> None:
        self.append = append
        self.future = future
        self.outcome: Appended | Exception | None = None

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

    async def submit_async(self, append: Append) -> Appended:
        """Like `submit`, for a coroutine. Cancelling the wait does not take the append back."""
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            # Loops end and new ones come (one a run in the CLI, one a test): keep only the living.
            self._turns = {known: t for known, t in self._turns.items() if not known.is_closed()}
            turns = self._turns[loop] = _LoopTurns(self, loop)
        outcome = await turns.queue(append)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def lead(self, batch: list[_Slot]) -> None:
        """Commit *batch* as the leader, after whoever leads now."""
        with self._leading:
            self._run(batch)

    def _run(self, batch: list[_Slot]) -> None:
        try:
            outcomes: Sequence[Appended | EngineError] = self._commit([slot.append for slot in batch])
        except Exception as error:
            # The transaction was rolled back as a whole: everyone in it learns why, none may hang.
            for slot in batch:
                slot.outcome = error
        except BaseException:
            # Ctrl-C on the leader's thread: the others only know that they do not know.
            for slot in batch:
                slot.outcome = OutcomeUnknown("the commit was interrupted; read the stream to see")
            raise
        else:
            for slot, outcome in zip(batch, outcomes, strict=True):
                slot.outcome = outcome


class _LoopTurns:
    """The queue of one event loop. Only touched on its thread, but for `GroupCommit.lead`."""

    __slots__ = ("_group", "_loop", "_queue", "_task")

    def __init__(self, group: GroupCommit, loop: asyncio.AbstractEventLoop) -> None:
        self._group = group
        self._loop = loop
        self._queue: list[_Slot] = []
        self._task: asyncio.Task[None] | None = None

    def queue(self, append: Append) -> asyncio.Future[Appended | Exception]:
        future: asyncio.Future[Appended | Exception] = self._loop.create_future()
        self._queue.append(_Slot(append, future))
        if self._task is None:
            self._task = self._loop.create_task(self._flush())
        return future

    async def _flush(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:GROUP_MAX], self._queue[GROUP_MAX:]
                try:
                    if len(batch) == 1:
                        self._group.lead(batch)
                    else:
                        await self._loop.run_in_executor(None, self._group.lead, batch)
                finally:
                    self._settle(batch)
        finally:
            self._task = None

    def _settle(self, batch: list[_Slot]) -> None:
        for slot in batch:
            future, outcome = slot.future, slot.outcome
            if future is None or future.done():  # the waiter was cancelled
                continue
            if outcome is None:  # the loop is shutting down around a commit that still runs
                future.cancel()
            else:
                future.set_result(outcome)
