"""Record bytes ↔ events, in one msgspec call. The only module that builds or reads record bytes.

A record is one msgpack array, [kind@version, time, causation, correlation, payload], and for every
(kind, version) there is a generated class with that tag, so that one decode gives a typed event. This is the
place where upcasters enter: an older version gets a class whose payload is lifted on the way out.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar, Union, cast

import msgspec
from tailfold.engine.errors import (
    BadArgument,
    Corruption,
    RecordDamaged,
    SchemaTooNew,
    SchemaTooOld,
    Undecodable,
)
from tailfold.engine.events import Blob, Event, Opaque, check_event_type, split_tag, tag_of
from tailfold.upcasters import Standing, stand

RECORD_BYTES_MAX = 64 << 20
"""The largest record; larger content belongs into a `Blob`."""

RECORD_FIELDS = ("tag", "time_ns", "causation", "correlation", "payload")
"""The fields of a record in their order. Later formats may append, never reorder."""

E = TypeVar("E", bound=type[Event])


class DecodedRecord(Protocol):
    """What the generated record classes look like."""

    time_ns: int
    causation: str | None
    correlation: str | None
    payload: Any
    """The event, or for a kind that the code does not know the payload as `msgspec.Raw`."""


class Encoded(NamedTuple):
    """An event as it will be stored, and as it will be read back."""

    data: bytes
    record: DecodedRecord
    blobs: dict[bytes, bytes] | None


class _HasTag(msgspec.Struct, array_like=True):
    tag: Any


_decode_tag = msgspec.msgpack.Decoder(_HasTag).decode


class Codec:
    """The kinds that one store knows, and the compiled encoder and decoder for them. Thread-safe."""

    def __init__(self, load_blob: Callable[[bytes], bytes | None]) -> None:
        self._load_blob = load_blob
        self._changing = threading.Lock()
        self._types: dict[str, type[Event]] = {}
        self._known: dict[str, int] = {}
        self._classes: dict[str, type[Any]] = {}
        self._class_of: dict[type[Event], type[Any]] = {}
        self._opaque: dict[type[Any], tuple[str, int]] = {}
        self._found = threading.local()
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._encode_hook).encode
        # Sorted: a retry after a restart may have another order of sets and dictionaries.
        self._encode_content = msgspec.msgpack.Encoder(enc_hook=self._encode_hook, order="deterministic").encode
        self._decode: Callable[[bytes], Any] = _decode_nothing

    # -- kinds -----------------------------------------------------------------------------------------

    def register(self, types: Iterable[type[Event]]) -> None:
        """Make the code's events known. Registering a class again is free.

        Raises `BadArgument` if two classes claim one kind; then nothing of *types* is registered.
        """
        new = [t for t in types if t not in self._class_of]
        if not new:
            return
        with self._changing:
            added: dict[str, type[Event]] = {}
            for event_type in new:
                check_event_type(event_type)
                rival = self._types.get(event_type.kind) or added.get(event_type.kind)
                if rival is not None and rival is not event_type:
                    raise BadArgument(
                        f"kind {event_type.kind!r} is declared by {rival.__qualname__} and by"
                        f" {event_type.__qualname__}: one class a kind"
                    )
                added[event_type.kind] = event_type
            self._types |= added
            for kind, event_type in added.items():
                self._known[kind] = event_type.version
                record = _record_class(tag_of(event_type), event_type)
                self._classes[tag_of(event_type)] = record
                self._class_of[event_type] = record
            self._compile()

    def _keep_opaque(self, stored: str) -> None:
        """Give an unknown (kind, version) a class of its own, so that it decodes as fast as any other."""
        with self._changing:
            if stored not in self._classes:
                record = _record_class(stored, msgspec.Raw)
                self._opaque[record] = split_tag(stored)
                self._classes[stored] = record
                self._compile()

    def _compile(self) -> None:
        union = cast(Any, Union[tuple(self._classes.values())])  # noqa: UP007 - built at run time
        self._decode = msgspec.msgpack.Decoder(union, dec_hook=self._decode_hook).decode

    # -- encode ----------------------------------------------------------------------------------------

    def encode(self, event: Event, time_ns: int, causation: str | None, correlation: str | None) -> Encoded:
        """Return *event* as record bytes, read back once: what cannot be read back is never stored.

        Raises `BadArgument` naming the kind and what does not fit its declared fields.
        """
        event_type = type(event)
        record_class = self._class_of.get(event_type)
        if record_class is None:
            self.register([event_type])
            record_class = self._class_of[event_type]
        found = self._found
        found.blobs = None
        try:
            data = self._encode(record_class(time_ns, causation, correlation, event))
            record = self._decode(data)
        except (
            msgspec.MsgspecError,
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:
            raise BadArgument(f"event {event_type.kind!r} cannot be stored: {error}") from error
        if len(data) > RECORD_BYTES_MAX:
            raise BadArgument(
                f"event {event_type.kind!r} has {len(data)} bytes, the most is {RECORD_BYTES_MAX}:"
                " put large content into a Blob"
            )
        return Encoded(data, record, found.blobs)

    def content(self, events: Sequence[Event]) -> bytes:
        """Return the digest of what *events* say, without times and causes: what a retry repeats."""
        digest = hashlib.blake2b(digest_size=16, person=b"tailfold.content")
        for event in events:
            payload = self._encode_content(event)
            digest.update(f"{tag_of(type(event))} {len(payload)} ".encode())
            digest.update(payload)
        return digest.digest()

    def _encode_hook(self, value: Any) -> Any:
        if isinstance(value, Blob):
            content = value.pending()
            if content is not None:
                found = self._found.blobs = self._found.blobs or {}
                found[value.digest] = content
            return {"blob": value.digest.hex(), "size": value.size}
        raise TypeError(f"values of type {type(value).__qualname__} cannot be stored")

    def _decode_hook(self, expected: type, value: Any) -> Any:
        if expected is Blob:
            try:
                digest, size = bytes.fromhex(value["blob"]), value["size"]
            except (TypeError, KeyError, ValueError):
                digest, size = b"", -1
            if len(digest) != Blob.DIGEST_BYTES or not isinstance(size, int) or size < 0:
                raise ValueError("not a reference to a blob")
            return Blob.stored(digest, size, self._load_blob)
        raise TypeError(f"fields of type {expected.__qualname__} cannot be stored")

    # -- decode ----------------------------------------------------------------------------------------

    def decode_page(self, stream: str, after: int, page: Sequence[bytes]) -> list[Any]:
        """Decode the records of versions *after*+1, *after*+2, … of *stream*.

        Raises a `SchemaError` or `RecordDamaged` that names the stream, version and kind.
        """
        decode = self._decode
        try:
            return list(map(decode, page))
        except msgspec.MsgspecError:
            return [self.decode(stream, after + i, data) for i, data in enumerate(page, 1)]

    def decode(self, stream: str, version: int, data: bytes) -> Any:
        """Decode one record; see `decode_page`."""
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            return self._decode_unusual(stream, version, data, error)
        except msgspec.DecodeError as error:
            raise RecordDamaged(stream, version, f"the record cannot be read: {error}") from None

    def _decode_unusual(self, stream: str, version: int, data: bytes, error: Exception) -> Any:
        try:
            stored = _decode_tag(data).tag
            kind, schema_version = split_tag(stored)
        except (msgspec.MsgspecError, ValueError, AttributeError):
            raise RecordDamaged(stream, version, "the record has no kind@version") from None
        match stand(kind, schema_version, self._known):
            case Standing.UNKNOWN:
                if stored in self._classes:
                    raise Undecodable(stream, version, stored, str(error)) from None
                self._keep_opaque(stored)
                return self.decode(stream, version, data)
            case Standing.NEWER:
                raise SchemaTooNew(stream, version, kind, schema_version, self._known[kind]) from None
            case Standing.OLDER:
                raise SchemaTooOld(stream, version, kind, schema_version, self._known[kind]) from None
            case Standing.CURRENT:
                raise Undecodable(stream, version, stored, str(error)) from None

    def event(self, record: DecodedRecord) -> Event | Opaque:
        """Return the event of a decoded record."""
        payload = record.payload
        if type(payload) is msgspec.Raw:
            kind, version = self._opaque[type(record)]
            return Opaque(kind, version, bytes(payload))
        return cast(Event, payload)


def tag_of_record(data: bytes) -> tuple[str, int]:
    """Return (kind, schema version) of record bytes without decoding the payload; raise ValueError."""
    try:
        return split_tag(_decode_tag(data).tag)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise ValueError(str(error)) from None


def raw_record(data: bytes) -> list[Any]:
    """Decode record bytes to builtins, as stored; raise ValueError. For looking at any journal."""
    try:
        fields = msgspec.msgpack.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if not isinstance(fields, list) or len(fields) < len(RECORD_FIELDS):
        raise ValueError(f"a record is an array of {len(RECORD_FIELDS)} fields")
    return fields


def blobs_in(data: bytes) -> list[bytes]:
    """Return the digests of the blobs that record bytes refer to, whatever their kind; raise ValueError."""
    if b"blob" not in data:  # most records have none, and need no decoding to know it
        return []
    found: list[bytes] = []
    todo: list[Any] = [raw_record(data)[-1]]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            if value.keys() == {"blob", "size"} and isinstance(value["blob"], str):
                with suppress(ValueError):
                    found.append(bytes.fromhex(value["blob"]))
            todo += value.values()
    return [digest for digest in found if len(digest) == Blob.DIGEST_BYTES]


@functools.cache
def describe(event_type: type[Event]) -> tuple[str, bytes]:
    """Return (tag, description) for the registry of kinds: field names, types and defaults as msgpack."""
    fields = [
        {"name": f.encode_name, "type": _type_name(f.type), "required": f.required}
        for f in msgspec.structs.fields(event_type)
    ]
    return tag_of(event_type), msgspec.msgpack.encode({"fields": fields})


def read_description(tag: str, description: bytes) -> list[dict[str, Any]]:
    """Return the fields of a registry row; raise `Corruption` naming the tag."""
    try:
        fields = msgspec.msgpack.decode(description)["fields"]
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise Corruption(f"the store's description of {tag!r} cannot be read: {error}") from None
    return cast(list[dict[str, Any]], fields)


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not getattr(annotation, "__args__", None):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _record_class(stored: str, payload: Any) -> type[Any]:
    return msgspec.defstruct(
        f"Record[{stored}]",
        [
            ("time_ns", int),
            ("causation", str | None),
            ("correlation", str | None),
            ("payload", payload),
        ],
        tag=stored,
        array_like=True,
        frozen=True,
        gc=False,  # frozen, and built from bytes: it cannot be part of a cycle
    )


def _decode_nothing(data: bytes) -> Any:
    raise msgspec.ValidationError("no kinds are registered yet")


__all__ = [
    "RECORD_BYTES_MAX",
    "RECORD_FIELDS",
    "Codec",
    "DecodedRecord",
    "Encoded",
    "blobs_in",
    "describe",
    "raw_record",
    "read_description",
    "tag_of_record",
]
