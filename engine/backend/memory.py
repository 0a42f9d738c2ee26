"""The backend in memory: the test double, and the port's worked example in one reading.

It keeps every promise of the port but durability across the process, and checks what the LMDB backend
checks, through the same rules. Reopening means passing the same object to another `Store`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tailfold.engine.backend import chain, keys, rules
from tailfold.engine.backend.memory_forks import MemoryForks, StoredStream
from tailfold.engine.backend.port import (
    FORMAT_LEAST,
    Append,
    Appended,
    CheckpointWrite,
    Collected,
    Durability,
    Head,
    IdRow,
    LaterSnapshot,
    Lease,
    Packed,
    Plain,
    Row,
    SnapshotKey,
    SnapshotWrite,
)
from tailfold.engine.errors import EngineError, RecordDamaged, StreamDeleted, StreamNotFound
from tailfold.snapshots.chunks import reachable


class MemoryBackend(MemoryForks):
    """`Backend` on plain dicts and lists. See the port for what each method promises."""

    def __init__(self) -> None:
        self.durability = Durability.RELAXED
        self._lock = threading.Lock()
        self._streams: dict[str, StoredStream] = {}
        self._positions: list[tuple[str, int] | None] = []
        self._leases: dict[str, Lease] = {}
        self._kinds: dict[bytes, bytes] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._chunks: dict[bytes, bytes] = {}
        stamp = keys.Stamp(FORMAT_LEAST, time.time_ns(), "tailfold")
        self._meta = {keys.FORMAT_KEY: keys.encode(stamp)}
        self._checkpoints: dict[str, bytes] = {}
        self._wakes: dict[object, Callable[[], None]] = {}

    def commit(self, batch: Sequence[Append]) -> list[Appended | EngineError]:  # noqa: D102 - port
        with self._lock:
            outcomes = [self._commit(append) for append in batch]
        self._wake_all()
        return outcomes

    def _commit(self, append: Append) -> Appended | EngineError:
        name = append.stream
        stream = self._streams.get(name)
        if stream is not None and stream.deleted_ns:
            return StreamDeleted(name)
        version = stream.version if stream else 0
        earlier = self._id(stream, keys.id_hash(append.key)) if stream and append.key is not None else None
        answer = rules.check(append, version, self._leases.get(name), earlier, len(self._positions))
        if answer is not None:
            return answer
        if stream is None:
            created_ns = append.time_ns if append.created_ns is None else append.created_ns
            stream = self._streams[name] = StoredStream(name, created_ns, append.time_ns, chain.seed(name))
        written = append.snapshot is not None and self._put_snapshot(stream, append.snapshot)
        first = version + 1
        if append.position is not None:
            self._positions += [None] * (append.position - 1 - len(self._positions))
        for data, digest in zip(append.records, append.digests, strict=True):
            stream.hash = chain.link(stream.hash, digest)
            version += 1
            self._positions.append((name, version))
            stream.rows.append(Row(name, version, len(self._positions), stream.hash, data, name))
        stream.updated_ns = append.time_ns
        self._blobs |= append.blobs
        for tag, description in append.schemas.items():
            self._kinds[keys.kind_key(tag, description)] = description
        self._meta |= append.meta
        self._raise_format(append.format)
        done = Appended(name, first, version, len(self._positions), stream.hash, False, written)
        if append.key is not None:
            row = IdRow(first, version, done.position, stream.hash, append.content)
            stream.ids[keys.id_hash(append.key)] = row
        return done

    def head(self, stream: str) -> Head | None:  # noqa: D102
        with self._lock:
            found = self._living(stream)
            return found.head() if found else None

    def heads(self, *, after: str = "", limit: int = 1000) -> list[Head]:  # noqa: D102
        with self._lock:
            living = (name for name, stream in self._streams.items() if not stream.deleted_ns)
            past = [name for name in sorted(living, key=str.encode) if name.encode() > after.encode()]
            return [self._streams[name].head() for name in past[:limit]]

    def count(self) -> tuple[int, int]:  # noqa: D102
        with self._lock:
            return sum(not stream.deleted_ns for stream in self._streams.values()), len(self._positions)

    def data(self, stream: str, *, after: int, upto: int) -> list[bytes]:  # noqa: D102
        with self._lock:
            found = self._living(stream)
            if found is None:
                raise StreamNotFound(stream)
            page = [row.data for row in self._inherited(found, after, upto)]
            if len(page) < upto - after:
                raise RecordDamaged(stream, after + len(page) + 1, "the event is missing")
            return page

    def runs(self, stream: str, *, after: int, upto: int) -> list[Plain | Packed]:  # noqa: D102
        page = self.data(stream, after=after, upto=upto)
        return [Plain(page, sum(map(len, page)))]

    def rows(  # noqa: D102
        self, stream: str, *, after: int, upto: int, limit: int, backwards: bool = False
    ) -> list[Row]:
        with self._lock:
            found = self._living(stream)
            if found is None or upto <= after or limit <= 0:
                return []
            rows = self._inherited(found, after, upto)
            return rows[::-1][:limit] if backwards else rows[:limit]

    def rows_by_position(self, *, after: int, limit: int) -> list[Row]:  # noqa: D102
        with self._lock:
            found: list[Row] = []
            for where in self._positions[after:] if limit > 0 else ():
                if where is None:
                    continue
                name, version = where
                stream = self._streams[name]
                if version <= stream.base + len(stream.rows):  # else a sweep gave the event back
                    found.append(stream.rows[version - stream.base - 1])
                if len(found) == limit:
                    break
            return found

    def where(self, positions: Sequence[int]) -> list[tuple[str, int] | None]:  # noqa: D102
        with self._lock:
            there = self._positions
            return [there[p - 1] if 1 <= p <= len(there) else None for p in positions]

    def blob(self, digest: bytes) -> bytes | None:  # noqa: D102
        with self._lock:
            return self._blobs.get(digest)

    def blobs(self, *, after: bytes = b"", limit: int = 64) -> list[tuple[bytes, bytes]]:  # noqa: D102
        with self._lock:
            return sorted(item for item in self._blobs.items() if item[0] > after)[:limit]

    def schemas(self) -> Iterator[tuple[str, bytes]]:  # noqa: D102
        with self._lock:
            rows = sorted(self._kinds.items())
        for key, description in rows:
            yield keys.tag_of_kind_key(key), description

    def lease(self, stream: str) -> Lease | None:  # noqa: D102
        with self._lock:
            return self._leases.get(stream)

    def swap_lease(self, stream: str, *, seen: Lease | None, new: Lease) -> bool:  # noqa: D102
        with self._lock:
            if self._leases.get(stream) != seen:
                return False
            self._leases[stream] = new
            return True

    def ids(self, stream: str) -> list[tuple[bytes, IdRow]]:  # noqa: D102
        with self._lock:
            found = self._streams.get(stream)
            return sorted(found.ids.items(), key=lambda item: item[0]) if found else []

    def meta(self, prefix: bytes) -> dict[bytes, bytes]:  # noqa: D102
        with self._lock:
            return {key: row for key, row in sorted(self._meta.items()) if key.startswith(prefix)}

    def put(  # noqa: D102
        self,
        *,
        meta: Mapping[bytes, bytes] | None = None,
        blobs: Mapping[bytes, bytes] | None = None,
        schemas: Sequence[tuple[str, bytes]] = (),
        ids: Mapping[str, Mapping[bytes, IdRow]] | None = None,
    ) -> None:
        with self._lock:
            for stream in ids or ():
                if stream not in self._streams:
                    raise StreamNotFound(stream)
            for stream, rows in (ids or {}).items():
                self._streams[stream].ids |= rows
            self._meta |= meta or {}
            self._blobs = {**(blobs or {}), **self._blobs}
            for tag, description in schemas:
                self._kinds[keys.kind_key(tag, description)] = description

    def snapshot_keys(  # noqa: D102
        self, stream: str, fold: bytes, *, upto: int, own: bool = False
    ) -> Iterator[SnapshotKey]:
        with self._lock:
            found = self._living(stream)
            held: list[SnapshotKey] = []
            for part, after, top in self._parts_back(found, 0, upto) if found else ():
                if own and part is not found:
                    break
                held += [key for key in self._snapshot_keys(part, fold, top) if key.version > after]
        yield from held

    def _snapshot_keys(self, stream: StoredStream, fold: bytes, upto: int) -> list[SnapshotKey]:
        return sorted((k for f, k in stream.snapshots if f == fold and k.version <= upto), reverse=True)

    def snapshot(self, stream: str, fold: bytes, key: SnapshotKey) -> bytes | None:  # noqa: D102
        with self._lock:
            found = self._living(stream)
            owner = self._owner(found, key.version) if found else None
            held = owner.snapshots.get((fold, key)) if owner else None
            return held.row if held else None

    def snapshot_past(  # noqa: D102
        self, stream: str, fold: bytes, fold_id: bytes, version: int
    ) -> LaterSnapshot | None:
        with self._lock:
            found = self._living(stream)
            if found is None or not 1 <= version <= found.version:
                return None
            owner = self._owner(found, version)
            later = [
                (key.version, write)
                for (name, key), write in owner.snapshots.items()
                if name == fold and key.fold_id == fold_id and key.version > version
            ]
            if not later:
                return None
            at, write = min(later, key=lambda one: one[0])
            return LaterSnapshot(at, write.row, owner.rows[at - owner.base - 1].hash)

    def folds(self, stream: str) -> list[bytes]:  # noqa: D102
        with self._lock:
            found = self._living(stream)
            return sorted({fold for fold, _ in found.snapshots}) if found else []

    def put_snapshot(self, stream: str, snapshot: SnapshotWrite) -> bool:  # noqa: D102
        with self._lock:
            found = self._living(stream)
            return found is not None and self._put_snapshot(found, snapshot)

    def _put_snapshot(self, stream: StoredStream, snapshot: SnapshotWrite) -> bool:
        version = snapshot.key.version
        if not 1 <= version <= stream.version:
            return False
        owner = self._owner(stream, version)
        if owner.rows[version - owner.base - 1].hash != snapshot.hash:
            return False
        if any(ref not in snapshot.chunks and ref not in self._chunks for ref in snapshot.needs):
            return False
        self._chunks = {**snapshot.chunks, **self._chunks}
        owner.snapshots[snapshot.fold, snapshot.key] = snapshot
        keys_now = self._snapshot_keys(owner, snapshot.fold, owner.version)
        for key in rules.superseded(keys_now, snapshot.key.fold_id, owner.version):
            del owner.snapshots[snapshot.fold, key]
        return True

    def drop_snapshots(self, stream: str, fold: bytes, dropped: Sequence[SnapshotKey]) -> int:  # noqa: D102
        with self._lock:
            found = self._living(stream)
            gone = [found.snapshots.pop((fold, key), None) for key in dropped] if found else []
            return sum(one is not None for one in gone)

    def chunk(self, digest: bytes) -> bytes | None:  # noqa: D102
        with self._lock:
            return self._chunks.get(digest)

    def put_chunks(self, chunks: Mapping[bytes, bytes]) -> None:  # noqa: D102
        with self._lock:
            self._chunks |= chunks

    def collect_chunks(self, *, dry_run: bool = False) -> Collected:  # noqa: D102
        with self._lock:
            rows = [w.row for s in self._streams.values() for w in s.snapshots.values()]
            roots = [ref for row in rows for ref in keys.refs_of_snapshot(row)]
            roots += [ref for row in self._checkpoints.values() for ref in keys.refs_of_checkpoint(row)]
            live = reachable(roots, self._chunks.get)
            dead = {ref: data for ref, data in self._chunks.items() if ref not in live}
            if not dry_run:
                self._chunks = {ref: data for ref, data in self._chunks.items() if ref in live}
            return Collected(len(dead), sum(map(len, dead.values())))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:  # noqa: D102
        token = object()
        self._wakes[token] = wake
        return lambda: (self._wakes.pop(token, None), None)[1]

    def _wake_all(self) -> None:
        for wake in list(self._wakes.values()):
            wake()

    def checkpoint(self, name: str) -> bytes | None:  # noqa: D102
        with self._lock:
            return self._checkpoints.get(name)

    def checkpoints(self) -> list[tuple[str, bytes]]:  # noqa: D102
        with self._lock:
            return sorted(self._checkpoints.items(), key=lambda item: item[0].encode())

    def put_checkpoint(self, name: str, write: CheckpointWrite) -> bool:  # noqa: D102
        with self._lock:
            last = len(self._positions)
            if write.stream is not None:
                found = self._streams.get(write.stream)
                last = len(found.rows) if found else 0
            if not rules.may_replace(name, self._checkpoints.get(name), write, last):
                return False
            if any(ref not in write.chunks and ref not in self._chunks for ref in write.needs):
                return False
            self._chunks = {**write.chunks, **self._chunks}
            self._checkpoints[name] = write.row
            return True

    def drop_checkpoint(self, name: str) -> bool:  # noqa: D102
        with self._lock:
            return self._checkpoints.pop(name, None) is not None

    def usage(self) -> dict[str, Any]:  # noqa: D102
        with self._lock:
            sizes = [len(row.data) for stream in self._streams.values() for row in stream.rows]
            tables = {
                "streams": {"rows": len(self._streams), "bytes": 0},
                "events": {"rows": len(sizes), "bytes": sum(sizes)},
                "snapshots": {
                    "rows": sum(len(s.snapshots) for s in self._streams.values()),
                    "bytes": sum(len(w.row) for s in self._streams.values() for w in s.snapshots.values()),
                },
                "chunks": {"rows": len(self._chunks), "bytes": sum(map(len, self._chunks.values()))},
                "checkpoints": {
                    "rows": len(self._checkpoints),
                    "bytes": sum(map(len, self._checkpoints.values())),
                },
                "blobs": {"rows": len(self._blobs), "bytes": sum(map(len, self._blobs.values()))},
            }
            return {"tables": tables, "events": len(sizes), "file_bytes": 0, "ahead_bytes": 0, "map_bytes": 0}

    def check(self) -> list[str]:  # noqa: D102
        return []

    def check_forks(self) -> list[tuple[str, str]]:  # noqa: D102
        return []

    def close(self) -> None:
        """Keep the rows: this object is what reopening means here."""
        self._wake_all()
