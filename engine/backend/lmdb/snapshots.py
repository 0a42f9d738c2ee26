"""Snapshots and chunks of a store: derived rows. The part of `LmdbBackend` that can be lost (I14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import lmdb
from tailfold.engine.backend import keys, rules
from tailfold.engine.backend.lmdb.forks import Part
from tailfold.engine.backend.port import HASH_BYTES, Collected, LaterSnapshot, SnapshotKey, SnapshotWrite
from tailfold.snapshots.chunks import reachable

FIRST_KEYS = 4

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]


class SnapshotRows:
    """The snapshot methods of the port, on the tables of one environment."""

    _events: lmdb._Database
    _snapshots: lmdb._Database
    _chunks: lmdb._Database
    _checkpoints: lmdb._Database

    if TYPE_CHECKING:  # what the backend brings

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: Callable[[Writes], _T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _parts_back(
            self, txn: _Txn, number: int, row: keys.StreamRow, after: int, upto: int
        ) -> Iterator[Part]: ...
        def _hash_at(self, txn: _Txn, number: int, name: str, version: int) -> bytes: ...
        def _owner(
            self, txn: _Txn, number: int, row: keys.StreamRow, version: int
        ) -> tuple[int, keys.StreamRow]: ...

    def snapshot_keys(  # noqa: D102
        self, stream: str, fold: bytes, *, upto: int, own: bool = False
    ) -> Iterator[SnapshotKey]:
        def newest(txn: _Txn, most: int | None) -> tuple[list[SnapshotKey], int]:
            known = self._stream(txn, stream)
            if known is None:
                return [], 0
            here = self._snapshot_keys(txn, known[0], fold, upto, most)
            return [key for key in here if key.version > known[1].base], known[1].base

        def older(txn: _Txn, past: int, most: int | None) -> tuple[list[SnapshotKey], int]:
            """Look through ancestors until some have snapshots; return how far back that was."""
            known = self._stream(txn, stream)
            for part in self._parts_back(txn, *known, 0, past) if known else ():
                here = self._snapshot_keys(txn, part.number, fold, min(part.upto, past), most)
                here = [key for key in here if key.version > part.after]
                if here:
                    return here, part.after
            return [], 0

        # The first few first: a load takes the newest one that it can use, and that is one of them.
        found, past = self._read(lambda txn: newest(txn, FIRST_KEYS))
        yield from found
        if len(found) == FIRST_KEYS:
            found, past = self._read(lambda txn: newest(txn, None))
            yield from found[FIRST_KEYS:]
        past = min(past, upto)
        while past > 0 and not own:
            here = past
            found, past = self._read(lambda txn, here=here: older(txn, here, FIRST_KEYS))  # type: ignore[misc]
            yield from found
            if len(found) == FIRST_KEYS:
                found, past = self._read(lambda txn, here=here: older(txn, here, None))  # type: ignore[misc]
                yield from found[FIRST_KEYS:]

    def _snapshot_keys(
        self, txn: _Txn, number: int, fold: bytes, upto: int, most: int | None = None
    ) -> list[SnapshotKey]:
        cursor = txn.cursor(self._snapshots)
        past = keys.SNAPSHOT_KEY.pack(number, fold, upto + 1, b"")
        found = cursor.prev() if cursor.set_range(past) else cursor.last()
        prefix = past[: -8 - HASH_BYTES]
        here: list[SnapshotKey] = []
        if found:
            for key in cursor.iterprev(keys=True, values=False):
                if not key.startswith(prefix):
                    break
                _, _, version, fold_id = keys.SNAPSHOT_KEY.unpack(key)
                here.append(SnapshotKey(version, fold_id))
                if len(here) == most:
                    break
        return here

    def snapshot(self, stream: str, fold: bytes, key: SnapshotKey) -> bytes | None:  # noqa: D102
        def work(txn: _Txn) -> bytes | None:
            known = self._stream(txn, stream)
            if known is None:
                return None
            owner, _ = self._owner(txn, *known, key.version)
            return txn.get(keys.SNAPSHOT_KEY.pack(owner, fold, *key), db=self._snapshots)

        return self._read(work)

    def snapshot_past(  # noqa: D102
        self, stream: str, fold: bytes, fold_id: bytes, version: int
    ) -> LaterSnapshot | None:
        def work(txn: _Txn) -> LaterSnapshot | None:
            known = self._stream(txn, stream)
            if known is None or not 1 <= version <= known[1].version:
                return None
            number, row = self._owner(txn, *known, version)
            cursor = txn.cursor(self._snapshots)
            start = keys.SNAPSHOT_KEY.pack(number, fold, version + 1, b"")
            prefix = start[: -8 - HASH_BYTES]
            if cursor.set_range(start):
                for key in cursor.iternext(keys=True, values=False):
                    if not key.startswith(prefix):
                        break
                    _, _, later, theirs = keys.SNAPSHOT_KEY.unpack(key)
                    if theirs == fold_id:
                        return LaterSnapshot(later, cursor.value(), self._hash_at(txn, number, row.name, later))
            return None

        return self._read(work)

    def folds(self, stream: str) -> list[bytes]:  # noqa: D102
        def work(txn: _Txn) -> list[bytes]:
            known = self._stream(txn, stream)
            cursor = txn.cursor(self._snapshots)
            found: list[bytes] = []
            at = keys.STREAM_KEY.pack(known[0]) if known else b""
            while known and cursor.set_range(at):
                number, fold, _, _ = keys.SNAPSHOT_KEY.unpack(cursor.key())
                if number != known[0]:
                    break
                found.append(fold)
                at = keys.SNAPSHOT_KEY.pack(number, fold, (1 << 64) - 1, b"\xff" * HASH_BYTES) + b"\0"
            return found

        return self._read(work)

    def put_snapshot(self, stream: str, snapshot: SnapshotWrite) -> bool:  # noqa: D102
        def work(txn: _Txn) -> bool:
            known = self._stream(txn, stream)
            if known is None:
                return False
            if not 1 <= snapshot.key.version <= known[1].version:
                return False
            number, row = self._owner(txn, *known, snapshot.key.version)
            if self._hash_at(txn, number, row.name, snapshot.key.version) != snapshot.hash:
                return False
            return self._put_snapshot(txn, number, row, snapshot)

        return self._write(work)

    def _put_snapshot(self, txn: _Txn, number: int, row: keys.StreamRow, snapshot: SnapshotWrite) -> bool:
        """Write a snapshot and thin the ladder, unless a chunk that it needs was collected meanwhile.

        It stands under the stream that its version stands under, so that all forks of it share it.
        """
        head = row.version
        if not self._put_new_chunks(txn, snapshot.chunks, snapshot.needs):
            return False
        txn.put(
            keys.SNAPSHOT_KEY.pack(number, snapshot.fold, *snapshot.key),
            snapshot.row,
            db=self._snapshots,
        )
        here = self._snapshot_keys(txn, number, snapshot.fold, head)
        for key in rules.superseded(here, snapshot.key.fold_id, head):
            txn.delete(keys.SNAPSHOT_KEY.pack(number, snapshot.fold, *key), db=self._snapshots)
        return True

    def _put_new_chunks(self, txn: _Txn, new: Mapping[bytes, bytes], needs: Sequence[bytes]) -> bool:
        """Write *new* chunks, if all others of *needs* are there."""
        has = txn.cursor(self._chunks).set_key
        if not all(ref in new or has(ref) for ref in needs):
            return False
        for digest, packed in new.items():
            txn.put(digest, packed, overwrite=False, db=self._chunks)
        return True

    def drop_snapshots(self, stream: str, fold: bytes, dropped: Sequence[SnapshotKey]) -> int:  # noqa: D102
        def work(txn: _Txn) -> int:
            known = self._stream(txn, stream)
            if known is None:
                return 0
            rows = (keys.SNAPSHOT_KEY.pack(known[0], fold, *key) for key in dropped)
            return sum(txn.delete(row, db=self._snapshots) for row in rows)

        return self._write(work)

    def chunk(self, digest: bytes) -> bytes | None:  # noqa: D102
        return self._read(lambda txn: txn.get(digest, db=self._chunks))

    def put_chunks(self, chunks: Mapping[bytes, bytes]) -> None:  # noqa: D102
        def work(txn: _Txn) -> None:
            for digest, packed in chunks.items():
                txn.put(digest, packed, db=self._chunks)

        self._write(work)

    def collect_chunks(self, *, dry_run: bool = False) -> Collected:  # noqa: D102
        def work(txn: _Txn) -> Collected:
            # One transaction: no snapshot can be written between marking and sweeping.
            roots: list[bytes] = []
            for _, row in txn.cursor(self._snapshots).iternext():
                roots += keys.refs_of_snapshot(row)
            for _, row in txn.cursor(self._checkpoints).iternext():
                roots += keys.refs_of_checkpoint(row)
            live = reachable(roots, lambda ref: txn.get(ref, db=self._chunks))
            dead = [
                (digest, len(packed))
                for digest, packed in txn.cursor(self._chunks).iternext()
                if digest not in live
            ]
            if not dry_run:
                for digest, _ in dead:
                    txn.delete(digest, db=self._chunks)
            return Collected(len(dead), sum(size for _, size in dead))

        return self._read(work) if dry_run else self._write(work)
