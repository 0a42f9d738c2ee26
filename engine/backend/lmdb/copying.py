"""Rows that come with no append: provenance, copied blobs and ids. The part of `LmdbBackend` for migration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import lmdb
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import IdRow
from tailfold.engine.errors import StreamNotFound

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]


class CopyRows:
    """The copying methods of the port, on the tables of one environment."""

    _ids: lmdb._Database
    _blobs: lmdb._Database
    _kinds: lmdb._Database
    _meta: lmdb._Database

    if TYPE_CHECKING:  # what the backend brings

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: Callable[[Writes], _T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _any_stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _id(self, txn: _Txn, key: bytes) -> IdRow | None: ...

    def ids(self, stream: str) -> list[tuple[bytes, IdRow]]:  # noqa: D102
        def work(txn: _Txn) -> list[tuple[bytes, IdRow]]:
            known = self._any_stream(txn, stream)
            found: list[tuple[bytes, IdRow]] = []
            cursor = txn.cursor(self._ids)
            if known is not None and cursor.set_range(keys.STREAM_KEY.pack(known[0])):
                for key, _ in cursor.iternext():
                    number, id_hash = keys.ID_KEY.unpack(key)
                    row = self._id(txn, key)
                    if number != known[0] or row is None:
                        break
                    found.append((id_hash, row))
            return found

        return self._read(work)

    def meta(self, prefix: bytes) -> dict[bytes, bytes]:  # noqa: D102
        def work(txn: _Txn) -> dict[bytes, bytes]:
            cursor = txn.cursor(self._meta)
            found: dict[bytes, bytes] = {}
            if cursor.set_range(prefix or b"\0"):
                for key, row in cursor.iternext():
                    if not key.startswith(prefix):
                        break
                    found[key] = row
            return found

        return self._read(work)

    def put(  # noqa: D102
        self,
        *,
        meta: Mapping[bytes, bytes] | None = None,
        blobs: Mapping[bytes, bytes] | None = None,
        schemas: Sequence[tuple[str, bytes]] = (),
        ids: Mapping[str, Mapping[bytes, IdRow]] | None = None,
    ) -> None:
        def work(txn: _Txn) -> None:
            for stream, rows in (ids or {}).items():
                known = self._stream(txn, stream)
                if known is None:
                    raise StreamNotFound(stream)
                for id_hash, row in rows.items():
                    txn.put(keys.ID_KEY.pack(known[0], id_hash), keys.encode(row), db=self._ids)
            for digest, content in (blobs or {}).items():
                txn.put(digest, content, overwrite=False, db=self._blobs)
            for tag, description in schemas:
                txn.put(keys.kind_key(tag, description), description, overwrite=False, db=self._kinds)
            for key, value in (meta or {}).items():
                txn.put(key, value, db=self._meta)

        self._write(work)
