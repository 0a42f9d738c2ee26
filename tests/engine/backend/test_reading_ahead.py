"""Long reads are told to the kernel, single ones after them that they are random. A hint: no answer changes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from tailfold.engine import Durability, Event, Store
from tailfold.engine.backend.lmdb import reading_ahead
from tailfold.engine.backend.lmdb.reading_ahead import LONG_EVENTS

from tests.domain import Deposited, account

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the advice is looked up in Linux's /proc")
COUNT = 3 * LONG_EVENTS


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "s", durability=Durability.RELAXED)
    events: list[Event] = [Deposited(1)] * COUNT
    store.append("a", events, expected=0)
    return store


def reads_at_random(store: Store) -> bool:
    """Say what the kernel was told last, as it says it itself: flag rr is MADV_RANDOM."""
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(" ")[0].count("-") == 1 and ":" not in line.split(" ")[0]:
            ours = line.endswith(f"{store.backend.path}/data.mdb")  # type: ignore[attr-defined]
        elif ours and line.startswith("VmFlags:"):
            return "rr" in line.split()
    raise AssertionError("the data file is not mapped")


def test_a_long_read_is_advised_and_a_single_one_after_a_pause_takes_it_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads_at_random(store)
    list(store.read("a", after=5, limit=100))
    assert reads_at_random(store)
    store.load("a", account)
    assert not reads_at_random(store)
    list(store.read("a", limit=1))
    assert not reads_at_random(store), "others may still be at it"
    monkeypatch.setattr(reading_ahead, "PAUSE_S", 0.0)
    list(store.read("a", limit=1))
    assert reads_at_random(store)
    store.close()


@pytest.mark.parametrize("way", ["forwards", "backwards", "whole store"])
def test_every_way_to_read_on_is_a_long_read(store: Store, way: str) -> None:
    rows = store.read_all() if way == "whole store" else store.read("a", backwards=way == "backwards")
    assert sum(1 for _ in rows) == COUNT
    assert not reads_at_random(store)
    store.close()


def test_reads_that_jump_are_none(store: Store) -> None:
    for at in range(0, COUNT - 100, 50):
        list(store.read("a", after=at, limit=49))
    assert reads_at_random(store)
    store.close()


def test_a_map_that_grew_is_advised_anew(store: Store) -> None:
    store.load("a", account)
    store.backend._shared.grow(store.backend._env.info()["map_size"])  # type: ignore[attr-defined]
    assert reads_at_random(store), "LMDB maps for random reads"
    assert len(list(store.read("a"))) == COUNT
    assert not reads_at_random(store)
    store.close()


def test_threads_do_not_disturb_each_others_streaks(store: Store) -> None:
    """Two threads that read at once: one long, one at random."""
    stop = threading.Event()

    def jump() -> None:
        while not stop.is_set():
            list(store.read("a", after=7, limit=1))

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        assert len(list(store.read("a"))) == COUNT
        assert not reads_at_random(store)
    finally:
        stop.set()
        thread.join()
    store.close()


def test_without_proc_or_madvise_nothing_happens(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ahead, "_where", lambda file: (0, 0))
    assert store.load("a", account).state.balance == COUNT
    assert reads_at_random(store)
    store.close()
