"""Looking at record bytes without the code's events: tags, builtins, blobs. For any journal, whatever wrote it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from tailfold.engine.events import COMPOSITE_KIND, Blob, split_tag, tag

RECORD_BYTES_MAX = 64 << 20
"""The largest record; larger content belongs into a `Blob`."""

RECORD_FIELDS = ("tag", "time_ns", "causation", "correlation", "payload")
"""The fields of a record in their order. Later formats may append, never reorder."""


class _HasTag(msgspec.Struct, array_like=True):
    tag: Any


_decode_tag = msgspec.msgpack.Decoder(_HasTag).decode


class _HasTime(msgspec.Struct, array_like=True):
    tag: Any
    time_ns: int


_decode_time = msgspec.msgpack.Decoder(_HasTime).decode


class _HasCause(msgspec.Struct, array_like=True):
    tag: Any
    time_ns: Any
    causation: str | None


_decode_cause = msgspec.msgpack.Decoder(_HasCause).decode


class _HasPayload(msgspec.Struct, array_like=True):
    tag: Any
    time_ns: Any
    causation: Any
    correlation: Any
    payload: msgspec.Raw


_decode_raw = msgspec.msgpack.Decoder(_HasPayload).decode


def stored_tag(data: bytes) -> str:
    """Return the tag of record bytes as it stands there; raise ValueError if there is none."""
    try:
        stored = _decode_tag(data).tag
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if not isinstance(stored, str):
        raise ValueError(f"{stored!r} is no tag")
    return stored


def tag_of_record(data: bytes) -> tuple[str, int]:
    """Return (kind, schema version) of record bytes without decoding the payload; raise ValueError."""
    return split_tag(stored_tag(data))


def format_needed(data: bytes) -> int:
    """Return the least store format that can hold record bytes; raise ValueError."""
    return 2 if tag_of_record(data)[0] == COMPOSITE_KIND else 1


def tags_in(data: bytes) -> list[str]:
    """Return the tags of what record bytes say: of each part of a composite, else its own; raise ValueError."""
    kind, version = tag_of_record(data)
    if kind != COMPOSITE_KIND:
        return [tag(kind, version)]
    try:
        return [str(stored) for stored, _ in raw_record(data)[RECORD_FIELDS.index("payload")]]
    except TypeError as error:
        raise ValueError(f"not a composite: {error}") from None


def time_of_record(data: bytes) -> int:
    """Return the time of record bytes (UTC nanoseconds) without decoding the payload; raise ValueError."""
    try:
        return _decode_time(data).time_ns
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def tag_bytes(data: bytes) -> bytes:
    """Return the tag at the front of record bytes as it stands there; empty if it cannot be told that simply.

    For passing over records that nobody wants: nothing is decoded.
    """
    head = data[1:3]
    if len(head) == 2 and 0xA0 <= head[0] <= 0xBF:  # msgpack: a short text, its length in five bits
        return data[2 : 2 + (head[0] & 31)]
    if len(head) == 2 and head[0] == 0xD9:  # a text of up to 255 bytes
        return data[3 : 3 + head[1]]
    return b""


def causation_of(data: bytes) -> str | None:
    """Return the causation of record bytes without decoding the payload; raise ValueError."""
    try:
        return _decode_cause(data).causation
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def stored_payloads(data: bytes) -> list[tuple[str, int, bytes]]:
    """Return (kind, schema version, payload bytes) of record bytes: of each part of a composite, else its own.

    The payloads are as they stand there. Raises ValueError.
    """
    try:
        record = _decode_raw(data)
        kind, version = split_tag(record.tag)
        if kind != COMPOSITE_KIND:
            return [(kind, version, bytes(record.payload))]
        parts = msgspec.msgpack.decode(record.payload, type=list[tuple[str, msgspec.Raw]])
        return [(*split_tag(stored), bytes(payload)) for stored, payload in parts]
    except (msgspec.MsgspecError, AttributeError) as error:
        raise ValueError(str(error)) from None


def as_record(kind: str, version: int, payload: bytes) -> bytes:
    """Return record bytes of a payload alone, without time and causes: for decoding it as a record is decoded."""
    return msgspec.msgpack.encode([tag(kind, version), 0, None, None, msgspec.Raw(payload)])


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
