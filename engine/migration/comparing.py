"""The judge of a migration: both stores are read anew, and what they say must be the same. Writes nothing.

The source is lifted once more; the destination is read without any steps, as by code that has retired them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tailfold.engine.backend.port import Backend, Row
from tailfold.engine.errors import EngineError
from tailfold.engine.fold import Fold
from tailfold.engine.loading import refold
from tailfold.engine.migration.copying import heads, id_row, moved_checkpoints, taken_over
from tailfold.engine.migration.plan import Plan, Progress, by_position, check_row
from tailfold.engine.migration.rewriting import Rewriter, Schema
from tailfold.engine.origin import read_taken
from tailfold.engine.records import Codec
from tailfold.engine.shape import Shape
from tailfold.engine.store import Store
from tailfold.engine.verify import verify
from tailfold.snapshots import never
from tailfold.snapshots.codec import NotEncodableError, hash_body
from tailfold.upcasters import Upcasters

FINDINGS_MAX = 1000


class Compared(msgspec.Struct):
    """How much was compared."""

    streams: int = 0
    events: int = 0
    """Stored events whose meaning was compared."""
    chain_hashes: int = 0
    """Hashes of the source that were computed anew from its bytes."""
    states: int = 0
    """Folded states that are equal in both stores."""
    not_folded: int = 0
    """Folds that fail on a stream in both stores alike, or have a state that cannot be compared."""
    ids: int = 0
    blobs: int = 0


class _Full(Exception):
    pass


class Comparison:
    """Compares a source with its migrated copy up to a position."""

    def __init__(self, rewriter: Rewriter, destination: Backend, plan: Plan, progress: Progress | None) -> None:
        """Take a *rewriter* that has not been used: nothing of the migration's own may be left in it."""
        self.findings: list[str] = []
        self.compared = Compared()
        self._source, self._destination = rewriter.backend, destination
        self._rewriter, self._upto, self._count = rewriter, plan.upto, plan.events
        self._shape, self._new_shape = rewriter.shape, Shape(destination)
        self._report = progress or (lambda what, done, total: None)
        self._plain: dict[int, tuple[Schema, Store]] = {}

    def run(self) -> None:
        """Compare everything; what differs is in `findings`. Raises nothing for a difference."""
        try:
            for part in (self._counts, self._events, self._states, self._rest, self._verify):
                self._guarded(part)
        except _Full:
            pass

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except EngineError as error:
            self._found(f"{type(error).__name__}: {error}")

    def _found(self, what: str) -> None:
        self.findings.append(what)
        if len(self.findings) >= FINDINGS_MAX:
            raise _Full

    # -- counts ----------------------------------------------------------------------------------------

    def _counts(self) -> None:
        taken = read_taken(self._destination)
        there = {head.stream: head for head in heads(self._destination)}
        source = {head.stream: head for head in heads(self._source)}
        self.compared.streams = len(there)
        own = sum(head.version - head.base for head in there.values())
        # What was deleted in the source since may still stand here in full: a sweep gives it back.
        shape = self._new_shape
        events = own + sum(shape.kept[name] - one.base for name, one in shape.tombstones.items())
        if events != self._count or self._destination.count()[1] != self._upto:
            self._found(f"the destination has {events} events, {self._count} were to be copied")
        self._same_shape()
        for stream in (taken.keys() | there.keys()) - self._shape.tombstones.keys():
            versions = [
                taken[stream].version if stream in taken else source[stream].base if stream in source else 0,
                there[stream].version if stream in there else 0,
            ]
            if versions[0] != versions[1]:
                self._found(f"stream {stream!r}: {versions[1]} events, {versions[0]} were taken over")
            elif stream not in source or source[stream].created_ns != there[stream].created_ns:
                self._found(f"stream {stream!r}: the destination says that it began at another time")

    def _same_shape(self) -> None:
        """Forks, named heads and deleted streams are as they were."""
        shapes = self._shape, self._new_shape
        forks = [{(fork.stream, fork.parent, fork.at) for fork in shape.forks()} for shape in shapes]
        for stream, parent, at in sorted(forks[0] ^ forks[1]):
            self._found(f"stream {stream!r} is a fork of {parent!r} at {at} in one store only")
        if shapes[0].named_heads != shapes[1].named_heads:
            self._found("the named heads are not the same")
        if shapes[0].tombstones.keys() != shapes[1].tombstones.keys():
            self._found("other streams are deleted")

    # -- events ----------------------------------------------------------------------------------------

    def _events(self) -> None:
        links: dict[str, bytes] = {}
        versions: dict[str, int] = {}
        copied = by_position(self._destination, self._new_shape, 0, self._upto)
        taken = read_taken(self._destination)
        done = 0
        for old in by_position(self._source, self._shape, 0, self._upto):
            new = next(copied, [])
            for row in old:
                check_row(row, links, versions, self._shape)
            self.compared.chain_hashes += len(old)
            if [row[:3] for row in old] != [row[:3] for row in new]:
                self._found(f"position {old[0].position}: the stores have different streams or versions there")
            else:
                self._guarded(lambda old=old, new=new: self._same_events(old, new))  # type: ignore[misc]
            done += len(old)
            self._report("comparing events", done, self._upto)
        for stream, at in taken.items():
            if not self._shape.keeps(stream, at.version):
                continue
            if (versions.get(stream), links.get(stream)) != (at.version, at.hash):
                self._found(f"stream {stream!r}: the noted head hash of the source is not the one of its bytes")

    def _same_events(self, old: list[Row], new: list[Row]) -> None:
        stream = old[0].stream
        schema = self._rewriter.schema(stream)
        if schema is None:
            said = [[row.data for row in rows] for rows in (old, new)]
        else:
            codecs = self._rewriter.store(schema).log.codec, self._without_steps(schema).log.codec
            reader = self._shape.reader(stream)
            said = [_said(codec, reader, rows) for codec, rows in zip(codecs, (old, new), strict=True)]
        self.compared.events += len(old)
        for row, before, after in zip(old, *said, strict=True):
            if before != after:
                self._found(f"stream {stream!r} version {row.version}: the events differ")

    def _without_steps(self, schema: Schema) -> Store:
        known = self._plain.get(id(schema.upcasters))
        if known is None:
            upcasters = Upcasters(events=schema.upcasters.events)
            store = Store.open(backend=self._destination, upcasters=upcasters, snapshots=never)
            known = self._plain[id(schema.upcasters)] = schema, store
        return known[1]

    # -- states ----------------------------------------------------------------------------------------

    def _states(self) -> None:
        there = list(heads(self._destination))
        for number, head in enumerate(there, 1):
            schema = self._rewriter.schema(head.stream)
            for fold in schema.folds if schema is not None else ():
                assert schema is not None
                stores = self._rewriter.store(schema), self._without_steps(schema)
                old, new = (_state_hash(store, head.stream, fold, head.version) for store in stores)
                if old != new:
                    self._found(f"stream {head.stream!r}: fold {fold.name!r} gives {old} before and {new} after")
                elif old.startswith("no state"):
                    self.compared.not_folded += 1
                else:
                    self.compared.states += 1
            self._report("comparing states", number, len(there))

    # -- ids, blobs, and the destination by itself -----------------------------------------------------

    def _rest(self) -> None:
        for stream, version in taken_over(self._shape, self._destination):
            there = dict(self._destination.ids(stream))
            for id_hash, row in self._source.ids(stream):
                if row.last <= version:
                    self.compared.ids += 1
                    if there.get(id_hash) != id_row(self._rewriter, self._destination, stream, row):
                        self._found(f"stream {stream!r}: the idempotency row of version {row.first} differs")
        there_now = dict(self._destination.checkpoints())
        for name, _ in moved_checkpoints(self._source, self._destination, self._upto):
            if name not in there_now:  # where it stands may have changed since: somebody may follow the source
                self._found(f"the checkpoint {name!r} is not in the destination")
        if self._source.count()[1] != self._upto:
            return  # somebody writes to the source: which blobs were there is not to be said
        after = b""
        while page := self._source.blobs(after=after):
            for digest, content in page:
                self.compared.blobs += 1
                if self._destination.blob(digest) != content:
                    self._found(f"blob {digest.hex()} is not in the destination")
            after = page[-1][0]

    def _verify(self) -> None:
        done = 0

        def report(step: int) -> None:
            nonlocal done
            done += step
            self._report("verifying", done, self._upto)

        with_log = Store.open(backend=self._destination, snapshots=never)
        for finding in verify(with_log.log, progress=report).findings:
            self._found(str(finding))


def _said(codec: Codec, reader: str, rows: list[Row]) -> list[Any]:
    """Return what *rows* of one stream say, in a form that is equal for equal events."""
    records = codec.decode_page(reader, rows[0].version - 1, [row.data for row in rows])
    return [
        (r.time_ns, r.causation, r.correlation, [codec.said(event) for event in codec.events(r)]) for r in records
    ]


def _state_hash(store: Store, stream: str, fold: Fold[Any], upto: int) -> str:
    try:
        return hash_body(refold(store.log, store.snapshots, stream, fold, upto).body).hex()
    except NotEncodableError as error:
        return f"no state that can be compared ({error})"
    except EngineError as error:
        return f"no state ({type(error).__name__})"
