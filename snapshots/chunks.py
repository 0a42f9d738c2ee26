"""Chunks: pieces of a growing state, content-addressed, written once, shared by snapshots and forks.

A chunk is a kind, the digests of the chunks that it refers to, and a body. The digest covers all of it, so a
chunk that was changed in place is found when it is read. References stand in front, so that garbage collection
can follow them without knowing what the body holds.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from tailfold.snapshots.zstd import compress, decompress

DIGEST_BYTES = 16
CACHE_BYTES = 16 << 20
"""Decoded chunks kept by one reader, measured by their encoded size."""

_HEADER = struct.Struct(">BI")

LEAF, SERIES_NODE, TABLE_NODE = 0, 1, 2


class ChunkDamagedError(Exception):
    """A chunk is missing, or is not what its digest says. Never leaves the engine: the state is folded anew."""

    def __init__(self, digest: bytes, why: str) -> None:
        super().__init__(f"chunk {digest.hex()} {why}")
        self.digest = digest


class Chunk(NamedTuple):
    """A chunk taken apart."""

    kind: int
    refs: list[bytes]
    body: bytes


def join(kind: int, refs: Iterable[bytes], body: bytes) -> bytes:
    """Return the payload of a chunk."""
    joined = b"".join(refs)
    return _HEADER.pack(kind, len(joined) // DIGEST_BYTES) + joined + body


def split(payload: bytes) -> Chunk:
    """Take a payload apart; raise ValueError if it is none."""
    end = _front(payload)
    joined = payload[_HEADER.size : end]
    refs = [joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES)]
    return Chunk(payload[0], refs, payload[end:])


def _front(payload: bytes) -> int:
    """Return where the body begins; raise ValueError if this is no chunk, stored or not."""
    if len(payload) < _HEADER.size:
        raise ValueError("too short for a chunk")
    kind, count = _HEADER.unpack_from(payload)
    end: int = _HEADER.size + count * DIGEST_BYTES
    if kind > TABLE_NODE or end > len(payload):
        raise ValueError("not a chunk")
    return end


def reachable(roots: Iterable[bytes], stored: Callable[[bytes], bytes | None]) -> set[bytes]:
    """Return every digest that can be reached from *roots*; *stored* gives stored bytes, or None."""
    found: set[bytes] = set()
    todo = list(roots)
    while todo:
        ref = todo.pop()
        if ref in found:
            continue
        found.add(ref)
        data = stored(ref)
        if data is not None:
            try:
                todo += split(data).refs
            except ValueError:
                continue  # damaged: whoever reads it finds out
    return found


def digest(payload: bytes) -> bytes:
    """Return the digest that a payload is stored under."""
    return hashlib.blake2b(payload, digest_size=DIGEST_BYTES, person=b"tailfold.chunk").digest()


def pack(payload: bytes) -> bytes:
    """Return the bytes to store: the references as they are, the body compressed.

    The digest is of the payload, so any compressor will do.
    """
    front = _front(payload)
    return payload[:front] + compress(payload[front:])


def unpack(expected: bytes, stored: bytes) -> bytes:
    """Return the payload of stored bytes; raise `ChunkDamagedError` unless it has the *expected* digest."""
    try:
        front = _front(stored)
        payload = stored[:front] + decompress(stored[front:])
    except ValueError as error:
        raise ChunkDamagedError(expected, f"cannot be unpacked ({error})") from None
    if digest(payload) != expected:
        raise ChunkDamagedError(expected, "is not what its digest says")
    return payload


class ChunkReader:
    """Loads chunks when they are asked for, through a bounded cache of decoded ones.

    *load* returns the payload of a digest or raises `ChunkDamagedError`.
    """

    def __init__(self, load: Callable[[bytes], bytes], *, cache_bytes: int = CACHE_BYTES) -> None:
        self._load = load
        self._cache: OrderedDict[tuple[bytes, Hashable], tuple[Any, int]] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._held_bytes = 0
        self.loaded = 0
        """Chunks that were really loaded: what tests and benchmarks count."""

    def share_cache(self, other: ChunkReader) -> None:
        """Go on with the cache of another reader of the same store: content-addressed, so it is as good here."""
        self._cache, self._held_bytes = other._cache, other._held_bytes

    def payload(self, ref: bytes) -> bytes:
        """Return the payload of a chunk, not decoded and not cached."""
        return self._load(ref)

    def decoded(self, ref: bytes, how: Hashable, decode: Callable[[Chunk], Any]) -> Any:
        """Return the chunk *ref* as *decode* gives it; *how* names the decoding in the cache."""
        key = (ref, how)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found[0]
        payload = self._load(ref)
        self.loaded += 1
        value = decode(split(payload))
        self._cache[key] = (value, len(payload))
        self._held_bytes += len(payload)
        while self._held_bytes > self._cache_bytes and len(self._cache) > 1:
            _, (_, size) = self._cache.popitem(last=False)
            self._held_bytes -= size
        return value


class Unstored:
    """The payloads of one container that are not known to be stored, and the reader for what stands inside them."""

    def __init__(self) -> None:
        self.payloads: dict[bytes, bytes] = {}
        self.stored: ChunkReader | None = None
        """The reader of the store, once there is one."""
        self.reader = ChunkReader(self._load)

    def keep(self, payload: bytes) -> bytes:
        """Take a payload and return its digest."""
        ref = digest(payload)
        self.payloads[ref] = payload
        return ref

    def forget(self, stored: set[bytes]) -> None:
        """Drop the payloads that are stored now."""
        self.payloads = {ref: payload for ref, payload in self.payloads.items() if ref not in stored}

    def decoded(self, ref: bytes, how: Hashable, decode: Callable[[Chunk, ChunkReader], Any]) -> Any:
        """Return a chunk as *decode* gives it, from here or from the store."""
        payload = self.payloads.get(ref)
        if payload is not None or self.stored is None:
            return decode(split(payload if payload is not None else self._load(ref)), self.reader)
        reader = self.stored
        return reader.decoded(ref, how, lambda chunk: decode(chunk, reader))

    def copy(self) -> Unstored:
        """Return the same, for a copy of the container."""
        copied = Unstored()
        copied.payloads, copied.stored = dict(self.payloads), self.stored
        return copied

    def _load(self, ref: bytes) -> bytes:
        payload = self.payloads.get(ref)
        if payload is not None:
            return payload
        if self.stored is None:
            raise ChunkDamagedError(ref, "is missing")
        return self.stored.payload(ref)
