"""I12 with several processes: whoever dies, and whatever a power cut takes then, no acknowledged event is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tailfold.engine import ANY, Durability, Store
from tailfold.engine.backend.lmdb import metas
from tailfold.engine.errors import StoreClosed

from tests.domain import Deposited
from tests.power import PAGE

LONG = os.environ.get("TAILFOLD_TESTS") == "long"
FIRST_SEED = int(os.environ.get("TAILFOLD_SEED", "0"))
"""Other seeds, other cuts: for the long jobs."""
STEPS = 120 if LONG else 70


class Child:
    """Another process that has the store open."""

    def __init__(
        self, path: Path, durability: Durability = Durability.DURABLE, pages: int = 60, map_bytes: int = 1 << 30
    ) -> None:
        self.durability = durability
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ahead_child", str(path), durability.value, str(pages), str(map_bytes)],
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


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + (12 if LONG else 3)))
def test_i12_several_processes_lose_nothing_when_all_of_them_are_killed(seed: int, tmp_path: Path) -> None:
    """Recovery trusts only the settled state and the records, so a gap or an overwritten page would show."""
    chance = random.Random(seed)
    path = tmp_path / "s"
    Store.open(path).close()
    durable, relaxed = Durability.DURABLE, Durability.RELAXED
    mixed = seed % 3 == 1
    for _ in range(3):
        size = chance.choice((1 << 20, 1 << 30))  # the smaller one has to grow
        children = [
            Child(path, durable, map_bytes=size),
            Child(path, durable, map_bytes=size),
            Child(path, relaxed if mixed else durable, map_bytes=size),
        ]
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
                children[at] = Child(path, children[at].durability, map_bytes=size)
                continue
            told[stream] = int(children[at].answer())
            asked.pop(stream, None)
            if chance.random() < 0.03:
                children[at].close()
                children[at] = Child(path, children[at].durability, map_bytes=size)
        for child in children:
            if child.durability is relaxed:
                child.close()  # what it wrote last is durable once it is closed
        for child in children:
            if child.durability is durable:
                child.kill()
        if not mixed:  # a relaxed process endangers what the others wrote as well
            tear(path, chance)
        with Store.open(path) as store:
            found = {head.stream: head.version for head in store.streams()}
            assert store.verify().findings == []
            assert store.backend.check() == []
        for stream, version in told.items():
            assert version <= found[stream] <= asked.get(stream, version), stream


def tear(path: Path, chance: random.Random) -> None:
    """Leave of `data.mdb` what a power cut may leave: any page as it was flushed last, or as it is."""
    flushed, now = path.with_name(f"{path.name}.flushed").read_bytes(), (path / "data.mdb").read_bytes()
    share = chance.choice((0.1, 0.5, 1.0))
    pages = (
        (flushed[at : at + PAGE] or bytes(PAGE)) if chance.random() < share else now[at : at + PAGE]
        for at in range(0, len(now), PAGE)
    )
    (path / "data.mdb").write_bytes(b"".join(pages))
    if chance.random() < 0.5:
        (path / "lock.mdb").unlink()


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


@pytest.mark.parametrize("grower", [0, 1])
def test_i12_a_writer_keeps_a_pin_when_the_map_grows(grower: int, tmp_path: Path) -> None:
    """lmdb ends every open transaction of an environment whose map is resized, a pin among them."""
    path = tmp_path / "s"
    children = [Child(path, pages=10_000, map_bytes=1 << 20), Child(path, pages=10_000, map_bytes=1 << 20)]
    for child in children:
        child.append("a", 1)
    for _ in range(60):
        children[grower].append("b", 5)
    for _ in range(20):  # the other takes over the new size
        children[1 - grower].append("c", 5)
    for child in children:
        child.kill()
    assert versions(path) == {"a": 2, "b": 300, "c": 100}


def test_the_pin_of_a_dead_process_does_not_keep_pages_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "s"
    dead, writer = Child(path), Child(path)
    dead.append("a", 1)
    dead.kill()
    for _ in range(1500):  # 32 KiB each, if no page could be used again
        writer.append("b", 1)
    assert (path / "data.mdb").stat().st_size < 16 << 20
    writer.close()


def test_a_slow_writer_does_not_keep_pages_of_a_fast_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    slow, fast = Child(path), Child(path)
    end = time.monotonic() + 1.5
    appends = 0
    while time.monotonic() < end:
        slow.append("a", 1)
        for _ in range(40):
            fast.append("b", 1)
            appends += 1
    size = (path / "data.mdb").stat().st_size
    assert size < max(12 << 20, appends * (32 << 10) // 2), (size, appends)
    slow.close()
    fast.close()


RECOVERER = """
import sys, os
from tailfold.engine import Store
from tailfold.engine.backend.lmdb import environment
def begun(*_):
    print("recovering", flush=True)
    sys.stdin.read()
    os._exit(1)
environment.go_on = begun
Store.open(sys.argv[1])
"""


def test_i12_who_waits_for_a_recovery_that_is_cut_short_does_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    only = Child(path, pages=10_000)
    only.append("a", 5)
    only.append("a", 5)
    only.kill()
    first = subprocess.Popen(
        [sys.executable, "-c", RECOVERER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "recovering\n"
    found: list[dict[str, int]] = []
    waiting = threading.Thread(target=lambda: found.append(versions(path)))
    waiting.start()
    waiting.join(0.2)
    assert found == []
    first.communicate()
    waiting.join(20)
    assert found == [{"a": 10}]


def test_i12_a_recovery_without_records_that_is_cut_short_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    only = Child(path, pages=1)  # settles before each append
    only.append("a", 5)
    only.kill()
    for left in ("data.mdb", "data.wal"):
        (tmp_path / left).write_bytes((path / left).read_bytes())
    versions(path)
    # What was recovered is there, but for the new header, and the mark, which is written after it.
    (path / "data.wal").write_bytes((tmp_path / "data.wal").read_bytes())
    with (path / "data.mdb").open("r+b") as data:
        data.seek(metas.MARK_AT)
        data.write((tmp_path / "data.mdb").read_bytes()[metas.MARK_AT : metas.MARK_AT + metas.MARK_BYTES])
    assert versions(path) == {"a": 5}


READER = """
import sys, lmdb
with lmdb.open(sys.argv[1], max_dbs=20, readonly=True):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_i12_another_program_that_has_the_lock_file_open_does_not_mislead_recovery(tmp_path: Path) -> None:
    """LMDB counts transactions in its lock file, which stays as it is while anybody has it open."""
    for appends in (1, 2, 7):
        path = tmp_path / f"s{appends}"
        only = Child(path, pages=10_000)
        only.append("a", 1)
        other = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        for _ in range(appends):
            only.append("a", 1)
        only.kill()
        assert versions(path) == {"a": 1 + appends}
        other.communicate()


def test_a_forked_child_does_not_keep_the_store_from_being_opened_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    store.append("a", Deposited(1), expected=0)
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        store.close()
        begun = time.monotonic()
        Store.open(tmp_path / "s").close()
        assert time.monotonic() - begun < 10
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_i12_closing_loses_nothing_that_other_threads_were_told(tmp_path: Path) -> None:
    told: dict[str, int] = {}
    for turn in range(40 if LONG else 8):
        store = Store.open(tmp_path / "s")

        def write(stream: str, store: Store = store) -> None:
            try:
                while True:
                    told[stream] = store.append(stream, Deposited(1), expected=ANY).last
            except StoreClosed:
                pass

        threads = [threading.Thread(target=write, args=(f"s{turn}-{i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        store.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert versions(tmp_path / "s") == told
