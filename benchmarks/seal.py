"""Sealed segments: the space of many interleaved sessions, and what a fold and a single read cost from segments."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from tailfold.engine import Durability, Event, Store
from tailfold.snapshots import never

from benchmarks.children import run_child
from benchmarks.workload import AGENT, TINY, Profile, session, session_events

REPEATS = 5
COLD_REPEATS = 3
READS = 200
WARM = "warm"
"""A stream of one event."""
TURN = 8
"""Events that a session appends before the next one has its turn."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=2000, help="interleaved sessions")
    parser.add_argument("--each", type=int, default=100, help="events of each")
    parser.add_argument("--events", type=int, default=50_000, help="events of the stream that is folded and read")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.child:
        return _fold_in_child(*arguments.child.split(":", 1))
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        space = _space(Path(folder) / "space", arguments.streams, arguments.each)
    reading = []
    for profile in (TINY, AGENT):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            reading.append(_reading(Path(folder) / "reading", profile, arguments.events))
    return {"durability": "relaxed while filling; segments too", "space": [space], "reading": reading}


def _space(path: Path, streams: int, each: int) -> dict[str, Any]:
    pool = list(islice((e for e in session_events(AGENT, 20_000) if type(e).kind != "image_shown"), 20_000))
    with Store.open(path, durability=Durability.RELAXED, snapshots=never) as store:
        payload_bytes = 0
        for turn in range(0, each, TURN):
            for stream in range(streams):
                at = (stream * 131 + turn) % (len(pool) - TURN)
                store.append(f"s-{stream}", pool[at : at + min(TURN, each - turn)], expected=turn)
        for head in store.streams():
            payload_bytes += sum(len(row.data) for row in store.log.rows(head.stream, after=0, upto=head.version))
        before = _used(store)
        begin = time.perf_counter()
        sealed = [store.seal(f"s-{stream}", whole=False) for stream in range(streams)]
        seconds = time.perf_counter() - begin
        after = _used(store)
        assert store.verify().sound
    return {
        "streams": streams,
        "events": streams * each,
        "payload_bytes": payload_bytes,
        "unsealed_times_payload": before / payload_bytes,
        "sealed_times_payload": after / payload_bytes,
        "segments_times_payload": sum(one.segment_bytes for one in sealed) / payload_bytes,
        "sealed_events_per_s": streams * each / seconds,
    }


def _reading(path: Path, profile: Profile, count: int) -> dict[str, Any]:
    events: list[Event] = list(islice(session_events(profile, count), count))
    with Store.open(path, durability=Durability.RELAXED, snapshots=never) as store:
        for name in ("plain", "sealed"):
            for at in range(0, count, 1000):
                store.append(name, events[at : at + 1000], expected=at)
        store.seal("sealed", whole=False)
        store.append(WARM, events[:1], expected=0)
        assert store.load("plain", session).state == store.load("sealed", session).state
        folds = {name: _best(lambda name=name: store.load(name, session)) for name in ("plain", "sealed")}  # type: ignore[misc]
        chance = random.Random(5)
        near = [chance.randrange(count - 3000, count - 1) for _ in range(READS)]
        anywhere = [chance.randrange(0, count - 1) for _ in range(READS)]
        reads = {
            (name, where): statistics.median(_reads(store, name, versions))
            for name in ("plain", "sealed")
            for where, versions in (("near", near), ("anywhere", anywhere))
        }
    cold = {name: _cold(path, name) for name in ("plain", "sealed")}
    return {
        "profile": profile.name,
        "events": count,
        "fold_plain_events_per_s": count / folds["plain"],
        "fold_sealed_events_per_s": count / folds["sealed"],
        "fold_sealed_times_plain_speed": folds["plain"] / folds["sealed"],
        "cold_fold_plain_events_per_s": count / cold["plain"]["seconds"],
        "cold_fold_sealed_events_per_s": count / cold["sealed"]["seconds"],
        "cold_fold_sealed_times_plain_speed": cold["plain"]["seconds"] / cold["sealed"]["seconds"],
        "cold_plain_bytes_read": cold["plain"]["bytes_read"],
        "cold_sealed_bytes_read": cold["sealed"]["bytes_read"],
        "read_one_plain_us": reads["plain", "anywhere"] * 1e6,
        "read_one_sealed_us": reads["sealed", "anywhere"] * 1e6,
        "read_one_times_plain": reads["sealed", "anywhere"] / reads["plain", "anywhere"],
        "read_one_near_others_times_plain": reads["sealed", "near"] / reads["plain", "near"],
    }


def _cold(path: Path, stream: str) -> dict[str, Any]:
    """Fold *stream* in a fresh process, with nothing of it in the page cache; the fastest of some."""
    runs = []
    for _ in range(COLD_REPEATS):
        with (path / "data.mdb").open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        runs.append(run_child(["seal", "--json", "--child", f"{stream}:{path}"], timeout_s=600))
    return min(runs, key=lambda run: float(run["seconds"]))


def _fold_in_child(stream: str, path: str) -> dict[str, Any]:
    with Store.open(path, create=False, snapshots=never) as store:
        store.load(WARM, session)  # what the first load of a process costs is no matter of segments
        before = _bytes_read()
        begin = time.perf_counter()
        store.load(stream, session)
        return {"seconds": time.perf_counter() - begin, "bytes_read": _bytes_read() - before}


def _bytes_read() -> int:
    """Return how much this process has caused to be read from the disk: zero if it was cached after all."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def _reads(store: Store, name: str, versions: list[int]) -> list[float]:
    durations = []
    for version in versions:
        begin = time.perf_counter()
        next(iter(store.read(name, after=version, limit=1)))
        durations.append(time.perf_counter() - begin)
    return durations


def _used(store: Store) -> int:
    """Return the bytes of all pages in use; what was freed is used again."""
    return sum(int(table["bytes"]) for table in store.usage()["tables"].values())


def _best(work: Callable[[], object]) -> float:
    durations = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return min(durations)
