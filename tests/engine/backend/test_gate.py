"""The gate: nobody is inside while somebody stands alone, and Ctrl-C anywhere cannot keep it shut."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tailfold.engine import ANY, Store
from tailfold.engine.backend import gate as gates
from tailfold.engine.backend.gate import Gate
from tailfold.engine.errors import StoreClosed

from tests.domain import Deposited


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_nobody_is_inside_while_somebody_stands_alone() -> None:
    gate, inside, wrong, stop = Gate(), [0], [0], threading.Event()

    def pass_through() -> None:
        while not stop.is_set():
            with gate, gate:  # twice: what runs inside may begin another
                inside[0] += 1
                time.sleep(random.random() / 2000)
                inside[0] -= 1

    threads = [in_thread(pass_through) for _ in range(4)]
    for _ in range(40):
        with gate.alone():
            wrong[0] += inside[0]
            time.sleep(0.0005)
            wrong[0] += inside[0]
        time.sleep(0.001)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == [0]


def test_after_the_end_nobody_gets_in_and_who_waits_is_told() -> None:
    gate, told = Gate(), []

    def wait_outside() -> None:
        try:
            with gate:
                told.append("inside")
        except StoreClosed:
            told.append("closed")

    with gate.alone():
        thread = in_thread(wait_outside)
        time.sleep(0.05)
        gate.end()
    thread.join(5)
    assert told == ["closed"]
    gate.wait_until_empty()
    with pytest.raises(StoreClosed), gate.alone():
        raise AssertionError


def test_the_end_waits_for_who_stands_alone_and_for_who_is_inside() -> None:
    gate, left = Gate(), []

    def stay(door: Any, seconds: float) -> None:
        with door:
            time.sleep(seconds)
            left.append(seconds)

    threads = [in_thread(lambda: stay(gate.alone(), 0.2))]
    time.sleep(0.05)
    gate.end()
    gate.wait_until_empty()
    assert left == [0.2]
    other = Gate()
    threads.append(in_thread(lambda: stay(other, 0.3)))
    time.sleep(0.05)
    other.end()
    other.wait_until_empty()
    assert left == [0.2, 0.3]


def test_a_name_that_ctrl_c_has_left_behind_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "STALE_AFTER_S", 0.05)
    gate, stop = Gate(), threading.Event()
    alive = in_thread(stop.wait)
    assert alive.ident is not None
    gate._inside[alive.ident] = 1  # it has left, and was interrupted at the last step
    gate._inside[2**40] = 1  # its thread is gone
    with gate.alone():
        pass
    stop.set()


@pytest.mark.skipif(sys.platform == "win32", reason="no interval timer there")
@pytest.mark.parametrize("what", ["read", "append"])
def test_real_interrupts_leave_a_store_that_grows_and_closes(what: str, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    store.append("a", Deposited(1), expected=0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts, until = 0, time.monotonic() + 1.5
    try:
        while time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.002))
                while True:
                    if what == "read":
                        store.backend.head("a")
                    else:
                        store.append("a", Deposited(1), expected=ANY)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 50
    growing = in_thread(lambda: store.backend._shared.grow(store.backend._env.info()["map_size"]))  # type: ignore[attr-defined]
    growing.join(20)
    assert not growing.is_alive()
    assert store.verify().findings == []
    closing = in_thread(store.close)
    closing.join(20)
    assert not closing.is_alive()


CLOSED_UNDER_A_WRITER = """
import _thread, sys, threading, time
from tailfold.engine import ANY, Store
from tailfold.engine.backend.lmdb import environment
from tests.domain import Deposited
store = Store.open(sys.argv[1])
store.append("a", Deposited(1), expected=0)
done = environment.Environment._done
def slowly(txn, result):
    time.sleep(1.0)
    return done(txn, result)
environment.Environment._done = staticmethod(slowly)
def append():
    store.append("a", Deposited(2), expected=ANY)
    print("acknowledged", flush=True)
threading.Thread(target=append).start()
time.sleep(0.3)
threading.Timer(0.2, _thread.interrupt_main).start()
try:
    store.close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_while_closing_waits_for_another_threads_append(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLOSED_UNDER_A_WRITER, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.split() == ["acknowledged", "interrupted"], done.stderr
    with Store.open(tmp_path / "s") as store:
        assert store.head("a").version == 2


def test_who_grows_the_map_while_another_thread_closes_hears_that_it_is_closed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    shared = store.backend._shared  # type: ignore[attr-defined]
    said: list[str] = []
    resize = shared._resize

    def slowly(size: int) -> None:
        time.sleep(0.3)
        resize(size)

    shared._resize = slowly

    def grow() -> None:
        try:
            shared.grow(shared.env.info()["map_size"])
            shared.grow(shared.env.info()["map_size"])
        except StoreClosed:
            said.append("closed")

    thread = in_thread(grow)
    time.sleep(0.1)
    begun = time.monotonic()
    store.close()
    assert time.monotonic() - begun > 0.1, "it waited for the map"
    thread.join(5)
    assert said in (["closed"], [])  # the second may not have begun
    with Store.open(tmp_path / "s") as again:
        assert again.verify().findings == []
