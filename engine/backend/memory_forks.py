"""Forks, named heads and deleted streams in memory: the part of `MemoryBackend` about lineages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tailfold.engine.backend import keys
from tailfold.engine.backend.forest import Forest
from tailfold.engine.backend.port import (
    FORMAT_FORKS,
    Child,
    Head,
    IdRow,
    Lease,
    Piece,
    Row,
    Sealed,
    SnapshotKey,
    SnapshotWrite,
    Swept,
    Tombstone,
)
from tailfold.engine.errors import HeadMoved, StreamDeleted, StreamExists, StreamNeeded, StreamNotFound


@dataclass(slots=True, eq=False)
class StoredStream:
    """A stream: its own rows, and what it inherits from its parent."""

    name: str
    created_ns: int
    updated_ns: int
    hash: bytes
    base: int = 0
    """Its own rows begin after this version."""
    parent: StoredStream | None = None
    rows: list[Row] = field(default_factory=list)
    ids: dict[bytes, IdRow] = field(default_factory=dict)
    snapshots: dict[tuple[bytes, SnapshotKey], SnapshotWrite] = field(default_factory=dict)
    children: list[tuple[int, StoredStream]] = field(default_factory=list)
    deleted_ns: int = 0
    reclaimed: int = 0

    @property
    def version(self) -> int:
        """The version of the stream; a tombstone keeps the one it had."""
        return self.base + len(self.rows) + self.reclaimed

    @property
    def base_hash(self) -> bytes:
        """Chain hash at the base; empty for a stream that is no fork, or has nothing of its own."""
        owner = self.parent
        return owner.rows[self.base - owner.base - 1].hash if owner is not None and self.rows else b""

    def head(self) -> Head:
        """Return the head."""
        return Head(self.name, self.version, self.hash, self.created_ns, self.updated_ns, self.base)


class MemoryForks:
    """The fork methods of the port, on `StoredStream`s."""

    _lock: threading.Lock
    _streams: dict[str, StoredStream]
    _positions: list[tuple[str, int] | None]
    _leases: dict[str, Lease]
    _blobs: dict[bytes, bytes]
    _meta: dict[bytes, bytes]

    def _living(self, name: str) -> StoredStream | None:
        found = self._streams.get(name)
        if found is not None and found.deleted_ns:
            raise StreamDeleted(name)
        return found

    def _required(self, name: str, *, deleted: bool = False) -> StoredStream:
        found = self._streams.get(name) if deleted else self._living(name)
        if found is None:
            raise StreamNotFound(name)
        return found

    def _parts_back(self, stream: StoredStream, after: int, upto: int) -> Iterator[tuple[StoredStream, int, int]]:
        """Yield (stream, after, upto) of where versions stand, newest first."""
        at: StoredStream | None = stream
        while at is not None and upto > after:
            if upto > at.base:
                yield at, max(after, at.base), upto
            upto, at = min(upto, at.base), at.parent

    def _owner(self, stream: StoredStream, version: int) -> StoredStream:
        while version <= stream.base and stream.parent is not None:
            stream = stream.parent
        return stream

    def _inherited(self, stream: StoredStream, after: int, upto: int) -> list[Row]:
        rows: list[Row] = []
        for part, low, top in list(self._parts_back(stream, after, upto))[::-1]:
            rows += [row._replace(stream=stream.name) for row in part.rows[low - part.base : top - part.base]]
        return rows

    def _id(self, stream: StoredStream, id_hash: bytes) -> IdRow | None:
        """Return what an idempotency key stands for, also in what the stream inherits."""
        for part, _, top in self._parts_back(stream, 0, stream.version):
            found = part.ids.get(id_hash)
            if found is not None and found.last <= top:
                return found
        return None

    def _raise_format(self, needed: int) -> None:
        stamp = keys.raised(self._meta[keys.FORMAT_KEY], needed)
        if stamp is not None:
            self._meta[keys.FORMAT_KEY] = stamp

    def fork(  # noqa: D102 - port
        self, stream: str, *, at: int, name: str, time_ns: int, head: tuple[str, str | None] | None = None
    ) -> Head:
        with self._lock:
            found = self._required(stream)
            if not 1 <= at <= found.version:
                raise StreamNotFound(stream, version=at, head=found.version)
            if name in self._streams:
                raise StreamExists(name)
            if head is not None:
                self._move_head(head[0], name, head[1])
            owner = self._owner(found, at)
            hash_at = owner.rows[at - owner.base - 1].hash
            child = StoredStream(name, time_ns, time_ns, hash_at, at, owner)
            self._streams[name] = child
            owner.children.append((at, child))
            self._raise_format(FORMAT_FORKS)
            return child.head()

    def lineage(self, stream: str, *, deleted: bool = False) -> list[Piece]:  # noqa: D102
        with self._lock:
            found = self._required(stream, deleted=deleted)
            parts = list(self._parts_back(found, 0, found.version))[::-1]
            pieces = [Piece(part.name, low, top, part.deleted_ns > 0) for part, low, top in parts]
            if found.version == found.base:
                pieces.append(Piece(stream, found.base, found.base, False))
            return pieces

    def spread(self, stream: str, *, after: int) -> int:  # noqa: D102
        with self._lock:
            found = self._required(stream)
            return max(1, sum(1 for _ in self._parts_back(found, after, found.version)))

    def children(self, stream: str) -> list[Child]:  # noqa: D102
        with self._lock:
            found = self._required(stream, deleted=True)
            ordered = sorted(found.children, key=lambda pair: pair[0])
            return [Child(child.name, at, child.deleted_ns > 0) for at, child in ordered]

    def forks(self) -> list[Head]:  # noqa: D102
        with self._lock:
            return [one.head() for one in self._streams.values() if one.parent is not None and not one.deleted_ns]

    def named_heads(self) -> dict[str, str]:  # noqa: D102
        with self._lock:
            return dict(self._named_heads())

    def _named_heads(self) -> Iterator[tuple[str, str]]:
        for key, stream in sorted(self._meta.items()):
            if key.startswith(keys.HEAD_PREFIX):
                yield key[len(keys.HEAD_PREFIX) :].decode(), stream.decode()

    def move_head(self, name: str, to: str | None, *, expected: str | None) -> None:  # noqa: D102
        with self._lock:
            if to is not None:
                self._required(to)
            self._move_head(name, to, expected)
            self._raise_format(FORMAT_FORKS)

    def _move_head(self, name: str, to: str | None, expected: str | None) -> None:
        key = keys.HEAD_PREFIX + name.encode()
        stored = self._meta.get(key)
        actual = stored.decode() if stored is not None else None
        if actual != expected:
            raise HeadMoved(name, expected, actual)
        if to is None:
            self._meta.pop(key, None)
        else:
            self._meta[key] = to.encode()

    def _forest(self) -> Forest[StoredStream]:
        return Forest(lambda stream: stream.children, lambda stream: stream.deleted_ns > 0)

    def delete(self, stream: str, *, time_ns: int, reroot: bool = False, drop_heads: bool = False) -> None:  # noqa: D102
        with self._lock:
            found = self._required(stream)
            forest = self._forest()
            ordered = sorted(found.children, key=lambda pair: pair[0])
            needing = [child.name for _, child in ordered if forest.alive(child)]
            heads = [name for name, target in self._named_heads() if target == stream]
            if (heads and not drop_heads) or (needing and not reroot):
                raise StreamNeeded(stream, [] if reroot else needing, heads)
            for name in heads:
                self._move_head(name, None, stream)
            found.deleted_ns = time_ns
            self._raise_format(FORMAT_FORKS)

    def bury(self, tombstone: Tombstone, *, last_position: int | None = None) -> None:  # noqa: D102
        with self._lock:
            name = tombstone.stream
            found = self._streams.get(name)
            if found is None:
                at_ns = tombstone.deleted_ns
                found = self._streams[name] = StoredStream(name, at_ns, at_ns, b"")
                found.reclaimed = tombstone.version - tombstone.base
            else:
                found.reclaimed = tombstone.version - found.base - len(found.rows)
            found.deleted_ns = tombstone.deleted_ns
            if last_position is not None and last_position > len(self._positions):
                self._positions += [None] * (last_position - 1 - len(self._positions))
                self._positions.append((name, found.version))
            self._raise_format(FORMAT_FORKS)

    def tombstones(self) -> list[Tombstone]:  # noqa: D102
        with self._lock:
            return [
                Tombstone(s.name, s.base, s.base + len(s.rows), s.version, s.deleted_ns, s.base_hash)
                for s in self._streams.values()
                if s.deleted_ns
            ]

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:  # noqa: D102
        with self._lock:
            found = self._required(stream, deleted=True)
            return found.rows[max(0, after - found.base) :][:limit]

    def seal(self, stream: str, *, upto: int, whole: bool = True, most: int | None = None) -> Sealed:  # noqa: D102
        with self._lock:
            self._required(stream)
            return Sealed(0, 0, 0, 0)

    def sweep(self, refs_in: Callable[[bytes], list[bytes]], *, dry_run: bool = False) -> Swept:  # noqa: D102
        with self._lock:
            forest = self._forest()
            gone: list[Row] = []
            snapshots = 0
            live: set[bytes] = set()
            for stream in self._streams.values():
                keep = stream.version
                if stream.deleted_ns:
                    keep = max(forest.needed(stream), stream.base)
                    gone += stream.rows[keep - stream.base :]
                    dropped = [held for held in stream.snapshots if held[1].version > keep]
                    snapshots += len(dropped)
                    if not dry_run:
                        self._give_back(stream, keep, dropped)
                for row in stream.rows[: keep - stream.base]:
                    live.update(refs_in(row.data))
            blobs = [(digest, content) for digest, content in self._blobs.items() if digest not in live]
            if not dry_run:
                for digest, _ in blobs:
                    del self._blobs[digest]
            sizes = sum(len(row.data) for row in gone), sum(len(content) for _, content in blobs)
            return Swept(len(gone), sizes[0], snapshots, len(blobs), sizes[1])

    def _give_back(self, stream: StoredStream, keep: int, snapshots: list[tuple[bytes, SnapshotKey]]) -> None:
        stream.reclaimed = stream.version - keep
        del stream.rows[keep - stream.base :]
        for held in snapshots:
            del stream.snapshots[held]
        stream.ids = {key: row for key, row in stream.ids.items() if row.last <= keep}
        self._leases.pop(stream.name, None)
        if keep == stream.base and stream.parent is not None:
            stream.parent.children = [(at, child) for at, child in stream.parent.children if child is not stream]
