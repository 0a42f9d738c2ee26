"""Which deleted streams are still needed: pure, on the forest of forks as the backends keep it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)


class Forest(Generic[N]):
    """Answers for one moment of a store: who is alive below whom. Deep chains need no deep stack."""

    def __init__(self, children: Callable[[N], Iterable[tuple[int, N]]], deleted: Callable[[N], bool]) -> None:
        """*children* gives (version, fork) pairs of a stream, *deleted* says whether it is a tombstone."""
        self._children = children
        self._deleted = deleted
        self._alive: dict[N, bool] = {}

    def alive(self, stream: N) -> bool:
        """Say whether *stream*, or anything that was forked off below it, can still be read."""
        todo = [stream]
        while todo:
            at = todo[-1]
            if at in self._alive:
                todo.pop()
            elif not self._deleted(at):
                self._alive[at] = True
            else:
                below = [child for _, child in self._children(at)]
                unknown = [child for child in below if child not in self._alive]
                if any(self._alive.get(child) for child in below):
                    self._alive[at] = True
                elif unknown:
                    todo += unknown
                else:
                    self._alive[at] = False
        return self._alive[stream]

    def needed(self, stream: N) -> int:
        """Return the last version of *stream* that something alive below it inherits; 0 if nothing does."""
        return max((at for at, child in self._children(stream) if self.alive(child)), default=0)
