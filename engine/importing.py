"""Import of what `exporting` wrote: the whole file is checked first, then the very bytes are appended."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.backend import chain
from tailfold.engine.backend.port import Append, Appended
from tailfold.engine.errors import BadArgument, Conflict, Corruption, EngineError
from tailfold.engine.events import COMPOSITE_KIND, Blob, split_tag, tag
from tailfold.engine.log import Log
from tailfold.engine.names import check_kind, check_stream_name
from tailfold.engine.rawrecords import RECORD_BYTES_MAX, blobs_in, format_needed, raw_record, tag_of_record, tags_in
from tailfold.engine.records import describe_fields

BATCH_EVENTS = 256
BATCH_BYTES = 4 << 20

Progress = Callable[[int], None]


class Checked(NamedTuple):
    """What a file holds, after every line of it was looked at."""

    stream: str
    events: int
    elsewhere: dict[bytes, int]
    """Blobs that the file refers to and does not hold, and the line that does: the store must have them."""


class Imported(NamedTuple):
    """What an import did."""

    stream: str
    events: int
    """Events of the stream, as many as the file has."""
    added: int
    """How many of them this import appended; the others were there already."""
    head: str
    """Chain hash of the stream's end, in hex."""


class _Line(msgspec.Struct):
    stream: str
    version: int
    sub: int = 0
    hash: str | None = None
    origin: str | None = None
    events: int | None = None
    record: str | None = None
    blobs: dict[str, str] = {}
    fields: dict[str, list[list[dict[str, Any]]]] = {}


class _Stored(NamedTuple):
    """One stored event of a file, decoded and checked by itself."""

    line: int
    stream: str
    version: int
    hash: str | None
    origin: str | None
    events: int | None
    data: bytes
    digest: bytes
    time_ns: int
    blobs: dict[bytes, bytes]
    schemas: list[tuple[str, bytes]]


_decode_line = msgspec.json.Decoder(_Line).decode


def check(lines: Iterable[bytes], *, progress: Progress | None = None) -> Checked:
    """Look at every line of an export; nothing is written.

    Raises `BadArgument` naming the line that is no JSON, has no record bytes, or is not where it has to be;
    `Corruption` for one whose record does not give the chain hash, or whose blob does not have its digest.
    """
    stream, version, link = "", 0, b""
    promised: int | None = None
    held: set[bytes] = set()
    elsewhere: dict[bytes, int] = {}
    for stored in _read(lines):
        if not version:
            stream, link = check_stream_name(stored.stream), chain.seed(stored.origin or stored.stream)
            promised = stored.events
        if stored.stream != stream:
            raise BadArgument(
                f"line {stored.line} is of stream {stored.stream!r}, the file began with {stream!r}:"
                " one export a file"
            )
        version += 1
        if stored.version != version:
            raise BadArgument(f"line {stored.line} is of version {stored.version}, version {version} is due")
        link = chain.link(link, stored.digest)
        if stored.hash != link.hex():
            raise Corruption(
                f"line {stored.line}: the records up to version {version} do not give its hash. The file was"
                " changed after it was exported; export it again"
            )
        held |= stored.blobs.keys()
        for digest in blobs_in(stored.data):
            if digest not in held:
                elsewhere.setdefault(digest, stored.line)
        if progress and version % 1000 == 0:
            progress(1000)
    if not version:
        raise BadArgument("the file holds no event")
    if promised is not None and version != promised:
        raise BadArgument(f"the file ends at version {version}, its first line says {promised}: it was cut off")
    return Checked(stream, version, elsewhere)


def import_stream(
    log: Log,
    checked: Checked,
    lines: Iterable[bytes],
    *,
    name: str | None = None,
    progress: Progress | None = None,
    after_commit: Callable[[Appended], None] | None = None,
) -> Imported:
    """Append the records of a file that `check` has passed, to the stream *name* (by default the file's own).

    Bytes, times, causes and blobs stay as they are; so does the chain hash, if the name does. What was
    acknowledged by *after_commit* is durable, batch by batch: an import that was killed is continued by running it
    again. Raises `Conflict` with nothing written if the stream has other events, `BadArgument` if the content of a
    blob is neither in the file nor in the store.
    """
    stream = check_stream_name(name) if name is not None else checked.stream
    for digest, line in checked.elsewhere.items():
        if log.backend.blob(digest) is None:
            raise BadArgument(f"line {line} refers to blob {digest.hex()}, which the file does not hold")
    head = log.backend.head(stream)
    there = head.version if head is not None else 0
    if there > checked.events:
        raise Conflict(
            f"stream {stream!r} has {there} events already, the file has {checked.events}. Import it under another"
            " name (--as)"
        )
    # Where it is there as a fork, its chain begins with the name of its root.
    root = log.backend.lineage(stream)[0].stream if head is not None else stream
    link, version = chain.seed(root), 0
    batch: list[_Stored] = []
    size = 0
    for stored in _read(lines):
        version += 1
        link = chain.link(link, stored.digest)
        if version == there and head is not None and link != head.hash:
            raise Conflict(
                f"stream {stream!r} has {there} events already, and they are not the first of the file. Import it"
                " under another name (--as)"
            )
        if version > there:
            batch.append(stored)
            size += len(stored.data) + sum(map(len, stored.blobs.values()))
        if len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES:
            _append(log, stream, version - len(batch), batch, after_commit)
            batch, size = [], 0
        if progress and version % 1000 == 0:
            progress(1000)
    if batch:
        _append(log, stream, version - len(batch), batch, after_commit)
    return Imported(stream, version, version - there, link.hex())


def _append(
    log: Log,
    stream: str,
    expected: int,
    batch: list[_Stored],
    after_commit: Callable[[Appended], None] | None,
) -> None:
    append = Append(
        stream,
        expected,
        [stored.data for stored in batch],
        [stored.digest for stored in batch],
        batch[-1].time_ns,
        blobs={digest: content for stored in batch for digest, content in stored.blobs.items()},
        format=max(format_needed(stored.data) for stored in batch),
        created_ns=batch[0].time_ns,
    )
    described = [item for stored in batch for item in stored.schemas]
    if described:
        log.backend.put(schemas=described)
    [done] = log.backend.commit([append])
    if isinstance(done, EngineError):
        raise done
    if after_commit is not None:
        after_commit(done)


def _read(lines: Iterable[bytes]) -> Iterator[_Stored]:
    """Yield the stored events of a file; raise `BadArgument` or `Corruption` naming the line."""
    before: _Line | None = None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = _decode_line(text)
        except msgspec.MsgspecError as error:
            raise BadArgument(f"line {number} is no line of an export: {error}") from None
        if line.sub:
            if before is None or (line.stream, line.version, line.sub) != (
                before.stream,
                before.version,
                before.sub + 1,
            ):
                raise BadArgument(f"line {number} is part {line.sub} of an event that the line before is not of")
        else:
            yield _stored(number, line)
        before = line


def _stored(number: int, line: _Line) -> _Stored:
    if line.record is None:
        raise BadArgument(
            f"line {number} has no record bytes, so the event cannot be restored as it was. Export again, with"
            " --records (the default)"
        )
    data = _bytes(number, "record", line.record)
    try:
        time_ns, tags = _check_record(data)
    except ValueError as error:
        raise BadArgument(f"line {number}: its bytes are no record: {error}") from None
    if len(data) > RECORD_BYTES_MAX:
        raise BadArgument(f"line {number}: the record has {len(data)} bytes, the most is {RECORD_BYTES_MAX}")
    blobs = {}
    for digest, text in line.blobs.items():
        content = _bytes(number, f"blob {digest}", text)
        if Blob.digest_of(content).hex() != digest:
            raise Corruption(f"line {number}: the content of blob {digest} does not have that digest")
        blobs[bytes.fromhex(digest)] = content
    schemas = [(one, describe_fields(f)) for one, sets in line.fields.items() if one in tags for f in sets]
    return _Stored(
        number,
        line.stream,
        line.version,
        line.hash,
        line.origin,
        line.events,
        data,
        chain.digest(data),
        time_ns,
        blobs,
        schemas,
    )


def _check_record(data: bytes) -> tuple[int, list[str]]:
    """Return time and tags of record bytes that could have been appended; raise ValueError for others."""
    _, time_ns, causation, correlation, payload, *_ = raw_record(data)
    tags = tags_in(data)
    for stored in tags:
        check_kind(split_tag(stored)[0])
        if tag(*split_tag(stored)) != stored:
            raise ValueError(f"{stored!r} is not written as a tag is")
    if type(time_ns) is not int or not 0 <= time_ns < 1 << 63:
        raise ValueError(f"{time_ns!r} is no time")
    if not all(text is None or isinstance(text, str) for text in (causation, correlation)):
        raise ValueError("causation and correlation are texts")
    composite = tag_of_record(data)[0] == COMPOSITE_KIND
    if not all(isinstance(part, dict) for part in ([part for _, part in payload] if composite else [payload])):
        raise ValueError("a payload is a map with the names of the fields")
    return time_ns, tags


def _bytes(number: int, what: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadArgument(f"line {number}: its {what} is no base64: {error}") from None
