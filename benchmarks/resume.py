"""Resuming from a snapshot and a tail, at growing lengths: time, memory, and what the snapshots cost."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tailfold.engine import Durability, Event, Fold, LmdbBackend, Store
from tailfold.snapshots import Policy, Series, every, never

from benchmarks.events import POOL, texts
from benchmarks.timing import peak_rss_bytes, percentile

BATCH = 500
STREAM = "session"


class Message(msgspec.Struct, frozen=True):
    role: str
    text: str


class Messaged(Event, frozen=True):
    kind = "messaged"
    role: str
    text: str


@dataclass
class Session:
    """A state that keeps every message."""

    messages: Series[Message] = field(default_factory=Series[Message])
    characters: int = 0


session: Fold[Session] = Fold("session", Session)


@session.on(Messaged)
def _(state: Session, event: Messaged) -> None:
    state.messages.append(Message(event.role, event.text))
    state.characters += len(event.text)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", default="1000,10000,100000,1000000", help="events, comma-separated")
    parser.add_argument("--tail", type=int, default=500, help="events after the last snapshot")
    parser.add_argument("--every", type=int, default=1000, help="events between snapshots")
    parser.add_argument("--bytes", type=int, default=120, help="text bytes of a message")
    parser.add_argument("--repeats", type=int, default=200, help="resumes measured")
    parser.add_argument("--append-events", type=int, default=120_000, help="events of the append comparison")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.child:
        print(json.dumps(_child(arguments)))
        raise SystemExit(0)
    rows = []
    for size in (int(size) for size in arguments.sizes.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            rows.append(_size(Path(folder) / "store", size, arguments))
            print(f"{size} events: resume {rows[-1]['resume_ms']:.3f} ms", file=sys.stderr)
    first, last = rows[0], rows[-1]
    return {
        "policy": f"every({arguments.every})",
        "tail": arguments.tail,
        "durability_of_the_build": Durability.RELAXED.value,
        "sizes": rows,
        "ratios": {
            "resume_last_to_first": last["resume_ms"] / first["resume_ms"],
            "events_last_to_first": last["events"] / first["events"],
            "snapshot_share_of_event_bytes": last["snapshot_bytes"] / last["event_bytes"],
            "snapshot_and_chunk_share_of_event_bytes": (last["snapshot_bytes"] + last["chunk_bytes"])
            / last["event_bytes"],
            "bytes_doubled": _doubled(arguments),
        },
        "append_run": _append_run(arguments),
    }


def _size(path: Path, size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    build(path, size, arguments.tail, every(arguments.every), arguments.bytes)
    row = {"events": size, **_run_child(path, arguments, "resume")}
    with Store.open(path, create=False) as store:
        event_bytes = sum(size for size, _ in store.log.record_pages(STREAM, after=0, upto=size))
        tables = store.usage()["tables"]
        row |= {
            "event_bytes": event_bytes,
            "snapshot_bytes": _value_bytes(store, "snapshots"),
            "chunk_bytes": _value_bytes(store, "chunks"),
            "snapshots": tables["snapshots"]["rows"],
            "chunks": tables["chunks"]["rows"],
            "store_bytes": sum(table["bytes"] for table in tables.values()),
        }
    return row | _run_child(path, arguments, "fold")


def build(path: Path, size: int, tail: int, policy: Policy, text_bytes: int) -> None:
    """Write a session of *size* events by a live handle, its last *tail* events after the last snapshot."""
    pool = texts(POOL, text_bytes)
    backend = LmdbBackend(path, durability=Durability.RELAXED)
    with Store.open(backend=backend, snapshots=policy) as store:
        live = store.live(STREAM, session)
        while live.version < size - tail:
            live.append(*_messages(pool, live.version, min(BATCH, size - tail - live.version)))
        live.snapshot()
        store.snapshots.policy = never
        for batch in _batches(live.version, size):
            live.append(*_messages(pool, live.version, batch))


def _messages(pool: list[str], start: int, count: int) -> list[Messaged]:
    # Numbered, so that no two chunks are alike and content addresses share nothing.
    return [Messaged("tool", f"{i} {pool[i % len(pool)]}") for i in range(start, start + count)]


def _batches(start: int, stop: int) -> Iterator[int]:
    while start < stop:
        count = min(BATCH, stop - start)
        yield count
        start += count


def _value_bytes(store: Store, table: str) -> int:
    backend: Any = store.backend
    with backend._env.begin() as txn:
        return sum(len(value) for _, value in txn.cursor(backend._shared.tables[table]))


def _doubled(arguments: argparse.Namespace) -> float:
    """Return bytes(2n) / bytes(n) of a store whose state keeps every message, snapshots included."""
    sizes = []
    for n in (20_000, 40_000):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            path = Path(folder) / "store"
            build(path, n, arguments.tail, every(arguments.every), arguments.bytes)
            with Store.open(path, create=False) as store:
                sizes.append(sum(table["bytes"] for table in store.usage()["tables"].values()))
    before, after = sizes
    return float(after / before)


def _append_run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A long run of appends with and without snapshots, taking turns: what snapshotting costs."""
    return [
        _slowdown(arguments, Durability.DURABLE, arguments.append_events // 4),
        _slowdown(arguments, Durability.RELAXED, arguments.append_events),
    ]


def _slowdown(arguments: argparse.Namespace, durability: Durability, count: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"never": [], "cost": [], "every": []}
    policies: dict[str, Policy | None] = {"never": never, "cost": None, "every": every(arguments.every)}
    pool = texts(POOL, arguments.bytes)
    for _ in range(3):
        for name, policy in policies.items():
            with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
                backend = LmdbBackend(Path(folder) / "store", durability=durability)
                with Store.open(backend=backend, snapshots=policy) as store:
                    live = store.live(STREAM, session)
                    gc.collect()
                    start = time.perf_counter()
                    while live.version < count:
                        live.append(*_messages(pool, live.version, 10))
                    times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "durability": durability.value,
        "events": count,
        "batch": 10,
        "never_s": medians["never"],
        "cost_based_s": medians["cost"],
        "every_s": medians["every"],
        "slowdown_cost_based": medians["cost"] / medians["never"] - 1,
        "slowdown_every": medians["every"] / medians["never"] - 1,
    }


def _run_child(path: Path, arguments: argparse.Namespace, what: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "resume", "--child", f"{what}:{path}"]
    command += ["--repeats", str(arguments.repeats), "--tail", str(arguments.tail)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _child(arguments: argparse.Namespace) -> dict[str, Any]:
    what, path = arguments.child.split(":", 1)
    backend = LmdbBackend(path, create=False, durability=Durability.RELAXED)
    if what == "fold":
        store = Store.open(backend=backend, snapshots=never)
        start = time.perf_counter()
        state = Session()
        for _, records in store.log.record_pages(STREAM, after=0, upto=_registered(store)):
            state = session.fold_records(state, records, STREAM, 0)
        return {"full_fold_s": time.perf_counter() - start}
    store = Store.open(backend=backend, snapshots=never)
    live = store.live(STREAM, session)
    assert len(live.state.messages) == live.version
    assert store.counters.events_folded == arguments.tail
    peak_rss_mb = peak_rss_bytes() / (1 << 20)
    durations = []
    for _ in range(arguments.repeats):
        gc.collect()
        start = time.perf_counter()
        Store.open(backend=backend, snapshots=never).live(STREAM, session)
        durations.append(time.perf_counter() - start)
    durations.sort()
    return {
        "resume_ms": percentile(durations, 0.5),
        "resume_p99_ms": percentile(durations, 0.99),
        "peak_rss_mb": peak_rss_mb,
        "events_folded": arguments.tail,
        "chunks_loaded": store.counters.chunks_loaded,
    }


def _registered(store: Store) -> int:
    store.log.codec.register([Messaged])
    return store.head(STREAM).version
