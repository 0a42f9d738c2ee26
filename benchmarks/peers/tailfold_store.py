"""tailfold itself, through the same protocol as its peers: a live handle, by the default policy or another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tailfold.engine import Event, Fold, Store
from tailfold.snapshots import Policy, Series, every, never

from benchmarks.peers.protocol import CONTEXT, Peer, Resumed
from benchmarks.workload import Item

BATCH = 500


class Stepped(Event, frozen=True):
    kind = "stepped"
    step: str
    turn: int
    call_id: str
    text: str


@dataclass
class Held:
    events: int = 0
    turns: int = 0
    characters: int = 0
    messages: Series[str] = field(default_factory=Series[str])


held: Fold[Held] = Fold("held", Held)


@held.on(Stepped)
def _(state: Held, event: Stepped) -> None:
    state.events += 1
    state.turns = event.turn
    state.characters += len(event.text)
    state.messages.append(event.text)


def event(item: Item) -> Stepped:
    return Stepped(item.kind, item.turn, item.call_id, item.text)


class Tailfold(Peer):
    name = "tailfold"
    durability = "durable: a write-ahead file, one flush"
    policy: Policy | None = None
    """When snapshots are written; None is the default."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store"
        self.store = Store.open(self.path, snapshots=self.policy)

    def append_each(self, session: str, items: Sequence[Item]) -> list[float]:
        live = self.store.live(session, held)
        seconds = []
        for item in items:
            one = event(item)
            begin = time.perf_counter()
            live.append(one)
            seconds.append(time.perf_counter() - begin)
        return seconds

    def append_bulk(self, session: str, items: Iterable[Item]) -> None:
        live, rest = self.store.live(session, held), iter(items)
        while batch := [event(item) for item in islice(rest, BATCH)]:
            live.append(*batch)

    def rebuild(self, session: str) -> Resumed:
        self.store.log.codec.register([Stepped])
        state = Held()
        for _, records in self.store.log.record_pages(session, after=0, upto=self.store.head(session).version):
            state = held.fold_records(state, records, session, 0)
        return _resumed(state)

    def resume(self, session: str) -> Resumed:
        self.store.snapshots.policy = never  # a resume that wrote one would flatter the next
        return _resumed(self.store.live(session, held).state)

    def fork(self, session: str, at: int, name: str) -> None:
        self.store.fork(session, at=at, name=name)

    def sessions(self) -> int:
        return sum(1 for head in self.store.streams() if head.version)

    def close(self) -> None:
        self.store.close()


class TailfoldEvery(Tailfold):
    name = "tailfold_every"
    durability = "the same, with snapshots at every(1000) in place of the default policy"
    policy = every(1000)


def _resumed(state: Held) -> Resumed:
    return Resumed(state.events, state.characters, state.messages.last(CONTEXT))
