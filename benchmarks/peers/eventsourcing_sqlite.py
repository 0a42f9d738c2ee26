"""The eventsourcing package on SQLite, used as its documentation shows: an aggregate with @event methods.

Snapshots are automatic, at an interval that the application names. Imported only where the package is installed
(the extra `bench`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.domain import Aggregate, event

from benchmarks.events import Measured
from benchmarks.peers.protocol import CONTEXT, NotOffered, Peer, Resumed
from benchmarks.workload import Item

REPEATS = 3
BATCH = 500
SNAPSHOT_INTERVAL = 1000


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


class Conversation(Aggregate):  # type: ignore[misc]
    """A session that keeps every message."""

    @staticmethod
    def create_id(name: str) -> UUID:
        return uuid5(NAMESPACE_URL, f"/sessions/{name}")

    @event("Begun")  # type: ignore[untyped-decorator]
    def __init__(self, name: str) -> None:
        self.name = name
        self.events = 0
        self.turns = 0
        self.characters = 0
        self.messages: list[str] = []

    @event("Stepped")  # type: ignore[untyped-decorator]
    def stepped(self, kind: str, turn: int, call_id: str, text: str) -> None:
        self.events += 1
        self.turns = turn
        self.characters += len(text)
        self.messages.append(text)


class Conversations(Application[UUID]):  # type: ignore[misc]
    """With automatic snapshots."""

    snapshotting_intervals: ClassVar[dict[Any, int]] = {Conversation: SNAPSHOT_INTERVAL}
    log_section_size = 1000


class EventSourcing(Peer):
    name = "eventsourcing"
    durability = "WAL, SQLite's default synchronous=FULL: durable on return"

    def __init__(self, folder: Path) -> None:
        self.env = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": os.fspath(folder / "events.db")}
        self.application = Conversations(env=self.env)

    def _open(self, session: str) -> Any:
        try:
            return self.application.repository.get(Conversation.create_id(session))
        except AggregateNotFoundError:
            return Conversation(session)

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        conversation = self._open(session)
        seconds = []
        for item in items:
            begin = time.perf_counter()
            conversation.stepped(item.kind, item.turn, item.call_id, item.text)
            self.application.save(conversation)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        conversation, rest = self._open(session), iter(items)
        while batch := list(islice(rest, BATCH)):
            for item in batch:
                conversation.stepped(item.kind, item.turn, item.call_id, item.text)
            self.application.save(conversation)

    def rebuild(self, session: str) -> Resumed:
        """The same repository without snapshots."""
        application = Sessions(env=self.env)
        try:
            return _resumed(application.repository.get(Conversation.create_id(session)))
        finally:
            application.close()

    def resume(self, session: str) -> Resumed:
        return _resumed(self.application.repository.get(Conversation.create_id(session)))

    def fork(self, session: str, at: int, name: str) -> None:
        raise NotOffered("an aggregate can be read at a version, but not continued from there under another id")

    def sessions(self) -> int:
        """There is no list of aggregates: walk the notification log, as a read model would be built."""
        found: dict[UUID, int] = {}
        start = 1
        while page := self.application.notification_log.select(start=start, limit=1000):
            for notification in page:
                found[notification.originator_id] = notification.originator_version
            start = page[-1].id + 1
        return len(found)

    def close(self) -> None:
        self.application.close()


def _resumed(conversation: Any) -> Resumed:
    return Resumed(conversation.events, conversation.characters, conversation.messages[-CONTEXT:])
