"""The one place that builds and takes apart keys, and the layout of the fixed rows.

Numbers are big-endian and of fixed width, so that byte order is log order. docs/design.md shows these
layouts as tables; tests/test_docs.py compares the two.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from tailfold.engine.backend.port import HASH_BYTES, IdRow

TABLES = (
    "meta",
    "names",
    "streams",
    "events",
    "positions",
    "ids",
    "leases",
    "kinds",
    "blobs",
    "snapshots",
    "chunks",
    "children",
    "checkpoints",
)
"""Every named database of a store."""

EVENT_KEY = struct.Struct(f">QQQ{HASH_BYTES}s")
"""events: stream number, version, position, chain hash -> record bytes."""
SEGMENT_KEY = struct.Struct(">QQ1s")
"""events, too: stream number, last version, a mark -> a sealed segment, in the place of its events."""
SEGMENT_MARK = b"L"
"""Of segments whose frames are LZ4."""
SEGMENT_MARK_ZSTD = b"S"
"""Of segments whose frames are zstandard: formats 4 and 5."""
SEGMENT_FRONT = struct.Struct(">QHH")
"""The front of a segment: version of the first record, number of records, number of frames."""
FRAME_ARRAY = struct.Struct(">BH")
"""The front of what is packed in a frame: `ARRAY_MARK`, number of records. A msgpack array, with the records."""
ARRAY_MARK = 0xDC
FRAME_FRONT = struct.Struct("<IBxQ")
"""How an LZ4 frame begins: `FRAME_MAGIC`, the flags, a byte on blocks, the size of the content."""
FRAME_MAGIC = 0x184D2204
FRAME_SAYS_SIZE = 0b0100_1000
"""Among the flags of an LZ4 frame: its format is version 1, and the size of the content is there."""
EVENT_PREFIX = struct.Struct(">QQ")
"""The part of an event key that orders it: stream number, version."""
POSITION_KEY = struct.Struct(">Q")
"""positions: position -> `POSITION_ROW`."""
POSITION_ROW = struct.Struct(">QQ")
"""stream number, version."""
STREAM_KEY = struct.Struct(">Q")
"""streams: stream number -> `StreamRow`; names: UTF-8 name -> stream number."""
ID_KEY = struct.Struct(f">Q{HASH_BYTES}s")
"""ids: stream number, hash of the idempotency key -> `IdRow`."""

SNAPSHOT_KEY = struct.Struct(f">Q8sQ{HASH_BYTES}s")
"""snapshots: stream number, hash of the fold's name, version, fold id -> row; chunks: digest -> packed."""

LINEAGE_PAIR = struct.Struct(">QQ")
"""In a stream row: stream number, last version."""
LINEAGE_PAIRS_MAX = 64
"""Pairs in a row; a longer lineage goes on in the row of the first pair. So a fork of any depth is a small row."""
CHILD_KEY = struct.Struct(">QQQ")
"""children: stream number, version of the fork, stream number of the fork -> nothing."""
HEAD_PREFIX = b"head/"
"""meta: this and a name -> the stream that the named head stands for."""
DELETED_KEY = b"deleted"
"""meta: the number of deleted streams, 8 bytes."""

FORMAT_KEY = b"format"
"""meta: the format stamp -> `Stamp`."""
ORIGIN_KEY = b"origin"
"""meta: where a migrated store came from."""
ORIGIN_PREFIX = b"origin/"
"""meta: this and a stream's name -> where the stream stood in the source."""


class StreamRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The head of a stream. Later formats append fields; readers pass over what they do not know."""

    name: str
    version: int
    hash: bytes
    created_ns: int
    updated_ns: int
    lineage: bytes = b""
    """Of a fork: `LINEAGE_PAIR`s, see `pairs`."""
    deleted_ns: int = 0
    """When the stream was deleted, or 0."""
    reclaimed: int = 0
    """Of a deleted stream: how many of its newest events were given back."""
    sealed: int = 0
    """The last version that stands in a segment; 0 if none does."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The lineage of a fork, oldest first: stream number, and the last version that stands under it.

        The first pair means that stream with its own lineage; each further one only what is stored under it.
        """
        return list(LINEAGE_PAIR.iter_unpack(self.lineage))

    @property
    def base(self) -> int:
        """The version after which its own events begin: 0, or where the fork left its parent."""
        lineage = self.lineage
        return int.from_bytes(lineage[-8:], "big") if lineage else 0


class Stamp(msgspec.Struct, frozen=True):
    """The format stamp of a store."""

    format: int
    created_ns: int
    by: str


class SnapshotRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stored snapshot. Everything but the body may be read without decoding it."""

    fold: str
    """Name of the fold."""
    parts: dict[str, str]
    """The parts of the fold id, each a short hash, so that a miss can be explained."""
    hash: bytes
    """Chain hash of the log at the snapshot's version."""
    state_hash: bytes
    """Hash of the body before compression."""
    refs: bytes
    """Digests of the chunks that the body refers to, joined."""
    created_ns: int
    body: bytes
    """The state, compressed."""
    marks: bytes = b""
    """States at earlier versions (`snapshots.marks`); empty in rows of older releases."""


class CheckpointRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a follower has come; with the state if it is a projection."""

    position: int
    """The last position that was handled; the last version if *stream* is named."""
    stream: str | None
    updated_ns: int
    fold_id: bytes = b""
    """The id of the projection's code; empty for a subscription."""
    parts: dict[str, str] = {}
    state_hash: bytes = b""
    refs: bytes = b""
    body: bytes = b""


class EventKey(NamedTuple):
    """An event key taken apart."""

    stream: int
    version: int
    position: int
    hash: bytes


encode = msgspec.msgpack.Encoder().encode


def encode_stream_row(row: StreamRow) -> bytes:
    """Return the bytes of a head. Those of a stream that is no fork are as they were in format 1."""
    if row.lineage or row.deleted_ns or row.sealed:
        return encode(row)
    return encode((row.name, row.version, row.hash, row.created_ns, row.updated_ns))


decode_stream_row = msgspec.msgpack.Decoder(StreamRow).decode
decode_id_row = msgspec.msgpack.Decoder(IdRow).decode
decode_snapshot_row = msgspec.msgpack.Decoder(SnapshotRow).decode
decode_checkpoint_row = msgspec.msgpack.Decoder(CheckpointRow).decode
decode_stamp = msgspec.msgpack.Decoder(Stamp).decode


def split_event_key(key: bytes) -> EventKey:
    """Take an event key apart; raise ValueError if it has another length."""
    if len(key) != EVENT_KEY.size:
        raise ValueError(f"an event key has {EVENT_KEY.size} bytes, this one {len(key)}")
    return EventKey(*EVENT_KEY.unpack(key))


def id_hash(key: str) -> bytes:
    """Return the hash of an idempotency key, which may have any length."""
    return hashlib.blake2b(key.encode(), digest_size=HASH_BYTES, person=b"tailfold.key").digest()


def id_key(stream: int, key: str) -> bytes:
    """Build the key of an idempotency row."""
    return ID_KEY.pack(stream, id_hash(key))


def raised(stamp: bytes, format: int) -> bytes | None:
    """Return *stamp* with the format raised to *format*; None if it is as high already."""
    found = decode_stamp(stamp)
    return encode(msgspec.structs.replace(found, format=format)) if found.format < format else None


def refs_of_snapshot(row: bytes) -> list[bytes]:
    """Return the digests that a snapshot row refers to; a damaged row refers to nothing."""
    return _refs(decode_snapshot_row, row)


def refs_of_checkpoint(row: bytes) -> list[bytes]:
    """Return the digests that a checkpoint row refers to; a damaged row refers to nothing."""
    return _refs(decode_checkpoint_row, row)


def _refs(decode: Callable[[bytes], SnapshotRow | CheckpointRow], row: bytes) -> list[bytes]:
    try:
        refs = decode(row).refs
    except msgspec.MsgspecError:
        return []
    return [refs[i : i + HASH_BYTES] for i in range(0, len(refs), HASH_BYTES)]


def fold_hash(name: str) -> bytes:
    """Return the hash of a fold's name that stands in snapshot keys."""
    return hashlib.blake2b(name.encode(), digest_size=8, person=b"tailfold.fold").digest()


def kind_key(tag: str, description: bytes) -> bytes:
    """Build the key of a registry row: one row for each set of fields that a tag was ever written with."""
    digest = hashlib.blake2b(description, digest_size=8, person=b"tailfold.kind").digest()
    return tag.encode() + b"\0" + digest


def tag_of_kind_key(key: bytes) -> str:
    """Return the tag of a registry key."""
    return key[: key.index(b"\0")].decode()
