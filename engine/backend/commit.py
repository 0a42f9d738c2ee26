"""Group commit: appends that wait while a commit runs share the next one.

Threads: every writer queues its append and waits for the right to lead; whoever gets it commits all that
is queued, its own included, so a lone writer commits on its own thread, with no hand-off. Coroutines: all
appends that one turn of the event loop produces are committed together; a lone one is committed in place,
several at once on a worker thread, so that the loop goes on while the disk works.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice

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
    """Gathers appends of threads and coroutines into batches for one backend.

    Ctrl-C may fall between any two steps of a thread: no append that waits may be forgotten for it, and none that
    `submit` was interrupted with may be committed later.
    """

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._begin()

    def _begin(self) -> None:
        """Begin without anyone waiting. In a forked child anew: who held a lock there is not in the child."""
        self._pid = os.getpid()
        self._leading = threading.Lock()
        self._queue: dict[_Slot, object] = {}
        """What waits, in order. Whoever leads takes off, and answers before letting go of the lead; who is neither
        here nor answered, seen with the lead, was forgotten."""
        self._turns: dict[asyncio.AbstractEventLoop, _LoopTurns] = {}
        self._making = threading.Lock()
        self._closed = False
        self._worker: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Let go of the thread, after what it is at. Whoever still appends is committed without it."""
        if self._pid == os.getpid():
            with self._making:
                worker, self._worker, self._closed = self._worker, None, True
            if worker is not None:
                worker.shutdown(wait=False)

    def submit(self, append: Append) -> Appended:
        """Commit *append*, together with whatever waits; return when it is durable, or raise its refusal."""
        if self._pid != os.getpid():
            self._begin()
        slot = _Slot(append)
        try:
            self._queue[slot] = None
            while slot.outcome is None:
                with self._leading:
                    if slot in self._queue:
                        self._lead_queue()
                    elif slot.outcome is None:  # whoever led was interrupted before it could answer
                        slot.outcome = _interrupted()
        except BaseException:
            # Who is interrupted before anybody led has appended nothing; who is committed by another waits for it,
            # so that a look at the stream tells.
            if self._queue.pop(slot, self) is self and slot.outcome is None:
                with self._leading:
                    pass
            raise
        return slot.result()

    def submit_soon(self, append: Append) -> asyncio.Future[Outcome]:
        """Queue *append* for a coroutine: the future gives its outcome, once that is durable.

        Cancelling the wait does not take the append back. A future and not a coroutine: with a thousand sessions,
        each layer of coroutines is one more object for the garbage collector to walk over.
        """
        if self._pid != os.getpid():
            self._begin()
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            with self._making:
                # Loops end and new ones come (one a run in the CLI, one a test): keep only the living.
                self._turns = {known: t for known, t in self._turns.items() if not known.is_closed()}
                turns = self._turns[loop] = _LoopTurns(self, loop)
        return turns.queue(append)

    def lead(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Commit *appends* as the leader, after whoever leads now."""
        with self._leading:
            return self._outcomes(appends)

    def elsewhere(self, work: Callable[[], None]) -> bool:
        """Have a thread do *work*; return False at the end of the interpreter, when there is none to be had.

        A thread of its own: those of a loop's executor may all be waiting for this very commit.
        """
        with self._making:
            if self._closed:
                return False
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "tailfold-commit")
            try:
                self._worker.submit(work)
            except RuntimeError:
                return False
        return True

    def _lead_queue(self) -> None:
        batch = list(self._queue)[:GROUP_MAX]
        for slot in batch:
            self._queue.pop(slot, None)
        for slot, outcome in zip(batch, self._outcomes([slot.append for slot in batch]), strict=True):
            slot.outcome = outcome

    def _outcomes(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        try:
            return self._commit(appends)
        except Exception as error:
            # The transaction was rolled back as a whole: everyone in it learns why, none may hang.
            return [error] * len(appends)


class _LoopTurns:
    """The queue of one event loop. Only touched on its thread.

    Callbacks and no task: a task can be cancelled, also before its first step, and then nobody is left to commit.
    """

    __slots__ = ("_flushing", "_group", "_loop", "_waiting")

    def __init__(self, group: GroupCommit, loop: asyncio.AbstractEventLoop) -> None:
        self._group = group
        self._loop = loop
        self._waiting: dict[asyncio.Future[Outcome], Append] = {}
        self._flushing = False
        """A flush is scheduled, or a commit of this loop runs in the other thread."""

    def queue(self, append: Append) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        try:
            self._waiting[future] = append
            if not self._flushing:
                # In this order: cut short in between, there is one flush too many, not one too few.
                self._loop.call_soon(self._flush)
                self._flushing = True
        except BaseException:
            self._waiting.pop(future, None)
            raise
        return future

    def _flush(self) -> None:
        batch: dict[asyncio.Future[Outcome], Append] = {}
        outcomes: Sequence[Outcome] | None = None
        handed_over = False
        try:
            for future, append in list(islice(self._waiting.items(), GROUP_MAX)):
                batch[future] = append
                self._waiting.pop(future, None)
            if len(batch) > 1:
                handed_over = self._group.elsewhere(partial(self._lead_and_wake, batch))
            if not handed_over and batch:
                outcomes = self._group.lead(list(batch.values()))
        finally:
            if not handed_over:
                self._finish(batch, outcomes)

    def _lead_and_wake(self, batch: dict[asyncio.Future[Outcome], Append]) -> None:
        """Commit *batch* in the other thread, where no Ctrl-C comes, and hand its outcomes back to the loop."""
        outcomes: Sequence[Outcome] | None = None
        try:
            outcomes = self._group.lead(list(batch.values()))
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self._finish, batch, outcomes)

    def _finish(self, batch: dict[asyncio.Future[Outcome], Append], outcomes: Sequence[Outcome] | None) -> None:
        given = outcomes if outcomes is not None else [_interrupted()] * len(batch)
        self._hand_out(dict(zip(batch, given, strict=True)))

    def _hand_out(self, outcomes: dict[asyncio.Future[Outcome], Outcome]) -> None:
        """Give each waiter its outcome, and go on with who waits now; cut short, the rest comes in another turn."""
        try:
            for future in list(outcomes):
                try:  # noqa: SIM105 - for each event: `suppress` would cost two calls
                    future.set_result(outcomes[future])
                except asyncio.InvalidStateError:
                    pass  # cancelled, maybe just now: the handler of Ctrl-C cancels a task between any two lines
                del outcomes[future]
        finally:
            if outcomes:
                self._loop.call_soon(self._hand_out, outcomes)
            elif self._waiting:
                self._loop.call_soon(self._flush)
            else:
                self._flushing = False


def _interrupted() -> OutcomeUnknown:
    return OutcomeUnknown("the commit was interrupted; read the stream to see")
