"""One sealed segment: how records are packed into it, and how they are taken out again. Pure: bytes in, bytes out.

Frames that are written are LZ4 frames (decision 0019): they unpack so fast that a fold from segments is no slower
than one from plain events. Segments of earlier builds hold zstandard frames, and are read as they are.
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import lz4.frame
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import HASH_BYTES, Packed, Plain, Row
from tailfold.engine.errors import RecordDamaged
from tailfold.snapshots.zstd import decompress

SEGMENT_RECORDS = 256
"""Records in a full segment."""
SEGMENT_BYTES = 8 << 20
"""A segment with so many bytes of records is full, too: one is unpacked, compared and committed as a whole."""
FRAME_BYTES = 128 << 10
"""Records are compressed in frames of about this size, so that reading one version unpacks no more than that."""
LZ4_TIMES_MOST = 256
"""LZ4 makes nothing smaller than by this."""
LZ4_LEVEL = 3
"""The first of LZ4's slower searches: a fifth smaller than the quick one; level 9 takes twice as long for 2 %."""


class Segment:
    """A stored segment. Frames are unpacked when a record in them is asked for, and kept.

    After the front come, big-endian: the position (8) and the chain hash (16) of each record, the bytes of each
    record (4), the number of records (2) and the bytes (4) of each frame; then the frames.
    """

    __slots__ = (
        "_counts",
        "_frames",
        "_hashes",
        "_lengths",
        "_offsets",
        "_places",
        "_starts",
        "_value",
        "_zstd",
        "count",
        "first",
        "key",
        "last",
        "stream",
        "unpacked_bytes",
    )  # fmt: skip

    def __init__(self, stream: str, key: bytes, value: bytes) -> None:
        """Take the stored bytes apart; raise `RecordDamaged` if they are none."""
        self.stream = stream
        self.key = key
        _, self.last, mark = keys.SEGMENT_KEY.unpack(key)
        try:
            self.first, self.count, frames = keys.SEGMENT_FRONT.unpack_from(value)
            self._places = keys.SEGMENT_FRONT.size
            self._hashes = self._places + 8 * self.count
            self._lengths = self._hashes + HASH_BYTES * self.count
            at = self._lengths + 4 * self.count
            self._counts = struct.unpack_from(f">{frames}H", value, at)
            sizes = struct.unpack_from(f">{frames}I", value, at + 2 * frames)
        except struct.error as error:
            raise RecordDamaged(stream, 0, f"a segment cannot be read: {error}") from None
        if not self.count:
            raise RecordDamaged(stream, self.first, "a segment holds no record")
        if mark not in (keys.SEGMENT_MARK, keys.SEGMENT_MARK_ZSTD):
            raise RecordDamaged(stream, self.first, f"a segment is of the unknown kind {mark!r}")
        if self.first + self.count - 1 != self.last:
            raise RecordDamaged(stream, self.first, "a segment stands under another version")
        self._zstd = mark == keys.SEGMENT_MARK_ZSTD
        self._value = value
        self._starts = list(accumulate(self._counts, initial=0))
        self._offsets = list(accumulate(sizes, initial=at + 6 * frames))
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

    def plain(self, after: int, upto: int) -> list[Plain]:
        """Return the same as one run."""
        records = self.records(after, upto)
        return [Plain(records, sum(map(len, records)))]

    def runs(self, after: int, upto: int) -> list[Plain | Packed]:
        """Return the same frame by frame, with each that is wanted whole as one array."""
        found: list[Plain | Packed] = []
        for frame, low, high in self._frames_of(after, upto):
            if high - low == self._counts[frame]:
                found.append(Packed(functools.partial(self._array, frame), high - low, self._size_of(frame)))
            else:
                cut = self._cut(frame, low, high)
                found.append(Plain(cut, sum(map(len, cut))))
        return found

    @property
    def full(self) -> bool:
        """True if it is not packed anew together with what comes after."""
        return self.count >= SEGMENT_RECORDS or sum(map(self._size_of, range(len(self._counts)))) >= SEGMENT_BYTES

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

    def _lengths_of(self, low: int, high: int) -> tuple[int, ...]:
        """Return the bytes of each record from place *low* to before *high*: who reads one looks at few."""
        if low >= high:
            return ()
        return struct.unpack_from(f">{high - low}I", self._value, self._lengths + 4 * low)

    def _size_of(self, frame: int) -> int:
        """Return the record bytes of a frame, which says them itself: a look through the lengths, or a call of the
        library, would cost a fold 3 %."""
        if self._zstd:
            return sum(self._lengths_of(self._starts[frame], self._starts[frame + 1]))
        begin, end = self._offsets[frame], self._offsets[frame + 1]
        if end - begin < keys.FRAME_FRONT.size:
            raise self._damaged(frame, "cannot be unpacked: its frame is too short")
        magic, flags, size = keys.FRAME_FRONT.unpack_from(self._value, begin)
        if magic != keys.FRAME_MAGIC or flags & keys.FRAME_SAYS_SIZE != keys.FRAME_SAYS_SIZE:
            raise self._damaged(frame, "cannot be unpacked: it is no LZ4 frame that says its size")
        return int(size) - keys.FRAME_ARRAY.size

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
        body = self._frames[frame]
        if body is None:
            body = self._array(frame)
            lengths = self._lengths_of(self._starts[frame], self._starts[frame + 1])
            if len(body) != keys.FRAME_ARRAY.size + sum(lengths):
                raise self._damaged(frame, "has other lengths than its records")
            self._frames[frame] = body
            self.unpacked_bytes += len(body)
        begin = keys.FRAME_ARRAY.size + sum(self._lengths_of(self._starts[frame], low))
        offsets = accumulate(self._lengths_of(low, high), initial=begin)
        return [body[a:b] for a, b in pairwise(offsets)]

    def _array(self, frame: int) -> bytes:
        """Return a frame unpacked, as one msgpack array of its records; raise `RecordDamaged`."""
        front = keys.FRAME_ARRAY.pack(keys.ARRAY_MARK, self._counts[frame])
        packed = self._packed(frame)
        try:
            body = front + decompress(bytes(packed)) if self._zstd else _unpack(packed)
        except ValueError as error:
            raise self._damaged(frame, f"cannot be unpacked: {error}") from None
        if not body.startswith(front):
            raise self._damaged(frame, "holds another number of records")
        return body

    def _packed(self, frame: int) -> memoryview:
        return memoryview(self._value)[self._offsets[frame] : self._offsets[frame + 1]]

    def _damaged(self, frame: int, why: str) -> RecordDamaged:
        start, end = self.first + self._starts[frame], self.first + self._starts[frame + 1] - 1
        return RecordDamaged(self.stream, start, f"the segment of versions {start}..{end} {why}")


def pack(number: int, rows: Sequence[Row]) -> tuple[bytes, bytes]:
    """Return key and value of the segment of contiguous *rows* of stream *number*."""
    counts: list[int] = []
    frames: list[bytes] = []
    gathered: list[bytes] = []
    size = 0
    for i, row in enumerate(rows):
        gathered.append(row.data)
        size += len(row.data)
        if size >= FRAME_BYTES or i == len(rows) - 1:
            frames.append(_pack(keys.FRAME_ARRAY.pack(keys.ARRAY_MARK, len(gathered)) + b"".join(gathered)))
            counts.append(len(gathered))
            gathered, size = [], 0
    n, k = len(rows), len(frames)
    value = b"".join(
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
    return keys.SEGMENT_KEY.pack(number, rows[-1].version, keys.SEGMENT_MARK), value


def _pack(array: bytes) -> bytes:
    packed: bytes = lz4.frame.compress(
        array,
        compression_level=LZ4_LEVEL,
        block_size=lz4.frame.BLOCKSIZE_MAX256KB,
        block_linked=False,
        block_checksum=True,
        store_size=True,
    )
    return packed


def _unpack(packed: memoryview) -> bytes:
    """Give back what was packed; raise ValueError for anything else, MemoryError if there is no room for it."""
    try:
        array, length = lz4.frame.decompress(packed, return_bytes_read=True)
    except MemoryError:
        if lz4.frame.get_frame_info(packed)["content_size"] > LZ4_TIMES_MOST * len(packed):
            raise ValueError("it says a size that it cannot have") from None
        raise
    except RuntimeError as error:
        if "allocation" in str(error):
            raise MemoryError(str(error)) from None
        raise ValueError(str(error)) from None
    except OverflowError as error:
        raise ValueError(str(error)) from None
    if length != len(packed):
        raise ValueError("something stands behind it")
    unpacked: bytes = array
    return unpacked
