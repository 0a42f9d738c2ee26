"""The shape of a store: what was forked off what, what is deleted, and what living streams still need of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tailfold.engine.backend import chain
from tailfold.engine.backend.forest import Forest
from tailfold.engine.backend.port import Backend, Head, Tombstone


class Fork(NamedTuple):
    """A fork as it has to be made again."""

    stream: str
    parent: str
    at: int
    created_ns: int


class Part(NamedTuple):
    """The own events of a stream that somebody can read: those with after < version <= upto."""

    stream: str
    reader: str
    """A living stream that sees them: the stream itself, or a fork of a deleted one."""
    after: int
    upto: int


def readable_parts(backend: Backend) -> Iterator[Part]:
    """Yield parts that have every event that a living stream sees once, also what forks keep of deleted ones."""
    after = ""
    while page := backend.heads(after=after):
        yield from (Part(head.stream, head.stream, head.base, head.version) for head in page)
        after = page[-1].stream
    if backend.tombstones():
        shape = Shape(backend)
        for name, kept in shape.kept.items():
            base = shape.tombstones[name].base
            if kept > base:
                yield Part(name, shape.reader(name), base, kept)


class Shape:
    """The forest of one store, as it was when this was made."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.heads: dict[str, Head] = {}
        after = ""
        while page := backend.heads(after=after):
            self.heads |= {head.stream: head for head in page}
            after = page[-1].stream
        self.tombstones: dict[str, Tombstone] = {one.stream: one for one in backend.tombstones()}
        self.named_heads = backend.named_heads()
        self._forest: Forest[str] = Forest(
            lambda stream: [(child.at, child.stream) for child in backend.children(stream)],
            lambda stream: stream in self.tombstones,
        )
        self.kept = {
            name: min(one.kept, max(self._forest.needed(name), one.base)) for name, one in self.tombstones.items()
        }
        """Of each deleted stream, the last version that a living one needs; the rest is not taken along."""

    @property
    def has_gaps(self) -> bool:
        """True if positions may have gaps: something was given back, or is left behind."""
        return any(self.kept[name] < one.version for name, one in self.tombstones.items())

    def keeps(self, stream: str, version: int) -> bool:
        """Say whether an event is one that a living stream can see."""
        return stream not in self.kept or version <= self.kept[stream]

    def begin(self, stream: str) -> tuple[int, bytes]:
        """Return the version after which the own events of *stream* begin, and the chain hash there."""
        gone = self.tombstones.get(stream)
        if gone is not None:
            return gone.base, gone.base_hash or chain.seed(stream)
        head = self.heads.get(stream)
        if head is None or not head.base:
            return 0, chain.seed(stream)
        [row] = self._backend.rows(stream, after=head.base - 1, upto=head.base, limit=1)
        return head.base, row.hash

    def reader(self, stream: str) -> str:
        """Return a living stream that sees the kept events of *stream*: itself, or a fork of a deleted one."""
        while stream in self.tombstones:
            children = [child for child in self._backend.children(stream) if self._forest.alive(child.stream)]
            if not children:
                break  # nobody sees it, so nothing of it is kept
            stream = max(children, key=lambda child: child.at).stream
        return stream

    def fork(self, stream: str) -> Fork | None:
        """Return how *stream* was forked off; None if it begins by itself."""
        head = self.heads.get(stream)
        if head is not None and head.base:
            parent = self._backend.lineage(stream)[-2].stream
            return Fork(stream, parent, head.base, head.created_ns)
        gone = self.tombstones.get(stream)
        if gone is not None and gone.base and self.kept[stream] > gone.base:
            parents = [piece.stream for piece in self._backend.lineage(self.reader(stream))]
            return Fork(stream, parents[parents.index(stream) - 1], gone.base, gone.deleted_ns)
        return None

    def forks(self) -> list[Fork]:
        """Return every fork that living streams have to do with."""
        found = (self.fork(stream) for stream in [*self.heads, *self.tombstones])
        return [fork for fork in found if fork is not None]
