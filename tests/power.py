"""A disk that loses power: what may be left of a store at any moment, from what was flushed and what was not.

Flushed bytes are kept. Of what was written since, any page of `data.mdb` may be there in any of the contents that
it had, and any sector of `data.wal`; the end of either file may be missing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tailfold.engine import LmdbBackend
from tailfold.engine.backend import keys
from tailfold.engine.backend.lmdb import ahead, ahead_file, environment

PAGE = 4096
SECTOR = 512
Rows = dict[str, list[tuple[bytes, bytes]]]


def rows_of(backend: LmdbBackend) -> Rows:
    """Return every row of every table, as LMDB has them."""
    env, tables = backend._shared.env, backend._shared.tables
    with env.begin() as txn:
        return {name: list(txn.cursor(tables[name]).iternext()) for name in keys.TABLES}


@dataclass
class Cut:
    """What a power cut has left, and which states the store may come back in."""

    moment: str
    data: bytes
    wal: bytes
    acknowledged: int


@dataclass
class Disk:
    """Watches one store of this process, and cuts its power in thought."""

    path: Path
    chance: random.Random
    share: float
    """How many of the moments to try."""
    flushed_data: bytes = b""
    flushed_wal: bytes = b""
    versions: list[bytes] = field(default_factory=list)
    """Contents of `data.mdb` since it was flushed."""
    acknowledged: int = 0
    states: list[Rows] = field(default_factory=list)
    """All rows after each acknowledged transaction."""
    cuts: list[Cut] = field(default_factory=list)
    watching: bool = True

    def now(self) -> tuple[bytes, bytes]:
        wal = self.path / ahead_file.FILE
        return (self.path / "data.mdb").read_bytes(), wal.read_bytes() if wal.exists() else b""

    def moment(self, name: str) -> None:
        """The power may be cut here."""
        if not self.watching or self.chance.random() > self.share:
            return
        data, wal = self.now()
        self.cuts.append(Cut(name, self._torn_data(data), self._torn_wal(wal), self.acknowledged))

    def _torn_data(self, data: bytes) -> bytes:
        kinds = [[self.flushed_data, data], [self.flushed_data], [data], [*self.versions[-8:], data]]
        contents = self.chance.choice(kinds)
        length = max(len(self.flushed_data), self.chance.choice([0, len(data), len(data) // 2 // PAGE * PAGE]))
        torn = bytearray(length)
        for at in range(0, length, PAGE):
            chosen = self.chance.choice(contents)[at : at + PAGE]
            torn[at : at + len(chosen)] = chosen
        return bytes(torn)

    def _torn_wal(self, wal: bytes) -> bytes:
        torn = bytearray(wal)
        for at in range(0, len(wal), SECTOR):
            old, new = self.flushed_wal[at : at + SECTOR], wal[at : at + SECTOR]
            if old != new and self.chance.random() < 0.5:
                torn[at : at + SECTOR] = old.ljust(len(new), b"\0")
        # What the file has grown by since it was flushed may be missing, or some of it.
        grown = len(wal) - len(self.flushed_wal)
        return bytes(torn[: len(wal) - self.chance.choice((0, grown, grown // 2))] if grown > 0 else torn)

    def data_flushed(self) -> None:
        self.flushed_data = self.now()[0]
        self.versions.clear()

    def wal_flushed(self) -> None:
        self.flushed_wal = self.now()[1]

    def is_acknowledged(self, backend: LmdbBackend) -> None:
        self.acknowledged += 1
        self.states.append(rows_of(backend))
        self.moment("after a transaction")

    def check(self, cut: Cut, path: Path) -> LmdbBackend:
        """Open what a cut has left, compare it, and return it."""
        path.mkdir()
        (path / "data.mdb").write_bytes(cut.data)
        if cut.wal:
            (path / ahead_file.FILE).write_bytes(cut.wal)
        came_back = LmdbBackend(path)
        found = rows_of(came_back)
        allowed = self.states[cut.acknowledged : cut.acknowledged + 2]
        assert found in allowed, (cut.moment, cut.acknowledged, _difference(found, allowed))
        assert came_back.check() == []
        return came_back


def _difference(found: Rows, allowed: list[Rows]) -> list[str]:
    out = []
    for rows in allowed:
        for name in keys.TABLES:
            lost, more = set(rows[name]) - set(found[name]), set(found[name]) - set(rows[name])
            if lost or more:
                out.append(f"{name}: {len(lost)} lost, {len(more)} more")
        out.append("--")
    return out


@contextmanager
def powered(path: Path, chance: random.Random, share: float, patch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Watch the store at *path*, which is there: every flush of this process, and every transaction."""
    disk = Disk(path, chance, share)
    flush, flush_data, write = ahead_file.flush, ahead.flush_data, environment.Environment.write
    disk.data_flushed()
    disk.wal_flushed()

    def flush_watched(handle: int) -> None:
        if disk.watching:
            disk.versions.append(disk.now()[0])
        disk.moment("before data.wal is flushed")
        flush(handle)
        if disk.watching:
            disk.wal_flushed()
        disk.moment("after data.wal is flushed")

    def flush_data_watched(env: object) -> None:
        disk.moment("before data.mdb is flushed")
        flush_data(env)  # type: ignore[arg-type]
        if disk.watching:
            disk.data_flushed()
        disk.moment("after data.mdb is flushed")

    patch.setattr(ahead_file, "flush", flush_watched)
    patch.setattr(ahead, "flush_data", flush_data_watched)
    try:
        yield disk
    finally:
        disk.watching = False
        patch.setattr(ahead_file, "flush", flush)
        patch.setattr(ahead, "flush_data", flush_data)
        assert environment.Environment.write is write
