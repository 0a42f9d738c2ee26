"""Whether forks and the streams that they left say the same of each other: for verify. Reads only."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import lmdb
from tailfold.engine.backend import keys
from tailfold.engine.errors import StoreDamaged

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.writes import Reads

    _Txn = Reads
    _Work = Callable[[_Txn], _T]


class ForkChecks:
    """The check, on the tables of one environment."""

    _streams: lmdb._Database
    _children: lmdb._Database

    if TYPE_CHECKING:  # what the backend brings

        def _read(self, work: _Work[_T]) -> _T: ...
        def _row(self, txn: _Txn, number: int) -> keys.StreamRow: ...
        def _stream_row(self, txn: _Txn, key: bytes, name: str) -> keys.StreamRow: ...

    def check_forks(self) -> list[tuple[str, str]]:  # noqa: D102 - port
        def work(txn: _Txn) -> list[tuple[str, str]]:
            found: list[tuple[str, str]] = []
            for key in txn.cursor(self._streams).iternext(keys=True, values=False):
                row = self._stream_row(txn, key, f"#{int.from_bytes(key, 'big')}")
                if row.lineage:
                    found += [(row.name, what) for what in self._wrong_lineage(txn, key, row)]
            for key in txn.cursor(self._children).iternext(keys=True, values=False):
                try:
                    parent, at, child = keys.CHILD_KEY.unpack(key)
                    row = self._row(txn, child)
                    if not row.lineage or row.pairs[-1] != (parent, at):
                        found.append((row.name, "it stands among the forks of another stream than its parent"))
                except (struct.error, StoreDamaged) as error:
                    found.append(("", f"a row of children cannot be read: {error}"))
            return found

        return self._read(work)

    def _wrong_lineage(self, txn: _Txn, key: bytes, row: keys.StreamRow) -> Iterator[str]:
        """Say what is wrong with the lineage of a fork: it is its parent's, and where it left that (see `fork`)."""
        size = keys.LINEAGE_PAIR.size
        if len(row.lineage) % size:
            yield "its lineage is cut short"
            return
        (number, at), pair = row.pairs[-1], row.lineage[-size:]
        try:
            parent = self._row(txn, number)
        except StoreDamaged:
            yield "it was forked from a stream that is not there"
            return
        full = len(parent.lineage) >= keys.LINEAGE_PAIRS_MAX * size
        if row.lineage != (pair if full else parent.lineage + pair):
            yield f"its lineage is not that of {parent.name!r}, which it was forked from"
        elif not parent.base < at <= parent.version:
            yield f"it left {parent.name!r} at version {at}, which is none of that stream's"
        elif (
            not row.deleted_ns
            and txn.get(keys.CHILD_KEY.pack(number, at, int.from_bytes(key, "big")), db=self._children) is None
        ):
            yield f"it is not among the forks of {parent.name!r}: deleting that would take its events"
