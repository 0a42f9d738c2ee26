"""The fixed set of operations that the guard counts: append, fold, resume and so on. Run as its own program.

``python -m benchmarks.guard_operations bytecodes`` counts in Python and prints JSON; ``marks`` only marks where
each operation begins and ends, for callgrind to cut its count there. Same clock, same data, no sync: nothing that
a count could depend on changes between two runs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tailfold.engine import Durability, LmdbBackend, Store
from tailfold.snapshots import Policy, never

from benchmarks import upcast
from benchmarks.workload import Returned, Session, session

APPENDS = 40
EVENTS = 1000
TAIL = 100
RESUMES = 5
FORKS = 10
READS = 20
ROUNDS = 3
"""How often an operation is run at most: to warm up, for a version of Python that needs it once more, to count."""
MAP_BYTES = 1 << 28
"""Valgrind does not give away as much address space as a store asks for by itself."""
OPERATIONS = ("append", "fold", "resume", "upcast", "fork", "sealed_fold", "sealed_read")


def _open(path: Path, policy: Policy = never, durability: Durability = Durability.RELAXED, **more: Any) -> Store:
    backend = LmdbBackend(path, durability=durability, map_bytes=MAP_BYTES)
    # Sealing goes on by itself, in its own time: counts must not depend on when.
    return Store.open(backend=backend, snapshots=policy, clock=lambda: 1, sealing=False, **more)


def prepare(folder: Path) -> dict[str, Callable[[], None]]:
    """Write what the operations work on, and return each of them, run once already so that caches are warm."""
    events = [Returned(i // 4, f"c{i}", f"line {i} " * (1 + i % 60)) for i in range(EVENTS + ROUNDS * APPENDS)]
    store = _open(folder / "store")
    live = store.live("s", session)
    live.append(*events[: EVENTS - TAIL])
    live.snapshot()
    live.append(*events[EVENTS - TAIL : EVENTS])
    # Few enough that none of them settles: how many would is a matter of pages.
    appended = _open(folder / "durable", durability=Durability.DURABLE).live("appended", session)
    fresh = iter(events[EVENTS:])
    names = iter(range(10 * FORKS))

    old = [upcast.Called1(str(i), f"c{i}", "text " * 20) for i in range(EVENTS)]
    with _open(folder / "old") as writing:
        writing.append("s", old, expected=0)
    behind = _open(folder / "old", upcasters=upcast.declared())

    with _open(folder / "sealed") as writing:
        writing.append("s", events[:EVENTS], expected=0)
        writing.seal("s", whole=False)
    sealed = _open(folder / "sealed", events=session.events)

    def append() -> None:
        for _ in range(APPENDS):
            appended.append(next(fresh))

    def fold(of: Store = store) -> None:
        state = Session()
        for _, records in of.log.record_pages("s", after=0, upto=EVENTS):
            state = session.fold_records(state, records, "s", 0)
        assert state.events == EVENTS

    def resume() -> None:
        for _ in range(RESUMES):
            assert store.live("s", session).state.events == EVENTS

    def lift() -> None:
        assert behind.load("s", upcast.totals).state.events == EVENTS

    def fork() -> None:
        for _ in range(FORKS):
            name = f"f{next(names)}"
            store.fork("s", name=name)
            assert store.load(name, session).version == EVENTS

    def read() -> None:
        for version in range(1, EVENTS, EVENTS // READS):
            [recorded] = sealed.read("s", after=version - 1, limit=1)
            assert recorded.version == version

    def fold_sealed() -> None:
        fold(sealed)

    works = (append, fold, resume, lift, fork, fold_sealed, read)
    found = dict(zip(OPERATIONS, works, strict=True))
    for operation in found.values():
        operation()
    return found


def mark() -> None:
    """Call the one function of the C library that nothing else here calls."""
    os.getppid()


def count_bytecodes(work: Callable[[], None]) -> int:
    """Return how many bytecode instructions of Python *work* executes."""
    count = 0

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    # From 3.12 on `f_trace_opcodes` counts only for a trace function set after some frame has asked for it.
    rounds = 2 if sys.version_info >= (3, 12) else 1
    try:
        for _ in range(rounds):
            count = 0
            sys.settrace(trace)
            work()
            sys.settrace(None)
    finally:
        sys.settrace(before)
    return count


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        operations = prepare(Path(folder))
        if sys.argv[1] == "bytecodes":
            print(json.dumps({name: count_bytecodes(work) for name, work in operations.items()}))
            return
        for work in operations.values():
            mark()
            work()
            mark()


if __name__ == "__main__":
    main()
