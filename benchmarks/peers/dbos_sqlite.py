"""DBOS on SQLite: a session is a workflow, an event the recorded output of a step; a resume is its recovery.

A step waits for the next event from outside, as an agent waits for its model. A workflow that is not finished is
recovered when a process launches: DBOS calls it again, and recorded steps answer from the database.
"""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from dbos import DBOS, DBOSConfig, SetWorkflowID

from benchmarks.peers.protocol import NotOffered, Peer, Resumed, State
from benchmarks.workload import Item

APPLICATION_VERSION = "1"
"""Recovery only takes up workflows of its own version: named, so that every process has the same."""

_inbox: defaultdict[str, queue.SimpleQueue[dict[str, Any] | None]] = defaultdict(queue.SimpleQueue)
_waiting: defaultdict[str, queue.SimpleQueue[bool]] = defaultdict(queue.SimpleQueue)
_states: dict[str, State] = {}


@DBOS.step()  # type: ignore[untyped-decorator]
def next_event() -> dict[str, Any] | None:
    workflow_id = DBOS.workflow_id
    assert workflow_id is not None
    _waiting[workflow_id].put(True)  # every step before this one is recorded
    return _inbox[workflow_id].get()


@DBOS.workflow()  # type: ignore[untyped-decorator]
def session_flow() -> int:
    workflow_id = DBOS.workflow_id
    assert workflow_id is not None
    state = _states[workflow_id] = State()
    while (found := next_event()) is not None:
        state.take(Item(**found))
    return state.events


class Dbos(Peer):
    name = "dbos"
    durability = "a transaction for every step; rollback journal, SQLite's default synchronous=FULL"
    resumes_once = True

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'dbos.sqlite'}"
        self._launched = False

    def _launch(self, executor: str = "local") -> None:
        """Launch once; an executor recovers what it left unfinished itself."""
        if self._launched:
            return
        config: DBOSConfig = {
            "name": "benchmark",
            "system_database_url": self.url,
            "application_version": APPLICATION_VERSION,
            "executor_id": executor,
            "log_level": "ERROR",
        }
        DBOS(config=config)
        DBOS.launch()
        self._launched = True

    def _drive(self, session: str) -> None:
        """Start the workflow, or have it recovered, up to where it waits for the next event."""
        self._launch()
        if DBOS.get_workflow_status(session) is None:
            with SetWorkflowID(session):
                DBOS.start_workflow(session_flow)
        if session not in _states:
            _waiting[session].get()

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        self._drive(session)
        seconds = []
        for item in items:
            begin = time.perf_counter()
            _inbox[session].put(msgspec.to_builtins(item))
            _waiting[session].get()
            seconds.append(time.perf_counter() - begin)
        return seconds

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        raise NotOffered("a step is a transaction by itself: there is no way to record many at once")

    def short_session(self, session: str, items: Sequence[Item]) -> None:
        self._launch()
        for item in (*items, None):
            _inbox[session].put(None if item is None else msgspec.to_builtins(item))
        with SetWorkflowID(session):
            DBOS.start_workflow(session_flow).get_result()
        del _inbox[session], _waiting[session], _states[session]

    def rebuild(self, session: str) -> Resumed:
        self._launch("reader")
        state = State()
        for step in DBOS.list_workflow_steps(session):
            state.take(Item(**step["output"]))
        return state.resumed()

    def resume(self, session: str) -> Resumed:
        self._drive(session)
        return _states[session].resumed()

    def fork(self, session: str, at: int, name: str) -> None:
        self._launch("forker")  # so that the parent is not recovered at the same time
        with SetWorkflowID(name):
            DBOS.fork_workflow(session, at + 1)

    def sessions(self) -> int:
        self._launch("reader")
        return len(DBOS.list_workflows(load_input=False, load_output=False))
