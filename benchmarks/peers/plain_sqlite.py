"""Plain SQLite as in the second seed: one table of events, threads as branches, every context a query over the log.

Two peers: synchronous=FULL, where an append is durable on return, and NORMAL, where a power cut may take the
newest.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.peers.protocol import Peer, Resumed, State
from benchmarks.workload import Item

BATCH = 500
SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
  sequence INTEGER PRIMARY KEY, event_id TEXT NOT NULL, type TEXT NOT NULL, payload_json TEXT NOT NULL,
  caused_by TEXT, thread_id TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of_a_thread ON events (thread_id, sequence);
CREATE TABLE IF NOT EXISTS threads (thread_id TEXT PRIMARY KEY, parent TEXT, at_sequence INTEGER);
"""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Item)


class PlainSqlite(Peer):
    name = "sqlite_full"
    synchronous = "FULL"
    durability = "WAL, synchronous=FULL: durable on return"

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / "events.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={self.synchronous}")
        self.db.executescript(SCHEMA)

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        self._begin(session)
        seconds = []
        caused_by = None
        for item in items:
            begin = time.perf_counter()
            row = _row(session, item, caused_by)
            self.db.execute(INSERT, row)  # a transaction by itself
            seconds.append(time.perf_counter() - begin)
            caused_by = row[0]
        return seconds

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        self._begin(session)
        rest = iter(items)
        while batch := list(islice(rest, BATCH)):
            self.db.execute("BEGIN IMMEDIATE")
            self.db.executemany(INSERT, [_row(session, item, None) for item in batch])
            self.db.execute("COMMIT")

    def _begin(self, session: str) -> None:
        self.db.execute("INSERT OR IGNORE INTO threads VALUES (?, NULL, NULL)", (session,))

    def rebuild(self, session: str) -> Resumed:
        state = State()
        for payload in self._payloads(session, None):
            state.take(_decoder.decode(payload))
        return state.resumed()

    def _payloads(self, session: str, upto: int | None) -> Iterator[str]:
        """Yield the events of a branch: those of its parent up to where it left, and its own."""
        [(parent, at)] = self.db.execute("SELECT parent, at_sequence FROM threads WHERE thread_id = ?", (session,))
        if parent is not None:
            yield from self._payloads(parent, at)
        query = "SELECT payload_json FROM events WHERE thread_id = ? AND sequence <= ? ORDER BY sequence"
        for (payload,) in self.db.execute(query, (session, upto or 1 << 62)):
            yield payload

    def fork(self, session: str, at: int, name: str) -> None:
        query = "SELECT sequence FROM events WHERE thread_id = ? ORDER BY sequence LIMIT 1 OFFSET ?"
        [(sequence,)] = self.db.execute(query, (session, at - 1))
        self.db.execute("INSERT INTO threads VALUES (?, ?, ?)", (name, session, sequence))

    def sessions(self) -> int:
        query = "SELECT thread_id, count(*), max(sequence) FROM events GROUP BY thread_id"
        return len(self.db.execute(query).fetchall())

    def close(self) -> None:
        self.db.close()


class PlainSqliteNormal(PlainSqlite):
    name = "sqlite_normal"
    synchronous = "NORMAL"
    durability = "WAL, synchronous=NORMAL: a power cut may take acknowledged events"


INSERT = "INSERT INTO events (event_id, type, payload_json, caused_by, thread_id) VALUES (?, ?, ?, ?, ?)"


def _row(session: str, item: Item, caused_by: str | None) -> tuple[str, str, str, str | None, str]:
    return (str(uuid.uuid4()), item.kind, _encoder.encode(item).decode(), caused_by, session)
