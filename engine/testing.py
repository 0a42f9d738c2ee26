"""The laws that folds and schemas have to keep, as checks for your own tests: a few lines, from plain pytest.

    from tailfold.engine.testing import check_fold, given

    def test_my_fold_keeps_the_laws() -> None:
        check_fold(my_fold, [Bought(1), Bought(2), Sold(1)])

    def test_selling_takes_away() -> None:
        given(my_fold, Bought(3)).when(Sold(1)).then(Stock(2))

    def test_every_journal_opens() -> None:
        check_schema(my_upcasters, lock="tailfold.schema.json")

Each check raises `LawBroken`, an AssertionError that says which law, at which event, and what differs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar
from unittest import mock

import msgspec
from tailfold.engine.backend.memory import MemoryBackend
from tailfold.engine.events import Event
from tailfold.engine.fold import Fold
from tailfold.engine.fold_facts import FoldFacts
from tailfold.engine.schema_files import LOCK_DEFAULT, check
from tailfold.engine.store import Store
from tailfold.snapshots import every, never
from tailfold.snapshots.chunks import ChunkReader, pack, unpack
from tailfold.snapshots.codec import NotEncodableError
from tailfold.upcasters import Upcasters
from tailfold.upcasters.verdicts import Judgement

S = TypeVar("S")

POINTS_MOST = 64
"""Snapshot points that are tried: all of them for short histories, spread evenly over long ones."""
FOLDING = "TAILFOLD_FOLDING"
"""Set in the processes that `check_hash_seeds` starts: none of them may start others."""
HASH_SEEDS = ("0", "4242")
LINES_SHOWN = 8
"""Of what another process said before it failed: the lines that led there, and the error."""


class LawBroken(AssertionError):
    """A law is not kept; the message names the law and what differs."""


def check_fold(fold: Fold[S], events: Sequence[Event]) -> None:
    """Check every law below for *fold* over the history *events*."""
    check_determinism(fold, events)
    check_hash_seeds(fold, events)
    check_snapshots(fold, events)
    check_store(fold, events)


def check_determinism(fold: Fold[S], events: Sequence[Event]) -> None:
    """Folding twice gives the same bytes, also with another clock and other randomness."""
    with _world(clock=1_000_000_000.0, seed=1):
        first = _bytes(fold, _folded(fold, events))
    with _world(clock=2_000_000_000.0, seed=2):
        second = _bytes(fold, _folded(fold, events))
    if first != second:
        raise LawBroken(
            f"fold {fold.name!r} is not deterministic: another clock or other randomness gives another state."
            f" {_difference(first, second)}"
        )


def check_hash_seeds(fold: Fold[S], events: Sequence[Event]) -> None:
    """Folding in other processes, with other hash seeds, gives the same state hash.

    The fold has to be a global of an importable module or script; for one that is not, this checks nothing.
    """
    if FOLDING in os.environ:
        raise LawBroken(
            f"fold {fold.name!r} is checked while its module is imported, which the check does again: put it into a"
            " test, or under if __name__ == '__main__'"
        )
    place = _place(fold)
    if place is None:
        return
    store = Store.open(backend=MemoryBackend(), clock=lambda: 0)
    if events:
        store.append("history", list(events), expected=0)
    records = [row.data for row in store.backend.rows("history", after=0, upto=len(events), limit=len(events))]
    given = msgspec.msgpack.encode((sys.path, *place, records))
    hashes = set()
    for seed in HASH_SEEDS:
        done = subprocess.run(
            [sys.executable, "-c", "from tailfold.engine.testing import _fold_elsewhere; _fold_elsewhere()"],
            input=given,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, FOLDING: "1"},
            timeout=120,
        )
        if done.returncode:
            last = "\n  ".join(done.stderr.decode(errors="replace").strip().splitlines()[-LINES_SHOWN:])
            raise LawBroken(
                f"fold {fold.name!r} could not be folded in another process, which imports its module anew (so that"
                f" may do nothing but define). It ended with:\n  {last}"
            )
        hashes.add(done.stdout.split()[-1])
    hashes.add(FoldFacts(fold).codec.hash(_folded(fold, events)).encode())
    if len(hashes) > 1:
        raise LawBroken(
            f"fold {fold.name!r} depends on the hash seed: the order of a set decides something in its state"
        )


def check_snapshots(fold: Fold[S], events: Sequence[Event]) -> None:
    """A snapshot at k, and the tail folded onto it, gives the bytes of folding all, at every k (I7)."""
    codec = FoldFacts(fold).codec
    truth = _bytes(fold, _folded(fold, events))
    points = range(len(events) + 1)
    chosen = points if len(points) <= POINTS_MOST else sorted(random.Random(7).sample(points, POINTS_MOST))
    for k in chosen:
        state = _folded(fold, events[:k])
        encoded = codec.encode(state)
        held = {ref: pack(payload) for ref, payload in encoded.writer.chunks.items()}
        reloaded = codec.decode(encoded.body, ChunkReader(lambda ref, held=held: unpack(ref, held[ref])))  # type: ignore[misc]
        if codec.encode(reloaded).body != encoded.body:
            raise LawBroken(f"fold {fold.name!r}: the state after event {k} does not come back as it was")
        after = _bytes(fold, fold.fold(_as_stored(events[k:]), reloaded))
        if after != truth:
            raise LawBroken(
                f"fold {fold.name!r}: a snapshot after event {k} and the tail give another state than folding"
                " all. Does a handler change an item of a Series after appending it, or rely on two fields"
                f" holding the same object? {_difference(truth, after)}"
            )


def check_store(fold: Fold[S], events: Sequence[Event]) -> None:
    """A live handle, a load without snapshots and a load with them agree, through a real store."""
    if not events:
        return
    backend = MemoryBackend()
    live = Store.open(backend=backend, snapshots=every(3)).live("history", fold)
    for event in events:
        live.append(event)
    truth = _bytes(fold, live.state)
    for policy in (never, every(1)):
        loaded = Store.open(backend=backend, snapshots=policy).load("history", fold)
        if _bytes(fold, loaded.state) != truth:
            differs = _difference(truth, _bytes(fold, loaded.state))
            raise LawBroken(f"fold {fold.name!r}: the live state is not the loaded one. {differs}")


def check_schema(
    upcasters: Upcasters | Iterable[type[Event]], *, lock: str | os.PathLike[str] = LOCK_DEFAULT
) -> None:
    """The code's events and steps read every journal that the committed *lock* and its golden corpus know of.

    What ``tailfold schema check`` does. Compatible changes pass. Raises `LawBroken` with a verdict for each other
    change, and as the command does if the lock cannot be read.
    """
    if not isinstance(upcasters, Upcasters):
        upcasters = Upcasters(events=upcasters)
    checked = check(upcasters, Path(lock))
    if not checked.compatible:
        wrong = [v for v in checked.verdicts if v.judgement is not Judgement.COMPATIBLE]
        lines = "".join(f"\n  {verdict}" for verdict in wrong)
        golden = f"; {checked.failed} golden payloads do not lift as they did" if checked.failed else ""
        raise LawBroken(f"the code does not go with the schema lock {lock}{golden}:{lines}")


# -- given, when, then -----------------------------------------------------------------------------------


class Given(Generic[S]):
    """A history; see `given`."""

    def __init__(self, fold: Fold[S], events: Sequence[Event]) -> None:
        self._fold = fold
        self.state = _folded(fold, events)
        """The state after the history."""
        self._outcome: Any = None
        self._decided = False

    def when(self, *happens: Event | Callable[[S], Any]) -> Given[S]:
        """Fold further events; or ask a decision function, whose answer `then` looks at."""
        for thing in happens:
            if isinstance(thing, Event):
                self.state = self._fold.fold(_as_stored([thing]), self.state)
            else:
                self._outcome, self._decided = thing(self.state), True
        return self

    def then(self, expected: Any) -> Given[S]:
        """Compare the decision, or the state if none was asked, with *expected*; or call it as a predicate."""
        found = self._outcome if self._decided else self.state
        if callable(expected) and not isinstance(expected, type):
            if not expected(found):
                raise LawBroken(f"{found!r} is not as expected")
        elif found != expected:
            raise LawBroken(f"expected {expected!r}, got {found!r}")
        return self


def given(fold: Fold[S], *events: Event) -> Given[S]:
    """Begin a claim about *fold*: ``given(fold, …).when(…).then(…)``."""
    return Given(fold, events)


# -- inside ----------------------------------------------------------------------------------------------


def _folded(fold: Fold[S], events: Sequence[Event]) -> S:
    state = FoldFacts(fold).codec.adopt(fold.initial())
    return fold.fold(_as_stored(events), state)


def _as_stored(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events as they are read back from a store: what folds really see."""
    codec = Store.open(backend=MemoryBackend()).log.codec
    for event in events:
        yield codec.encode(event, 0, None, None).record.payload


def _bytes(fold: Fold[S], state: S) -> bytes:
    try:
        return FoldFacts(fold).codec.encode(state).body
    except NotEncodableError as error:
        raise LawBroken(f"the state of fold {fold.name!r} cannot be kept in a snapshot: {error}") from error


def _difference(one: bytes, other: bytes) -> str:
    first, second = (repr(msgspec.msgpack.decode(body)) for body in (one, other))
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    begin = max(0, at - 30)
    return f"…{first[begin : at + 50]}… against …{second[begin : at + 50]}…"


@contextmanager
def _world(*, clock: float, seed: int) -> Iterator[None]:
    """Change what a pure fold must not see: the clock (as far as it can be patched) and randomness."""
    before = random.getstate()
    random.seed(seed)
    chance = random.Random(seed)
    patches: list[Any] = [
        mock.patch.object(time, "time", lambda: clock),
        mock.patch.object(time, "time_ns", lambda: int(clock * 1e9)),
        mock.patch.object(time, "monotonic", lambda: clock),
        mock.patch.object(os, "urandom", chance.randbytes),
    ]
    try:
        for patch in patches:
            patch.start()
        yield
    finally:
        for patch in patches:
            patch.stop()
        random.setstate(before)


def _place(fold: Fold[Any]) -> tuple[str, str, str] | None:
    """Return (module, file, global name) of a fold, by looking where its handlers live."""
    for handler in fold.handlers.values():
        module = sys.modules.get(handler.__module__)
        file = getattr(module, "__file__", None)
        if module is None or file is None:
            continue
        for name, value in vars(module).items():
            if value is fold:
                return handler.__module__, str(Path(file).resolve()), name
    return None


def _fold_elsewhere() -> None:
    """The other process of `check_hash_seeds`: fold the given records and print the state hash."""
    path, module_name, file, name, records = msgspec.msgpack.decode(
        sys.stdin.buffer.read(), type=tuple[list[str], str, str, str, list[bytes]]
    )
    sys.path[:] = path
    module = _imported(module_name if module_name != "__main__" else "tailfold_checked", Path(file))
    fold: Fold[Any] = getattr(module, name)
    store = Store.open(backend=MemoryBackend(), events=fold.events)
    state = FoldFacts(fold).codec.adopt(fold.initial())
    for version, data in enumerate(records, 1):
        for event in store.log.codec.events(store.log.codec.decode("history", version, data)):
            if isinstance(event, Event):
                state = fold.evolve(state, event)
    print(FoldFacts(fold).codec.hash(state))


def _imported(name: str, file: Path) -> ModuleType:
    """Import a module from its file, for it may be on no path, after its package, which may import it by itself."""
    package = name.rpartition(".")[0]
    if package:
        with suppress(ImportError):
            importlib.import_module(package)
    known = sys.modules.get(name)
    if known is not None and known.__file__ is not None and Path(known.__file__).resolve() == file:
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


__all__ = [
    "LawBroken",
    "check_determinism",
    "check_fold",
    "check_hash_seeds",
    "check_schema",
    "check_snapshots",
    "check_store",
    "given",
]
