"""What a stored record becomes in the new store. Reads the source, writes nothing.

A record that is current, or of a kind that the code does not know, stays as it is, byte for byte. An old one is
decoded as any reader decodes it and encoded anew under its old time and causes. It keeps its version: what steps
split or dropped becomes one composite record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from tailfold.engine.backend.port import Backend, Row
from tailfold.engine.events import Event, split_tag, tag, tag_of
from tailfold.engine.fold import Fold
from tailfold.engine.rawrecords import tag_of_record, tags_in
from tailfold.engine.records import Codec
from tailfold.engine.shape import Shape
from tailfold.engine.store import Store
from tailfold.snapshots import never
from tailfold.upcasters import Standing, Upcasters

CONTEXTS_KEPT = 4096
"""States of context folds that are kept: rows come in commit order, so as many streams may take turns."""


class Schema(NamedTuple):
    """What a stream is migrated by."""

    upcasters: Upcasters
    """The current events, and the steps that lead to them."""
    folds: tuple[Fold[Any], ...] = ()
    """Folds whose states are compared afterwards."""


Choose = Callable[[str], Schema | None]
"""Gives the schema of a stream by its name; None copies it as it is."""


class How(Enum):
    """What became of a record."""

    UNCHANGED = "unchanged"
    OPAQUE = "opaque"
    """Of a kind that the code does not know: kept byte for byte."""
    LIFTED = "lifted"
    SPLIT = "split"
    DROPPED = "dropped"


class Rewritten(NamedTuple):
    """One record, ready for the new store."""

    row: Row
    """As it stands in the source."""
    stored: str
    """Its tag there."""
    how: How
    data: bytes
    tags: list[str]
    """What it says in the new store: its tag, or those of its parts."""
    types: tuple[type[Event], ...]
    """Events that it was encoded from; empty if its bytes were kept."""
    blobs: dict[bytes, bytes]


class Rewriter:
    """Rewrites the records of one source, each by the schema of its stream."""

    def __init__(self, backend: Backend, choose: Choose) -> None:
        """*choose* is asked once for each stream. Raises `BadSteps` when a schema is first used."""
        self.backend = backend
        self.shape = Shape(backend)
        self._choose = choose
        self._chosen: dict[str, Schema | None] = {}
        self._stores: dict[int, tuple[Schema, Store]] = {}

    def schema(self, stream: str) -> Schema | None:
        """Return the schema of *stream*."""
        if stream not in self._chosen:
            self._chosen[stream] = self._choose(self.shape.reader(stream))
        return self._chosen[stream]

    def store(self, schema: Schema) -> Store:
        """Return the source as it is read by *schema*; it writes no snapshots."""
        known = self._stores.get(id(schema.upcasters))
        if known is None:
            store = Store.open(backend=self.backend, upcasters=schema.upcasters, snapshots=never)
            store.log.codec.lifting.contexts_kept = CONTEXTS_KEPT
            known = self._stores[id(schema.upcasters)] = schema, store
        return known[1]

    def rewrite(self, rows: Sequence[Row]) -> list[Rewritten]:
        """Rewrite consecutive *rows* of one stream.

        Raises the `SchemaError` or `RecordDamaged` of the first that cannot be read.
        """
        schema = self.schema(rows[0].stream)
        if schema is None:
            return [_kept(row, How.OPAQUE) for row in rows]
        codec = self.store(schema).log.codec
        reader = self.shape.reader(rows[0].stream)  # whose earlier events a step may ask for
        records = codec.decode_page(reader, rows[0].version - 1, [row.data for row in rows])
        return [_rewritten(codec, row, record) for row, record in zip(rows, records, strict=True)]

    def steps(self, stream: str, tags: Iterable[str]) -> list[str]:
        """Return the labels of the steps that what is stored under *tags* may pass."""
        schema = self.schema(stream)
        if schema is None:
            return []
        steps_from = self.store(schema).log.codec.lifting.chain.steps_from
        return [step.label for stored in tags for step in steps_from(*split_tag(stored))]


def _kept(row: Row, how: How) -> Rewritten:
    return Rewritten(row, tag(*tag_of_record(row.data)), how, row.data, tags_in(row.data), (), {})


def _rewritten(codec: Codec, row: Row, record: Any) -> Rewritten:
    standings = {codec.standing(stored) for stored in tags_in(row.data)}
    if Standing.OLDER not in standings:
        return _kept(row, How.OPAQUE if standings == {Standing.UNKNOWN} else How.UNCHANGED)
    events = codec.events(record)
    stored = tag(*tag_of_record(row.data))
    types = tuple(type(event) for event in events if isinstance(event, Event))
    if len(events) == 1 and isinstance(events[0], Event):
        one = codec.encode(events[0], record.time_ns, record.causation, record.correlation)
        return Rewritten(row, stored, How.LIFTED, one.data, [tag_of(types[0])], types, one.blobs or {})
    data, blobs = codec.encode_composite(events, record.time_ns, record.causation, record.correlation)
    return Rewritten(row, stored, How.SPLIT if events else How.DROPPED, data, tags_in(data), types, blobs)
