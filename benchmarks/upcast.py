"""Upcasting: a journal all at schema version 1, three steps behind, against the same one at the current version."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailfold.engine import Event, Fold, Store
from tailfold.snapshots import never
from tailfold.upcasters import AddField, ConvertField, RenameField, Upcasters

from benchmarks.events import texts

REPEATS = 5


class Called1(Event, frozen=True):
    kind = "called"
    nr: str
    call: str
    output: str


class Called2(Event, frozen=True):
    kind = "called"
    version = 2
    turn: str
    call: str
    output: str


class Called3(Event, frozen=True):
    kind = "called"
    version = 3
    turn: int
    call: str
    output: str


class Called(Event, frozen=True):
    kind = "called"
    version = 4
    turn: int
    call_id: str
    output: str
    cost: int


@dataclass
class Totals:
    events: int = 0
    turns: int = 0
    characters: int = 0
    cost: int = 0


totals: Fold[Totals] = Fold("totals", Totals)


@totals.on(Called)
def _(state: Totals, event: Called) -> None:
    state.events += 1
    state.turns = event.turn
    state.characters += len(event.output)
    state.cost += event.cost


def declared() -> Upcasters:
    steps = Upcasters(events=[Called])
    steps.change("called", 1, RenameField("nr", "turn"))
    steps.change("called", 2, ConvertField("turn", int))
    steps.change("called", 3, RenameField("call", "call_id"), AddField("cost", 1))
    return steps


def builtins() -> Upcasters:
    steps = Upcasters(events=[Called])

    @steps.step("called", 1)
    def _(payload: dict[str, Any]) -> dict[str, Any]:
        payload["turn"] = payload.pop("nr")
        return payload

    @steps.step("called", 2)
    def _(payload: dict[str, Any]) -> dict[str, Any]:
        payload["turn"] = int(payload["turn"])
        return payload

    @steps.step("called", 3)
    def _(payload: dict[str, Any]) -> dict[str, Any]:
        payload["call_id"] = payload.pop("call")
        payload["cost"] = 1
        return payload

    return steps


def typed() -> Upcasters:
    steps = Upcasters(events=[Called])

    @steps.typed(Called1, Called2)
    def _(old: Called1) -> Called2:
        return Called2(old.nr, old.call, old.output)

    @steps.typed(Called2, Called3)
    def _(old: Called2) -> Called3:
        return Called3(int(old.turn), old.call, old.output)

    @steps.typed(Called3, Called)
    def _(old: Called3) -> Called:
        return Called(old.turn, old.call, old.output, 1)

    return steps


WAYS: dict[str, Callable[[], Upcasters]] = {"declared": declared, "typed": typed, "builtins": builtins}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=200_000, help="events in the stream")
    parser.add_argument("--bytes", default="100,1400", help="text bytes of an event, comma-separated")
    parser.add_argument("--dir", default=None, help="where to write; default: the temporary directory")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    results = []
    for size in arguments.bytes.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            results.append(_measure(Path(folder), arguments.events, int(size)))
    return {"upcast": results}


def _measure(folder: Path, count: int, text_bytes: int) -> dict[str, Any]:
    pool = texts(count, text_bytes)
    old = [Called1(str(i), f"c{i}", pool[i % len(pool)]) for i in range(count)]
    new = [Called(i, f"c{i}", pool[i % len(pool)], 1) for i in range(count)]
    for name, history in (("old", old), ("current", new)):
        with Store.open(folder / name, snapshots=never) as store:
            for first in range(0, count, 1000):
                store.append("s", history[first : first + 1000], expected=first)
    with Store.open(folder / "current", snapshots=never) as store:
        wanted = store.load("s", totals).state
        current_s = _median(lambda: store.load("s", totals))
    result: dict[str, Any] = {
        "events": count,
        "text_bytes": text_bytes,
        "steps": 3,
        "current_events_per_s": count / current_s,
    }
    for name, steps in WAYS.items():
        with Store.open(folder / "old", snapshots=never, upcasters=steps()) as store:
            assert store.load("s", totals).state == wanted, name
            old_s = _median(lambda store=store: store.load("s", totals))  # type: ignore[misc]
        result[f"{name}_events_per_s"] = count / old_s
        result[f"{name}_times_current"] = old_s / current_s
    return result


def _median(work: Callable[[], object]) -> float:
    durations = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)
