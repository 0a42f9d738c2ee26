"""What a fork costs, at several places of the stream, and its first load."""

from __future__ import annotations

import statistics
from typing import Any

from tailfold.engine.costs.clock import timed_ms
from tailfold.engine.costs.figures import ForkCost
from tailfold.engine.fold import Fold
from tailfold.engine.loading import load
from tailfold.engine.store import Store

REPEATS_LEAST = 11


def fork_costs(store: Store, stream: str, fold: Fold[Any], repeats: int) -> list[ForkCost]:
    """Fork *stream* at its tenth, its half and its head, and load each fork once."""
    head = store.head(stream).version
    prefix = "branch" if stream.startswith("fork") else "fork"  # nothing else is in the store
    found = []
    for at in sorted({max(1, head // 10), max(1, head // 2), head}):
        before = _table_bytes(store)
        times, loads, tails = [], [], []
        number = max(repeats, REPEATS_LEAST)
        for i in range(number):
            name = f"{prefix}-{at}-{i}"  # given, as looking for a free one takes longer each time
            fork_ms, child = timed_ms(lambda at=at, name=name: store.fork(stream, at=at, name=name))  # type: ignore[misc]
            folded = store.counters.events_folded
            load_ms, _ = timed_ms(lambda name=child.stream: load(store.log, store.snapshots, name, fold))  # type: ignore[misc]
            tails.append(store.counters.events_folded - folded)
            times.append(fork_ms)
            loads.append(load_ms)
        added = (_table_bytes(store) - before) // number
        found.append(
            ForkCost(at, statistics.median(times), statistics.median(loads), max(tails), max(0, added), number)
        )
    return found


def _table_bytes(store: Store) -> int:
    return sum(table["bytes"] for table in store.usage()["tables"].values())
