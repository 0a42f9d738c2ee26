"""Resuming against the length of the tail: a measured curve, and the interval of snapshots that fits a budget."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from tailfold.engine.backend.port import Durability
from tailfold.engine.costs.clock import drop_from_cache, median_ms, timed_ms
from tailfold.engine.costs.figures import PolicyCost, Resume, ResumePoint, SnapshotCost, Walk
from tailfold.engine.costs.sampling import EVENTS_MOST, pages, state_at
from tailfold.engine.costs.scratch import Count, Scratch
from tailfold.engine.costs.walking import EVENTS_LEAST, drop_snapshots, put_snapshot
from tailfold.engine.fold import Fold
from tailfold.engine.gathering import Gathering
from tailfold.engine.loading import load
from tailfold.engine.store import Store
from tailfold.snapshots.limits import ASSUMED_EVENT_US

TIMES_BUDGET, TIMES_BUDGET_LEAST = 3.0, 1.5
"""The curve goes on until a resume takes about so many budgets, at least the second…"""
TAIL_LEAST = 1000
"""…but at least to here, if the stream is as long."""
REPEATS_LEAST, RESUMES_MOST_S = 15, 0.5
"""Resumes are quick, and a few of them tell little on a busy machine; of slow ones there are fewer."""
COLD_REPEATS = 5
SNAPSHOTS_TIMED = 5


def resume_costs(
    store: Store,
    stream: str,
    fold: Fold[Any],
    *,
    walk: Walk,
    policy: PolicyCost,
    budget_ms: float,
    repeats: int,
    count: Count,
) -> Resume:
    """Measure resumes of *stream* up to its head with growing tails; recommend an interval.

    Snapshots of the store near the head are replaced by those that the measuring needs.
    """
    head = store.head(stream).version

    def resumed() -> object:
        return load(store.log, store.snapshots, stream, fold)

    event_us = walk.total_s / head * 1e6
    unusable = store.snapshots.facts(fold).unusable
    longest = tail_estimate(head, event_us, budget_ms)
    curve: list[ResumePoint] = []
    whole = ResumePoint(head, walk.total_s * 1000, 1)
    if head <= EVENTS_MOST:
        drop_snapshots(store, stream, fold, after=0)
        whole = ResumePoint(head, *median_ms(resumed, max(repeats, REPEATS_LEAST), at_most_s=RESUMES_MOST_S))

    def measured(tail: int) -> ResumePoint | None:
        drop_snapshots(store, stream, fold, after=head - tail)
        state = state_at(store, stream, fold, head - tail)
        if put_snapshot(store, stream, fold, state, head - tail, Gathering()) is None:
            return None
        del state
        return ResumePoint(tail, *median_ms(resumed, max(repeats, REPEATS_LEAST), at_most_s=RESUMES_MOST_S))

    furthest = None if unusable else measured(longest)
    while furthest is not None and furthest.resume_ms < TIMES_BUDGET_LEAST * budget_ms and longest < head - 1:
        more = TIMES_BUDGET * budget_ms / furthest.resume_ms
        longest = min(head - 1, round(longest * min(10.0, max(2.0, more))))
        furthest = measured(longest)
        count(1)
    for tail in tails_of(head, longest) if furthest is not None else ():
        point = furthest if furthest is not None and tail == furthest.tail else measured(tail)
        if point is not None:
            curve.append(point)
        count(1)
    if not curve:
        unusable = unusable or "its state cannot be encoded"
    curve.reverse()
    if unusable:
        reason = f"this fold can have no snapshots ({unusable}): each resume folds all {head:,} events."
        return Resume(budget_ms, [], whole, None, whole.resume_ms, None, None, reason, None, None)
    fixed_ms = curve[0].resume_ms
    slope_us = max(0.0, curve[-1].resume_ms - fixed_ms) / curve[-1].tail * 1000 if len(curve) > 1 else None
    if head < EVENTS_LEAST:
        slope_us = None
    interval, reason = recommend(curve, whole, budget_ms, slope_us)
    return Resume(
        budget_ms,
        curve,
        whole,
        None,
        fixed_ms,
        slope_us,
        interval,
        reason,
        _snapshot_cost(store, stream, fold, interval or head // 2, walk) if head >= EVENTS_LEAST else None,
        msgspec.structs.replace(policy, longest_resume_ms=_along([*curve, whole], policy.longest_tail)),
    )


def tail_estimate(head: int, event_us: float, budget_ms: float) -> int:
    """Return a tail with which a resume should take longer than the budget; the whole stream if that is shorter."""
    return min(head - 1, max(TAIL_LEAST, round(TIMES_BUDGET * budget_ms * 1000 / max(event_us, 0.01))))


def tails_of(head: int, longest: int) -> list[int]:
    """Return the tails to measure, *longest* first: …, 10, 5, 2, 1 and 0."""
    if head < EVENTS_LEAST:  # what lies between them is noise
        return sorted({0, head - 1}, reverse=True)
    found = [0]
    step = 1
    while step <= longest:
        found += [step * digit for digit in (1, 2, 5) if step * digit <= longest]
        step *= 10
    if longest > found[-1]:
        found = [tail for tail in found if tail < 0.8 * longest]
        found.append(longest)
    if longest >= TAIL_LEAST:  # the first few events are far below what can be told apart
        found = [tail for tail in found if tail == 0 or tail >= 10]
    return found[::-1]


def recommend(
    curve: Sequence[ResumePoint], whole: ResumePoint, budget_ms: float, event_us: float | None
) -> tuple[int | None, str]:
    """Return the events between snapshots with which every resume on the measured *curve* fits, and why.

    The longest tail is one event less than the interval, so the interval is the longest tail that fits. None, if
    the whole stream fits without a snapshot, or if not even an empty tail fits.
    """
    fixed = curve[0].resume_ms
    rate = f", and each event of the tail adds {event_us:.2g} µs" if event_us else ""
    if fixed > budget_ms:
        return None, (
            f"A resume takes {_said(fixed)} before it folds anything, more than the budget of {budget_ms:g} ms: no"
            " interval meets it. Let what grows in the state be a Series or a Table, or give it more time."
        )
    if whole.resume_ms <= budget_ms:
        if event_us is None:
            later = f" {whole.tail:,} events are too few to say from how many on it would pay."
        else:
            least = _rounded((budget_ms - fixed) * 1000 / event_us)
            later = f" At {event_us:.2g} µs an event that is so up to about {least:,} events."
        return None, (
            f"All {whole.tail:,} events fold in {_said(whole.resume_ms)}, within the budget of {budget_ms:g} ms: no"
            f" snapshot is needed.{later}"
        )
    fits = longest_within(curve, budget_ms)
    if fits is None:  # the curve ends below the budget, and the whole stream, without a snapshot, above it
        last = curve[-1]
        interval = _rounded(last.tail)
        return interval, (
            f"With nothing to fold a resume takes {_said(fixed)}{rate}; the longest tail that was measured,"
            f" {last.tail:,} events, takes {_said(last.resume_ms)}, so a snapshot every {interval:,} events keeps"
            f" each resume within the budget of {budget_ms:g} ms."
        )
    interval = _rounded(fits)
    return interval, (
        f"With nothing to fold a resume takes {_said(fixed)}{rate}; on the measured curve the budget of"
        f" {budget_ms:g} ms is reached at a tail of about {interval:,} events, so a snapshot every {interval:,}"
        " events keeps each resume within it."
    )


def _along(curve: Sequence[ResumePoint], tail: int) -> float:
    """Return what a resume with *tail* takes, on the lines between the measured points."""
    for before, after in pairwise(curve):
        if before.tail <= tail <= after.tail:
            part = (tail - before.tail) / max(1, after.tail - before.tail)
            return before.resume_ms + part * (after.resume_ms - before.resume_ms)
    return curve[-1].resume_ms


def longest_within(curve: Sequence[ResumePoint], budget_ms: float) -> float | None:
    """Return the tail at which the curve first reaches *budget_ms*, between its points; None if it never does."""
    before = curve[0]
    for point in curve[1:]:
        if point.resume_ms > budget_ms:
            rise = point.resume_ms - before.resume_ms
            part = (budget_ms - before.resume_ms) / rise if rise > 0 else 0.0
            return before.tail + max(0.0, part) * (point.tail - before.tail)
        before = point
    return None


def _said(ms: float) -> str:
    """Return a time with the digits that it is worth."""
    return f"{ms:.3g} ms" if ms >= 1 else f"{ms * 1000:.2g} µs" if ms < 0.1 else f"{ms * 1000:.0f} µs"


def _rounded(events: float) -> int:
    """Round down to two significant digits: more would claim more than was measured."""
    whole = max(1, int(events))
    unit = 10 ** max(0, len(str(whole)) - 2)
    return int(whole // unit * unit)


def _snapshot_cost(store: Store, stream: str, fold: Fold[Any], interval: int, walk: Walk) -> SnapshotCost | None:
    """Write snapshots *interval* apart up to the head: what one costs, the median of a few."""
    head = store.head(stream).version
    events = min(interval, head // 2)
    number = min(SNAPSHOTS_TIMED, head // events - 1)
    start = head - number * events
    drop_snapshots(store, stream, fold, after=start)
    put_snapshot(store, stream, fold, state_at(store, stream, fold, start), start, Gathering())
    costs = []
    for version in range(start + events, head + 1, events):
        state = state_at(store, stream, fold, version)
        cost = put_snapshot(store, stream, fold, state, version, Gathering())
        if cost is None:
            return None
        costs.append(cost)
    encode_s, write_s, size = (statistics.median(part) for part in zip(*costs, strict=True))
    event_bytes = sum(_sizes(store, stream, start, head)) / number
    fold_s = events * max(walk.fold_s / head, ASSUMED_EVENT_US / 1e6)
    return SnapshotCost(events, encode_s * 1000, write_s * 1000, round(size), size / event_bytes, encode_s / fold_s)


def _sizes(store: Store, stream: str, after: int, upto: int) -> Iterator[int]:
    """Yield the record bytes of a stretch, page by page."""
    for page in pages(store, stream, after, upto):
        yield sum(map(len, page.data))


def cold_ms(scratch: Scratch, stream: str, fold: Fold[Any], repeats: int) -> float:
    """Return the median of resumes in a store that is opened for it, its file dropped from the page cache.

    Dropped where the system does that for this disk: in memory-backed directories it does not.
    """
    found = []
    for _ in range(max(1, min(repeats, COLD_REPEATS))):
        drop_from_cache(scratch.data)

        def opened_and_loaded() -> Store:
            store = scratch.open(Durability.DURABLE)
            load(store.log, store.snapshots, stream, fold)
            return store

        ms, store = timed_ms(opened_and_loaded)
        store.close()
        found.append(ms)
    return statistics.median(found)
