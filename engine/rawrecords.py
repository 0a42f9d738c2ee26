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
