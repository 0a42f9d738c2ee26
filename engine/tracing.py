"""Tracing: from an event back to what caused it, and forward to all that it caused. Reads only.

An event names its cause when it is appended (``causation=``). Nothing is guessed: events that were appended without
one are roots, and nobody's effects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tailfold.engine.backend.port import Piece, Row
from tailfold.engine.errors import RecordDamaged, StreamNotFound
from tailfold.engine.log import ROWS_PER_PAGE, Log, event_id
from tailfold.engine.rawrecords import causation_of


class Effect(NamedTuple):
    """An event that was caused, directly or not."""

    stream: str
    version: int
    depth: int
    """How many causes lie between it and the traced event, plus one."""
    cause: str
    """The id of its direct cause."""


class Trace(NamedTuple):
    """Where an event comes from, and what came of it."""

    stream: str
    version: int
    causes: list[tuple[str, int]]
    """(stream, version) of its cause, of the cause of that, … up to the root. An event is named by the stream that
    it was appended to, also where a fork inherited it."""
    outside: str | None
    """What the root names as its cause, if this store holds no earlier event of that id; else None."""
    effects: list[Effect]
    """All that it caused, each event followed by its own effects."""


def trace(log: Log, stream: str, version: int) -> Trace:
    """Trace the event at *version* of *stream*; raise `StreamNotFound` if there is none.

    Going back costs a read an event; going forward looks at the envelope of every event that was committed after
    it, in the whole store, without decoding payloads.
    """
    row = _row(log, stream, version)
    if row is None:
        head = log.head(stream)
        raise StreamNotFound(stream, version=version, head=head.version)
    causes: list[tuple[str, int]] = []
    names = _Names(log)
    at, outside = row, _causation(row)
    while outside is not None:
        before = names.row(outside)
        if before is None or before.position >= at.position:  # not here; or not before it, so not its cause
            break
        causes.append((before.stream, before.version))
        at, outside = before, _causation(before)
    return Trace(stream, version, causes, outside, list(_effects(log, names, row)))


def _effects(log: Log, names: _Names, root: Row) -> Iterator[Effect]:
    children: dict[str, list[tuple[str, int]]] = {event_id(root.origin, root.version): []}
    after = root.position
    while page := log.backend.rows_by_position(after=after, limit=ROWS_PER_PAGE):
        for row in page:
            cause = _causation(row)
            if cause is not None and cause not in children:
                cause = names.id(cause)
            if cause in children:
                children[cause].append((row.stream, row.version))
                children[event_id(row.stream, row.version)] = []
        after = page[-1].position
    # Not by recursion: a chain of causes may be longer than Python's stack.
    todo = [(event_id(root.origin, root.version), 0, "")]
    while todo:
        one, depth, cause = todo.pop()
        if depth:
            stream, _, version = one.rpartition("@")
            yield Effect(stream, int(version), depth, cause)
        todo += [(event_id(*child), depth + 1, one) for child in reversed(children[one])]


class _Names:
    """Finds the events that causes name.

    A fork names what it inherited by its own name, or by that of the stream that the event was appended to, as in
    an event's id; either stream may be deleted by now and still needed by forks.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lineages: dict[str, list[Piece]] = {}

    def row(self, named: str) -> Row | None:
        """Return the event with this name, or None if there is none, or if it is no name."""
        stream, version = self._stored_at(named)
        try:
            rows = self._log.backend.own_rows(stream, after=version - 1, limit=1) if version else []
        except StreamNotFound:
            return None
        return rows[0] if rows and rows[0].version == version else None

    def id(self, named: str) -> str:
        """Return the id of the event with this name, if there may be one: by the stream that it was appended to."""
        stream, version = self._stored_at(named)
        return event_id(stream, version) if version else named

    def _stored_at(self, named: str) -> tuple[str, int]:
        stream, at, digits = named.rpartition("@")
        if not at or not stream or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            return "", 0
        version = int(digits)
        for piece in self._lineage(stream):
            if piece.after < version <= piece.upto:
                return piece.stream, version
        return stream, version

    def _lineage(self, stream: str) -> list[Piece]:
        found = self._lineages.get(stream)
        if found is None:
            try:
                found = self._log.backend.lineage(stream, deleted=True)
            except StreamNotFound:
                found = []
            self._lineages[stream] = found
        return found


def _row(log: Log, stream: str, version: int) -> Row | None:
    rows = log.backend.rows(stream, after=version - 1, upto=version, limit=1) if version >= 1 else []
    return rows[0] if rows else None


def _causation(row: Row) -> str | None:
    try:
        return causation_of(row.data)
    except ValueError as error:
        raise RecordDamaged(row.stream, row.version, f"the record cannot be read: {error}") from None
