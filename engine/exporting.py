"""Export of one stream, byte for byte: JSON lines that people read, with the records that `importing` needs.

One line an event. The first line of each stored event (``sub`` 0) carries its record bytes, and whatever of blobs
and field descriptions was on no line before.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from tailfold.engine.backend.port import Row
from tailfold.engine.errors import BlobDamaged, BlobNotFound
from tailfold.engine.events import Blob, Opaque, tag
from tailfold.engine.log import Log, Recorded, event_id
from tailfold.engine.rawrecords import blobs_in, raw_record, tag_of_record, tags_in
from tailfold.engine.records import read_description


def time_text(time_ns: int) -> str:
    """Return UTC nanoseconds as ISO 8601 with microseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    stamp = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000, tzinfo=None)
    return stamp.isoformat(timespec="microseconds") + "Z"


def line_of(recorded: Recorded) -> dict[str, Any]:
    """Return an event as plain values, as it is shown and exported."""
    return {
        "stream": recorded.stream,
        "version": recorded.version,
        "sub": recorded.sub,
        "position": recorded.position,
        "id": recorded.event_id,
        "time": time_text(recorded.time_ns),
        "time_ns": recorded.time_ns,
        "kind": recorded.kind,
        "schema_version": recorded.schema_version,
        "stored": recorded.stored,
        "payload": _payload(recorded),
        "opaque": isinstance(recorded.event, Opaque),
        "causation": recorded.causation,
        "correlation": recorded.correlation,
        "hash": recorded.hash,
        "origin": recorded.origin,
    }


def export(log: Log, stream: str, *, records: bool = True) -> Iterator[dict[str, Any]]:
    """Yield *stream* as lines (plain values), oldest first; with *records*, all that import needs.

    A stored event that steps dropped gives one line, ``dropped``, with its kind and payload as stored. Raises
    `StreamNotFound` at once, and before the first line `BlobNotFound` or `BlobDamaged` if content is not there;
    a `SchemaError` or `RecordDamaged` where an event cannot be read.
    """
    head = log.head(stream)
    if records:
        for row in log.rows(stream, after=0, upto=head.version):
            for digest in blobs_in(row.data):
                _content(log, digest)
    return _export(log, stream, head.version, records)


def _export(log: Log, stream: str, upto: int, records: bool) -> Iterator[dict[str, Any]]:
    seen: set[bytes] = set()
    described: dict[str, list[Any]] = {}
    for stored, description in log.backend.schemas() if records else ():
        described.setdefault(stored, []).append(read_description(stored, description))
    for row in log.rows(stream, after=0, upto=upto):
        lines = [line_of(recorded) for recorded in log.recorded(row)] or [_dropped(row)]
        if records:
            if row.version == 1:
                lines[0]["events"] = upto
            lines[0]["record"] = base64.b64encode(row.data).decode()
            new = [digest for digest in dict.fromkeys(blobs_in(row.data)) if digest not in seen]
            seen.update(new)
            if new:
                lines[0]["blobs"] = {d.hex(): base64.b64encode(_content(log, d)).decode() for d in new}
            fields = {one: described.pop(one) for one in tags_in(row.data) if one in described}
            if fields:
                lines[0]["fields"] = fields
        yield from lines


def _dropped(row: Row) -> dict[str, Any]:
    _, time_ns, causation, correlation, payload, *_ = raw_record(row.data)
    kind, schema_version = tag_of_record(row.data)
    return {
        "stream": row.stream,
        "version": row.version,
        "sub": 0,
        "position": row.position,
        "id": event_id(row.origin, row.version),
        "time": time_text(time_ns),
        "time_ns": time_ns,
        "kind": kind,
        "schema_version": schema_version,
        "stored": tag(kind, schema_version),
        "payload": msgspec.to_builtins(payload, str_keys=True),
        "opaque": False,
        "dropped": True,
        "causation": causation,
        "correlation": correlation,
        "hash": row.hash.hex(),
        "origin": row.origin,
    }


def _content(log: Log, digest: bytes) -> bytes:
    content = log.backend.blob(digest)
    if content is None:
        raise BlobNotFound(digest.hex())
    if Blob.digest_of(content) != digest:
        raise BlobDamaged(digest.hex())
    return content


def _payload(recorded: Recorded) -> Any:
    event = recorded.event
    if isinstance(event, Opaque):
        return msgspec.to_builtins(event.builtins(), str_keys=True)
    return msgspec.to_builtins(event, enc_hook=_blob, str_keys=True)


def _blob(value: Any) -> Any:
    if isinstance(value, Blob):
        return {"blob": value.digest.hex(), "size": value.size}
    raise TypeError(f"{type(value).__name__} cannot be shown")
