"""The base class of events, and `Blob`, the value for large content. Pure: no store, no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
from tailfold.engine.errors import BadArgument, BlobDamaged, BlobNotFound
from tailfold.engine.names import check_kind

SCHEMA_VERSION_MAX = 1_000_000

COMPOSITE_KIND = "*"
"""Not a legal kind: a stored event that says several things, or none (`Several`). Only migration writes it."""
COMPOSITE_TAG = "*@1"


class Event(msgspec.Struct, frozen=True, gc=False):
    """A fact, in the past tense. Subclass it with ``frozen=True``, a `kind` and the fields.

    `kind` is the name under which the event is stored, never a Python path, so classes can be moved and
    renamed. `version` is the schema version of the fields, from 1; raise it when a field changes meaning,
    and never reuse one. The payload is stored as a map with field names.

        class SeatsChanged(Event, frozen=True):
            kind = "seats_changed"
            seats: int
    """

    kind: ClassVar[str] = ""
    version: ClassVar[int] = 1


def tag_of(event_type: type[Event]) -> str:
    """Return the stored tag ``kind@version`` of an event class; raise `BadArgument` if it declares none."""
    return tag(check_event_type(event_type).kind, event_type.version)


def tag(kind: str, version: int) -> str:
    """Build the tag that stands first in a record."""
    return f"{kind}@{version}"


def split_tag(stored: str) -> tuple[str, int]:
    """Take a stored tag apart; raise ValueError if it is none."""
    kind, at, version = stored.rpartition("@")
    if not at or not version.isascii() or not version.isdigit():
        raise ValueError(f"{stored!r} is not kind@version")
    return kind, int(version)


def check_event_type(event_type: type[Event]) -> type[Event]:
    """Return *event_type* if it can be stored; raise `BadArgument` naming what it lacks."""
    if not (isinstance(event_type, type) and issubclass(event_type, Event)):
        raise BadArgument(f"{event_type!r} is not a subclass of tailfold.engine.Event")
    if event_type.kind == "":
        raise BadArgument(f'{event_type.__name__} declares no kind: add kind = "…" to the class')
    check_kind(event_type.kind)
    version = event_type.version
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION_MAX:
        raise BadArgument(f"{event_type.__name__}.version must be 1..{SCHEMA_VERSION_MAX}, not {version!r}")
    config = event_type.__struct_config__
    if not config.frozen or config.array_like or config.tag is not None or config.omit_defaults:
        raise BadArgument(
            f"{event_type.__name__} must be frozen, without array_like, tag or omit_defaults:"
            " payloads are maps with every field name, so that any reader can show them"
        )
    return event_type


class Opaque(msgspec.Struct, frozen=True, gc=False):
    """An event whose kind this code does not know: kept byte for byte, visible, passed over by folds."""

    opaque_kind: str
    opaque_version: int
    payload: bytes
    """The payload as stored (msgpack)."""
    newer: bool = False
    """True if the code knows the kind, but not a schema version as high as this one."""

    def builtins(self) -> Any:
        """Return the payload as plain Python values: what the stored field names say, untyped."""
        return msgspec.msgpack.decode(self.payload)


class Several(msgspec.Struct, frozen=True, gc=False):
    """What one stored event became by its steps: several events, or none. Reads and folds see only the parts."""

    events: tuple[Any, ...]
    """Events, and `Opaque` ones out of a stored composite."""


class Composite(msgspec.Struct, gc=False):
    """The payload of a stored composite before its parts are decoded, each by its own tag."""

    parts: list[tuple[str, msgspec.Raw]]


class Blob:
    """Large content, stored once under its digest however many events, runs and forks name it.

    Make one with ``Blob(data)`` and put it into a field of an event; the append that stores the event
    stores the content in the same transaction. A blob that was read back loads its content when asked.
    Two blobs are equal when their content is.
    """

    __slots__ = ("_data", "_load", "digest", "size")

    DIGEST_BYTES = 32

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = bytes(data)
        self._load: Callable[[bytes], bytes | None] | None = None
        self.digest = self.digest_of(self._data)
        """BLAKE2b-256 of the content."""
        self.size = len(self._data)
        """Length of the content in bytes."""

    @classmethod
    def digest_of(cls, content: bytes) -> bytes:
        """Return the digest that *content* is stored under."""
        return hashlib.blake2b(content, digest_size=cls.DIGEST_BYTES).digest()

    @classmethod
    def stored(cls, digest: bytes, size: int, load: Callable[[bytes], bytes | None]) -> Blob:
        """Make the reference that stands in a stored event; *load* fetches the content by digest."""
        blob = cls.__new__(cls)
        blob._data, blob._load = None, load
        blob.digest, blob.size = digest, size
        return blob

    @property
    def data(self) -> bytes:
        """The content, checked against the digest. Raises `BlobNotFound` or `BlobDamaged`."""
        if self._data is None:
            found = self._load(self.digest) if self._load else None
            if found is None:
                raise BlobNotFound(self.digest.hex())
            if self.digest_of(found) != self.digest:
                raise BlobDamaged(self.digest.hex())
            return found
        return self._data

    def pending(self, load: Callable[[bytes], bytes | None]) -> bytes | None:
        """Return the content if it may still have to be stored where *load* reads from, else None.

        That is what came with the value, and what was read from another store. Raises as `data` does.
        """
        return self._data if self._load is None or self._load == load else self.data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and self.digest == other.digest and self.size == other.size

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Blob({self.digest.hex()[:12]}…, {self.size} bytes)"
