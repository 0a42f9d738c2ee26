"""Sealed segments: up to 256 old events of one stream packed under one key, compressed. And the sealing of them.

Nothing above the backend can tell: the records inside are the same bytes, and so are their hashes and positions.
A segment replaces its events in one transaction, after it was unpacked and compared with them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

import lmdb
import msgspec
from tailfold.engine.backend import chain, keys
from tailfold.engine.backend.port import FORMAT_SEGMENTS, HASH_BYTES, Row, Sealed
from tailfold.engine.errors import Corruption, RecordDamaged, StreamNotFound

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_T = TypeVar("_T")
if TYPE_CHECKING:  # lmdb's classes take no parameters at run time
    from tailfold.engine.backend.lmdb.forks import Part

    _Txn = lmdb.Transaction[bytes]
    _Work = Callable[[_Txn], _T]

SEGMENT_RECORDS = 256
"""Records in a full segment."""
FRAME_BYTES = 64 << 10
"""Records are compressed in frames of about this size, so that reading one version unpacks no more than that."""
COMPRESSION_LEVEL = 3
_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: COMPRESSION_LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}
_LENGTH_BYTES = 4


class _Header(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stands before the frames. Later formats append fields."""

    first: int
    """Version of the first record."""
    positions: list[int]
    """Position of the first record, then the step to each further one."""
    lengths: list[int]
    """Bytes of each record."""
    counts: list[int]
    """Records in each frame."""
    sizes: list[int]
    """Bytes of each frame."""
    hashes: bytes
    """Chain hash before each frame, and after the last: the others follow from the records."""


_decode_header = msgspec.msgpack.Decoder(_Header).decode


class Segment:
    """A stored segment. Frames are unpacked when a record in them is asked for."""

    def __init__(self, stream: str, value: bytes) -> None:
        """Take the stored bytes apart; raise `RecordDamaged` if they are none."""
        self.stream = stream
        length = int.from_bytes(value[:_LENGTH_BYTES], "big")
        try:
            self._header = header = _decode_header(value[_LENGTH_BYTES : _LENGTH_BYTES + length])
        except msgspec.MsgspecError as error:
            raise RecordDamaged(stream, 0, f"a segment cannot be read: {error}") from None
        self._value = value
        self.first = header.first
        self.count = len(header.lengths)
        self.last = header.first + self.count - 1
        self._frames: dict[int, list[bytes]] = {}
        offsets = [_LENGTH_BYTES + length, *header.sizes]
        self._offsets = list(accumulate(offsets))
        self._starts = [0, *accumulate(header.counts)]
        shapes = (len(header.positions), self._starts[-1], self._offsets[-1], len(header.hashes))
        if shapes != (self.count, self.count, len(value), (len(header.counts) + 1) * HASH_BYTES):
            raise RecordDamaged(stream, self.first, "a segment's header does not fit its content")

    @property
    def hash_before(self) -> bytes:
        """The chain hash before its first record."""
        return self._header.hashes[:HASH_BYTES]

    def records(self, after: int, upto: int) -> list[bytes]:
        """Return the record bytes of the versions *after*+1..*upto* that are in it."""
        low, high = max(0, after + 1 - self.first), min(self.count, upto + 1 - self.first)
        found: list[bytes] = []
        for frame in self._frames_of(low, high):
            start = self._starts[frame]
            found += self._frame(frame)[max(0, low - start) : high - start]
        return found

    def rows(self, name: str, after: int, upto: int, origin: str) -> list[Row]:
        """Return the rows of the versions *after*+1..*upto* that are in it, with their hashes."""
        low, high = max(0, after + 1 - self.first), min(self.count, upto + 1 - self.first)
        positions = list(accumulate(self._header.positions))
        found: list[Row] = []
        for frame in self._frames_of(low, high):
            link = self._header.hashes[frame * HASH_BYTES : (frame + 1) * HASH_BYTES]
            for index, data in enumerate(self._frame(frame), self._starts[frame]):
                link = chain.link(link, chain.digest(data))
                if low <= index < high:
                    found.append(Row(name, self.first + index, positions[index], link, data, origin))
            if link != self._header.hashes[(frame + 1) * HASH_BYTES : (frame + 2) * HASH_BYTES]:
                versions = f"{self.first + self._starts[frame]}..{self.first + self._starts[frame + 1] - 1}"
                why = f"the stored bytes of versions {versions} do not give the chain hash"
                raise RecordDamaged(self.stream, self.first + self._starts[frame], why)
        return found

    def _frames_of(self, low: int, high: int) -> Iterator[int]:
        for frame in range(len(self._header.counts)):
            if self._starts[frame] < high and self._starts[frame + 1] > low:
                yield frame

    def _frame(self, frame: int) -> list[bytes]:
        known = self._frames.get(frame)
        if known is not None:
            return known
        start, end = self._starts[frame], self._starts[frame + 1]
        try:
            body = zstd.decompress(self._value[self._offsets[frame] : self._offsets[frame + 1]])
        except zstd.ZstdError as error:
            why = (
                f"the segment of versions {self.first + start}..{self.first + end - 1} cannot be unpacked: {error}"
            )
            raise RecordDamaged(self.stream, self.first + start, why) from None
        ends = list(accumulate(self._header.lengths[start:end], initial=0))
        if ends[-1] != len(body):
            raise RecordDamaged(self.stream, self.first + start, "a segment's lengths do not fit its content")
        records = [body[ends[i] : ends[i + 1]] for i in range(end - start)]
        self._frames[frame] = records
        return records


def pack(rows: Sequence[Row], hash_before: bytes) -> bytes:
    """Return the segment of contiguous *rows*; *hash_before* is the chain hash before the first."""
    counts: list[int] = []
    frames: list[bytes] = []
    hashes = [hash_before]
    gathered: list[bytes] = []
    size = 0
    for i, row in enumerate(rows):
        gathered.append(row.data)
        size += len(row.data)
        if size >= FRAME_BYTES or i == len(rows) - 1:
            frames.append(zstd.compress(b"".join(gathered), options=_OPTIONS))
            counts.append(len(gathered))
            hashes.append(row.hash)
            gathered, size = [], 0
    places = [row.position for row in rows]
    steps = [places[0], *(b - a for a, b in pairwise(places))]
    lengths = [len(row.data) for row in rows]
    header = keys.encode(_Header(rows[0].version, steps, lengths, counts, list(map(len, frames)), b"".join(hashes)))
    return len(header).to_bytes(_LENGTH_BYTES, "big") + header + b"".join(frames)


class SegmentRows:
    """Reading events that may be sealed, and sealing them, on the tables of one environment."""

    _streams: lmdb._Database
    _events: lmdb._Database

    if TYPE_CHECKING:  # what the backend brings

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: _Work[_T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _raise_format(self, txn: _Txn, needed: int) -> None: ...
        def _base_hash(self, txn: _Txn, number: int, row: keys.StreamRow) -> bytes: ...

    def _segment_here(self, cursor: lmdb.Cursor[bytes], number: int, version: int, stream: str) -> Segment | None:
        """Return the segment under the cursor if it is one that holds *version* of this stream."""
        key = cursor.key()
        if len(key) != keys.SEGMENT_KEY.size or not key.startswith(keys.STREAM_KEY.pack(number)):
            return None
        segment = Segment(stream, cursor.value())
        if keys.SEGMENT_KEY.unpack(key)[1] != segment.last:
            raise RecordDamaged(stream, version, "a segment stands under another version")
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
                after = min(upto, segment.last)
                continue
            for key, data in cursor.iternext():
                row = _row(key, data, stream, origin, after + 1)
                if row is None or len(rows) == limit or not _is_in(key, number, after, upto):
                    return rows
                rows.append(row)
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
                row = _row(key, data, stream, origin, upto)
                if row is None or len(rows) == limit or not _is_in(key, number, after, upto):
                    return rows
                rows.append(row)
            if stop:
                return rows
        return rows

    def _each_record(self, txn: _Txn) -> Iterator[tuple[int, int, bytes]]:
        """Yield (stream number, version, record bytes) of every stored event."""
        for key, data in txn.cursor(self._events).iternext():
            if len(key) == keys.SEGMENT_KEY.size:
                number, last, _ = keys.SEGMENT_KEY.unpack(key)
                segment = Segment(f"#{number}", data)
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

        def collect(txn: _Txn) -> tuple[keys.StreamRow, list[Row], bytes, Segment | None] | None:
            known = self._stream(txn, stream)
            if known is None:
                raise StreamNotFound(stream)
            number, row = known
            cursor = txn.cursor(self._events)
            start, before, last = row.sealed or row.base, None, None
            if row.sealed and cursor.set_range(keys.EVENT_PREFIX.pack(number, row.sealed)):
                last = self._segment_here(cursor, number, row.sealed, stream)
                if last is None:
                    raise RecordDamaged(stream, row.sealed, "its segment is missing")
                if last.count < SEGMENT_RECORDS:
                    start = last.first - 1  # packed anew, together with what comes after
            end = min(upto, row.version, start + SEGMENT_RECORDS)
            if end <= row.sealed or end - start < (SEGMENT_RECORDS if whole else 1):
                return None
            rows = self._rows_on(cursor, Part(number, start, end), stream, stream, SEGMENT_RECORDS)
            if [one.version for one in rows] != list(range(start + 1, end + 1)):
                raise RecordDamaged(stream, start + len(rows) + 1, "the event is missing")
            if start > row.base:
                [previous] = self._rows_on(cursor, Part(number, start - 1, start), stream, stream, 1)
                before = previous.hash
            else:
                before = self._base_hash(txn, number, row)
            return row, rows, before, last if start < (row.sealed or row.base) else None

        found = self._read(collect)
        if found is None:
            return None
        seen, rows, before, replaced = found
        packed = pack(rows, before)
        again = Segment(stream, packed)
        if again.rows(stream, again.first - 1, again.last, stream) != rows:
            raise Corruption(f"stream {stream!r}: versions {again.first}..{again.last} do not unpack as they were;"
                             " they were left as they are. Run tailfold verify")  # fmt: skip

        def swap(txn: _Txn) -> bool:
            known = self._stream(txn, stream)
            if known is None or known[1].sealed != seen.sealed:
                return False  # somebody else seals it, or it is gone
            number, row = known
            for one in rows:
                if replaced is not None and one.version <= replaced.last:
                    continue
                if not txn.delete(
                    keys.EVENT_KEY.pack(number, one.version, one.position, one.hash), db=self._events
                ):
                    raise RecordDamaged(stream, one.version, "the event is missing")
            if replaced is not None:
                txn.delete(keys.SEGMENT_KEY.pack(number, replaced.last, keys.SEGMENT_MARK), db=self._events)
            txn.put(keys.SEGMENT_KEY.pack(number, again.last, keys.SEGMENT_MARK), packed, db=self._events)
            gone = msgspec.structs.replace(row, sealed=again.last)
            txn.put(keys.STREAM_KEY.pack(number), keys.encode_stream_row(gone), db=self._streams)
            self._raise_format(txn, FORMAT_SEGMENTS)
            return True

        if not self._write(swap):
            return None
        raw = sum(len(one.data) for one in rows)
        new = len(rows) - (replaced.count if replaced is not None else 0)
        return Sealed(new, 1, raw, len(packed))


def _is_in(key: bytes, number: int, after: int, upto: int) -> bool:
    at = keys.split_event_key(key)
    return at.stream == number and after < at.version <= upto


def _row(key: bytes, data: bytes, stream: str, origin: str, version: int) -> Row | None:
    """Return the row of a plain event; None for a segment's key; raise `RecordDamaged` for any other."""
    if len(key) == keys.SEGMENT_KEY.size:
        return None
    try:
        at = keys.split_event_key(key)
    except ValueError as error:
        raise RecordDamaged(stream, version, str(error)) from None
    return Row(stream, at.version, at.position, at.hash, data, origin)
