"""A JSONL file for each session, as in the first seed: write, fsync, then act; state is a fold of the file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from benchmarks.peers.protocol import Peer, Resumed, State
from benchmarks.workload import Item

BATCH = 500
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Item)  # every line is checked when it is read back, as the seed does with zod


class Jsonl(Peer):
    name = "jsonl"
    durability = "fsync after every line"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"
        self.folder.mkdir(exist_ok=True)

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        seconds = []
        for item in items:
            begin = time.perf_counter()
            self._write(session, _encoder.encode(item) + b"\n")
            seconds.append(time.perf_counter() - begin)
        return seconds

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        rest = iter(items)
        while batch := list(islice(rest, BATCH)):
            self._write(session, b"".join(_encoder.encode(item) + b"\n" for item in batch))

    def _write(self, session: str, data: bytes) -> None:
        """Open, write, fsync and close, as the seed's appendEvent does."""
        handle = os.open(self.folder / f"{session}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)

    def rebuild(self, session: str) -> Resumed:
        return _fold(self.folder / f"{session}.jsonl").resumed()

    def fork(self, session: str, at: int, name: str) -> None:
        """Copy the first lines: there is nothing else to do with a file."""
        with (
            (self.folder / f"{session}.jsonl").open("rb") as lines,
            (self.folder / f"{name}.jsonl").open("wb") as to,
        ):
            to.writelines(islice(lines, at))
            to.flush()
            os.fsync(to.fileno())

    def sessions(self) -> int:
        """The seed's list goes through the same fold as everything else."""
        return sum(1 for path in self.folder.glob("*.jsonl") if _fold(path).events)


def _fold(path: Path) -> State:
    state = State()
    with path.open("rb") as lines:
        for line in lines:
            state.take(_decoder.decode(line))
    return state
