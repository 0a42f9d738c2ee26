"""One stage of the comparison with one peer, in a fresh process; prints one JSON object and ends at once."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.peers.catalogue import CATALOGUE
from benchmarks.peers.protocol import NotOffered, Peer, Resumed, disk_bytes
from benchmarks.timing import peak_rss_bytes, summary
from benchmarks.workload import PROFILES, Item, items

SESSION = "session-1"
SHORT = 4
"""Events of each of the sessions that are listed."""
REPEATS = 7
REPEAT_AT_MOST_S = 3.0
ONE_BY_ONE = 50
WARM_UP = 10
MB = 1 << 20


def child(arguments: argparse.Namespace) -> NoReturn:
    name, stage, *numbers = arguments.child.split(":")
    print(json.dumps(STAGES[stage](CATALOGUE[name].load(), arguments, *(int(number) for number in numbers))))
    # Peers may have threads that wait for ever; what they acknowledged is durable.
    sys.stdout.flush()
    os._exit(0)


class Metered:
    """Hands out items until a deadline, and leaves the time of making them out of account."""

    def __init__(self, source: Iterator[Item], budget_s: float) -> None:
        self._source = source
        self._begun = time.perf_counter()
        self._budget_s = budget_s
        self._making_s = 0.0
        self.count = 0

    def spent_s(self) -> float:
        return time.perf_counter() - self._begun - self._making_s

    def __iter__(self) -> Iterator[Item]:
        while self.spent_s() < self._budget_s:
            begin = time.perf_counter()
            block = list(islice(self._source, 500))
            self._making_s += time.perf_counter() - begin
            if not block:
                return
            self.count += len(block)
            yield from block


def _each(peer_type: type[Peer], arguments: argparse.Namespace) -> dict[str, Any]:
    """Append one by one: latency, and the bytes of a session that was written as agents write."""
    peer = peer_type(Path(arguments.dir))
    todo = list(items(PROFILES[arguments.profile], arguments.appends))
    peer.append_each("warm-up", todo[:WARM_UP])
    begun, seconds = time.perf_counter(), list[float]()
    for first in range(0, len(todo), ONE_BY_ONE):
        seconds += peer.append_each(SESSION, todo[first : first + ONE_BY_ONE])
        if time.perf_counter() - begun > arguments.budget_s:
            break
    peer.close()
    text_bytes = sum(len(item.text) for item in [*todo[:WARM_UP], *todo[: len(seconds)]])
    used = disk_bytes(Path(arguments.dir))
    return {
        "durability": peer.durability,
        "append": summary(seconds)
        | {"events": len(seconds), "disk_bytes": used, "text_bytes": text_bytes, "times_text": used / text_bytes},
    }


def _sessions(peer_type: type[Peer], arguments: argparse.Namespace) -> dict[str, Any]:
    """Make many short sessions, within the budget."""
    peer = peer_type(Path(arguments.dir))
    todo = list(items(PROFILES[arguments.profile], SHORT))
    begun, made = time.perf_counter(), 0
    while made < arguments.sessions and time.perf_counter() - begun < arguments.budget_s:
        peer.short_session(f"short-{made}", todo)
        made += 1
    peer.close()
    return {"sessions_made": made}


def _list(peer_type: type[Peer], arguments: argparse.Namespace) -> dict[str, Any]:
    peer = peer_type(Path(arguments.dir))
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        try:
            found = peer.sessions()
        except NotOffered as reason:
            return {"list": {"not_offered": str(reason)}}
        times.append(time.perf_counter() - begun)
    return {"list": {"sessions": found, "ms": statistics.median(times) * 1000}}


def _grow(peer_type: type[Peer], arguments: argparse.Namespace, reached: int, size: int) -> dict[str, Any]:
    """Let the session grow to *size*, in bulk if the peer can, within the budget."""
    peer = peer_type(Path(arguments.dir))
    source = items(PROFILES[arguments.profile], size)
    metered = Metered(islice(source, reached, None), arguments.budget_s)
    bulk: Any = None
    try:
        peer.append_bulk(SESSION, metered)
        seconds = metered.spent_s()
        bulk = metered.count / seconds
    except NotOffered as reason:
        bulk = {"not_offered": str(reason)}
        rest = iter(metered)
        while block := list(islice(rest, ONE_BY_ONE)):
            peer.append_each(SESSION, block)
        seconds = metered.spent_s()
    peer.close()
    return {
        "events": reached + metered.count,
        "append_s": seconds,
        "bulk_events_per_s": bulk,
        "disk_bytes": disk_bytes(Path(arguments.dir)),
    }


def _come(peer_type: type[Peer], arguments: argparse.Namespace, size: int) -> dict[str, Any]:
    """Come back to a session of *size* events: resume and its memory first, in a process that did nothing else."""
    folder = Path(arguments.dir)
    imports_mb = peak_rss_bytes() / MB
    begun = time.perf_counter()
    peer = peer_type(folder)
    found = peer.resume(SESSION)
    times = [time.perf_counter() - begun]
    peak_mb = peak_rss_bytes() / MB
    assert found.events == size, (found.events, size)
    if not peer.resumes_once:
        spent = 0.0
        while len(times) < REPEATS + 1 and spent < REPEAT_AT_MOST_S:
            peer.close()
            gc.collect()
            begun = time.perf_counter()
            peer = peer_type(folder)
            again = peer.resume(SESSION)
            times.append(time.perf_counter() - begun)
            spent += times[-1]
            assert again == found
    result: dict[str, Any] = {
        "resume_ms": statistics.median(times[1:] or times) * 1000,
        "resume_first_ms": times[0] * 1000,
        "rss_mb": peak_mb,
        "rss_of_imports_mb": imports_mb,
        "state": digest(found),
    }
    result["rebuild"] = _timed(lambda: peer.rebuild(SESSION), found)
    begun = time.perf_counter()
    try:
        peer.fork(SESSION, size, f"fork-{size}")
    except NotOffered as reason:
        result["fork"] = {"not_offered": str(reason)}
    else:
        fork_s = time.perf_counter() - begun
        result["fork"] = {"fork_ms": fork_s * 1000} | {
            f"first_load_{name}": value
            for name, value in _timed(lambda: peer.resume(f"fork-{size}"), found).items()
        }
    peer.close()
    return result


def _timed(work: Callable[[], Resumed], wanted: Resumed) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        found = work()
    except NotOffered as reason:
        return {"not_offered": str(reason)}
    seconds = time.perf_counter() - begun
    assert found == wanted
    return {"ms": seconds * 1000}


def digest(found: Resumed) -> str:
    text = f"{found.events} {found.characters} {list(found.context)}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "each": _each,
    "sessions": _sessions,
    "list": _list,
    "grow": _grow,
    "come": _come,
}
