"""Group commit: whoever is cancelled or interrupted, nobody who waits is forgotten."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, Store
from tailfold.engine.backend.commit import GroupCommit, _LoopTurns
from tailfold.engine.errors import EngineError, StoreClosed

from tests.domain import Deposited


def test_a_loop_whose_tasks_are_all_cancelled_goes_on_appending(store: Store) -> None:
    """What commits for a loop is no task: one could be cancelled, also before its first step."""

    async def session(i: int) -> None:
        try:
            while True:
                await store.append_async(f"s{i}", Deposited(1), expected=ANY)
        finally:
            await store.append_async(f"s{i}", Deposited(0, "the last one"), expected=ANY)

    async def main(seconds: float) -> None:
        tasks = [asyncio.create_task(session(i)) for i in range(3)]
        await asyncio.sleep(seconds)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)

    for seconds in (0, 0, 0.001, 0.002, 0.005):
        asyncio.run(main(seconds))
    for i in range(3):
        [newest] = store.read(f"s{i}", limit=1, backwards=True)
        assert newest.event == Deposited(0, "the last one")


class Raced:
    """A future that is cancelled, by the handler of Ctrl-C, between a look whether it is done and its result."""

    def done(self) -> bool:
        return False

    def set_result(self, outcome: object) -> None:
        raise asyncio.InvalidStateError("invalid state")


class Cut(Raced):
    """A future at which Ctrl-C comes, in a loop that goes on."""

    def set_result(self, outcome: object) -> None:
        if not vars(self):
            self.cut = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("first", [Raced, Cut])
def test_a_waiter_that_is_gone_while_outcomes_are_given_out_keeps_nobody_waiting(first: type[Raced]) -> None:
    def commit(appends: Any) -> list[Any]:
        return [(append, "done") for append in appends]

    loop = asyncio.new_event_loop()
    try:
        turns: Any = _LoopTurns(GroupCommit(commit), loop)
        turns._waiting[first()] = "a"
        waiting = [turns.queue(one) for one in ("b", "c")]
        for _ in range(3):
            with suppress(KeyboardInterrupt):
                loop.run_until_complete(asyncio.wait_for(asyncio.gather(*waiting), 5))
        assert [future.result() for future in waiting] == [("b", "done"), ("c", "done")]
        again = turns.queue("d")
        assert loop.run_until_complete(asyncio.wait_for(again, 5)) == ("d", "done")
    finally:
        loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_in_the_middle_of_a_commit_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store, store.log._group._leading, store.log._group._making:
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(StoreClosed):
                store.append("a", Deposited(1), expected=0)
                code = 2
            with suppress(StoreClosed):
                asyncio.run(store.append_async("a", Deposited(1), expected=0))
                code = 2
            os._exit(0 if code == 1 else code)
        for _ in range(1000):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 0


def test_closed_stores_hold_no_thread_and_no_backend(tmp_path: Path) -> None:
    """msgspec and typing keep classes that a store has made: what they lead to must be small."""
    threads, backends = threading.active_count(), []
    for i in range(5):
        with Store.open(tmp_path / f"s{i}") as store:

            async def both(store: Store = store) -> None:
                await asyncio.gather(*(store.append_async(s, Deposited(1), expected=0) for s in ("a", "b")))

            asyncio.run(both())
            assert len(list(store.read("a"))) == 1
            backends.append(weakref.ref(store.backend))
        del store, both
    for _ in range(200):
        if threading.active_count() <= threads:
            break
        time.sleep(0.01)
    gc.collect()
    assert threading.active_count() <= threads
    assert [backend() for backend in backends if backend() is not None] == []


def test_appends_do_not_need_a_thread_of_the_loops_executor(store: Store) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))

        def tool(i: int) -> object:
            return asyncio.run_coroutine_threadsafe(
                store.append_async(f"t{i}", Deposited(1), expected=0), loop
            ).result(20)

        await asyncio.gather(*(asyncio.to_thread(tool, i) for i in range(2)))

    asyncio.run(main())
    assert store.backend.count() == (2, 2)


@pytest.mark.parametrize("when", ["queued", "committing", "committed"])
def test_ctrl_c_in_one_thread_leaves_nobody_waiting_and_no_append_behind(store: Store, when: str) -> None:
    group, begun, interrupt = store.log._group, threading.Event(), threading.Event()
    lead, commit = group._lead_queue, group._commit

    def interrupted_lead() -> None:
        begun.set()
        interrupt.wait(20)
        if when == "queued":
            raise KeyboardInterrupt
        lead()

    def interrupted_commit(batch: Any) -> Any:
        outcomes = commit(batch) if when == "committed" else None
        if when != "queued":
            raise KeyboardInterrupt
        return outcomes or commit(batch)

    raised: list[BaseException] = []

    def leading() -> None:
        try:
            store.append("mine", Deposited(1), expected=0)
        except KeyboardInterrupt as error:
            raised.append(error)

    others = [threading.Thread(target=suppressed, args=(store, f"other-{i}")) for i in range(3)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(group, "_lead_queue", interrupted_lead)
        patched.setattr(group, "_commit", interrupted_commit)
        leader = threading.Thread(target=leading)
        leader.start()
        assert begun.wait(20)
        patched.setattr(group, "_lead_queue", lead)
        for other in others:
            other.start()
        while len(group._queue) < 4:
            time.sleep(0.001)
        interrupt.set()
        leader.join(20)
        patched.setattr(group, "_commit", commit)
    for other in others:
        other.join(20)
        assert not other.is_alive(), "who waits gets an answer, from this leader or the next"
    assert len(raised) == 1
    assert not group._queue
    mine = store.backend.head("mine")
    assert (mine is not None) == (when == "committed"), "what its caller has given up is not committed later"
    assert store.verify().findings == []


def suppressed(store: Store, stream: str) -> None:
    with suppress(EngineError):
        store.append(stream, Deposited(1), expected=ANY)
