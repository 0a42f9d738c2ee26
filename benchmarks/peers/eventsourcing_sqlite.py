"""The eventsourcing package on SQLite, used as its documentation shows: an aggregate with @event methods.

Imported only where the package is installed (the extra `bench`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from benchmarks.events import Measured

REPEATS = 3


class Session(Aggregate):  # type: ignore[misc]
    """The same counters as the fold `benchmarks.events.totals`."""

    @event("Started")  # type: ignore[untyped-decorator]
    def __init__(self) -> None:
        self.events = 0
        self.turns = 0
        self.characters = 0

    @event("Measured")  # type: ignore[untyped-decorator]
    def measured(self, turn: int, call_id: str, text: str) -> None:
        self.events += 1
        self.turns = turn
        self.characters += len(text)


class Sessions(Application[UUID]):  # type: ignore[misc]
    """An application with no more than a repository."""


def full_fold(path: Path, history: list[Measured]) -> dict[str, Any]:
    """Store *history* in one aggregate, and measure rebuilding it without snapshots."""
    application = Sessions(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": os.fspath(path)})
    session = Session()
    for one in history:
        session.measured(one.turn, one.call_id, one.text)
    application.save(session)
    durations = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        found: Any = application.repository.get(session.id)
        durations.append(time.perf_counter() - start)
        assert found.events == len(history)
    application.close()
    return {"events": len(history), "events_per_s": len(history) / sorted(durations)[REPEATS // 2]}
