"""I12 without trust in LMDB's flushes: whatever a power cut leaves, the store comes back as it was acknowledged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, Blob, Durability, LmdbBackend, Store
from tailfold.engine.backend.lmdb import ahead, environment, writes
from tailfold.snapshots import every

from tests.domain import Attached, Deposited, account
from tests.power import Disk, powered, rows_of

LONG = os.environ.get("TAILFOLD_TESTS") == "long"
SEEDS = range(60 if LONG else 6)
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


class Child:
    """Another process that has the store open."""

    def __init__(self, path: Path, durability: Durability = Durability.DURABLE, pages: int = 60) -> None:
        self.durability = durability
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ahead_child", str(path), durability.value, str(pages)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert self.answer() == "ready"

    def ask(self, stream: str, count: int, *, die: bool = False) -> None:
        """Append; or die once the write-ahead file has it, before it is committed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{stream} {count} {'die' if die else ''}\n")
        self.process.stdin.flush()

    def append(self, stream: str, count: int) -> int:
        self.ask(stream, count)
        return int(self.answer())

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.mark.parametrize("seed", range(12 if LONG else 3))
def test_i12_several_processes_lose_nothing_when_all_of_them_are_killed(seed: int, tmp_path: Path) -> None:
    """Recovery trusts only the settled state and the records, so a gap or an overwritten page would show."""
    chance = random.Random(seed)
    path = tmp_path / "s"
    Store.open(path).close()
    durable, relaxed = Durability.DURABLE, Durability.RELAXED
    for _ in range(3):
        children = [Child(path, durable), Child(path, durable), Child(path, relaxed if seed % 3 == 1 else durable)]
        told: dict[str, int] = {}
        asked: dict[str, int] = {}
        for _ in range(STEPS):
            at = chance.randrange(3) if chance.random() < 0.6 else 0
            stream, count = f"s{chance.randrange(5)}", chance.choice((1, 1, 5, 30))
            before = asked.get(stream, told.get(stream, 0))
            children[at].ask(stream, count)
            if chance.random() < 0.04:
                time.sleep(chance.random() * 0.001)
                children[at].kill()  # in the middle of it
                asked[stream] = before + count
                children[at] = Child(path, children[at].durability)
                continue
            told[stream] = int(children[at].answer())
            asked.pop(stream, None)
            if chance.random() < 0.03:
                children[at].close()
                children[at] = Child(path, children[at].durability)
        for child in children:
            if child.durability is relaxed:
                child.close()  # what it wrote last is durable once it is closed
        for child in children:
            if child.durability is durable:
                child.kill()
        with Store.open(path) as store:
            found = {head.stream: head.version for head in store.streams()}
            assert store.verify().findings == []
            assert store.backend.check() == []
        for stream, version in told.items():
            assert version <= found[stream] <= asked.get(stream, version), stream


def versions(path: Path) -> dict[str, int]:
    with Store.open(path) as store:
        assert store.verify().findings == []
        assert store.backend.check() == []
        return {head.stream: head.version for head in store.streams()}


def test_i12_a_writer_keeps_its_own_pin_when_another_dies(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first, second = Child(path, pages=10_000), Child(path, pages=10_000)
    first.append("a", 20)
    second.append("b", 20)
    first.kill()
    Store.open(path).close()  # gives the dead process's place among the readers back, and with it its pin
    for _ in range(50):
        second.append("b", 1)
    second.kill()
    assert versions(path) == {"a": 20, "b": 70}


def test_i12_what_a_relaxed_process_writes_is_not_undone_by_the_recovery_of_a_durable_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    durable, relaxed = Child(path), Child(path, Durability.RELAXED)
    durable.append("a", 3)
    relaxed.append("b", 3)
    durable.kill()
    relaxed.kill()
    assert versions(path) == {"a": 3, "b": 3}


@pytest.mark.parametrize("survivor_writes", [0, 1, 5])
def test_i12_an_append_that_died_before_its_commit_is_whole_or_absent(survivor_writes: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    survivor, dying = Child(path), Child(path)
    survivor.append("a", 1)
    dying.append("b", 1)
    dying.ask("b", 4, die=True)
    dying.process.communicate()
    with Store.open(path) as reader:
        assert reader.head("b").version == 1, "nobody sees it while others are there"
    for _ in range(survivor_writes):
        survivor.append("a", 1)
    survivor.kill()
    found = versions(path)
    assert found["a"] == 1 + survivor_writes
    assert found["b"] == (1 if survivor_writes else 5), "written over; or recovered, whole"


def test_the_only_process_that_died_before_its_commit_has_its_append_recovered(tmp_path: Path) -> None:
    path = tmp_path / "s"
    only = Child(path)
    only.append("a", 1)
    only.ask("a", 4, die=True)
    only.process.communicate()
    assert versions(path) == {"a": 5}
