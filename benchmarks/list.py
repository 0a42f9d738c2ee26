"""Listing runs: the warm projection, with new events since, the rebuild; beside folding every run."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tailfold.engine import ANY, Durability, Event, LmdbBackend, Store
from tailfold.engine.agent.events import (
    ModelDecision,
    RunEnded,
    RunStarted,
    ToolCall,
    ToolCalled,
    ToolResult,
    TurnStarted,
    Usage,
)
from tailfold.engine.agent.listing import run_list
from tailfold.engine.agent.state import run_fold
from tailfold.snapshots import never

BATCH = 200
PROJECTION = run_list("bench")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", default="1000,10000", help="runs in the store, comma-separated")
    parser.add_argument("--new", type=int, default=100, help="events appended since the list was saved")
    parser.add_argument("--repeats", type=int, default=3, help="readings measured")
    parser.add_argument("--fold-at-most", type=int, default=10_000, help="runs folded for the comparison")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "events_of_a_run": len(_run(0)),
        "durability": Durability.RELAXED.value,
        "sizes": [_size(int(size), arguments) for size in arguments.streams.split(",")],
    }


def _run(number: int) -> list[Event]:
    call = ToolCall("c1", "get_plans", {"product": f"product {number}"})
    usage = Usage(700, 60, 900)
    return [
        RunStarted("bench", f"How much is product {number} for 5 seats, billed monthly?", "m", 8),
        TurnStarted(1),
        ModelDecision(1, [call], "", "0" * 32, usage),
        ToolCalled(1, call, "read_only"),
        ToolResult(1, "c1", {"plans": ["Free", "Plus", "Business"], "note": "x" * 300}),
        TurnStarted(2),
        ModelDecision(2, [], "It is $60.00 per month. " * 4, "0" * 32, usage),
        RunEnded("answered", "It is $60.00 per month. " * 4),
    ]


def _size(size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path = Path(folder) / "store"
        with _open(path) as store:
            for i in range(size):
                store.append(f"r-{i:06}", _run(i), expected=0)
        rebuild_s = _seconds(path, 1, save=True)
        warm_s = _seconds(path, arguments.repeats)
        with _open(path) as store:
            for i in range(arguments.new):
                store.append(f"r-{i * 7 % size:06}", TurnStarted(9), expected=ANY)
        new_s = _seconds(path, arguments.repeats)
        folded = min(size, arguments.fold_at_most)
        begun = time.perf_counter()
        with _open(path) as store:
            for head in store.streams():
                store.load(head.stream, run_fold)
                folded -= 1
                if not folded:
                    break
        share = min(size, arguments.fold_at_most) / size
        return {
            "runs": size,
            "warm_ms": warm_s * 1000,
            "with_new_events_ms": new_s * 1000,
            "new_events": arguments.new,
            "rebuild_s": rebuild_s,
            "folding_every_run_s": (time.perf_counter() - begun) / share,
            "folded_share": share,
        }


def _seconds(path: Path, repeats: int, *, save: bool = False) -> float:
    """Open the store and read all rows of the list, as `tailfold list` does."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        with _open(path) as store:
            projected = store.project(PROJECTION, save=save)
            if save:
                projected.save()
            rows = projected.state.rows()
        times.append(time.perf_counter() - begun)
        assert len(rows) > 0
    return statistics.median(times)


def _open(path: Path) -> Store:
    return Store.open(backend=LmdbBackend(path, durability=Durability.RELAXED), snapshots=never)
