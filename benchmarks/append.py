"""Durable appends: alone beside a raw write+fdatasync of the same bytes, and by many sessions at once."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from tailfold.engine import Durability, LmdbBackend, Store

from benchmarks.events import events, totals
from benchmarks.timing import RawFile, TwoFlushes, summary

BLOCK = 25
"""Ours and raw take turns in blocks of this many, so that both see the same disk."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--appends", type=int, default=2000, help="appends measured alone")
    parser.add_argument("--sessions", default="1,10,100,1000", help="concurrent sessions, comma-separated")
    parser.add_argument("--per-session", type=int, default=0, help="appends a session; 0: enough to measure")
    parser.add_argument("--bytes", default="100,1400", help="text bytes of an event, comma-separated")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    sizes = [int(size) for size in arguments.bytes.split(",")]
    counts = [int(count) for count in arguments.sessions.split(",")]
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        alone = [_alone(Path(folder) / f"alone{size}", arguments.appends, size) for size in sizes]
        relaxed = _alone(Path(folder) / "relaxed", arguments.appends, sizes[0], Durability.RELAXED)
        bulk = _bulk(Path(folder) / "bulk", sizes[0])
        sessions = [
            _sessions(Path(folder) / f"sessions{count}", count, arguments.per_session, sizes[0]) for count in counts
        ]
    return {"durable_alone": alone, "relaxed_alone": relaxed, "bulk": bulk, "concurrent": sessions}


def _alone(path: Path, count: int, text_bytes: int, durability: Durability = Durability.DURABLE) -> dict[str, Any]:
    todo = events(count, text_bytes)
    with Store.open(backend=LmdbBackend(path, durability=durability)) as store:
        live = store.live("alone", totals)
        raw, flushes = RawFile(path / "raw"), TwoFlushes(path / "flushes")
        ours: list[float] = []
        encode = store.log.codec.encode
        for begin in range(0, count, BLOCK):
            block = todo[begin : begin + BLOCK]
            for event in block:
                start = time.perf_counter()
                live.append(event)
                ours.append(time.perf_counter() - start)
            for event in block:
                raw.append(encode(event, time.time_ns(), None, None).data)
                flushes.commit()
        raw.close()
        flushes.close()
        record_bytes = sum(len(row.data) for row in store.log.rows("alone", after=0, upto=count)) // count
    mine, limit, floor = summary(ours), summary(raw.durations_s), summary(flushes.durations_s)
    return {
        "durability": durability.value,
        "appends": count,
        "record_bytes": record_bytes,
        "p50_ms": mine["p50_ms"],
        "p99_ms": mine["p99_ms"],
        "raw_write_fdatasync_p50_ms": limit["p50_ms"],
        "raw_write_fdatasync_p99_ms": limit["p99_ms"],
        "two_flushes_p50_ms": floor["p50_ms"],
        "ratio_to_two_flushes_p50": mine["p50_ms"] / floor["p50_ms"],
        "ratio_p50": mine["p50_ms"] / limit["p50_ms"],
        "ratio_p99": mine["p99_ms"] / limit["p99_ms"],
    }


def _bulk(path: Path, text_bytes: int, batch: int = 1000, batches: int = 100) -> dict[str, Any]:
    todo = events(batch, text_bytes)
    with Store.open(path) as store:
        start = time.perf_counter()
        for i in range(batches):
            store.append("bulk", todo, expected=i * batch)
        elapsed = time.perf_counter() - start
    return {
        "durability": Durability.DURABLE.value,
        "events": batch * batches,
        "batch": batch,
        "events_per_s": batch * batches / elapsed,
    }


def _sessions(path: Path, count: int, per_session: int, text_bytes: int) -> dict[str, Any]:
    """Each session appends its next event when the one before is durable, as an agent does."""
    per_session = per_session or max(20, 5000 // count if count < 10 else 40_000 // count)
    todo = events(per_session, text_bytes)
    waits: list[float] = []

    async def session(live: Any) -> None:
        for event in todo:
            start = time.perf_counter()
            await live.append_async(event)
            waits.append(time.perf_counter() - start)

    async def everyone(store: Store) -> float:
        lives = [store.live(f"session-{i}", totals) for i in range(count)]
        await asyncio.gather(*(live.append_async(todo[0]) for live in lives))  # the streams exist
        start = time.perf_counter()
        await asyncio.gather(*(session(live) for live in lives))
        return time.perf_counter() - start

    with Store.open(path) as store:
        elapsed = asyncio.run(everyone(store))
    total = count * per_session
    return {
        "durability": Durability.DURABLE.value,
        "sessions": count,
        "events": total,
        "events_per_s": total / elapsed,
        **{f"append_{name}": value for name, value in summary(waits).items()},
    }
