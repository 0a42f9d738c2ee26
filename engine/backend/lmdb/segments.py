"""Sealed segments: up to 256 old events of one stream packed under one key, compressed. And the sealing of them.

Nothing above the backend can tell: the records inside are the same bytes, and so are their hashes and positions.
A segment replaces its events in one transaction, after it was unpacked and compared with them.
"""

from __future__ import annotations

import functools
import struct
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, TypeVar

import lmdb
import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import FORMAT_SEGMENTS, HASH_BYTES, Packed, Row, Sealed
from tailfold.engine.errors import Corruption, RecordDamaged, StreamNotFound
from tailfold.snapshots.zstd import compress, decompress

_T = TypeVar("_T")
if TYPE_CHECKING:
    from tailfold.engine.backend.lmdb.forks import Part
    from tailfold.engine.backend.lmdb.writes import Reads, Writes

    _Txn = Reads
    _Work = Callable[[_Txn], _T]

SEGMENT_RECORDS = 256
"""Records in a full segment."""
FRAME_BYTES = 128 << 10
"""Records are compressed in frames of about this size, so that reading one version unpacks no more than that."""
CACHE_BYTES = 16 << 20
"""Unpacked segments that a backend keeps for those who read single old events."""


class Segment:
    """A stored segment. Frames are unpacked when a record in them is asked for, and kept.

    After the front come, big-endian: the position (8) and the chain hash (16) of each record, the bytes of each
    record (4), the number of records (2) and the bytes (4) of each frame; then the frames.
    """

    __slots__ = (
        "_frames",
        "_hashes",
        "_lengths",
        "_offsets",
        "_places",
        "_sizes",
        "_starts",
        "_value",
        "count",
        "first",
        "last",
        "stream",
        "unpacked_bytes",
    )  # fmt: skip

    def __init__(self, stream: str, value: bytes) -> None:
        """Take the stored bytes apart; raise `RecordDamaged` if they are none."""
        self.stream = stream
        try:
            self.first, self.count, frames = keys.SEGMENT_FRONT.unpack_from(value)
            at = keys.SEGMENT_FRONT.size
            self._places = at
            at += 8 * self.count
            self._hashes = at
            at += HASH_BYTES * self.count
            lengths = struct.unpack_from(f">{self.count}I", value, at)
            at += 4 * self.count
            counts = struct.unpack_from(f">{frames}H", value, at)
            at += 2 * frames
            sizes = struct.unpack_from(f">{frames}I", value, at)
            at += 4 * frames
        except struct.error as error:
            raise RecordDamaged(stream, 0, f"a segment cannot be read: {error}") from None
        self.last = self.first + self.count - 1
        self._value = value
        self._starts = list(accumulate(counts, initial=0))
        self._offsets = list(accumulate(sizes, initial=at))
        self._lengths = lengths
        self._sizes = [sum(lengths[a:b]) for a, b in pairwise(self._starts)]
        """Unpacked bytes of each frame."""
        self._frames: list[bytes | None] = [None] * frames
        self.unpacked_bytes = len(value)
        if (self._starts[-1], self._offsets[-1]) != (self.count, len(value)):
            raise RecordDamaged(stream, self.first, "a segment's header does not fit its content")

    def records(self, after: int, upto: int) -> list[bytes]:
        """Return the record bytes of the versions *after*+1..*upto* that are in it."""
        found: list[bytes] = []
        for frame, low, high in self._frames_of(after, upto):
            found += self._cut(frame, low, high)
        return found

    def runs(self, after: int, upto: int) -> list[bytes | Packed]:
        """Return the same, with each frame that is wanted whole as one array."""
        found: list[bytes | Packed] = []
        for frame, low, high in self._frames_of(after, upto):
            records = self._starts[frame + 1] - self._starts[frame]
            if high - low == records:
                found.append(Packed(functools.partial(self._array, frame), records, self._sizes[frame]))
            else:
                found += self._cut(frame, low, high)
        return found

    def bytes_of(self, after: int, upto: int) -> int:
        """Return how many bytes those records have."""
        if after < self.first and upto >= self.last:
            return sum(self._sizes)
        return sum(self._lengths[max(0, after + 1 - self.first) : max(0, upto + 1 - self.first)])

    def _frames_of(self, after: int, upto: int) -> Iterator[tuple[int, int, int]]:
        """Yield each frame that holds some of *after*+1..*upto*, with the places of the first and past the last."""
        low, high = max(0, after + 1 - self.first), min(self.count, upto + 1 - self.first)
        frame = bisect_right(self._starts, low) - 1
        while low < high:
            end = self._starts[frame + 1]
            yield frame, low, min(end, high)
            low, frame = end, frame + 1

    def _cut(self, frame: int, low: int, high: int) -> list[bytes]:
        """Cut out the records at some places of a frame: who reads one version pays for one."""
        start, body = self._starts[frame], self._frame(frame)
        offsets = accumulate(self._lengths[low:high], initial=sum(self._lengths[start:low]))
        return [body[a:b] for a, b in pairwise(offsets)]

    def rows(self, name: str, after: int, upto: int, origin: str) -> list[Row]:
        """Return the rows of the versions *after*+1..*upto* that are in it, with the hashes that stand there."""
        low, high = max(0, after + 1 - self.first), min(self.count, upto + 1 - self.first)
        if low >= high:
            return []
        value, version = self._value, self.first + low
        positions = struct.unpack_from(f">{high - low}Q", value, self._places + 8 * low)
        at = self._hashes + HASH_BYTES * low
        found: list[Row] = []
        for position, data in zip(positions, self.records(after, upto), strict=True):
            found.append(Row(name, version, position, value[at : at + HASH_BYTES], data, origin))
            version += 1
            at += HASH_BYTES
        return found

    def _array(self, frame: int) -> bytes:
        """Return a frame unpacked, as one msgpack array: its records stand one after another, as in an array."""
        records: int = self._starts[frame + 1] - self._starts[frame]
        return b"\xdc" + records.to_bytes(2, "big") + self._unpacked(frame)

    def _frame(self, frame: int) -> bytes:
        """Return a frame unpacked, and keep it."""
        known = self._frames[frame]
        if known is None:
            known = self._frames[frame] = self._unpacked(frame)
            self.unpacked_bytes += len(known)
        return known

    def _unpacked(self, frame: int) -> bytes:
        """Return the records of a frame, one after another; raise `RecordDamaged`."""
        start, end = self._starts[frame], self._starts[frame + 1]
        versions = f"{self.first + start}..{self.first + end - 1}"
        packed = self._value[self._offsets[frame] : self._offsets[frame + 1]]
        try:
            body = decompress(packed)
        except ValueError as error:
            why = f"the segment of versions {versions} cannot be unpacked: {error}"
            raise RecordDamaged(self.stream, self.first + start, why) from None
        if len(body) != self._sizes[frame]:
            raise RecordDamaged(self.stream, self.first + start, f"the lengths of versions {versions} do not fit")
        return body


def pack(rows: Sequence[Row]) -> bytes:
    """Return the segment of contiguous *rows*."""
    counts: list[int] = []
    frames: list[bytes] = []
    gathered: list[bytes] = []
    size = 0
    for i, row in enumerate(rows):
        gathered.append(row.data)
        size += len(row.data)
        if size >= FRAME_BYTES or i == len(rows) - 1:
            frames.append(compress(b"".join(gathered), checksum=True))
            counts.append(len(gathered))
            gathered, size = [], 0
    n, k = len(rows), len(frames)
    return b"".join(
        (
            keys.SEGMENT_FRONT.pack(rows[0].version, n, k),
            struct.pack(f">{n}Q", *(row.position for row in rows)),
            *(row.hash for row in rows),
            struct.pack(f">{n}I", *(len(row.data) for row in rows)),
            struct.pack(f">{k}H", *counts),
            struct.pack(f">{k}I", *map(len, frames)),
            *frames,
        )
    )


class SegmentCache:
    """Segments that were unpacked, the least used dropped first. What is in one never changes. Thread-safe."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._segments: OrderedDict[bytes, Segment] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, key: bytes) -> Segment | None:
        """Return the segment that stands under *key*, if it was kept."""
        with self._changing:
            found = self._segments.get(key)
            if found is not None:
                self._segments.move_to_end(key)
            return found

    def keep(self, key: bytes, segment: Segment) -> None:
        """Keep *segment*, and drop others until all that is kept is small enough."""
        with self._changing:
            self._segments[key] = segment
            size = sum(one.unpacked_bytes for one in self._segments.values())
            while size > self._most_bytes and len(self._segments) > 1:
                size -= self._segments.popitem(last=False)[1].unpacked_bytes


class SegmentRows:
    """Reading events that may be sealed, and sealing them, on the tables of one environment."""

    _streams: lmdb._Database
    _events: lmdb._Database
    _unpacked: SegmentCache

    if TYPE_CHECKING:  # what the backend brings

        def _read(self, work: _Work[_T]) -> _T: ...
        def _write(self, work: Callable[[Writes], _T]) -> _T: ...
        def _stream(self, txn: _Txn, name: str) -> tuple[int, keys.StreamRow] | None: ...
        def _raise_format(self, txn: _Txn, needed: int) -> None: ...

    def _segment_here(
        self, cursor: lmdb.Cursor[bytes], number: int, version: int, stream: str, *, keep: bool = False
    ) -> Segment | None:
        """Return the segment under the cursor if it is one that holds *version* of this stream.

        With *keep* it stays unpacked: a scan would only push out what others come back for.
        """
        key = cursor.key()
        if len(key) != keys.SEGMENT_KEY.size or not key.startswith(keys.STREAM_KEY.pack(number)):
            return None
        segment = self._unpacked.get(key)
        if segment is None:
            segment = Segment(stream, cursor.value())
        if keys.SEGMENT_KEY.unpack(key)[1] != segment.last:
            raise RecordDamaged(stream, version, "a segment stands under another version")
        if segment.first > version:
            return None
        if keep:
            self._unpacked.keep(key, segment)
        return segment

    def _rows_of(
        self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, origin: str, limit: int, backwards: bool
    ) -> list[Row]:
        return (self._rows_back if backwards else self._rows_on)(cursor, part, stream, origin, limit)

    def _rows_on(self, cursor: lmdb.Cursor[bytes], part: Part, stream: str, origin: str, limit: int) -> list[Row]:
        number, after, upto = part
        rows: list[Row] = []
        while len(rows) < limit and after < upto and cursor.set_range(keys.EVENT_PREFIX.pack(number, after + 1)):
            segment = self._segment_here(cursor, number, after + 1, origin, keep=limit < SEGMENT_RECORDS)
            if segment is not None:
                rows += segment.rows(stream, after, min(upto, after + limit - len(rows)), origin)
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
            segment = self._segment_here(cursor, number, upto, origin, keep=True) if found else None
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

        def collect(txn: _Txn) -> tuple[keys.StreamRow, list[Row], Segment | None] | None:
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
                if last.count < SEGMENT_RECORDS:
                    start = last.first - 1  # packed anew, together with what comes after
            end = min(upto, row.version, start + SEGMENT_RECORDS)
            if end <= row.sealed or end - start < (SEGMENT_RECORDS if whole else 1):
                return None
            rows = self._rows_on(cursor, Part(number, start, end), stream, stream, SEGMENT_RECORDS)
            if [one.version for one in rows] != list(range(start + 1, end + 1)):
                raise RecordDamaged(stream, start + len(rows) + 1, "the event is missing")
            return row, rows, last if start < (row.sealed or row.base) else None

        found = self._read(collect)
        if found is None:
            return None
        seen, rows, replaced = found
        packed = pack(rows)
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
