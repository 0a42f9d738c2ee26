"""Many writers: threads, coroutines, processes, drivers. Positions stay gapless, one driver at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import lmdb
import pytest
from tailfold.engine import ANY, Store, leases
from tailfold.engine.backend.lmdb.environment import Environment
from tailfold.engine.backend.port import Backend, Holder, Lease
from tailfold.engine.errors import Fenced, LeaseHeld, StoreClosed, WrongVersion

from tests.cli.command import QUESTION, json_lines, tailfold
from tests.domain import Deposited, account


def test_threads_share_commits_and_lose_nothing(store: Store) -> None:
    def work(name: str) -> None:
        live = store.live(name, account)
        for _ in range(50):
            live.append(Deposited(1))
        assert live.state.balance == 50

    threads = [threading.Thread(target=work, args=(f"s{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.verify().findings == []
    assert store.backend.count() == (8, 400)


def test_of_threads_on_one_stream_each_version_has_one_winner(store: Store) -> None:
    conflicts = []

    def work() -> None:
        for _ in range(30):
            while True:
                head = store.backend.head("one")
                try:
                    store.append("one", Deposited(1), expected=head.version if head else 0)
                    break
                except WrongVersion as conflict:
                    conflicts.append(conflict)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.head("one").version == 120
    assert store.load("one", account).state.balance == 120


def test_coroutines_share_commits(store: Store) -> None:
    commits = []
    inner = store.backend.commit

    async def session(name: str) -> None:
        live = store.live(name, account)
        for _ in range(20):
            await live.append_async(Deposited(1))

    async def main() -> None:
        await asyncio.gather(*(session(f"s{i}") for i in range(50)))

    store.log._group._commit = lambda batch: commits.append(len(batch)) or inner(batch)  # type: ignore[func-returns-value]
    asyncio.run(main())
    assert store.backend.count() == (50, 1000)
    assert sum(commits) == 1000
    assert len(commits) < 200, "appends that wait share the next commit"


def test_a_cancelled_append_is_absent_or_whole_and_hurts_nobody(store: Store) -> None:
    async def main() -> None:
        tasks = [
            asyncio.ensure_future(store.append_async(f"s{i}", [Deposited(1), Deposited(2)], expected=0))
            for i in range(20)
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(not isinstance(one, BaseException) for one in done[1::2])

    asyncio.run(main())
    assert {head.version for head in store.streams()} == {2}
    assert store.verify().findings == []


def test_a_refused_append_does_not_disturb_its_group(store: Store) -> None:
    store.append("taken", Deposited(1), expected=0)

    async def main() -> list[object]:
        appends = [store.append_async(name, Deposited(1), expected=0) for name in ("a", "taken", "b", "taken", "c")]
        return list(await asyncio.gather(*appends, return_exceptions=True))

    outcomes = asyncio.run(main())
    assert [isinstance(one, WrongVersion) for one in outcomes] == [False, True, False, True, False]


def test_the_loop_can_end_and_another_begin(store: Store) -> None:
    for i in range(3):
        asyncio.run(store.append_async("a", Deposited(1), expected=i))


WRITER = """
import sys
from tailfold.engine import ANY, LmdbBackend, Store
from tests.domain import Deposited
with Store.open(backend=LmdbBackend(sys.argv[1], map_bytes=1 << 19)) as store:
    for i in range(300):
        store.append(sys.argv[2], Deposited(i, "x" * 500), expected=ANY)
        store.append("shared", Deposited(1), expected=ANY)
"""


def test_processes_write_one_store_and_grow_its_map_under_each_other(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").close()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s"), f"own{i}"], cwd=Path(__file__).parent.parent
        )
        for i in range(3)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.head("shared").version == 900
        assert store.backend.count() == (4, 1800)
        assert store.verify().findings == []


def test_a_store_is_opened_while_another_process_grows_its_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Environment._prepare
    grown = iter([True, True, False])

    def resized(self: Environment) -> object:
        if next(grown):
            raise lmdb.MapResizedError("grown")
        return prepare(self)

    monkeypatch.setattr(Environment, "_prepare", resized)
    with Store.open(tmp_path / "s") as store:
        store.append("a", Deposited(1), expected=0)


# -- leases ----------------------------------------------------------------------------------------------


def test_i13_a_live_driver_refuses_a_second_one(store: Store) -> None:
    with store.drive("r") as grant, pytest.raises(LeaseHeld) as refused, store.drive("r"):
        pass
    assert (refused.value.pid, refused.value.epoch) == (os.getpid(), grant.epoch)
    with store.drive("r") as again:
        assert again.previous is None, "it was released in good order"
        assert again.epoch == grant.epoch + 1


def dead_process() -> Holder:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = leases.start_token(process.pid)
    assert started is not None
    process.kill()
    process.wait()
    me = leases.this_process()
    return Holder(process.pid, started, me.boot, me.space, me.host)


def hold(backend: Backend, stream: str, holder: Holder) -> None:
    assert backend.swap_lease(stream, seen=None, new=Lease(1, holder, 0))


def test_a_dead_drivers_lease_is_taken_over_and_it_is_fenced(store: Store) -> None:
    holder = dead_process()
    hold(store.backend, "r", holder)
    store.append("r", Deposited(1), expected=0, epoch=1)
    with store.drive("r") as grant:
        assert grant.previous == holder
        store.append("r", Deposited(2), expected=1, epoch=grant.epoch)
        with pytest.raises(Fenced):
            store.append("r", Deposited(3), expected=2, epoch=1)
        with pytest.raises(Fenced):
            store.append("r", Deposited(2), expected=ANY, epoch=1)
    assert store.head("r").version == 2


def test_a_reused_pid_is_not_taken_for_the_driver(store: Store) -> None:
    me = leases.this_process()
    stale = Holder(os.getpid(), "another start time", me.boot, me.space, me.host)
    hold(store.backend, "r", stale)
    with store.drive("r") as grant:
        assert grant.previous == stale


def test_a_reboot_ends_a_lease(store: Store) -> None:
    me = leases.this_process()
    hold(store.backend, "r", Holder(me.pid, me.started, "another boot", me.space, me.host))
    with store.drive("r") as grant:
        assert grant.previous is not None


def test_a_driver_in_another_container_is_only_pushed_aside_on_request(store: Store) -> None:
    me = leases.this_process()
    hold(store.backend, "r", Holder(1, "x", me.boot, "pid:[1]", "elsewhere"))
    with pytest.raises(LeaseHeld, match="take over"), store.drive("r"):
        pass
    with store.drive("r", take_over=True) as grant:
        assert grant.epoch == 2


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while leases.start_token(process.pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.wait()


def test_the_portable_start_token_agrees_with_proc() -> None:
    assert leases._start_token_portable(os.getpid())
    assert leases._start_token_portable(dead_process().pid) is None


def test_two_processes_race_for_a_lease_and_one_wins(tmp_path: Path) -> None:
    script = """
import sys, time
from tailfold.engine import Store
from tailfold.engine.errors import LeaseHeld
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        with store.drive("r"):
            print("won", flush=True)
            sys.stdin.readline()
    except LeaseHeld:
        print("lost", flush=True)
        sys.stdin.readline()
"""
    Store.open(tmp_path / "s").close()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "s")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outcomes = [process.stdout.readline().strip() for process in processes if process.stdout]
    for process in processes:
        process.communicate("\n", timeout=20)
    assert sorted(outcomes) == ["lost", "lost", "won"]


# -- two drivers of one run, from the command line -------------------------------------------------------

SLOW = """
import sys, time
from tailfold.engine.agents.comparetiers import rules
import tailfold.cli.commands.runs as runs
rule = runs.rule
def slow(request):
    print("asked", flush=True)
    time.sleep(60)
    return rule(request)
runs.rule = slow
from tailfold.cli.main import main
main()
"""


def test_a_second_driver_of_a_run_gets_exit_4_and_a_killed_one_is_taken_over(tmp_path: Path) -> None:
    store = tmp_path / "s"
    driver = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SLOW,
            "run",
            QUESTION,
            "--model",
            "rules",
            "--run-id",
            "r-1",
            "--store",
            store,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "asked\n"
    second = tailfold(store, "resume", "r-1")
    assert second.returncode == 4
    assert str(driver.pid) in second.stderr
    assert tailfold(store, "show", "r-1").returncode == 0, "readers are not locked out"
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    assert tailfold(store, "resume", "r-1").returncode == 0
    resumed = [e for e in json_lines(tailfold(store, "show", "r-1", "--json")) if e["kind"] == "run_resumed"]
    assert [e["payload"]["taken_from_pid"] for e in resumed] == [driver.pid]


def test_ctrl_c_leaves_a_resumable_run_and_says_how(tmp_path: Path) -> None:
    slow = SLOW.replace("time.sleep(60)", "time.sleep(1.5)")
    driver = subprocess.Popen(
        [sys.executable, "-c", slow, "run", QUESTION, "--model", "rules", "--run-id", "r-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TAILFOLD_STORE": str(tmp_path / "s")},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "asked\n"
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "tailfold resume r-1" in said
    assert "Traceback" not in said
    done = tailfold(tmp_path / "s", "resume", "r-1")
    assert done.returncode == 0
    assert "$60.00" in done.stdout
    resumed = [
        e for e in json_lines(tailfold(tmp_path / "s", "show", "r-1", "--json")) if e["kind"] == "run_resumed"
    ]
    assert [e["payload"]["taken_from_pid"] for e in resumed] == [None], "it let go in good order"


def test_verify_of_a_store_that_is_being_written_to_finds_nothing(tmp_path: Path) -> None:
    Store.open(tmp_path / "s").close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s"), "own"], cwd=Path(__file__).parent.parent
    )
    rounds = 0
    with Store.open(tmp_path / "s", create=False) as store:
        while writer.poll() is None:
            rounds += 1
            assert store.verify().findings == []
    assert writer.returncode == 0
    assert rounds > 3


def test_readers_go_on_while_a_writer_writes(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store:
        store.append("a", [Deposited(1)] * 2000, expected=0)
        seen = 0
        for recorded in store.read("a"):
            if recorded.version % 500 == 0:
                store.append("a", Deposited(1), expected=ANY)  # no transaction is held across the yield
            seen += 1
        assert seen == 2000, "a read ends at the head that it began with"


def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    script = """
import os, sys
from tailfold.engine import Store
from tailfold.engine.errors import StoreClosed
from tests.domain import Deposited
store = Store.open(sys.argv[1])
store.append("a", Deposited(1), expected=0)
child = os.fork()
if child == 0:
    try:
        store.append("a", Deposited(2), expected=1)
    except StoreClosed:
        os._exit(42)
    os._exit(1)
_, status = os.waitpid(child, 0)
store.append("a", Deposited(2), expected=1)
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], cwd=Path(__file__).parent.parent, timeout=30
    )
    assert done.returncode == 42
    with Store.open(tmp_path / "s") as store:
        store.close()
        with pytest.raises(StoreClosed):
            store.head("a")
