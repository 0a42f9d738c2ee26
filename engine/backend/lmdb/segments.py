"""Reading events that may be sealed, and sealing them: old events of one stream, up to 256 packed under one key.

Nothing above the backend can tell: the records inside are the same bytes, and so are their hashes and positions.
A segment replaces its events in one transaction, after it was unpacked and compared with them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import lmdb
import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.lmdb.segment import SEGMENT_BYTES, SEGMENT_RECORDS, Segment, pack
from tailfold.engine.backend.port import FORMAT_SEGMENTS, Row, Sealed
from tailfold.engine.errors import Corruption, RecordDamaged, StreamNotFound

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.forks import Part
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]

SEAL_STEP = 16
"""Records that are read at once for a segment, which may be full by bytes before it has all."""
CACHE_BYTES = 16 << 20
"""Unpacked segments that a backend keeps for those who read single old events."""


class SegmentCache:
    """Segments that were unpacked, the least used dropped first. What is in one never changes. Thread-safe."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._segments: OrderedDict[bytes, tuple[Segment, int]] = OrderedDict()
        self._bytes = 0
        self._changing = threading.Lock()

    def get(self, key: bytes) -> Segment | None:
        """Return the segment that stands under *key*, if it was kept."""
        with self._changing:
            found = self._segments.get(key)
            if found is None:
                return None
            self._segments.move_to_end(key)
            return found[0]

    def keep(self, segment: Segment) -> None:
        """Keep *segment*, as far as it is unpacked now, and drop others until all that is kept is small enough."""
        with self._changing:
            self._bytes -= self._segments.pop(segment.key, (segment, 0))[1]
            self._segments[segment.key] = segment, segment.unpacked_bytes
            self._bytes += segment.unpacked_bytes
            while self._bytes > self._most_bytes and len(self._segments) > 1:
                self._bytes -= self._segments.popitem(last=False)[1][1]


class SegmentRows:
    """Both, on the tables of one environment."""

    _streams: lmdb._Database
    _events: lmdb._Database
    _unpacked: SegmentCache

    if TYPE_CHECKING:  # what the backend brings

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: Callable[[Writes], _T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _raise_format(self, txn: _Txn, needed: int) -> None: ...

    def _segment_here(self, cursor: lmdb.Cursor[bytes], number: int, version: int, stream: str) -> Segment | None:
        """Return the segment under the cursor if it is one that holds *version* of this stream."""
        key = cursor.key()
        if len(key) != keys.SEGMENT_KEY.size or not key.startswith(keys.STREAM_KEY.pack(number)):
            return None
        segment = self._unpacked.get(key)
        if segment is None:
            segment = Segment(stream, key, cursor.value())
        return segment if segment.first <= version else None

    def _rows_of(
        self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, origin: str, limit: int, backwards: bool
    ) -> list[Row]:
        return (self._rows_back if backwards else self._rows_on)(cursor, part, stream, origin, limit)

    def _rows_on(self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, origin: str, limit: int) -> list[Row]:
        number, after, upto = part
        rows: list[Row] = []
        while len(rows) < limit and after < upto and cursor.set_range(keys.EVENT_PREFIX.pack(number, after + 1)):
            segment = self._segment_here(cursor, number, after + 1, origin)
            if segment is not None:
                rows += segment.rows(stream, after, min(upto, after + limit - len(rows)), origin)
                if limit < SEGMENT_RECORDS:  # a scan would only push out what others come back for
                    self._unpacked.keep(segment)
                after = min(upto, segment.last)
                continue
            plain = _plain_rows(cursor.iternext(), number, after, upto, stream, origin)
            rows += islice(plain, limit - len(rows))
            return rows
        return rows

    def _rows_back(self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, origin: str, limit: int) -> list[Row]:
        number, after, upto = part
        rows: list[Row] = []
        while len(rows) < limit and after < upto:
            found = cursor.set_range(keys.EVENT_PREFIX.pack(number, upto))
            segment = self._segment_here(cursor, number, upto, origin) if found else None
            if segment is not None:
                low = max(after, upto - (limit - len(rows)))
                rows += segment.rows(stream, low, upto, origin)[::-1]
                self._unpacked.keep(segment)
                upto = max(low, segment.first - 1)
                continue
            # Not in a segment: from the newest event at or before *upto* backwards, until a segment begins.
            past = cursor.set_range(keys.EVENT_PREFIX.pack(number, upto + 1))
            if not (cursor.prev() if past else cursor.last()):
                return rows
            stop = True
            for key, data in cursor.iterprev():
                if len(key) == keys.SEGMENT_KEY.size and key.startswith(keys.STREAM_KEY.pack(number)):
                    upto, stop = min(upto, keys.SEGMENT_KEY.unpack(key)[1]), False
                    break
                if len(rows) == limit or not (
                    plain := [*_plain_rows([(key, data)], number, after, upto, stream, origin)]
                ):
                    return rows
                rows += plain
            if stop:
                return rows
        return rows

    def _each_record(self, txn: _Txn) -> Iterator[tuple[int, int, bytes]]:
        """Yield (stream number, version, record bytes) of every stored event."""
        for key, data in txn.cursor(self._events).iternext():
            if len(key) == keys.SEGMENT_KEY.size:
                number, last, _ = keys.SEGMENT_KEY.unpack(key)
                segment = Segment(f"#{number}", key, data)
                for version, record in enumerate(segment.records(segment.first - 1, last), segment.first):
                    yield number, version, record
            else:
                at = keys.split_event_key(key)
                yield at.stream, at.version, data

    # -- seal ------------------------------------------------------------------------------------------

    def seal(self, stream: str, *, upto: int, whole: bool = True, most: int | None = None) -> Sealed:  # noqa: D102 - port
        sealed = Sealed(0, 0, 0, 0)
        while most is None or sealed.segments < most:
            one = self._seal_one(stream, upto, whole)
            if one is None:
                break
            sealed = Sealed(*(a + b for a, b in zip(sealed, one, strict=True)))
        return sealed

    def _seal_one(self, stream: str, upto: int, whole: bool) -> Sealed | None:
        """Seal the next segment of *stream*; None if there is nothing to seal."""
        from tailfold.engine.backend.lmdb.forks import Part

        def collect(txn: _Txn) -> tuple[tuple[int, keys.StreamRow], list[Row], Segment | None] | None:
            known = self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            cursor = txn.cursor(self._events)
            start, last = row.sealed or row.base, None
            if row.sealed and cursor.set_range(keys.EVENT_PREFIX.pack(number, row.sealed)):
                last = self._segment_here(cursor, number, row.sealed, stream)
                if last is None:
                    raise RecordDamaged(stream, row.sealed, "its segment is missing")
                if not last.full:
                    start = last.first - 1  # packed anew, together with what comes after
            end = min(upto, row.version, start + SEGMENT_RECORDS)
            if end <= max(start, row.sealed):
                return None
            rows: list[Row] = []
            size = 0
            while start + len(rows) < end and size < SEGMENT_BYTES:
                at = start + len(rows)
                some = self._rows_on(cursor, Part(number, at, min(end, at + SEAL_STEP)), stream, stream, SEAL_STEP)
                for one in some:
                    if one.version != start + len(rows) + 1:
                        raise RecordDamaged(stream, start + len(rows) + 1, "the event is missing")
                    rows.append(one)
                    size += len(one.data)
                    if size >= SEGMENT_BYTES:
                        break
                if not some:
                    raise RecordDamaged(stream, at + 1, "the event is missing")
            if whole and len(rows) < SEGMENT_RECORDS and size < SEGMENT_BYTES:
                return None
            return known, rows, last if start < (row.sealed or row.base) else None

        found = self._read(collect)
        if found is None:
            return None
        (number, seen), rows, replaced = found
        key, packed = pack(number, rows)
        again = Segment(stream, key, packed)
        if again.rows(stream, again.first - 1, again.last, stream) != rows:
            raise Corruption(f"stream {stream!r}: versions {again.first}..{again.last} do not unpack as they were;"
                             " they were left as they are. Run tailfold verify")  # fmt: skip

        def swap(txn: _Txn) -> bool:
            known = self._stream(txn, stream)
            if known is None or known[0] != number or known[1].sealed != seen.sealed:
                return False  # somebody else seals it, or it is gone
            row = known[1]
            for one in rows:
                if replaced is not None and one.version <= replaced.last:
                    continue
                if not txn.delete(
                    keys.EVENT_KEY.pack(number, one.version, one.position, one.hash), db=self._events
                ):
                    raise RecordDamaged(stream, one.version, "the event is missing")
            if replaced is not None:
                txn.delete(replaced.key, db=self._events)
            txn.put(key, packed, db=self._events)
            gone = msgspec.structs.replace(row, sealed=again.last)
            txn.put(keys.STREAM_KEY.pack(number), keys.encode_stream_row(gone), db=self._streams)
            self._raise_format(txn, FORMAT_SEGMENTS)
            return True

        if not self._write(swap):
            return None
        raw = sum(len(one.data) for one in rows)
        new = len(rows) - (replaced.count if replaced is not None else 0)
        return Sealed(new, 1, raw, len(packed))


def _plain_rows(
    items: Iterable[tuple[bytes, bytes]], wanted: int, after: int, upto: int, stream: str, origin: str
) -> Iterator[Row]:
    """Yield rows of plain events until one is not of stream number *wanted*, or not in *after*+1..*upto*.

    Raises `RecordDamaged` for a key that is none.
    """
    split, size = keys.EVENT_KEY.unpack, keys.EVENT_KEY.size
    for key, data in items:
        if len(key) != size:
            if len(key) == keys.SEGMENT_KEY.size:
                return
            raise RecordDamaged(stream, after + 1, f"an event key has {size} bytes, this one {len(key)}")
        number, at, position, chain_hash = split(key)
        if number != wanted or not after < at <= upto:
            return
        yield Row(stream, at, position, chain_hash, data, origin)
