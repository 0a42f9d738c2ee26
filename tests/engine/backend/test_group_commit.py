"""Group commit: whoever is cancelled or interrupted, nobody who waits is forgotten."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from tailfold.engine import ANY, Store
from tailfold.engine.backend import commit as commits
from tailfold.engine.errors import EngineError

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


@pytest.mark.parametrize("when", ["queued", "committing", "answered"])
def test_ctrl_c_in_one_thread_leaves_nobody_waiting_and_no_append_behind(store: Store, when: str) -> None:
    group, log = store.log._group, []
    answer: Any = commits._answer
    inner: Any = {"queued": group._lead_queue, "committing": group._commit, "answered": answer}[when]

    def interrupted(*arguments: Any) -> Any:
        log.append(when)
        if len(log) == 1:
            raise KeyboardInterrupt
        return inner(*arguments)

    other = threading.Thread(target=lambda: suppressed(store, "other"))
    with pytest.MonkeyPatch.context() as patched:
        if when == "queued":
            patched.setattr(group, "_lead_queue", interrupted)
        elif when == "committing":
            patched.setattr(group, "_commit", interrupted)
        else:
            patched.setattr(commits, "_answer", lambda *a: [answer(*a), interrupted(*a)])
        with group._leading:
            group._queue[commits._Slot(store.log.prepare("waits", [Deposited(1)], 0).append)] = None
        [slot] = group._queue
        with pytest.raises(KeyboardInterrupt):
            store.append("mine", Deposited(1), expected=0)
    other.start()
    other.join(20)
    assert not other.is_alive()
    assert slot.outcome is not None, "who waits gets an answer, from this leader or the next"
    mine = store.backend.head("mine")
    assert (mine is not None) == (when == "answered"), "what its caller has given up is not committed later"
    assert not group._queue
    assert store.verify().findings == []


def suppressed(store: Store, stream: str) -> None:
    with suppress(EngineError):
        store.append(stream, Deposited(1), expected=ANY)
