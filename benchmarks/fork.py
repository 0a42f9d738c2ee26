"""Forks: how long one takes, the first load after it, and the bytes it adds, at any length and depth."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailfold.engine import Durability, Event, Fold, Store
from tailfold.snapshots import CostBased, Series

from benchmarks.events import texts

REPEATS = 21
BATCH = 1000
TAIL = 500
"""Events after the last snapshot, as in the benchmark of resumes: else lengths could not be compared."""


class Said(Event, frozen=True):
    kind = "said"
    text: str


@dataclass
class Talk:
    turns: int = 0
    messages: Series[str] = field(default_factory=Series[str])


talk: Fold[Talk] = Fold("talk", Talk)


@talk.on(Said)
def _(state: Talk, event: Said) -> None:
    state.turns += 1
    state.messages.append(event.text)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="1000,100000,1000000", help="events of the parent, comma-separated")
    parser.add_argument("--depths", default="1,100,10000", help="depths of a chain of forks, comma-separated")
    parser.add_argument("--text-bytes", type=int, default=120, help="text bytes of an event")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    pool = texts(20_000, arguments.text_bytes)
    sizes = [int(size) for size in arguments.sizes.split(",")]
    by_size = []
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        for size in sizes:
            by_size.append(_of_size(Path(folder) / f"n{size}", size, pool))
        chains = [_of_depth(Path(folder) / f"d{depth}", int(depth), pool) for depth in arguments.depths.split(",")]
    first, last = by_size[0], by_size[-1]
    return {
        "durability": "forks durable; what they fork was written relaxed",
        "tail": TAIL,
        "fork": by_size,
        "chains": chains,
        "fork_and_first_load_times_smallest": (last["fork_ms"] + last["first_load_ms"])
        / (first["fork_ms"] + first["first_load_ms"]),
        "anywhere_times_smallest": (last["fork_ms"] + last["first_load_anywhere_ms"])
        / (first["fork_ms"] + first["first_load_anywhere_ms"]),
        "chain_load_times_shallowest": chains[-1]["load_ms"] / chains[0]["load_ms"],
    }


def _fill(path: Path, count: int, pool: list[str]) -> None:
    """Write a session as its driver does: a live handle, snapshots by the default policy, then a tail of `TAIL`."""
    with Store.open(path, durability=Durability.RELAXED) as store:
        live = store.live("parent", talk)
        for at in range(0, count - TAIL, BATCH):
            live.append(*[Said(pool[i % len(pool)]) for i in range(at, min(at + BATCH, count - TAIL))])
        live.snapshot()
        live.append(*[Said(pool[i % len(pool)]) for i in range(count - TAIL, count)])


def _of_size(path: Path, count: int, pool: list[str]) -> dict[str, Any]:
    _fill(path, count, pool)
    os.sync()  # the fill was relaxed: its pages would be flushed by the forks, and measured as theirs
    fork_s, load_s, anywhere_s = [], [], []
    with Store.open(path) as store:
        before = _bytes(store)
        for i in range(REPEATS):
            begin = time.perf_counter()
            store.fork("parent", at=count, name=f"head-{i}")
            fork_s.append(time.perf_counter() - begin)
        after = _bytes(store)
        for i in range(REPEATS):
            begin = time.perf_counter()
            state = store.load(f"head-{i}", talk).state
            load_s.append(time.perf_counter() - begin)
            assert state.turns == len(state.messages) == count
        for i in range(REPEATS):
            at = count * (i + 1) // (REPEATS + 1)
            store.fork("parent", at=at, name=f"deep-{i}")
            begin = time.perf_counter()
            assert store.load(f"deep-{i}", talk).state.turns == at
            anywhere_s.append(time.perf_counter() - begin)
    return {
        "events": count,
        "fork_ms": statistics.median(fork_s) * 1000,
        "first_load_ms": statistics.median(load_s) * 1000,
        "first_load_anywhere_ms": statistics.median(anywhere_s) * 1000,
        "bytes_per_fork": (after - before) / REPEATS,
    }


def _of_depth(path: Path, depth: int, pool: list[str]) -> dict[str, Any]:
    """A chain: each fork is driven for one event, then forked at its head, and so on."""
    _fill(path, 2000, pool)
    with Store.open(path, snapshots=CostBased(), durability=Durability.RELAXED) as store:
        name = "parent"
        for i in range(depth):
            child = store.fork(name, name=f"f{i}").stream
            store.live(child, talk).append(Said(pool[i % len(pool)]))
            name = child
        loads = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            state = store.load(name, talk).state
            loads.append(time.perf_counter() - begin)
        assert state.turns == 2000 + depth
        begin = time.perf_counter()
        events = sum(1 for _ in store.read(name))
        read_s = time.perf_counter() - begin
        assert events == 2000 + depth
    return {"depth": depth, "load_ms": statistics.median(loads) * 1000, "read_all_events_per_s": events / read_s}


def _bytes(store: Store) -> int:
    tables = store.usage()["tables"]
    return sum(int(table["bytes"]) for table in tables.values())
