"""A plain-Python model of a store: what any backend must agree with, in as little code as possible."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailfold.engine import ANY, EXISTS, Event


@dataclass
class ModelStore:
    streams: dict[str, list[Event]] = field(default_factory=dict)
    positions: list[tuple[str, int]] = field(default_factory=list)
    keys: dict[tuple[str, str], tuple[tuple[Event, ...], int, int]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, tuple[int, str | None]] = field(default_factory=dict)

    def append(
        self, stream: str, events: list[Event], expected: int, key: str | None, epoch: int | None
    ) -> tuple[str, int, int]:
        """Return (outcome, first, last); outcome is written, repeated, fenced, reused or conflict."""
        if epoch is not None and self.epochs.get(stream, 0) != epoch:
            return "fenced", 0, 0
        if key is not None and (stream, key) in self.keys:
            content, first, last = self.keys[stream, key]
            return ("repeated", first, last) if content == tuple(events) else ("reused", first, last)
        version = len(self.streams.get(stream, []))
        if not (expected in (version, ANY) or (expected == EXISTS and version > 0)):
            return "conflict", version, version
        self.streams.setdefault(stream, []).extend(events)
        first, last = version + 1, version + len(events)
        self.positions.extend((stream, v) for v in range(first, last + 1))
        if key is not None:
            self.keys[stream, key] = (tuple(events), first, last)
        return "written", first, last
