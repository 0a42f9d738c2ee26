"""Record bytes ↔ events, in one msgspec call. Only this module builds record bytes; `rawrecords` looks at them.

A record is one msgpack array, [kind@version, time, causation, correlation, payload], and for every
(kind, version) there is a generated class with that tag, so that one decode gives a typed event. An older version
gets a class whose payload is lifted on the way out (`lifting`); an unknown kind one that keeps it as it is.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn, Protocol, TypeVar, Union, cast

import msgspec
from tailfold.engine.backend.port import Packed, Plain
from tailfold.engine.errors import (
    BadArgument,
    Corruption,
    RecordDamaged,
    SchemaTooNew,
    SchemaTooOld,
    StoreClosed,
    Undecodable,
)
from tailfold.engine.events import (
    COMPOSITE_KIND,
    COMPOSITE_TAG,
    Blob,
    Composite,
    Event,
    Opaque,
    Several,
    check_event_type,
    split_tag,
    tag,
    tag_of,
)
from tailfold.engine.lifting import Lifting
from tailfold.engine.rawrecords import (
    RECORD_BYTES_MAX,
    RECORD_FIELDS,
    raw_record,
    stored_tag,
)
from tailfold.upcasters import Chain, Standing, Upcasters

E = TypeVar("E", bound=type[Event])
_take_apart = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class DecodedRecord(Protocol):
    """What the generated record classes look like."""

    time_ns: int
    causation: str | None
    correlation: str | None
    payload: Any
    """The event; `Several` where steps made not one of it; `msgspec.Raw` for what the code does not know."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An event as it will be stored, and as it will be read back."""

    data: bytes
    record: DecodedRecord
    blobs: dict[bytes, bytes] | None


class Newer(Enum):
    """What to do with an event whose schema version is higher than the code's."""

    REFUSE = "refuse"
    """Raise `SchemaTooNew`: half an answer is none. The default."""
    OPAQUE = "opaque"
    """Keep it opaque, flagged and counted, and pass over it in folds: for looking at a journal from older code."""


class Codec:
    """The kinds that one store knows, and the compiled encoder and decoder for them. Thread-safe."""

    def __init__(
        self,
        load_blob: Callable[[bytes], bytes | None],
        stored_fields: Callable[[str], list[list[dict[str, Any]]]] = lambda tag: [],
    ) -> None:
        """*load_blob* fetches the content of a blob, *stored_fields* all field lists that a tag has had."""
        self._load_blob = load_blob
        self._stored_fields = stored_fields
        self.newer = Newer.REFUSE
        self.newer_read: Counter[str] = Counter()
        """How often an event of a newer schema version was read as opaque, by tag."""
        self._changing = threading.Lock()
        self._types: dict[str, type[Event]] = {}
        self._known: dict[str, int] = {COMPOSITE_KIND: 1}
        self._classes: dict[str, type[Any]] = {
            COMPOSITE_TAG: _record_class(COMPOSITE_TAG, list[tuple[str, msgspec.Raw]], self._wrap_parts)
        }
        self._class_of: dict[type[Event], type[Any]] = {}
        self._opaque: dict[type[Any], tuple[str, int]] = {}
        self._found = threading.local()
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._encode_hook).encode
        # Sorted: a retry after a restart may have another order of sets and dictionaries.
        self._encode_content = msgspec.msgpack.Encoder(enc_hook=self._encode_hook, order="deterministic").encode
        self._met_composite = False
        """Only then is every page looked through for them."""
        self._decode: Callable[[bytes], Any]
        self._decode_array: Callable[[bytes], list[Any]]
        self._compile()
        self.lifting = Lifting(self._decode_as, self._encode)

    def let_go(self) -> None:
        """Hold no store any more: msgspec and typing keep classes that were made here, and so this, for long."""
        self._load_blob = self._stored_fields = _closed
        self.lifting.load_context = _closed

    # -- kinds -----------------------------------------------------------------------------------------

    @property
    def known_events(self) -> tuple[type[Event], ...]:
        """The event classes that were made known."""
        return tuple(self._types.values())

    def register(self, types: Iterable[type[Event]]) -> None:
        """Make the code's events known. Registering a class again is free.

        Raises `BadArgument` if two classes claim one kind; then nothing of *types* is registered.
        """
        new = [t for t in types if t not in self._class_of]
        if not new:
            return
        with self._changing:
            new = [t for t in new if t not in self._class_of]  # another thread may have been first
            added: dict[str, type[Event]] = {}
            for event_type in new:
                check_event_type(event_type)
                rival = self._types.get(event_type.kind) or added.get(event_type.kind)
                if rival is not None and rival is not event_type:
                    raise BadArgument(
                        f"kind {event_type.kind!r} is declared by {rival.__qualname__} and by"
                        f" {event_type.__qualname__}: one class a kind"
                    )
                if self.lifting.chain.lifts(event_type.kind, event_type.version):
                    raise BadArgument(f"{tag_of(event_type)!r} is current in the code, and a step lifts it")
                added[event_type.kind] = event_type
            self._types |= added
            self._forget_unusual(added)  # what was opaque may have to be lifted now
            records: dict[type[Event], type[Any]] = {}
            for kind, event_type in added.items():
                self._known[kind] = event_type.version
                record = records[event_type] = _record_class(tag_of(event_type), event_type)
                self._classes[tag_of(event_type)] = record
            self._compile()
            # Only now: whoever finds a class here encodes with it, and decodes what comes out.
            self._class_of |= records

    def adopt(self, upcasters: Upcasters) -> None:
        """Make the events and steps of *upcasters* known. Adopting them again is free.

        Raises `BadArgument` or `BadSteps`, with nothing added.
        """
        if self.lifting.has(upcasters) and all(event_type in self._class_of for event_type in upcasters.events):
            return
        for event_type in upcasters.events:
            check_event_type(event_type)
        self.lifting.adopt(upcasters, self._types.values())
        # A context fold sees its events from the first one on, wherever reading begins.
        self.register([*upcasters.events, *(one for c in self.lifting.chain.contexts for one in c.events)])
        with self._changing:
            self._forget_unusual({split_tag(stored)[0] for stored in self._classes})
            self._compile()

    def ordered_chain(self) -> Chain:
        """Return the chain with sets in order, so that what it gives can be compared between processes."""
        chain = self.lifting.chain

        def plain(value: Any) -> Any:
            try:
                return msgspec.msgpack.decode(self._encode_content(value))
            except TypeError:  # of dictionaries whose keys are no texts, msgspec knows no order
                return chain.plain(value)

        return Chain(chain.upcasters, chain.current, chain.build, plain)

    def _forget_unusual(self, kinds: Iterable[str]) -> None:
        """Drop the classes of opaque and old records of *kinds*: they are made again when they are met."""
        for stored in [s for s in self._classes if split_tag(s)[0] in kinds]:
            record = self._classes[stored]
            if record not in self._class_of.values() and stored != COMPOSITE_TAG:
                del self._classes[stored]
                self._opaque.pop(record, None)

    def _keep_opaque(self, stored: str) -> None:
        """Give an unknown (kind, version) a class of its own, so that it decodes as fast as any other."""
        self._install(stored, msgspec.Raw, opaque=True)

    def _keep_newer(self, stored: str) -> None:
        """Give a newer (kind, version) an opaque class that counts."""

        def count(record: Any) -> None:
            self.newer_read[stored] += 1

        self._install(stored, msgspec.Raw, count, opaque=True)

    def _install(
        self, stored: str, payload: Any, then: Callable[[Any], None] | None = None, *, opaque: bool = False
    ) -> None:
        with self._changing:
            if stored not in self._classes:
                record = _record_class(stored, payload, then)
                if opaque:
                    self._opaque[record] = split_tag(stored)
                self._classes[stored] = record
                self._compile()

    def _compile(self) -> None:
        union = cast(Any, Union[tuple(self._classes.values())])  # noqa: UP007 - built at run time
        self._decode = msgspec.msgpack.Decoder(union, dec_hook=self._decode_hook).decode
        self._decode_array = msgspec.msgpack.Decoder(cast(Any, list)[union], dec_hook=self._decode_hook).decode

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

    def encode_composite(
        self, events: Sequence[Event | Opaque], time_ns: int, causation: str | None, correlation: str | None
    ) -> tuple[bytes, dict[bytes, bytes]]:
        """Return one record that stands for all of *events*, or for none, and the content of new blobs in it.

        Raises `BadArgument` if it grows too large. Needs format 2.
        """
        self._found.blobs = None
        parts = [
            (tag(event.opaque_kind, event.opaque_version), msgspec.Raw(event.payload))
            if isinstance(event, Opaque)
            else (tag_of(type(event)), msgspec.Raw(self._encode(event)))
            for event in events
        ]
        data = self._encode((COMPOSITE_TAG, time_ns, causation, correlation, parts))
        if len(data) > RECORD_BYTES_MAX:
            raise BadArgument(f"a composite of {len(data)} bytes cannot be stored, the most is {RECORD_BYTES_MAX}")
        return data, self._found.blobs or {}

    def content(self, events: Sequence[Event]) -> bytes:
        """Return the digest of what *events* say, without times and causes: what a retry repeats."""
        digest = hashlib.blake2b(digest_size=16, person=b"tailfold.content")
        for event in events:
            stored, payload = self.said(event)
            digest.update(f"{stored} {len(payload)} ".encode())
            digest.update(payload)
        return digest.digest()

    def said(self, event: Event | Opaque) -> tuple[str, bytes]:
        """Return tag and payload of *event*, equal for equal events: sets and dictionaries are in order."""
        if isinstance(event, Opaque):
            return tag(event.opaque_kind, event.opaque_version), event.payload
        try:
            return tag_of(type(event)), self._encode_content(event)
        except TypeError:
            # msgspec knows no order of keys that are not texts. As texts they have one; the size tells 1 from "1".
            plain = msgspec.to_builtins(event, enc_hook=self._encode_hook, str_keys=True, order="deterministic")
            return tag_of(type(event)), self._encode_content([len(self._encode(event)), plain])

    def _encode_hook(self, value: Any) -> Any:
        if isinstance(value, Blob):
            content = value.pending(self._load_blob)
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
        try:
            records = list(map(self._decode, page))
        except Exception:  # msgspec's own, or whatever a step raises: look at each, to say which
            records = [self._decode_one(stream, after + i, data) for i, data in enumerate(page, 1)]
        return self._finished(stream, after, records)

    def decode_runs(
        self, stream: str, after: int, runs: Iterable[Plain | Packed]
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield (record bytes, decoded records) of each run; raises like `decode_page`."""
        for run in runs:
            if type(run) is Plain:
                records = self.decode_page(stream, after, run.records)
            else:
                records = self._decode_packed(stream, after, cast(Packed, run))
            yield run.bytes, records
            after += len(records)

    def _decode_packed(self, stream: str, after: int, run: Packed) -> list[Any]:
        array = run.unpack()
        try:
            records = self._decode_array(array)
        except Exception:  # as in `decode_page`; or a kind that is met for the first time
            try:
                apart = [bytes(one) for one in _take_apart(array)]
            except msgspec.MsgspecError as error:
                raise RecordDamaged(stream, after + 1, f"the records cannot be read: {error}") from None
            return self.decode_page(stream, after, apart)
        if len(records) != run.records:
            raise RecordDamaged(stream, after + 1, f"{len(records)} records where {run.records} have to be")
        return self._finished(stream, after, records)

    def _finished(self, stream: str, after: int, records: list[Any]) -> list[Any]:
        if self._met_composite:
            for i, record in enumerate(records, 1):
                if type(record.payload) is Composite:
                    record.payload = self._parts(stream, after + i, record.payload)
        if self.lifting.chain.contexts:
            self.lifting.resolve(stream, after, records)
        return records

    def decode(self, stream: str, version: int, data: bytes) -> Any:
        """Decode one record; see `decode_page`."""
        return self.decode_page(stream, version - 1, [data])[0]

    def _decode_one(self, stream: str, version: int, data: bytes) -> Any:
        try:
            return self._decode(data)
        except msgspec.ValidationError as error:
            return self._decode_unusual(stream, version, data, error)
        except msgspec.DecodeError as error:
            raise RecordDamaged(stream, version, f"the record cannot be read: {error}") from None
        except Exception as error:  # a step raised
            return self._decode_unusual(stream, version, data, error)

    def _wrap_parts(self, record: Any) -> None:
        self._met_composite = True
        record.payload = Composite(record.payload)

    def _parts(self, stream: str, version: int, composite: Composite) -> Several:
        """Decode each part as a record of its own: opaque, current, or lifted by its own tag.

        Parts whose steps look at earlier events are left `Waiting`.
        """
        found: list[Any] = []
        for stored, payload in composite.parts:
            data = self._encode([stored, 0, None, None, payload])
            record = self._decode_one(stream, version, data)
            if type(record.payload) is Composite:
                raise RecordDamaged(stream, version, "a composite inside a composite")
            found += self.events(record)
        return Several(tuple(found))

    def _decode_unusual(self, stream: str, version: int, data: bytes, error: Exception) -> Any:
        try:
            stored = stored_tag(data)
            kind, schema_version = split_tag(stored)
        except ValueError:
            raise RecordDamaged(stream, version, "the record has no kind@version") from None
        known = self._known.get(kind, 0)
        met = stored in self._classes
        match self.lifting.chain.standing_among(kind, schema_version, self._known):
            case Standing.UNKNOWN if not met:
                self._keep_opaque(stored)
            case Standing.NEWER if self.newer is Newer.OPAQUE and not met:
                self._keep_newer(stored)
            case Standing.NEWER if not met:
                raise SchemaTooNew(stream, version, kind, schema_version, known) from None
            case Standing.OLDER if not met:
                way = self.lifting.way(kind, schema_version)
                if way is not None:
                    self._install(stored, way.payload, way.lift)
                elif self._fits_as_it_is(stored, kind):
                    self._install(stored, self._types[kind])
                else:
                    raise SchemaTooOld(stream, version, kind, schema_version, known) from None
            case Standing.OLDER if self.lifting.chain.lifts(kind, schema_version):
                return self._lift_slowly(stream, version, kind, schema_version, data, error)
            case _:
                raise Undecodable(stream, version, stored, str(error)) from None
        return self._decode_one(stream, version, data)

    def _lift_slowly(
        self, stream: str, version: int, kind: str, schema_version: int, data: bytes, error: Exception
    ) -> Any:
        """Walk the steps one by one: to say which one failed, or because the fast way could not do it."""
        try:
            _, time_ns, causation, correlation, payload = raw_record(data)[: len(RECORD_FIELDS)]
        except ValueError:
            raise Undecodable(stream, version, f"{kind}@{schema_version}", str(error)) from None
        lifted = self.lifting.slowly(stream, version, kind, schema_version, payload)
        return _Lifted(time_ns, causation, correlation, lifted)

    def standing(self, stored: str) -> Standing:
        """Say how a stored tag stands to the code's events and steps; raise ValueError if it is none."""
        return self.lifting.chain.standing_among(*split_tag(stored), self._known)

    def _fits_as_it_is(self, stored: str, kind: str) -> bool:
        """Say whether the current class only adds fields with defaults to what the store says of *stored*."""
        now = {field["name"]: field for field in fields_of(self._types[kind])}
        described = self._stored_fields(stored)
        return bool(described) and all(_only_adds(fields, now) for fields in described)

    def events(self, record: DecodedRecord) -> tuple[Event | Opaque, ...]:
        """Return the events of a decoded record: one, unless its steps made several or none of it."""
        payload = record.payload
        if type(payload) is msgspec.Raw:
            kind, version = self._opaque[type(record)]
            return (Opaque(kind, version, bytes(payload), newer=kind in self._known),)
        return payload.events if type(payload) is Several else (payload,)

    def _decode_as(self, data: bytes, wanted: Any) -> Any:
        return msgspec.msgpack.decode(data, type=wanted, dec_hook=self._decode_hook)


def _closed(*_: object) -> NoReturn:
    raise StoreClosed("the store is closed")


class _Lifted(msgspec.Struct, gc=False):
    """A record that was lifted step by step."""

    time_ns: int
    causation: str | None
    correlation: str | None
    payload: Any


@functools.cache
def describe(event_type: type[Event]) -> tuple[str, bytes]:
    """Return (tag, description) for the registry of kinds: field names, types and defaults as msgpack."""
    return tag_of(event_type), describe_fields(fields_of(event_type))


def describe_fields(fields: list[dict[str, Any]]) -> bytes:
    """Return the description of *fields* that the registry of kinds keeps: the reverse of `read_description`."""
    return msgspec.msgpack.encode({"fields": fields})


def fields_of(event_type: type[Event]) -> list[dict[str, Any]]:
    """Return name, type and whether it is required of each field, as the registry of kinds keeps it."""
    return [
        {"name": f.encode_name, "type": _type_name(f.type), "required": f.required}
        for f in msgspec.structs.fields(event_type)
    ]


def _only_adds(stored: list[dict[str, Any]], now: Mapping[str, dict[str, Any]]) -> bool:
    names = {field["name"] for field in stored}
    kept = all(field["name"] in now and now[field["name"]]["type"] == field["type"] for field in stored)
    return kept and all(name in names or not field["required"] for name, field in now.items())


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


def _record_class(stored: str, payload: Any, then: Callable[[Any], None] | None = None) -> type[Any]:
    """Make the class of the records with this tag; *then* is called with each one that was decoded."""
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
        namespace={"__post_init__": then} if then is not None else None,
        frozen=then is None,
        gc=False,  # frozen, and built from bytes: it cannot be part of a cycle
    )


__all__ = [
    "Codec",
    "DecodedRecord",
    "Encoded",
    "Newer",
    "describe",
    "describe_fields",
    "fields_of",
    "read_description",
]
