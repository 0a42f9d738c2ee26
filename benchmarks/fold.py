"""Folding: events per second of a full load, beside its limits and the eventsourcing package."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailfold.engine import Store
from tailfold.snapshots import never

from benchmarks.events import Measured, Totals, events, totals

REPEATS = 5


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=200_000, help="events in the stream")
    parser.add_argument("--bytes", default="100,1400", help="text bytes of an event, comma-separated")
    parser.add_argument("--peer-events", type=int, default=20_000, help="events given to the peer")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    results = []
    for size in arguments.bytes.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            results.append(_measure(Path(folder), arguments.events, int(size), arguments.peer_events))
    return {"full_fold": results}


def _measure(folder: Path, count: int, text_bytes: int, peer_count: int) -> dict[str, Any]:
    batch = events(min(count, 1000), text_bytes)
    with Store.open(folder / "store", snapshots=never) as store:
        version = 0
        while version < count:
            version = store.append("fold", batch[: count - version], expected=version).last
        load_s = _median(lambda: store.load("fold", totals))
        state = store.load("fold", totals).state
        assert state.events == count
        assert store.counters.hits == 0, "every load folds all"
        scan_s = _median(lambda: _scan(store, count))
        decode_s = _median(lambda: _decode(store, count))
        store.seal("fold", whole=False)  # as long sessions are by default, behind their snapshots
        sealed_s = _median(lambda: store.load("fold", totals))
        assert store.load("fold", totals).state == state
    history: list[Measured] = (batch * (count // len(batch) + 1))[:count]
    bare_s = _median(lambda: _bare(history))
    peer = _peer(folder / "peer", events(peer_count, text_bytes))
    ours = count / load_s
    result: dict[str, Any] = {
        "events": count,
        "text_bytes": text_bytes,
        "events_per_s": ours,
        "sealed_events_per_s": count / sealed_s,
        "limits": {
            "cursor_scan_events_per_s": count / scan_s,
            "scan_and_decode_events_per_s": count / decode_s,
            "bare_python_fold_events_per_s": count / bare_s,
        },
        "ratio_to_bare_fold": load_s / bare_s,
        "peers": {"eventsourcing_sqlite": peer or "not installed (pip install '.[bench]')"},
    }
    if peer:
        result["times_eventsourcing"] = ours / peer["events_per_s"]
        result["sealed_times_eventsourcing"] = count / sealed_s / peer["events_per_s"]
    return result


def _peer(path: Path, history: list[Measured]) -> dict[str, Any] | None:
    """Measure the peer in the same run, if it is installed."""
    if importlib.util.find_spec("eventsourcing") is None:
        return None
    from benchmarks.peers import eventsourcing_sqlite

    return eventsourcing_sqlite.full_fold(path, history)


def _median(work: Callable[[], object]) -> float:
    durations = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def _scan(store: Store, count: int) -> int:
    after = 0
    while after < count:
        after += len(store.backend.data("fold", after=after, upto=min(count, after + 1024)))
    return after


def _decode(store: Store, count: int) -> int:
    return sum(len(page) for _, page in store.log.record_pages("fold", after=0, upto=count))


def _bare(history: list[Measured]) -> Totals:
    """Fold ready-made events with one handler and no engine: Python's own limit."""
    state = Totals()
    for event in history:
        state.events += 1
        state.turns = event.turn
        state.characters += len(event.text)
    return state
