"""What states take in memory, by Python's own count of its allocations."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

from tailfold.engine.costs.clock import process_peak_bytes
from tailfold.engine.costs.figures import Memory
from tailfold.engine.fold import Fold
from tailfold.engine.loading import begin, load
from tailfold.engine.store import Store

FOLDED_MOST = 50_000
"""Counting allocations makes folding several times slower; the start of a stream tells enough."""


def memory_costs(store: Store, stream: str, fold: Fold[Any]) -> Memory:
    """Count what a resumed state keeps, and one folded without snapshots. Expects a snapshot at the head."""
    head = store.head(stream).version
    load(store.log, store.snapshots, stream, fold)  # what is made once for all loads is not the state's
    resumed, peak = _counted(lambda: load(store.log, store.snapshots, stream, fold).state)
    upto = min(head, FOLDED_MOST)

    def folded() -> Any:
        state, version = begin(store.snapshots, fold), 0
        for _, records in store.log.record_pages(stream, after=0, upto=upto):
            state = fold.fold_records(state, records, stream, version)
            version += len(records)
        return state

    kept, _ = _counted(folded)
    return Memory(resumed, peak, upto, kept, process_peak_bytes())


def _counted(work: Any) -> tuple[int, int]:
    """Return the bytes that the result of *work* keeps, and the most that was held on the way."""
    gc.collect()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = work()
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        if not tracing:
            tracemalloc.stop()
    return max(0, kept - before), max(0, peak - before)
