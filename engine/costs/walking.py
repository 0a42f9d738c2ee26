"""Reading, decoding and folding a whole stream, each timed by itself, stretch by stretch."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

from tailfold.engine.costs.clock import Collector
from tailfold.engine.costs.figures import PolicyCost, Segment, Walk
from tailfold.engine.fold import Fold
from tailfold.engine.gathering import Gathering
from tailfold.engine.loading import begin, load
from tailfold.engine.log import RECORDS_PER_PAGE
from tailfold.engine.snapshot_report import EVERYTHING
from tailfold.engine.store import Store
from tailfold.snapshots import CostBased, Policy, every

SEGMENTS = 24
EVENTS_LEAST = 1000
"""Below this many events a rate says nothing: the fixed part of each page is most of it."""
EVENTS_IN_ALL = 2_000_000
"""Events that all walks together fold: long streams are walked less often."""
WALKS_OF_SHORT = 25
"""A short stream is walked this often, for a median that holds still."""
POLICY_EVENTS_MOST = 1_000_000
"""The default policy is looked at on so many events: what it leaves without a snapshot stays in memory."""
SNAPSHOTS, SNAPSHOT_LEAST, SNAPSHOT_MOST = 40, 8192, 65536
"""About so many snapshots along the stream, that many events apart."""

Count = Callable[[int], None]


class Timed(NamedTuple):
    """The times of one walk, by segment, in seconds."""

    read: list[float]
    decode: list[float]
    fold: list[float]
    collector: list[float]
    bytes: int


class Walked(NamedTuple):
    """All walks."""

    walk: Walk
    segments: list[Segment]
    walks: int
    event_bytes: int
    policy: PolicyCost


class Written(NamedTuple):
    """A snapshot that was written on a walk."""

    version: int
    bytes: int
    seconds: float


def walks_of(events: int, repeats: int) -> int:
    """Return how often a stream of *events* is walked."""
    if events < EVENTS_LEAST:
        return max(repeats, WALKS_OF_SHORT)
    return max(2 if events <= POLICY_EVENTS_MOST else 1, min(repeats, EVENTS_IN_ALL // events))


def walk(store: Store, stream: str, fold: Fold[Any], *, repeats: int, budget_ms: float, count: Count) -> Walked:
    """Walk *stream* several times and return the medians.

    As in any long fold, snapshots are written on the way, so that what has been stored may leave memory; that time
    is not in the figures. The first walk has the default policy, to see what it does; the others leave snapshots at
    regular distances, which make it cheap to get at states along the stream later.
    """
    head = store.head(stream).version
    store.log.codec.register(fold.events)
    ends = segment_ends(head)
    walks = walks_of(head, repeats)
    default = CostBased(budget_ms)
    regular = every(min(SNAPSHOT_MOST, max(SNAPSHOT_LEAST, head // SNAPSHOTS)))
    written: list[Written] = []
    gc.collect()
    seen = min(head, POLICY_EVENTS_MOST)
    first = _once(store, stream, fold, segment_ends(seen), default, written, count)
    policy = _policy_cost(default, written, seen, first.bytes)
    drop_snapshots(store, stream, fold, after=0)
    times = [first] if seen == head else []
    while len(times) < walks:
        times.append(_once(store, stream, fold, ends, regular, [], count))
    event_bytes = times[-1].bytes
    read, decode, folding, collecting = (
        _medians([part(walked) for walked in times])
        for part in (attrgetter("read"), attrgetter("decode"), attrgetter("fold"), attrgetter("collector"))
    )
    total = sum(read) + sum(decode) + sum(folding) + sum(collecting)
    enough = head >= EVENTS_LEAST
    segments = []
    before = 0
    for end, *parts in zip(ends, decode, folding, collecting, strict=True):
        events = end - before
        segments.append(Segment(end, events, *(part / events * 1e6 for part in parts)))
        before = end
    found = Walk(
        read_s=sum(read),
        decode_s=sum(decode),
        fold_s=sum(folding),
        collector_s=sum(collecting),
        total_s=total,
        events_per_s=head / total if enough else None,
        bytes_per_s=event_bytes / total if enough else None,
        decode_events_per_s=head / sum(decode) if enough else None,
        fold_events_per_s=head / sum(folding) if enough else None,
    )
    return Walked(found, segments if enough else [], walks, event_bytes, policy)


def _medians(walks: list[list[float]]) -> list[float]:
    """Return the median of each segment."""
    return [statistics.median(each) for each in zip(*walks, strict=True)]


def _policy_cost(policy: Policy, written: list[Written], head: int, event_bytes: int) -> PolicyCost:
    versions = [0, *(one.version for one in written), head]
    size = sum(one.bytes for one in written)
    return PolicyCost(
        policy=repr(policy),
        events=head,
        snapshots=len(written),
        bytes=size,
        share_of_event_bytes=size / event_bytes,
        seconds=sum(one.seconds for one in written),
        longest_tail=max(after - before for before, after in pairwise(versions)),
        longest_resume_ms=None,
    )


def segment_ends(head: int) -> list[int]:
    """Return the last versions of the segments: whole pages, at most `SEGMENTS` of about one size."""
    pages = -(-head // RECORDS_PER_PAGE)
    segments = min(SEGMENTS, pages)
    return [min(head, round(pages * (i + 1) / segments) * RECORDS_PER_PAGE) for i in range(segments)]


def _once(
    store: Store,
    stream: str,
    fold: Fold[Any],
    ends: list[int],
    policy: Policy,
    written: list[Written],
    count: Count,
) -> Timed:
    runs, decode_runs = store.backend.runs, store.log.codec.decode_runs
    gathering = Gathering()
    state = begin(store.snapshots, fold)
    read, decode, folding, collecting = ([0.0] * len(ends) for _ in range(4))
    version = event_bytes = 0
    with Collector() as collector:
        for i, end in enumerate(ends):
            while version < end:
                collector.seconds = 0.0
                begun = perf_counter()
                page = runs(stream, after=version, upto=min(end, version + RECORDS_PER_PAGE))
                fetched = perf_counter()
                records, size = [], 0
                for run_bytes, some in decode_runs(stream, version, page):
                    records += some
                    size += run_bytes
                decoded = perf_counter()
                of_decoding = collector.seconds
                state = fold.fold_records(state, records, stream, version)
                folded = perf_counter()
                read[i] += fetched - begun
                decode[i] += decoded - fetched - of_decoding
                folding[i] += folded - decoded - (collector.seconds - of_decoding)
                collecting[i] += collector.seconds
                version += len(records)
                event_bytes += size
                gathering.events += len(records)
                gathering.fold_s += folded - decoded
                gathering.event_bytes += size
                done, records = len(records), []
                if policy.due(gathering.progress()):
                    cost = put_snapshot(store, stream, fold, state, version, gathering)
                    if cost is not None:
                        written.append(Written(version, cost[2], cost[0] + cost[1]))
                count(done)
    return Timed(read, decode, folding, collecting, event_bytes)


def put_snapshot(
    store: Store, stream: str, fold: Fold[Any], state: Any, version: int, gathering: Gathering
) -> tuple[float, float, int] | None:
    """Write a snapshot; return seconds of encoding, seconds of writing, and bytes. None: it cannot be one."""
    due = store.snapshots.encode(stream, fold, state, version, store.snapshots.log_hash(stream, version))
    gathering.begin_anew(due)
    if due is None:
        return None
    begun = perf_counter()
    if not store.snapshots.put(stream, fold, due, gathering):
        return None
    return due.seconds, perf_counter() - begun, due.bytes


def snapshot_as_usual(store: Store, stream: str, fold: Fold[Any], budget_ms: float) -> None:
    """Leave the snapshots, with their marks, that the default policy leaves on a long fold, and one at the head."""
    drop_snapshots(store, stream, fold, after=0)
    held, store.snapshots.policy = store.snapshots.policy, CostBased(budget_ms)
    try:
        state, version, _ = load(store.log, store.snapshots, stream, fold)
    finally:
        store.snapshots.policy = held
    put_snapshot(store, stream, fold, state, version, Gathering())


def drop_snapshots(store: Store, stream: str, fold: Fold[Any], *, after: int) -> None:
    """Delete the snapshots of *fold* past version *after*."""
    name = store.snapshots.facts(fold).name_hash
    held = list(store.backend.snapshot_keys(stream, name, upto=EVERYTHING))
    store.backend.drop_snapshots(stream, name, [key for key in held if key.version > after])
