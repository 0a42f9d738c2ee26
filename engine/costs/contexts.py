"""The context projection: what it takes to make a model's request from the state, and how that grows."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tailfold.engine.costs.clock import median_ms, timed_ms
from tailfold.engine.costs.figures import Context, ContextPoint
from tailfold.engine.costs.sampling import state_at
from tailfold.engine.fold import Fold
from tailfold.engine.store import Store

POINTS = 10
REQUEST_BYTES_MOST = 32 << 20
"""Where a request gets larger than this the measuring stops: no model takes the half of it."""
COST_LEAST_MS = 0.02
"""Below this a growth says nothing."""
VERSION_LEAST = 8
TURNS_LEAST = 20
"""With fewer turns nothing is said about how requests grow."""

Count = Callable[[int], None]


def context_costs(
    store: Store,
    stream: str,
    fold: Fold[Any],
    request: Callable[[Any], Any],
    turns: Callable[[Any], int] | None,
    *,
    repeats: int,
    count: Count,
) -> Context:
    """Make *request* from the states at growing versions: each half as far as the next, up to the head."""
    head = store.head(stream).version
    points: list[ContextPoint] = []
    stopped = None
    for version in versions_of(head):
        state = state_at(store, stream, fold, version)
        gc.collect()
        first_ms, made = timed_ms(lambda state=state: _encode(request(state)))  # type: ignore[misc]
        size = len(made)
        del made
        build_ms, _ = median_ms(lambda state=state: request(state), repeats, at_most_s=0.5)  # type: ignore[misc]
        built = request(state)
        encode_ms, _ = median_ms(lambda built=built: _encode(built), repeats, at_most_s=0.5)  # type: ignore[misc]
        turn = turns(state) if turns is not None else None
        points.append(ContextPoint(version, turn, build_ms, encode_ms, first_ms, size))
        count(1)
        if size > REQUEST_BYTES_MOST and version < head:
            stopped = version
            break
    last = points[-1].turn
    if last is not None and last < TURNS_LEAST:
        return Context(points, last, None, None, stopped)
    return Context(points, last, growth(points), total_s(points), stopped)


def versions_of(head: int) -> list[int]:
    """Return the versions to measure at: the head, its half, its quarter, …, in order."""
    found = [head]
    while len(found) < POINTS and found[-1] // 2 >= VERSION_LEAST:
        found.append(found[-1] // 2)
    return found[::-1]


def growth(points: Sequence[ContextPoint]) -> float | None:
    """Return by how much a request gets dearer when the conversation doubles, from the last doublings measured."""
    told = [point for point in points if point.build_ms + point.encode_ms >= COST_LEAST_MS][-4:]
    if len(told) < 2:
        return None
    first, last = told[0], told[-1]
    dearer = (last.build_ms + last.encode_ms) / (first.build_ms + first.encode_ms)
    return float(2 ** (math.log(dearer) / math.log(last.version / first.version)))


def total_s(points: Sequence[ContextPoint]) -> float | None:
    """Return the time of the requests of all turns up to the last point, the cost between points on a line."""
    spent_ms = 0.0
    before_turn, before_ms = 0, 0.0
    for point in points:
        if point.turn is None:
            return None
        cost_ms = point.build_ms + point.encode_ms
        spent_ms += (point.turn - before_turn) * (before_ms + cost_ms) / 2
        before_turn, before_ms = point.turn, cost_ms
    return spent_ms / 1000


def _encode(request: Any) -> bytes:
    """Encode a request as it is hashed and sent: JSON with sorted keys; what has no JSON counts by its text."""
    try:
        return msgspec.json.encode(request, order="sorted", enc_hook=str)
    except (TypeError, ValueError, RecursionError):
        return repr(request).encode(errors="replace")
