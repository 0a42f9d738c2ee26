"""I12 without trust in LMDB's flushes: whatever a power cut leaves, the store comes back as it was acknowledged."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, Blob, LmdbBackend, Store
from tailfold.engine.backend.lmdb import ahead, environment, writes
from tailfold.snapshots import every

from tests.domain import Attached, Deposited, account
from tests.power import Disk, powered, rows_of

LONG = os.environ.get("TAILFOLD_TESTS") == "long"
FIRST_SEED = int(os.environ.get("TAILFOLD_SEED", "0"))
"""Other seeds, other cuts: for the long jobs."""
SEEDS = range(FIRST_SEED, FIRST_SEED + (60 if LONG else 6))
STEPS = 120 if LONG else 70


def drive(store: Store, chance: random.Random) -> None:
    """Do one thing of all that a store does."""
    streams = [head.stream for head in store.streams()]
    name = chance.choice([*streams, f"s{chance.random()}"])
    what = chance.random()
    there = name in streams
    if what < 0.6 or not there:
        events: list[Any] = [
            Deposited(chance.randrange(9), "x" * chance.randrange(400))
            for _ in range(chance.choice((1, 1, 1, 3, 40)))
        ]
        if chance.random() < 0.1:
            events.append(Attached("f", Blob(chance.randbytes(chance.choice((10, 9000, 60_000))))))
        store.append(name, events, expected=ANY, key=f"k{chance.random()}" if chance.random() < 0.5 else None)
    elif what < 0.7:
        store.fork(name, at=chance.randint(1, store.head(name).version), name=f"f{chance.random()}")
    elif what < 0.75:
        store.load(name, account)
    elif what < 0.8:
        store.seal(name, whole=False)
    elif what < 0.87:
        store.delete(name, reroot=True)
    elif what < 0.95:
        store.gc()
    else:
        store.backend.put(meta={b"x": chance.randbytes(20)})


@pytest.mark.parametrize("seed", SEEDS)
def test_i12_the_store_comes_back_from_any_power_cut(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    # Small windows, so that pages are reused; a small limit, so that some transactions are not noted.
    monkeypatch.setattr(ahead, "PAGES_LEAST", chance.choice((20, 100, 400)))
    monkeypatch.setattr(ahead, "PAGES_MOST", 400)
    monkeypatch.setattr(writes, "NOTED_BYTES_MAX", chance.choice((20_000, 1 << 20)))
    path = tmp_path / "s"
    Store.open(path).close()
    with powered(path, chance, 0.1, monkeypatch) as disk:
        backend = watched(disk, monkeypatch)
        store = Store.open(backend=backend, snapshots=every(20))
        for _ in range(STEPS):
            drive(store, chance)
            if chance.random() < 0.03:
                store.close()
                disk.moment("after closing")
                backend = watched(disk, monkeypatch)
                store = Store.open(backend=backend, snapshots=every(20))
        store.close()
        disk.moment("after closing")
    assert len(disk.cuts) > STEPS // 10
    for number, cut in enumerate(disk.cuts):
        came_back = disk.check(cut, tmp_path / f"cut-{number}")
        with Store.open(backend=came_back) as store:
            assert store.verify().findings == []
            before = rows_of(came_back)
            store.append("after", Deposited(1), expected=ANY)
        with Store.open(tmp_path / f"cut-{number}") as store:
            assert store.head("after").version == 1
            after = rows_of(store.backend)  # type: ignore[arg-type]
            assert set(before["events"]) < set(after["events"])


@pytest.mark.parametrize("seed", SEEDS)
def test_i12_a_recovery_cut_short_is_done_again(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(ahead, "PAGES_LEAST", 400)
    path = tmp_path / "s"
    Store.open(path).close()
    with powered(path, chance, 0.1, monkeypatch) as disk:
        store = Store.open(backend=watched(disk, monkeypatch), snapshots=every(20))
        for _ in range(40):
            drive(store, chance)
        disk.watching = False
        store.close()
    cuts = [cut for cut in disk.cuts if cut.moment == "after a transaction"]
    for number, cut in enumerate(cuts):
        torn = tmp_path / f"cut-{number}"
        torn.mkdir()
        (torn / "data.mdb").write_bytes(cut.data)
        (torn / "data.wal").write_bytes(cut.wal)
        with powered(torn, chance, 1.0, monkeypatch) as again:
            again.states, again.acknowledged = disk.states, cut.acknowledged
            LmdbBackend(torn).close()
        for second, short in enumerate(again.cuts):
            short.acknowledged = cut.acknowledged
            disk.check(short, tmp_path / f"cut-{number}-{second}").close()


def watched(disk: Disk, patch: pytest.MonkeyPatch) -> LmdbBackend:
    """Open the store, telling *disk* of every transaction that is acknowledged."""
    backend = LmdbBackend(disk.path)
    write = environment.Environment.write.__get__(backend._shared)
    if not disk.states:
        disk.states.append(rows_of(backend))

    def told(work: Any) -> Any:
        result = write(work)
        disk.is_acknowledged(backend)
        return result

    patch.setattr(backend._shared, "write", told)
    return backend
