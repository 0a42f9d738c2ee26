"""One JSON file for each event, in a folder for each session: written aside, flushed, renamed, folder flushed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.peers.protocol import Peer, Resumed, State
from benchmarks.workload import Item

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Item)


class JsonFiles(Peer):
    name = "json_files"
    durability = "fsync of file and folder for every event"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sessions"
        self.folder.mkdir(exist_ok=True)
        self._lengths: dict[str, int] = {}

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        seconds = []
        for item in items:
            begin = time.perf_counter()
            self._write(session, item)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        """Every event is a file, so that a history costs what its events cost; only the folder is flushed once."""
        for item in items:
            self._write(session, item, flush_folder=False)
        _flush(self.folder / session)

    def _write(self, session: str, item: Item, *, flush_folder: bool = True) -> None:
        where = self.folder / session
        if session not in self._lengths:
            where.mkdir(exist_ok=True)
            self._lengths[session] = len(_events(where))
        self._lengths[session] += 1
        path = where / f"{self._lengths[session]:08}.json"
        handle = os.open(f"{path}.new", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.write(handle, _encoder.encode(item))
        os.fsync(handle)
        os.close(handle)
        Path(f"{path}.new").rename(path)
        if flush_folder:
            _flush(where)

    def rebuild(self, session: str) -> Resumed:
        state = State()
        for path in _events(self.folder / session):
            state.take(_decoder.decode(path.read_bytes()))
        return state.resumed()

    def fork(self, session: str, at: int, name: str) -> None:
        to = self.folder / name
        to.mkdir()
        for path in islice(_events(self.folder / session), at):
            copied = to / path.name
            shutil.copyfile(path, copied)
            _flush(copied)
        _flush(to)

    def sessions(self) -> int:
        return sum(1 for where in self.folder.iterdir() if _events(where))


def _events(where: Path) -> list[Path]:
    return sorted(where.glob("*.json"))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
