"""A write transaction that notes what it writes, for the write-ahead file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import lmdb
import msgspec

if TYPE_CHECKING:  # lmdb's classes take no parameters at run time
    _Txn = lmdb.Transaction[bytes]

NOTED_BYTES_MAX = 256 << 20
"""A transaction that writes more is not noted: it is acknowledged once `data.mdb` itself is on the disk."""
PAGES_LEAST = 6
"""Pages that any transaction writes, besides one for each row that stands somewhere in a table: reckoned from how
files grow, 7 to 8 pages an append."""

Noted = list[tuple[str, list[tuple[bytes, bytes | None]]]]
"""What a transaction wrote, in order: a table, and rows of it; no value for a row that was deleted."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Noted).decode


class Writes:
    """All that the rows of a store are written through; reading goes to the transaction itself.

    Never write through a cursor: the write-ahead file would not know.
    """

    __slots__ = ("_names", "_noted", "_scattered", "_size", "_txn", "cursor", "get", "id", "stat")

    def __init__(self, txn: _Txn, names: Mapping[lmdb._Database, str]) -> None:
        self._txn = txn
        self._names = names
        self._noted: list[tuple[str, Sequence[tuple[bytes, bytes | None]]]] | None = []
        self._size = 0
        self._scattered = 0
        self.get: Callable[..., Any] = txn.get
        self.cursor = txn.cursor
        self.id = txn.id
        self.stat = txn.stat

    def put(self, key: bytes, value: bytes, *, db: lmdb._Database, overwrite: bool = True) -> bool:
        """Write one row; return False if it is there and not to be overwritten."""
        if not self._txn.put(key, value, overwrite=overwrite, db=db):
            return False
        self._note(db, ((key, value),), len(key) + len(value), 1)
        return True

    def put_all(self, rows: Sequence[tuple[bytes, bytes]], *, db: lmdb._Database, at_end: bool = False) -> None:
        """Write rows, in the order of their keys; *at_end* if all keys are past those of the table."""
        self._txn.cursor(db).putmulti(rows, append=at_end)
        pages = 0 if at_end else min(len(rows), self._txn.stat(db)["leaf_pages"])
        self._note(db, rows, sum(map(len, chain.from_iterable(rows))), pages)

    def delete(self, key: bytes, *, db: lmdb._Database) -> bool:
        """Delete one row; return False if it is not there."""
        if not self._txn.delete(key, db=db):
            return False
        self._note(db, ((key, None),), len(key), 1)
        return True

    def _note(
        self, db: lmdb._Database, rows: Sequence[tuple[bytes, bytes | None]], size: int, scattered: int
    ) -> None:
        self._size += size
        self._scattered += scattered
        if self._noted is not None:
            self._noted.append((self._names[db], rows))
            if self._size > NOTED_BYTES_MAX:
                self._noted = None

    @property
    def any(self) -> bool:
        """Something was written."""
        return self._size > 0

    @property
    def pages(self) -> int:
        """About how many pages the transaction writes."""
        return PAGES_LEAST + self._size // 2048 + self._scattered

    def body(self) -> bytes:
        """Return all that was written, for `apply`; empty if it is too much to be noted."""
        return _encode(self._noted) if self._noted is not None else b""


class UnnotedWrites(Writes):
    """Where LMDB flushes, or nothing does: nobody asks what was written."""

    __slots__ = ()

    def put(self, key: bytes, value: bytes, *, db: lmdb._Database, overwrite: bool = True) -> bool:  # noqa: D102
        return self._txn.put(key, value, overwrite=overwrite, db=db)

    def put_all(self, rows: Sequence[tuple[bytes, bytes]], *, db: lmdb._Database, at_end: bool = False) -> None:  # noqa: D102
        self._txn.cursor(db).putmulti(rows, append=at_end)

    def delete(self, key: bytes, *, db: lmdb._Database) -> bool:  # noqa: D102
        return self._txn.delete(key, db=db)


def read_noted(body: bytes, tables: Collection[str]) -> Noted:
    """Return what `Writes.body` noted; raises `msgspec.MsgspecError` if it is no such thing, or of other tables."""
    noted = _decode(body)
    for name, _ in noted:
        if name not in tables:
            raise msgspec.ValidationError(f"there is no table {name!r}")
    return noted


def apply(txn: _Txn, noted: Noted, tables: Mapping[str, lmdb._Database]) -> None:
    """Write again what was noted; doing it twice changes nothing."""
    for name, rows in noted:
        table = tables[name]
        for key, value in rows:
            if value is None:
                txn.delete(key, db=table)
            else:
                txn.put(key, value, db=table)


if TYPE_CHECKING:
    Reads = lmdb.Transaction[bytes] | Writes
    """What rows are read through."""
