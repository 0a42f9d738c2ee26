"""The log of one store: append events, read them back. Everything above sees events; below are rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from tailfold.engine.backend import chain
from tailfold.engine.backend.commit import GroupCommit, Outcome
from tailfold.engine.backend.port import (
    ANY,
    EXISTS,
    NOTHING,
    Append,
    Appended,
    Backend,
    Head,
    Row,
    SnapshotWrite,
)
from tailfold.engine.errors import BadArgument, RecordDamaged, StreamNotFound
from tailfold.engine.events import Event, Opaque, tag
from tailfold.engine.names import check_stream_name
from tailfold.engine.rawrecords import tag_of_record
from tailfold.engine.records import Codec, DecodedRecord, describe, read_description

ROWS_PER_PAGE = 256
"""Rows fetched in one read transaction: no reader pins pages while its caller works."""
RECORDS_PER_PAGE = 1024
"""Records decoded at a time by a fold."""
KEY_CHARS_MAX = 1024


class Recorded(NamedTuple):
    """An event as it stands in the log, with its envelope."""

    stream: str
    version: int
    position: int
    time_ns: int
    """UTC, nanoseconds since 1970."""
    kind: str
    """The kind of `event`."""
    schema_version: int
    """The version the event was *stored* at; `event` is at the code's own."""
    event: Event | Opaque
    causation: str | None
    """The event id (``stream@version``) of what caused it."""
    correlation: str | None
    hash: str
    """Chain hash at this version, in hex."""
    origin: str
    """The stream that the event was appended to: an ancestor, where `stream` is a fork that inherited it."""
    stored: str
    """``kind@version`` as stored: another kind than `kind` if a step renamed it."""
    sub: int = 0
    """Which of the events that its steps made of one stored event this is, from 0; they share the version."""

    @property
    def event_id(self) -> str:
        """The identity of the event: ``origin@version``. It never changes and needs no index.

        A fork reads the very events that its parent wrote, so they keep their ids.
        """
        return event_id(self.origin, self.version)


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """An append that has been checked and encoded, and not committed yet."""

    append: Append
    records: list[DecodedRecord]
    """Its events as they will be read back."""
    described: Sequence[type[Event]]
    """The event types that it would describe in the registry."""


class Written(msgspec.Struct, frozen=True, gc=False):
    """An append that is in the log, and its events as they will be read back."""

    appended: Appended
    records: list[DecodedRecord]
    bytes: int
    """Record bytes of the append."""


def event_id(stream: str, version: int) -> str:
    """Return the id of the event at *version* of *stream*."""
    return f"{stream}@{version}"


class Log:
    """Appends and reads of one backend, through one codec."""

    def __init__(self, backend: Backend, *, clock: Callable[[], int]) -> None:
        self.backend = backend
        self.codec = Codec(backend.blob, self._stored_fields)
        self.clock = clock
        self.given_back = False
        """True once it was seen that a sweep gave events back: positions have gaps from then on."""
        self.fork_numbers: dict[str, int] = {}
        """By stream: the names of forks with lower numbers are taken."""
        self._group = GroupCommit(backend.commit)
        self._described: set[type[Event]] = set()

    def close(self) -> None:
        """Let go of the thread that commits, and of the backend wherever a class or a cache may outlive this."""
        self._group.close()
        self.codec.let_go()

    # -- append ----------------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        events: Sequence[Event],
        expected: int,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
        epoch: int | None = None,
        snapshot: SnapshotWrite | None = None,
    ) -> Written:
        """Append *events* as one unit; see `Store.append` for the arguments and promises."""
        prepared = self.prepare(stream, events, expected, key, causation, correlation, epoch, snapshot)
        return self.written(prepared, self._group.submit(prepared.append))

    def append_soon(self, prepared: Prepared) -> asyncio.Future[Outcome]:
        """Queue what was prepared, for a coroutine: appends of many share commits. `written` takes the outcome."""
        return self._group.submit_soon(prepared.append)

    def prepare(
        self,
        stream: str,
        events: Sequence[Event],
        expected: int,
        key: str | None = None,
        causation: str | None = None,
        correlation: str | None = None,
        epoch: int | None = None,
        snapshot: SnapshotWrite | None = None,
    ) -> Prepared:
        """Check and encode an append; see `Store.append`. Nothing is written yet."""
        check_stream_name(stream)
        events = tuple(events)  # it may be an iterator, and is gone through more than once
        if not events:
            raise BadArgument(f"nothing to append to stream {stream!r}: give at least one event")
        if expected is not ANY and expected is not EXISTS and (type(expected) is not int or expected < 0):
            raise BadArgument(f"expected is a version from 0 on, ANY or EXISTS, not {expected!r}")
        if key is not None:
            _check_text("an idempotency key", key, KEY_CHARS_MAX)
        if causation is not None:
            _check_text("a causation", causation, KEY_CHARS_MAX)
        if correlation is not None:
            _check_text("a correlation", correlation, KEY_CHARS_MAX)
        time_ns = self.clock()
        codec = self.codec
        data, digests, records = [], [], []
        blobs: dict[bytes, bytes] | None = None
        new_types: dict[type[Event], None] | None = None
        for event in events:
            one = codec.encode(event, time_ns, causation, correlation)
            data.append(one.data)
            digests.append(chain.digest(one.data))
            records.append(one.record)
            if one.blobs:
                blobs = blobs if blobs is not None else {}
                blobs |= one.blobs
            if type(event) not in self._described:
                new_types = new_types if new_types is not None else {}
                new_types[type(event)] = None
        append = Append(
            stream,
            expected,
            data,
            digests,
            time_ns,
            key,
            codec.content(events) if key is not None else b"",
            epoch,
            blobs or NOTHING,
            snapshot,
            dict(map(describe, new_types)) if new_types else NOTHING,
        )
        return Prepared(append, records, tuple(new_types or ()))

    def written(self, prepared: Prepared, outcome: Outcome) -> Written:
        """Return what was written; raise the outcome if it is a refusal."""
        if isinstance(outcome, Exception):
            raise outcome
        # Only now: had the append been refused, its registry rows would not have been written.
        if prepared.described and not outcome.repeated:
            self._described.update(prepared.described)
        data = prepared.append.records
        size = len(data[0]) if len(data) == 1 else sum(map(len, data))
        return Written(outcome, prepared.records, size)

    # -- read ------------------------------------------------------------------------------------------

    def head(self, stream: str) -> Head:
        """Return the head of *stream*; raise `StreamNotFound`."""
        found = self.backend.head(check_stream_name(stream))
        if found is None:
            raise StreamNotFound(stream)
        return found

    def streams(self) -> Iterator[Head]:
        """Yield the head of every stream in byte order of the names, without touching events."""
        after = ""
        while page := self.backend.heads(after=after):
            yield from page
            after = page[-1].stream

    def record_pages(self, stream: str, *, after: int, upto: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield (record bytes, decoded records) of versions *after*+1..*upto* in pages: what folds read."""
        while after < upto:
            runs = self.backend.runs(stream, after=after, upto=min(upto, after + RECORDS_PER_PAGE))
            for size, records in self.codec.decode_runs(stream, after, runs):
                yield size, records
                after += len(records)

    def read(
        self,
        stream: str,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        backwards: bool = False,
    ) -> Iterator[Recorded]:
        """Yield events with after < version <= upto, at most *limit*; see `Store.read`."""
        head = self.head(stream)
        check_bounds(after=after, upto=upto, limit=limit)
        last = head.version if upto is None else min(upto, head.version)
        return self._read(stream, after, last, limit, backwards)

    def _read(self, stream: str, after: int, upto: int, limit: int | None, backwards: bool) -> Iterator[Recorded]:
        for row in self.rows(stream, after=after, upto=upto, limit=limit, backwards=backwards):
            found = self.recorded(row)
            yield from reversed(found) if backwards else found

    def rows(
        self,
        stream: str,
        *,
        after: int,
        upto: int,
        limit: int | None = None,
        backwards: bool = False,
    ) -> Iterator[Row]:
        """Yield stored rows page by page; raise `RecordDamaged` at a version that is missing (I1)."""
        left = upto - after if limit is None else min(limit, upto - after)
        while left > 0:
            page = self.backend.rows(
                stream,
                after=after,
                upto=upto,
                limit=min(left, ROWS_PER_PAGE),
                backwards=backwards,
            )
            for row in page:
                due = upto if backwards else after + 1
                if row.version != due:
                    raise RecordDamaged(stream, due, "the event is missing")
                if backwards:
                    upto -= 1
                else:
                    after += 1
                yield row
            left -= len(page)
            if not page:
                raise RecordDamaged(stream, upto if backwards else after + 1, "the event is missing")

    def read_all(self, *, after: int = 0, upto: int | None = None, limit: int | None = None) -> Iterator[Recorded]:
        """Yield events of every stream with after < position <= upto, in commit order."""
        check_bounds(after=after, upto=upto, limit=limit)
        return self._read_all(after, upto, limit)

    def _read_all(self, after: int, upto: int | None, limit: int | None) -> Iterator[Recorded]:
        last = self.backend.count()[1]
        upto = last if upto is None else min(upto, last)
        left = upto - after if limit is None else min(limit, upto - after)
        while left > 0:
            page = self.backend.rows_by_position(after=after, limit=min(left, ROWS_PER_PAGE))
            for row in page:
                if row.position > upto:  # where events were given back, positions have gaps
                    return
                yield from self.recorded(row)
            if not page:
                return
            after = page[-1].position
            left -= len(page)

    def recorded(self, row: Row) -> list[Recorded]:
        """Decode a stored row into what it says to this code: one event, or what its steps make of it.

        Raises a `SchemaError` or `RecordDamaged` that names it.
        """
        record = self.codec.decode(row.stream, row.version, row.data)
        kind, schema_version = tag_of_record(row.data)
        return [
            Recorded(
                row.stream,
                row.version,
                row.position,
                record.time_ns,
                event.opaque_kind if isinstance(event, Opaque) else event.kind,
                schema_version,
                event,
                record.causation,
                record.correlation,
                row.hash.hex(),
                row.origin,
                tag(kind, schema_version),
                sub,
            )
            for sub, event in enumerate(self.codec.events(record))
        ]

    def _stored_fields(self, wanted: str) -> list[list[dict[str, Any]]]:
        """Return every field list that *wanted* was ever written with in this store."""
        found = (read_description(one, text) for one, text in self.backend.schemas() if one == wanted)
        return list(found)


def _check_text(name: str, text: str, most: int) -> None:
    """Refuse what cannot stand in a key or an envelope, before it can disturb the others of a group."""
    if not isinstance(text, str) or not 1 <= len(text) <= most:
        raise BadArgument(f"{name} is a text of 1 to {most} characters, not {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArgument(f"{name} {text!r:.60} cannot be written as UTF-8") from None


def check_bounds(*, after: int, upto: int | None, limit: int | None) -> None:
    """Refuse bounds that no caller means."""
    if after < 0:
        raise BadArgument(f"after is a version or position from 0 on, not {after}")
    if upto is not None and upto < 0:
        raise BadArgument(f"upto is a version or position from 0 on, not {upto}")
    if limit is not None and limit < 0:
        raise BadArgument(f"limit is a count from 0 on, not {limit}")
