"""Forks, named heads and deleted streams: rows of the forest. The part of `LmdbBackend` about lineages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import lmdb
import msgspec
from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.forest import Forest
from tailfold.engine.backend.lmdb.faults import name_of
from tailfold.engine.backend.lmdb.segment import Segment, pack
from tailfold.engine.backend.port import (
    FORMAT_FORKS,
    FORMAT_SEGMENTS,
    Child,
    Head,
    Piece,
    Row,
    Swept,
    Tombstone,
)
from tailfold.engine.errors import (
    HeadMoved,
    RecordDamaged,
    StreamExists,
    StreamNeeded,
    StreamNotFound,
)

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]


class Part(NamedTuple):
    """The rows of one stream number with after < version <= upto."""

    number: int
    after: int
    upto: int


class ForkRows:
    """The fork methods of the port, on the tables of one environment."""

    _names: lmdb._Database
    _streams: lmdb._Database
    _events: lmdb._Database
    _positions: lmdb._Database
    _ids: lmdb._Database
    _leases: lmdb._Database
    _blobs: lmdb._Database
    _meta: lmdb._Database
    _snapshots: lmdb._Database
    _children: lmdb._Database

    if TYPE_CHECKING:  # what the backend brings
        path: Path

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: Callable[[Writes], _T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _any_stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _stream_row(self, txn: _Txn, key: bytes, name: str) -> keys.StreamRow: ...
        def _last_number(self, txn: _Txn) -> int: ...
        def _raise_format(self, txn: _Txn, needed: int) -> None: ...
        def _rows_of(
            self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, origin: str, limit: int, backwards: bool
        ) -> list[Row]: ...
        def _segment_here(
            self, cursor: lmdb.Cursor[bytes], number: int, version: int, stream: str
        ) -> Segment | None: ...
        def _each_record(self, txn: _Txn) -> Iterator[tuple[int, int, bytes]]: ...

    # -- lineages --------------------------------------------------------------------------------------

    def _parts(self, txn: _Txn, number: int, row: keys.StreamRow, after: int, upto: int) -> list[Part]:
        """Return where the versions *after*+1..*upto* of a stream stand, oldest first."""
        return list(self._parts_back(txn, number, row, after, upto))[::-1]

    def _parts_back(self, txn: _Txn, number: int, row: keys.StreamRow, after: int, upto: int) -> Iterator[Part]:
        """Yield where the versions *after*+1..*upto* of a stream stand, newest first.

        Up to 64 forks are in a row, so that a deep chain costs little more than its events.
        """
        while True:
            base = row.base
            if upto > base and upto > after:
                yield Part(number, max(after, base), upto)
            if after >= base:
                return
            upto = min(upto, base)
            pairs = row.pairs
            tops = [top for _, top in pairs]
            i = bisect_left(tops, upto)  # the piece that holds *upto*
            while i > 0 and upto > after:
                below = tops[i - 1]
                if upto > below:
                    yield Part(pairs[i][0], max(after, below), upto)
                upto = min(upto, below)
                i -= 1
            if upto <= after:
                return
            number = pairs[0][0]
            row = self._row(txn, number)

    def _owner(self, txn: _Txn, number: int, row: keys.StreamRow, version: int) -> tuple[int, keys.StreamRow]:
        """Return the stream under which *version* of a stream stands."""
        if version > row.base:
            return number, row
        [part] = self._parts(txn, number, row, version - 1, version)
        return part.number, self._row(txn, part.number)

    def _row(self, txn: _Txn, number: int) -> keys.StreamRow:
        return self._stream_row(txn, keys.STREAM_KEY.pack(number), f"#{number}")

    def _hash_at(self, txn: _Txn, number: int, name: str, version: int) -> bytes:
        cursor = txn.cursor(self._events)
        prefix = keys.EVENT_PREFIX.pack(number, version)
        if (
            cursor.set_range(prefix)
            and cursor.key().startswith(prefix)
            and len(cursor.key()) == keys.EVENT_KEY.size
        ):
            return keys.split_event_key(cursor.key()).hash
        rows = self._rows_of(cursor, Part(number, version - 1, version), name, name, 1, False)
        if not rows:
            raise RecordDamaged(name, version, "the event is missing")
        return rows[0].hash

    def _base_hash(self, txn: _Txn, number: int, row: keys.StreamRow) -> bytes:
        """Return the chain hash with which the own events of a stream begin."""
        if not row.lineage:
            return chain.seed(row.name)
        owner, owner_row = self._owner(txn, number, row, row.base)
        return self._hash_at(txn, owner, owner_row.name, row.base)

    def lineage(self, stream: str, *, deleted: bool = False) -> list[Piece]:  # noqa: D102 - port
        def work(txn: _Txn) -> list[Piece]:
            known = self._any_stream(txn, stream) if deleted else self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            parts = self._parts(txn, number, row, 0, row.version)
            pieces = []
            for part in parts:
                owner = row if part.number == number else self._row(txn, part.number)
                pieces.append(Piece(owner.name, part.after, part.upto, owner.deleted_ns > 0))
            if row.version == row.base:
                pieces.append(Piece(row.name, row.base, row.base, False))
            return pieces

        return self._read(work)

    def spread(self, stream: str, *, after: int) -> int:  # noqa: D102
        def work(txn: _Txn) -> int:
            known = self._stream(txn, stream)
            if known is None or after >= known[1].base:
                return 1
            return sum(1 for _ in self._parts_back(txn, *known, after, known[1].version))

        return self._read(work)

    def children(self, stream: str) -> list[Child]:  # noqa: D102
        def work(txn: _Txn) -> list[Child]:
            known = self._any_stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            rows = [(at, self._row(txn, child)) for at, child in self._children_of(txn, known[0])]
            return [Child(row.name, at, row.deleted_ns > 0) for at, row in rows]

        return self._read(work)

    def _children_of(self, txn: _Txn, number: int) -> Iterator[tuple[int, int]]:
        cursor = txn.cursor(self._children)
        if cursor.set_range(keys.STREAM_KEY.pack(number)):
            for key in cursor.iternext(keys=True, values=False):
                parent, at, child = keys.CHILD_KEY.unpack(key)
                if parent != number:
                    break
                yield at, child

    def forks(self) -> list[Head]:  # noqa: D102
        def work(txn: _Txn) -> list[Head]:
            numbers = [
                keys.CHILD_KEY.unpack(key)[2]
                for key in txn.cursor(self._children).iternext(keys=True, values=False)
            ]
            rows = (self._row(txn, number) for number in numbers)
            return [
                Head(row.name, row.version, row.hash, row.created_ns, row.updated_ns, row.base)
                for row in rows
                if not row.deleted_ns
            ]

        return self._read(work)

    # -- fork and named heads ----------------------------------------------------------------------------

    def fork(  # noqa: D102
        self, stream: str, *, at: int, name: str, time_ns: int, head: tuple[str, str | None] | None = None
    ) -> Head:
        def work(txn: _Txn) -> Head:
            known = self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            if not 1 <= at <= row.version:
                raise StreamNotFound(stream, version=at, head=row.version)
            if self._any_stream(txn, name) is not None:
                raise StreamExists(name)
            owner, owner_row = self._owner(txn, number, row, at)
            hash_at = self._hash_at(txn, owner, owner_row.name, at)
            pair = keys.LINEAGE_PAIR.pack(owner, at)
            full = len(owner_row.lineage) >= keys.LINEAGE_PAIRS_MAX * keys.LINEAGE_PAIR.size
            lineage = pair if full else owner_row.lineage + pair
            child = self._last_number(txn) + 1
            made = keys.StreamRow(name, at, hash_at, time_ns, time_ns, lineage)
            txn.put(name.encode(), keys.STREAM_KEY.pack(child), db=self._names)
            txn.put(keys.STREAM_KEY.pack(child), keys.encode_stream_row(made), db=self._streams)
            txn.put(keys.CHILD_KEY.pack(owner, at, child), b"", db=self._children)
            if head is not None:
                self._move_head(txn, head[0], name, head[1])
            self._raise_format(txn, FORMAT_FORKS)
            return Head(name, at, hash_at, time_ns, time_ns, at)

        return self._write(work)

    def named_heads(self) -> dict[str, str]:  # noqa: D102
        return self._read(lambda txn: dict(self._named_heads(txn)))

    def _named_heads(self, txn: _Txn) -> Iterator[tuple[str, str]]:
        cursor = txn.cursor(self._meta)
        if cursor.set_range(keys.HEAD_PREFIX):
            for key, stream in cursor.iternext():
                if not key.startswith(keys.HEAD_PREFIX):
                    break
                yield name_of(self.path, key[len(keys.HEAD_PREFIX) :]), name_of(self.path, stream)

    def move_head(self, name: str, to: str | None, *, expected: str | None) -> None:  # noqa: D102
        def work(txn: _Txn) -> None:
            if to is not None and self._stream(txn, to) is None:
                raise StreamNotFound(to)
            self._move_head(txn, name, to, expected)
            self._raise_format(txn, FORMAT_FORKS)

        self._write(work)

    def _move_head(self, txn: _Txn, name: str, to: str | None, expected: str | None) -> None:
        key = keys.HEAD_PREFIX + name.encode()
        stored = txn.get(key, db=self._meta)
        actual = name_of(self.path, stored) if stored is not None else None
        if actual != expected:
            raise HeadMoved(name, expected, actual)
        if to is None:
            txn.delete(key, db=self._meta)
        else:
            txn.put(key, to.encode(), db=self._meta)

    # -- delete and sweep --------------------------------------------------------------------------------

    def delete(self, stream: str, *, time_ns: int, reroot: bool = False, drop_heads: bool = False) -> None:  # noqa: D102
        def work(txn: _Txn) -> None:
            known = self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            forest = self._forest(txn)
            children = [child for _, child in self._children_of(txn, number) if forest.alive(child)]
            needing = [self._row(txn, child).name for child in children]
            heads = [name for name, target in self._named_heads(txn) if target == stream]
            if (heads and not drop_heads) or (needing and not reroot):
                raise StreamNeeded(stream, [] if reroot else needing, heads)
            for name in heads:
                self._move_head(txn, name, None, stream)
            gone = msgspec.structs.replace(row, deleted_ns=time_ns)
            txn.put(keys.STREAM_KEY.pack(number), keys.encode_stream_row(gone), db=self._streams)
            self._count_deleted(txn)
            self._raise_format(txn, FORMAT_FORKS)

        self._write(work)

    def _forest(self, txn: _Txn) -> Forest[int]:
        return Forest(
            lambda number: list(self._children_of(txn, number)),
            lambda number: self._row(txn, number).deleted_ns > 0,
        )

    def _tombstones(self, txn: _Txn) -> list[tuple[int, keys.StreamRow]]:
        if not int.from_bytes(txn.get(keys.DELETED_KEY, b"", db=self._meta), "big"):
            return []
        rows = ((int.from_bytes(key, "big"), self._stream_row(txn, key, "?")) for key, _ in self._all_streams(txn))
        return [(number, row) for number, row in rows if row.deleted_ns]

    def _all_streams(self, txn: _Txn) -> list[tuple[bytes, bytes]]:
        return list(txn.cursor(self._streams).iternext())

    def bury(self, tombstone: Tombstone, *, last_position: int | None = None) -> None:  # noqa: D102
        def work(txn: _Txn) -> None:
            name, at_ns = tombstone.stream, tombstone.deleted_ns
            known = self._any_stream(txn, name)
            if known is None:
                version = tombstone.version - tombstone.base
                number = self._last_number(txn) + 1
                gone = keys.StreamRow(name, version, b"", at_ns, at_ns, b"", at_ns, version)
                txn.put(name.encode(), keys.STREAM_KEY.pack(number), db=self._names)
                self._count_deleted(txn)
            else:
                number, row = known
                present = row.version - row.reclaimed
                gone = msgspec.structs.replace(
                    row, version=tombstone.version, reclaimed=tombstone.version - present, deleted_ns=at_ns
                )
                if not row.deleted_ns:
                    self._count_deleted(txn)
            txn.put(keys.STREAM_KEY.pack(number), keys.encode_stream_row(gone), db=self._streams)
            last = txn.cursor(self._positions)
            if last_position is not None:
                key = keys.POSITION_KEY.pack(last_position)
                if not last.last() or last.key() < key:
                    txn.put(key, keys.POSITION_ROW.pack(number, gone.version), db=self._positions)
            self._raise_format(txn, FORMAT_FORKS)

        self._write(work)

    def _count_deleted(self, txn: _Txn) -> None:
        count = int.from_bytes(txn.get(keys.DELETED_KEY, b"", db=self._meta), "big") + 1
        txn.put(keys.DELETED_KEY, count.to_bytes(8, "big"), db=self._meta)

    def tombstones(self) -> list[Tombstone]:  # noqa: D102
        def work(txn: _Txn) -> list[Tombstone]:
            found = []
            for number, row in self._tombstones(txn):
                base_hash = b""
                kept = row.version - row.reclaimed
                if row.lineage and kept > row.base:  # else nothing rests on it, maybe not even its parent is there
                    base_hash = self._base_hash(txn, number, row)
                found.append(Tombstone(row.name, row.base, kept, row.version, row.deleted_ns, base_hash))
            return found

        return self._read(work)

    def own_rows(self, stream: str, *, after: int, limit: int) -> list[Row]:  # noqa: D102
        def work(txn: _Txn) -> list[Row]:
            known = self._any_stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            part = Part(number, max(after, row.base), (1 << 63) - 1)
            return self._rows_of(txn.cursor(self._events), part, stream, row.name, limit, False)

        return self._read(work)

    def sweep(self, refs_in: Callable[[bytes], list[bytes]], *, dry_run: bool = False) -> Swept:  # noqa: D102
        def work(txn: _Txn) -> Swept:
            forest = self._forest(txn)
            last = txn.cursor(self._positions)
            last_position = bytes(last.key()) if last.last() else b""
            events = event_bytes = snapshots = 0
            keeps: dict[int, int] = {}
            for number, row in self._tombstones(txn):
                keep = keeps[number] = max(forest.needed(number), row.base)
                past = Part(number, keep, (1 << 63) - 1)
                gone = self._rows_of(txn.cursor(self._events), past, row.name, row.name, 1 << 62, False)
                events += len(gone)
                event_bytes += sum(len(one.data) for one in gone)
                if not dry_run:
                    self._drop_events(txn, number, row, keep)
                    for one in gone:
                        position = keys.POSITION_KEY.pack(one.position)
                        if position != last_position:  # the last one stands: the next append counts on from it
                            txn.delete(position, db=self._positions)
                snapshots += self._drop_of_tombstone(txn, number, row, keep, dry_run)
            blobs, blob_bytes = self._sweep_blobs(txn, refs_in, keeps, dry_run)
            return Swept(events, event_bytes, snapshots, blobs, blob_bytes)

        return self._read(work) if dry_run else self._write(work)

    def _drop_events(self, txn: _Txn, number: int, row: keys.StreamRow, keep: int) -> None:
        """Delete the own events past *keep*; a segment that goes past it is packed anew."""
        cursor = txn.cursor(self._events)
        if not cursor.set_range(keys.EVENT_PREFIX.pack(number, keep + 1)):
            return
        segment = self._segment_here(cursor, number, keep, row.name) if keep else None
        if segment is not None:
            rows = segment.rows(row.name, segment.first - 1, keep, row.name)
            txn.put(*pack(number, rows), db=self._events)
            self._raise_format(txn, FORMAT_SEGMENTS)
        prefix = keys.STREAM_KEY.pack(number)
        while cursor.set_range(keys.EVENT_PREFIX.pack(number, keep + 1)) and cursor.key().startswith(prefix):
            txn.delete(bytes(cursor.key()), db=self._events)

    def _drop_of_tombstone(self, txn: _Txn, number: int, row: keys.StreamRow, keep: int, dry_run: bool) -> int:
        """Drop what hangs on the events past *keep*: snapshots, ids, the entry among its parent's children."""
        prefix = keys.STREAM_KEY.pack(number)
        snapshots = []
        cursor = txn.cursor(self._snapshots)
        if cursor.set_range(prefix):
            for key in cursor.iternext(keys=True, values=False):
                if not key.startswith(prefix):
                    break
                if keys.SNAPSHOT_KEY.unpack(key)[2] > keep:
                    snapshots.append(bytes(key))
        if dry_run:
            return len(snapshots)
        for key in snapshots:
            txn.delete(key, db=self._snapshots)
        ids = txn.cursor(self._ids)
        gone = []
        if ids.set_range(prefix):
            for id_key, id_row in ids.iternext():
                if not id_key.startswith(prefix):
                    break
                if keys.decode_id_row(id_row).last > keep:
                    gone.append(bytes(id_key))
        for id_key in gone:
            txn.delete(id_key, db=self._ids)
        if keep == row.base and row.lineage:
            parent, at = row.pairs[-1]
            txn.delete(keys.CHILD_KEY.pack(parent, at, number), db=self._children)
        txn.delete(row.name.encode(), db=self._leases)
        if row.reclaimed != row.version - keep:
            left = msgspec.structs.replace(row, reclaimed=row.version - keep, sealed=min(row.sealed, keep))
            txn.put(prefix, keys.encode_stream_row(left), db=self._streams)
        return len(snapshots)

    def _sweep_blobs(
        self, txn: _Txn, refs_in: Callable[[bytes], list[bytes]], keeps: dict[int, int], dry_run: bool
    ) -> tuple[int, int]:
        if not txn.stat(self._blobs)["entries"]:
            return 0, 0
        live: set[bytes] = set()
        for number, version, data in self._each_record(txn):
            if number not in keeps or version <= keeps[number]:
                live.update(refs_in(data))
        stored = txn.cursor(self._blobs).iternext()
        gone = [(digest, len(content)) for digest, content in stored if digest not in live]
        if not dry_run:
            for digest, _ in gone:
                txn.delete(digest, db=self._blobs)
        return len(gone), sum(size for _, size in gone)
