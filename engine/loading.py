"""Loading: the folded state of a stream at a version, from the nearest usable snapshot and the tail.

One path for everyone who wants a state: `Store.load`, live handles, the CLI and replay.
"""

from __future__ import annotations

import time
from typing import Any, Generic, NamedTuple, TypeVar

from tailfold.engine.errors import BadArgument, StreamDeleted, StreamNotFound
from tailfold.engine.fold import Fold
from tailfold.engine.gathering import Gathering
from tailfold.engine.log import RECORDS_PER_PAGE, Log
from tailfold.engine.snapshotting import Snapshots
from tailfold.snapshots.codec import EncodedState

S = TypeVar("S")


class Loaded(NamedTuple, Generic[S]):
    """A folded state and the version it stands at."""

    state: S
    version: int


class Folding(NamedTuple, Generic[S]):
    """A state on the way, with what has gathered since its last snapshot."""

    state: S
    version: int
    gathering: Gathering


def load(log: Log, snapshots: Snapshots, stream: str, fold: Fold[S], at: int | None = None) -> Folding[S]:
    """Fold *stream* up to version *at*, or to its head. A stream without events is at version 0.

    Starts from the nearest usable snapshot, and writes new ones on the way and at the end, as the policy
    says. Raises `StreamNotFound` if the stream does not reach *at*, a `SchemaError`, `RecordDamaged` or
    `FoldFailed` naming the event.
    """
    log.codec.register(fold.events)
    head = log.backend.head(stream)
    version = head.version if head else 0
    if at is not None:
        if at < 0:
            raise BadArgument(f"at is a version from 0 on, not {at}")
        if at > version:
            raise StreamNotFound(stream, version=at, head=version) if head else StreamNotFound(stream)
        version = at
    snapshots.counters.loads += 1
    newest = head is not None and version == head.version > head.base
    found = snapshots.find(stream, fold, version, newest=newest) if version else None
    if found is not None:
        start = Folding(found.state, found.version, Gathering(found.bytes, found.reader, found.marks))
    else:
        start = Folding(begin(snapshots, fold), 0, Gathering())
    if head is not None and head.base > start.version:
        start.gathering.streams = log.backend.spread(stream, after=start.version)
    return catch_up(log, snapshots, stream, fold, start, version)


def begin(snapshots: Snapshots, fold: Fold[S]) -> S:
    """Return a fresh initial state, its growing containers bound to the types of their annotations."""
    return snapshots.facts(fold).codec.adopt(fold.initial())


def catch_up(
    log: Log, snapshots: Snapshots, stream: str, fold: Fold[S], start: Folding[S], upto: int
) -> Folding[S]:
    """Fold the versions after *start* up to *upto*, snapshotting when it is due, so that a crash loses little."""
    state, version, gathering = start
    # Marks go with a later snapshot, and most loads of a short tail write none. Who drives on takes one soon.
    fold_some = fold_on if upto - version > RECORDS_PER_PAGE else fold_timed
    while version < upto:
        step = min(RECORDS_PER_PAGE, snapshots.reach(gathering.progress()), upto - version)
        for size, records in log.record_pages(stream, after=version, upto=version + step):
            state = fold_some(snapshots, fold, state, records, stream, version, gathering)
            gathering.event_bytes += size
            version += len(records)
            snapshots.counters.events_folded += len(records)
        if snapshots.due(gathering.progress()):
            [row] = log.backend.rows(stream, after=version - 1, upto=version, limit=1)
            due = snapshots.encode(stream, fold, state, version, row.hash, gathering.marks)
            if due is not None:
                snapshots.put(stream, fold, due, gathering)
            gathering.begin_anew(due)
    return Folding(state, version, gathering)


def fold_on(
    snapshots: Snapshots,
    fold: Fold[S],
    state: S,
    records: list[Any],
    stream: str,
    version: int,
    gathering: Gathering,
) -> S:
    """Return the state after the *records* that follow *version*, with marks taken of it on the way."""
    marks = gathering.marks
    while version + len(records) >= marks.due_at:
        due = max(1, marks.due_at - version)
        state = fold_timed(snapshots, fold, state, records[:due], stream, version, gathering)
        version, records = version + due, records[due:]
        snapshots.mark(fold, state, version, marks)
        if not records:
            return state
    return fold_timed(snapshots, fold, state, records, stream, version, gathering)


def fold_timed(
    snapshots: Snapshots,
    fold: Fold[S],
    state: S,
    records: list[Any],
    stream: str,
    version: int,
    gathering: Gathering,
) -> S:
    """Return the state after the *records* that follow *version*, counted for the policy."""
    begun = time.perf_counter()
    state = fold.fold_records(state, records, stream, version)
    gathering.fold_s += time.perf_counter() - begun
    gathering.events += len(records)
    return state


def load_deleted(log: Log, snapshots: Snapshots, stream: str, fold: Fold[S], at: int) -> S:
    """Fold a deleted stream up to *at*, for whoever reads what is still there of it in the order of the store.

    Always from the first event: it has no snapshots any more. Raises `StreamDeleted` if a sweep was faster.
    """
    log.codec.register(fold.events)
    state, version = begin(snapshots, fold), 0
    for piece in log.backend.lineage(stream, deleted=True):
        upto = min(piece.upto, at)
        while version < upto:
            rows = log.backend.own_rows(piece.stream, after=version, limit=min(RECORDS_PER_PAGE, upto - version))
            if not rows or rows[0].version != version + 1:
                raise StreamDeleted(stream)
            records = log.codec.decode_page(stream, version, [row.data for row in rows])
            state = fold.fold_records(state, records, stream, version)
            version += len(records)
    return state


def refold(log: Log, snapshots: Snapshots, stream: str, fold: Fold[S], upto: int) -> EncodedState:
    """Fold *stream* from its first event, without any snapshot, and encode the state: the truth."""
    log.codec.register(fold.events)
    state = begin(snapshots, fold)
    version = 0
    for _, records in log.record_pages(stream, after=0, upto=upto):
        state = fold.fold_records(state, records, stream, version)
        version += len(records)
    return snapshots.facts(fold).codec.encode(state, check=False)
