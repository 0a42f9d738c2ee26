"""What every peer is asked to do, and how one says that it does not offer something.

A peer is a class with these methods, made on a folder of its own; opening it again in another process must find
everything. ``benchmarks.compare`` drives them all alike. What is not offered is answered with `NotOffered`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.workload import Item

CONTEXT = 20
"""How many of the newest messages a resumed agent reads at once, to go on."""


class NotOffered(Exception):
    """The peer has no way to do this; the message says why."""


@dataclass
class State:
    """The state that every peer keeps: all messages, and counters."""

    events: int = 0
    turns: int = 0
    characters: int = 0
    messages: list[str] = field(default_factory=list)

    def take(self, item: Item) -> None:
        """Fold one event: the same lines as in our own fold."""
        self.events += 1
        self.turns = item.turn
        self.characters += len(item.text)
        self.messages.append(item.text)

    def resumed(self) -> Resumed:
        """Return what a resume is checked by."""
        return Resumed(self.events, self.characters, self.messages[-CONTEXT:])


@dataclass(frozen=True)
class Resumed:
    """What a resumed session shows: its length, and what it needs to go on."""

    events: int
    characters: int
    context: Sequence[str]


class Peer(Protocol):
    """One way to keep agent sessions, used as its own documentation recommends."""

    name: str
    durability: str
    """What is durable when an append returns, in the peer's own terms."""
    resumes_once: bool = False
    """Whether a process can take a session up only once, so that a resume cannot be repeated for a median."""

    def __init__(self, folder: Path) -> None:
        """Open, or make, the peer's files in *folder*."""

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        """Append one event after the other, each durable before the next; return seconds for each."""

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        """Append the events as fast as the peer can take a history; durable on return."""

    def short_session(self, session: str, items: Sequence[Item]) -> None:
        """Make a whole short session that nobody drives any more; durable on return."""
        self.append_bulk(session, items)

    def rebuild(self, session: str) -> Resumed:
        """Fold the state from all events, as if nothing but the log were there."""

    def resume(self, session: str) -> Resumed:
        """Come back to the state at the head in the peer's own way; by default there is none but to fold it all."""
        return self.rebuild(session)

    def fork(self, session: str, at: int, name: str) -> None:
        """Make session *name* that has events 1..*at* of *session* and goes on by itself; durable on return."""

    def sessions(self) -> int:
        """List all sessions with name and length (or status); return how many there were."""

    def close(self) -> None:
        """Let go of files and connections."""


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files below *folder* that hold data; a sparse file counts what it occupies."""
    total = 0
    for path in folder.rglob("*"):
        if path.is_file():
            stat = path.stat()
            total += min(stat.st_size, stat.st_blocks * 512)
    return total
