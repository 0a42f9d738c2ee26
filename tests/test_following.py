"""Two processes: a follower sees every event, in order and gapless, whoever of the two is killed, and when."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tailfold.engine import ANY, Store

from tests.domain import Deposited

ROOT = Path(__file__).parent.parent

WRITER = """
import random, sys
from tailfold.engine import ANY, Store
from tests.domain import Deposited
chance = random.Random(int(sys.argv[2]))
with Store.open(sys.argv[1]) as store:
    while True:
        stream = chance.choice("abc")
        store.append(stream, [Deposited(1)] * chance.randint(1, 4), expected=ANY)
"""

FOLLOWER = """
import os, sys
from tailfold.engine import Store
path, out, stream = sys.argv[1:]
file = os.open(out, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
with Store.open(path) as store:
    for recorded in store.subscribe(stream or None, name=f"follower {stream}"):
        place = recorded.version if stream else recorded.position
        os.write(file, f"{place} {recorded.event_id}\\n".encode())  # handled: one write, whole or absent
"""


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("stream", ["", "b"])
def test_a_follower_and_a_writer_that_are_killed_again_and_again(stream: str, tmp_path: Path) -> None:
    store, out = tmp_path / "s", tmp_path / "out"
    Store.open(store).close()
    out.touch()
    chance = random.Random(stream)
    writer, follower = start(WRITER, store, 0), start(FOLLOWER, store, out, stream)
    lines_at_kill = [0]
    for seed in range(1, 9):
        time.sleep(chance.uniform(0.3, 0.9))
        if chance.random() < 0.5:
            kill(writer)
            writer = start(WRITER, store, seed)
        else:
            kill(follower)
            lines_at_kill.append(len(out.read_text().splitlines()))
            follower = start(FOLLOWER, store, out, stream)
    kill(writer)
    with Store.open(store) as opened:
        truth = list(opened.subscribe(stream or None, follow=False))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            lines = out.read_text().splitlines()
            if lines and lines[-1].split()[0] == str(len(truth)):
                break
            time.sleep(0.05)
        kill(follower)
        checkpoint = opened.checkpoint(f"follower {stream}").position
    seen = 0
    again = 0
    for number, line in enumerate(out.read_text().splitlines()):
        place, event_id = line.split()
        assert event_id == truth[int(place) - 1].event_id
        if int(place) != seen + 1:
            assert number in lines_at_kill, "only who was killed gets something again"
            assert int(place) <= seen, "nothing is ever left out"
            again += seen + 1 - int(place)
        seen = int(place)
    assert seen == len(truth) > 0
    assert checkpoint <= len(truth), "I8"
    assert again <= 8 * 2000, "what comes again is what was not saved, not everything"


def test_an_append_wakes_a_follower_in_another_process_within_50_ms(tmp_path: Path) -> None:
    script = """
import sys, time
from tailfold.engine import Store
with Store.open(sys.argv[1]) as store, store.subscribe() as events:
    print("ready", flush=True)
    for recorded in events:
        print(time.time_ns() - recorded.time_ns, flush=True)
"""
    with Store.open(tmp_path / "s") as store:
        follower = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert follower.stdout is not None
        assert follower.stdout.readline() == "ready\n"
        delays = []
        for _ in range(40):
            time.sleep(0.01)
            store.append("a", Deposited(1), expected=ANY)
            delays.append(int(follower.stdout.readline()) / 1e6)
        follower.kill()
        follower.communicate()
    assert sorted(delays)[len(delays) // 2] < 50, delays


def test_a_slow_reader_blocks_no_writer_and_pins_no_pages(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.append("a", [Deposited(1)] * 1000, expected=0)
        slow = store.subscribe()
        assert slow.poll() is not None
        assert slow.poll(0.001) is not None
        before = store.usage()["file_bytes"]
        for _ in range(3000):  # 32 KiB each, if no page could be used again
            store.append("b", Deposited(1), expected=ANY)
        assert store.usage()["file_bytes"] - before < 16 << 20, "pages are used again while it sleeps"


def test_a_forked_child_does_not_hang_on_its_parents_watcher(tmp_path: Path) -> None:
    script = """
import os, sys
from tailfold.engine import ANY, Store
from tailfold.engine.errors import StoreClosed
from tests.domain import Deposited
store = Store.open(sys.argv[1])
waiting = store.subscribe()
assert waiting.poll(0.05) is None
child = os.fork()
if child == 0:
    try:
        waiting.poll(1)
    except StoreClosed:
        waiting.close()
        store.close()
        os._exit(42)
    os._exit(1)
store.append("a", Deposited(1), expected=ANY)
assert waiting.poll(10) is not None
_, status = os.waitpid(child, 0)
store.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], cwd=ROOT, timeout=60)
    assert done.returncode == 42
