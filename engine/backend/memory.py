"""The backend in memory: the test double, and the port's worked example in one reading.

It keeps every promise of the port but durability across the process, and checks what the LMDB backend
checks, through the same rules. Reopening means passing the same object to another `Store`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailfold.engine.backend import chain, keys, rules
from tailfold.engine.backend.port import Append, Appended, Durability, Head, Lease, Row
from tailfold.engine.errors import EngineError, RecordDamaged, StreamNotFound


@dataclass(slots=True)
class _Stream:
    created_ns: int
    updated_ns: int
    rows: list[Row] = field(default_factory=list)
    ids: dict[str, keys.IdRow] = field(default_factory=dict)

    def head(self, name: str) -> Head:
        last = self.rows[-1]
        return Head(name, last.version, last.hash, self.created_ns, self.updated_ns)


class MemoryBackend:
    """`Backend` on plain dicts and lists. See the port for what each method promises."""

    def __init__(self) -> None:
        self.durability = Durability.RELAXED
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._positions: list[tuple[str, int]] = []
        self._leases: dict[str, Lease] = {}
        self._kinds: dict[bytes, bytes] = {}
        self._blobs: dict[bytes, bytes] = {}

    def commit(self, batch: Sequence[Append]) -> list[Appended | EngineError]:  # noqa: D102 - port
        with self._lock:
            return [self._commit(append) for append in batch]

    def _commit(self, append: Append) -> Appended | EngineError:
        name = append.stream
        stream = self._streams.get(name)
        version = len(stream.rows) if stream else 0
        earlier = stream.ids.get(append.key) if stream and append.key is not None else None
        answer = rules.check(append, version, self._leases.get(name), earlier)
        if answer is not None:
            return answer
        if stream is None:
            stream = self._streams[name] = _Stream(append.time_ns, append.time_ns)
        last_hash = stream.rows[-1].hash if stream.rows else chain.seed(name)
        first = version + 1
        for data, digest in zip(append.records, append.digests, strict=True):
            last_hash = chain.link(last_hash, digest)
            version += 1
            self._positions.append((name, version))
            stream.rows.append(Row(name, version, len(self._positions), last_hash, data))
        stream.updated_ns = append.time_ns
        self._blobs |= append.blobs
        for tag, description in append.schemas.items():
            self._kinds[keys.kind_key(tag, description)] = description
        done = Appended(name, first, version, len(self._positions), last_hash, False)
        if append.key is not None:
            stream.ids[append.key] = keys.IdRow(first, version, done.position, last_hash, append.content)
        return done

    def head(self, stream: str) -> Head | None:  # noqa: D102
        with self._lock:
            found = self._streams.get(stream)
            return found.head(stream) if found else None

    def heads(self, *, after: str = "", limit: int = 1000) -> list[Head]:  # noqa: D102
        with self._lock:
            names = sorted(self._streams, key=str.encode)
            past = [name for name in names if name.encode() > after.encode()]
            return [self._streams[name].head(name) for name in past[:limit]]

    def count(self) -> tuple[int, int]:  # noqa: D102
        with self._lock:
            return len(self._streams), len(self._positions)

    def data(self, stream: str, *, after: int, upto: int) -> list[bytes]:  # noqa: D102
        with self._lock:
            if stream not in self._streams:
                raise StreamNotFound(stream)
            found = [row.data for row in self._streams[stream].rows[after:upto]]
            if len(found) < upto - after:
                raise RecordDamaged(stream, after + len(found) + 1, "the event is missing")
            return found

    def rows(  # noqa: D102
        self, stream: str, *, after: int, upto: int, limit: int, backwards: bool = False
    ) -> list[Row]:
        with self._lock:
            found = self._streams.get(stream)
            if found is None or upto <= after or limit <= 0:
                return []
            rows = found.rows[after:upto]
            return rows[::-1][:limit] if backwards else rows[:limit]

    def rows_by_position(self, *, after: int, limit: int) -> list[Row]:  # noqa: D102
        with self._lock:
            where = self._positions[after : after + limit]
            return [self._streams[name].rows[version - 1] for name, version in where]

    def position(self, position: int) -> tuple[str, int] | None:  # noqa: D102
        with self._lock:
            inside = 1 <= position <= len(self._positions)
            return self._positions[position - 1] if inside else None

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

    def usage(self) -> dict[str, Any]:  # noqa: D102
        with self._lock:
            sizes = [len(row.data) for stream in self._streams.values() for row in stream.rows]
            tables = {
                "streams": {"rows": len(self._streams), "bytes": 0},
                "events": {"rows": len(sizes), "bytes": sum(sizes)},
                "blobs": {"rows": len(self._blobs), "bytes": sum(map(len, self._blobs.values()))},
            }
            return {"tables": tables, "file_bytes": 0, "map_bytes": 0}

    def check(self) -> list[str]:  # noqa: D102
        return []

    def close(self) -> None:
        """Keep the rows: this object is what reopening means here."""
