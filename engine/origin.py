"""Where a migrated store came from: rows in the table `meta`, so that the audit trail goes on.

One row says which store was the source; one for each stream says how far it was taken over, and under which hash it
stood there. The rows of streams are written in the transactions that copy their events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from tailfold.engine.backend import keys
from tailfold.engine.backend.port import HASH_BYTES, Backend
from tailfold.engine.errors import Corruption

COPYING = "copying"
DONE = "done"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a migrated store says of its source."""

    by: str
    """The release that migrated."""
    migrated_ns: int
    """When the migration began. UTC, nanoseconds."""
    state: str
    """``copying``, or ``done`` once everything was taken over and compared."""
    source_created_ns: int
    """When the source was made: a store keeps this for life, also when it is copied."""
    source_format: int
    events: int = 0
    """Events of the source that were taken over when it was last done."""
    heads: str = ""
    """Digest (hex) over name, version and hash of every stream of the source at that point."""
    earlier: Origin | None = None
    """What the source said of its own source."""


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream was taken over."""

    version: int
    hash: bytes
    """Chain hash at `version` in the source."""


def read_origin(backend: Backend) -> Origin | None:
    """Return the row that says where the store came from, if there is one; raise `Corruption`."""
    row = backend.meta(keys.ORIGIN_KEY).get(keys.ORIGIN_KEY)
    try:
        return msgspec.msgpack.decode(row, type=Origin) if row is not None else None
    except msgspec.MsgspecError as error:
        raise Corruption(f"where the store came from cannot be read: {error}") from None


def read_taken(backend: Backend) -> dict[str, Taken]:
    """Return how far each stream was taken over, by name; raise `Corruption`."""
    try:
        return {
            key[len(keys.ORIGIN_PREFIX) :].decode(): msgspec.msgpack.decode(row, type=Taken)
            for key, row in backend.meta(keys.ORIGIN_PREFIX).items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corruption(f"how far a stream was migrated cannot be read: {error}") from None


def origin_row(origin: Origin) -> dict[bytes, bytes]:
    """Return the row of `meta` that keeps *origin*."""
    return {keys.ORIGIN_KEY: keys.encode(origin)}


def taken_row(stream: str, taken: Taken) -> dict[bytes, bytes]:
    """Return the row of `meta` that keeps how far *stream* was taken over."""
    return {keys.ORIGIN_PREFIX + stream.encode(): keys.encode(taken)}


def digest_of_heads(taken: Mapping[str, Taken]) -> str:
    """Return one digest over all heads, in hex, whatever their order."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES, person=b"tailfold.heads")
    for stream in sorted(taken, key=str.encode):
        name = stream.encode()
        digest.update(f"{len(name)} {taken[stream].version} ".encode() + name + taken[stream].hash)
    return digest.hexdigest()
