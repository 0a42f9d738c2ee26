"""Following: from before an append to the event's delivery in another process; catching up; idling."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailfold.engine import ANY, Durability, Event, LmdbBackend, Store

from benchmarks.timing import percentile


class Ticked(Event, frozen=True):
    kind = "ticked"
    text: str


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--appends", type=int, default=500, help="appends measured, one at a time")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="between two appends")
    parser.add_argument("--burst", type=int, default=50_000, help="events that a follower catches up with")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.child:
        _child(*arguments.child.split(":", 2))
        raise SystemExit(0)
    return {
        "appends": arguments.appends,
        "pause_ms": arguments.pause_ms,
        "delivery": [
            _delivery(arguments, durability, how)
            for durability in (Durability.DURABLE, Durability.RELAXED)
            for how in ("plain", "named")
        ],
        "idle_processor_share": _idle(arguments),
        "catch_up": _catch_up(arguments),
    }


def _delivery(arguments: argparse.Namespace, durability: Durability, how: str) -> dict[str, Any]:
    """Append one event at a time; the other process says when each was delivered."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path = Path(folder) / "store"
        with Store.open(backend=LmdbBackend(path, durability=durability)) as store:
            command = [sys.executable, "-m", "benchmarks", "follow", "--child", f"{how}:{durability.value}:{path}"]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert child.stdout is not None
            child.stdout.readline()
            begun, returned = [], []
            for _ in range(arguments.appends):
                time.sleep(arguments.pause_ms / 1000)
                begun.append(time.monotonic_ns())
                store.append("s", Ticked("x" * 200), expected=ANY)
                returned.append(time.monotonic_ns())
            store.append("s", Ticked(""), expected=ANY)
            delivered = json.loads(child.stdout.readline())
            child.wait()
        whole = sorted((d - b) / 1e9 for b, d in zip(begun, delivered, strict=True))
        after = sorted((d - r) / 1e9 for r, d in zip(returned, delivered, strict=True))
        return {
            "durability": durability.value,
            "subscription": how,
            "append_p50_ms": percentile(sorted((r - b) / 1e9 for b, r in zip(begun, returned, strict=True)), 0.5),
            "append_to_delivery_p50_ms": percentile(whole, 0.5),
            "append_to_delivery_p99_ms": percentile(whole, 0.99),
            "most_ms": whole[-1] * 1000,
            "after_the_append_returned_p50_ms": percentile(after, 0.5),
            "after_the_append_returned_p99_ms": percentile(after, 0.99),
        }


def _child(how: str, durability: str, path: str) -> None:
    delivered = []
    backend = LmdbBackend(path, create=False, durability=Durability(durability))
    with Store.open(backend=backend, events=[Ticked]) as store:
        subscription = store.subscribe(name="follower" if how == "named" else None)
        if how == "idle":
            subscription.poll(0.01)
            begun = time.process_time()
            subscription.poll(5.0)
            print((time.process_time() - begun) / 5.0, flush=True)
            return
        print("ready", flush=True)
        for recorded in subscription:
            event = recorded.event
            assert isinstance(event, Ticked)
            if not event.text:
                break
            delivered.append(time.monotonic_ns())  # a clock that all processes of the machine share
    print(json.dumps(delivered), flush=True)


def _idle(arguments: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        path = Path(folder) / "store"
        Store.open(path).close()
        command = [sys.executable, "-m", "benchmarks", "follow", "--child", f"idle:durable:{path}"]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _catch_up(arguments: argparse.Namespace) -> dict[str, float]:
    """How fast a follower reads what is there, with and without a checkpoint, and as a coroutine."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        backend = LmdbBackend(Path(folder) / "store", durability=Durability.RELAXED)
        with Store.open(backend=backend) as store:
            for i in range(0, arguments.burst, 500):
                store.append(f"s{i // 500 % 20}", [Ticked("x" * 200)] * 500, expected=ANY)

            async def count() -> int:
                return sum([1 async for _ in store.subscribe(follow=False)])

            reads: dict[str, Callable[[], int]] = {
                "read_all": lambda: sum(1 for _ in store.read_all()),
                "plain": lambda: sum(1 for _ in store.subscribe(follow=False)),
                "named": lambda: sum(1 for _ in store.subscribe(name="n", follow=False)),
                "async": lambda: asyncio.run(count()),
            }
            rates = {}
            for name, read in reads.items():
                begun = time.perf_counter()
                found = read()
                rates[f"{name}_events_per_s"] = found / (time.perf_counter() - begun)
            return rates
