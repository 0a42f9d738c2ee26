"""What goes along with one state while it is folded: what has gathered since its last snapshot, and its chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tailfold.engine.backend.port import SnapshotWrite
from tailfold.snapshots.chunks import ChunkReader
from tailfold.snapshots.codec import EncodedState
from tailfold.snapshots.marks import Marks
from tailfold.snapshots.policy import Progress


class HealingReader(ChunkReader):
    """The chunk reader of one state: a chunk that is lost or damaged is made again by folding the log."""

    def __init__(self, load: Callable[[bytes], bytes], version: int) -> None:
        super().__init__(load)
        self.version = version
        """The version of the snapshot that the state's stored chunks belong to."""


class Due(NamedTuple):
    """A snapshot that was encoded: to be written with an append, or by itself."""

    write: SnapshotWrite
    encoded: EncodedState
    seconds: float
    """Time that encoding and packing took."""

    @property
    def bytes(self) -> int:
        """What it adds to the store because it is written now, keys aside.

        Full chunks of a `Series` are written once whenever that is, so they say nothing about how often to write.
        """
        grown = self.encoded.writer.grown
        return len(self.write.row) + sum(len(p) for ref, p in self.write.chunks.items() if ref not in grown)

    @property
    def own_seconds(self) -> float:
        """The share of the time that went into those bytes: the rest is spent once, whenever it is."""
        whole = len(self.write.row) + sum(map(len, self.write.chunks.values()))
        return self.seconds * self.bytes / whole


class Gathering:
    """What has gathered since the last snapshot, of one state that is being folded."""

    def __init__(
        self, last_bytes: int = 0, reader: HealingReader | None = None, marks: Marks | None = None
    ) -> None:
        self.reader = reader
        self.marks = marks or Marks()
        self.events = 0
        self.event_bytes = 0
        self.fold_s = 0.0
        self.last_bytes = last_bytes
        self.last_s = 0.0
        self.streams = 1
        """Over how many streams they are spread."""

    def progress(self) -> Progress:
        """Return what a policy sees."""
        return Progress(self.events, self.event_bytes, self.fold_s, self.last_bytes, self.last_s, self.streams)

    def begin_anew(self, due: Due | None) -> None:
        """Start over after a snapshot was written, or could not be."""
        self.events, self.event_bytes, self.fold_s, self.streams = 0, 0, 0.0, 1
        if due is not None:
            self.last_bytes, self.last_s = due.bytes, due.own_seconds
