"""Checkpoints of a store: how far each follower has come. The part of `LmdbBackend` that followers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import lmdb
from tailfold.engine.backend import keys, rules
from tailfold.engine.backend.lmdb.faults import name_of
from tailfold.engine.backend.port import CheckpointWrite

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]


class CheckpointRows:
    """The checkpoint methods of the port, on the tables of one environment."""

    _checkpoints: lmdb._Database

    if TYPE_CHECKING:  # what the backend brings
        path: Path

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: Callable[[Writes], _T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _last_position(self, txn: _Txn) -> int: ...
        def _put_new_chunks(self, txn: _Txn, new: Mapping[bytes, bytes], needs: Sequence[bytes]) -> bool: ...

    def checkpoint(self, name: str) -> bytes | None:  # noqa: D102
        return self._read(lambda txn: txn.get(name.encode(), db=self._checkpoints))

    def checkpoints(self) -> list[tuple[str, bytes]]:  # noqa: D102
        rows = self._read(lambda txn: list(txn.cursor(self._checkpoints).iternext()))
        return [(name_of(self.path, name), row) for name, row in rows]

    def put_checkpoint(self, name: str, write: CheckpointWrite) -> bool:  # noqa: D102
        def work(txn: _Txn) -> bool:
            if write.stream is None:
                last = self._last_position(txn)
            else:
                known = self._stream(txn, write.stream)
                last = known[1].version if known else 0
            stored = txn.get(name.encode(), db=self._checkpoints)
            if not rules.may_replace(name, stored, write, last):
                return False
            if not self._put_new_chunks(txn, write.chunks, write.needs):
                return False
            return txn.put(name.encode(), write.row, db=self._checkpoints)

        return self._write(work)

    def drop_checkpoint(self, name: str) -> bool:  # noqa: D102
        return self._write(lambda txn: txn.delete(name.encode(), db=self._checkpoints))
