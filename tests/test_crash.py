"""Real processes, really killed: at any moment, nothing acknowledged is lost and nothing is half there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tailfold.engine import ANY, Durability, LmdbBackend, Store
from tailfold.engine.agent.state import run_fold

from tests.cli.command import QUESTION, json_lines, tailfold
from tests.domain import Deposited, account

EVENTS_OF_A_RUN = 12
ANSWER = "Notion Plus for 5 seats, billed monthly: $60.00 per month"


def final_state(store: Path, run: str) -> dict[str, object]:
    """Return the state of a run without what a resumed run may have more of."""
    [shown] = json_lines(tailfold(store, "state", run, "--json"))
    state: dict[str, object] = shown["state"]
    return {k: v for k, v in state.items() if k not in ("resumes", "turn", "messages")} | {
        "messages": [m for m in shown["state"]["messages"] if m["role"] != "tool"],
        "tool_content": sorted(m["content"] for m in shown["state"]["messages"] if m["role"] == "tool"),
    }


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("unkilled") / "store"
    done = tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1")
    assert done.returncode == 0
    assert done.stdout.startswith(ANSWER)
    [shown] = json_lines(tailfold(store, "list", "--json"))
    assert shown["events"] == EVENTS_OF_A_RUN
    return store


@pytest.mark.parametrize("kill_after", range(1, EVENTS_OF_A_RUN + 1))
def test_a_run_killed_after_any_event_is_resumed_to_the_same_end(
    kill_after: int, unkilled: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    arguments = ("run", QUESTION, "--model", "rules", "--run-id", "r-1", "--kill-after", str(kill_after))
    killed = tailfold(store, *arguments)
    assert killed.returncode == -signal.SIGKILL
    assert len(json_lines(tailfold(store, "show", "r-1", "--json"))) == kill_after, "durable, and no more"
    resumed = tailfold(store, "resume", "r-1")
    assert resumed.stdout.startswith(ANSWER)
    if kill_after == EVENTS_OF_A_RUN:
        assert resumed.returncode == 3, "it had ended; its answer is printed all the same"
    else:
        assert resumed.returncode == 0
        [event] = [e for e in json_lines(tailfold(store, "show", "r-1", "--json")) if e["kind"] == "run_resumed"]
        assert isinstance(event["payload"]["taken_from_pid"], int), "the takeover is recorded"
    assert final_state(store, "r-1") == final_state(unkilled, "r-1")
    [listed] = json_lines(tailfold(store, "list", "--json"))
    assert listed["turns"] <= 3 + 1, "one lost turn at the most"
    assert tailfold(store, "replay", "r-1").returncode == 0
    assert tailfold(store, "verify").returncode == 0


def test_crashes_do_not_refill_the_budget(tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = ["run", QUESTION, "--model", "rules", "--run-id", "r-1", "--max-turns", "3"]
    tailfold(store, *arguments, "--kill-after", "2")  # in the first turn
    tailfold(store, "resume", "r-1", "--kill-after", "4")  # run_resumed, turn_started: lost again
    done = tailfold(store, "resume", "r-1", "--json")
    assert done.returncode == 1
    [summary] = json_lines(done)
    assert (summary["reason"], summary["turns"], summary["resumes"]) == ("budget_exhausted", 3, 2)
    assert tailfold(store, "resume", "r-1").returncode == 3


def test_a_driver_killed_again_and_again_by_the_clock_still_ends(tmp_path: Path) -> None:
    """SIGKILL from outside at random moments, not at event boundaries."""
    store = tmp_path / "store"
    moments = random.Random(7)
    tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1", "--kill-after", "1")
    from tests.cli.command import start

    for _ in range(6):
        process = start(store, "resume", "r-1")
        time.sleep(moments.uniform(0.1, 0.45))
        process.kill()
        process.communicate()
    done = tailfold(store, "resume", "r-1")
    assert done.returncode in (0, 1, 3)  # answered now, budget spent by the kills, or ended before
    assert tailfold(store, "verify").returncode == 0
    with Store.open(store, create=False) as opened:
        state = opened.load("r-1", run_fold).state
    assert state.status == "ended"
    assert state.turn <= state.max_turns


WRITER = """
import sys
from tailfold.engine import ANY, Store
from tests.domain import Deposited
with Store.open(sys.argv[1]) as store:
    n = 0
    while True:
        n += 1
        batch = [Deposited(n, "x" * (n % 50)) for _ in range(1 + n % 7)]
        done = store.append(f"s{n % 3}", batch, expected=ANY, key=f"k{n}")
        print(done.stream, done.last, done.hash.hex(), flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_what_a_killed_writer_was_told_is_there_and_whole(seed: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    acknowledged: dict[str, tuple[int, str]] = {}
    lines = random.Random(seed).randint(20, 200)
    for _ in range(lines):
        stream, last, head = process.stdout.readline().split()
        acknowledged[stream] = int(last), head
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    for line in rest.splitlines(keepends=True):
        if line.endswith("\n"):
            stream, last, head = line.split()
            acknowledged[stream] = int(last), head
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.verify().findings == []
        for name, (version, noted) in acknowledged.items():
            [row] = store.backend.rows(name, after=version - 1, upto=version, limit=1)
            assert row.hash.hex() == noted, "I12: acknowledged is durable"
            store.load(name, account)  # what was not acknowledged is absent or whole


def test_a_write_transaction_that_dies_leaves_nothing(tmp_path: Path) -> None:
    """The process dies inside the transaction, after its puts and before its commit (I5)."""
    script = """
import os, sys
from tailfold.engine import ANY, Store
from tailfold.engine.backend import keys
from tests.domain import Deposited
store = Store.open(sys.argv[1])
store.append("a", Deposited(1), expected=0)
backend = store.backend
inner = backend._commit
def dying(txn, batch):
    inner(txn, batch)
    os._exit(9)
backend._commit = dying
store.append("a", [Deposited(2)] * 50, expected=1, key="k")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], cwd=Path(__file__).parent.parent, timeout=30
    )
    assert done.returncode == 9
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.head("a").version == 1
        assert store.verify().findings == []
        assert store.append("a", [Deposited(2)] * 50, expected=1, key="k").last == 51


def test_creating_a_store_may_die_at_any_moment(tmp_path: Path) -> None:
    """An environment that was made and not stamped yet is a new store, not a foreign one."""
    import lmdb

    path = tmp_path / "s"
    path.mkdir()
    lmdb.open(str(path), max_dbs=4).close()
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "data.mdb").touch()
    with Store.open(tmp_path / "empty") as store:
        store.append("a", Deposited(1), expected=ANY)


@pytest.mark.parametrize("size", [0, 1, 144, 4096, 8191])
def test_a_creation_that_was_cut_short_begins_anew(size: int, tmp_path: Path) -> None:
    import lmdb

    path = tmp_path / "s"
    path.mkdir()
    lmdb.open(str(path)).close()
    whole = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(whole[:size])
    with Store.open(path) as store:
        store.append("a", Deposited(1), expected=0)


@pytest.mark.parametrize("size", [152, 4096, 8191])
def test_a_store_that_was_cut_down_is_damaged_and_not_made_anew(size: int, tmp_path: Path) -> None:
    from tailfold.engine.errors import StoreDamaged

    path = tmp_path / "s"
    with Store.open(path) as store:
        for i in range(5):
            store.append("a", Deposited(1), expected=i)
    whole = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(whole[:size])
    with pytest.raises(StoreDamaged):
        Store.open(path)
    assert (path / "data.mdb").read_bytes() == whole[:size]


@pytest.mark.parametrize("most_bytes", [1 << 20, 3 << 20], ids=["data.wal", "data.mdb"])
def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path, most_bytes: int) -> None:
    """The write fails inside the kernel, by a limit on the size of files, which the file named meets first."""
    script = """
import resource, signal, sys
from tailfold.engine import Store
from tailfold.engine.errors import EngineError
from tests.domain import Deposited
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(sys.argv[1])
version = store.append("a", Deposited(0), expected=0).last
most = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
try:
    while True:
        version = store.append("a", [Deposited(1, "x" * 900)] * 100, expected=version).last
except EngineError as error:
    print(type(error).__name__, version)
print(store.append("a", Deposited(1), expected=version).last)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s"), str(most_bytes)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    name, refused, last = done.stdout.split()
    assert name == "StoreFull", done.stderr
    assert int(last) == int(refused) + 1, "a smaller one had room"
    with Store.open(tmp_path / "s", create=False) as store:
        assert store.head("a").version == int(last)
        assert store.verify().findings == []
        store.append("a", Deposited(2), expected=int(last))


def test_relaxed_appends_survive_a_killed_process(tmp_path: Path) -> None:
    script = """
import os, sys
from tailfold.engine import Durability, Store
from tests.domain import Deposited
store = Store.open(sys.argv[1], durability=Durability.RELAXED)
store.append("a", [Deposited(1)] * 1000, expected=0)
os.kill(os.getpid(), 9)
"""
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], cwd=Path(__file__).parent.parent, timeout=30
    )
    with Store.open(backend=LmdbBackend(tmp_path / "s", durability=Durability.DURABLE)) as store:
        assert store.head("a").version == 1000


SNAPSHOTTING = """
import sys
from tailfold.engine import Store
from tailfold.snapshots import every
from tests.growing import Said, Scored, talk
with Store.open(sys.argv[1], snapshots=every(int(sys.argv[2]))) as store:
    live = store.live("a", talk)
    n = live.version
    while True:
        n += 1
        live.append(*[Said(f"p{n % 20}", f"text {n} {i}") for i in range(20)], Scored(f"p{n % 50}", n))
        print(live.version, flush=True)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_while_snapshots_are_written_leaves_a_store_that_loads_to_the_right_state(
    seed: int, tmp_path: Path
) -> None:
    from tailfold.engine.loading import refold
    from tailfold.engine.snapshot_report import verify_snapshots

    from tests.growing import talk

    chance = random.Random(seed)
    acknowledged = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SNAPSHOTTING, str(tmp_path / "s"), str(chance.choice([21, 50, 300]))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert process.stdout is not None
        for _ in range(chance.randint(1, 60)):
            acknowledged = int(process.stdout.readline())
        time.sleep(chance.uniform(0, 0.01))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        with Store.open(tmp_path / "s", create=False) as store:
            head = store.head("a").version
            assert head >= acknowledged
            state = store.load("a", talk).state
            body = store.snapshots.facts(talk).codec.encode(state, check=False).body
            assert body == refold(store.log, store.snapshots, "a", talk, head).body
            found = verify_snapshots(store.log, store.snapshots, "a", talk)
            assert found.findings == []
            assert found.compared > 0
            assert store.verify().findings == []
            assert store.counters.chunks_healed == 0, "a snapshot and its chunks are written together"


def test_a_disk_that_is_full_costs_snapshots_and_no_answer(tmp_path: Path) -> None:
    """A snapshot that cannot be written is not written; the load that wanted to write it goes on."""
    script = """
import resource, signal, sys
from tailfold.engine import Store
from tailfold.snapshots import every, never
from tests.growing import Said, talk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store.open(sys.argv[1], snapshots=never) as store:
    store.append("a", [Said("p", f"text {i}") for i in range(3000)], expected=0)
with Store.open(sys.argv[1], snapshots=every(100)) as store:
    import os
    size = os.stat(sys.argv[1] + "/data.mdb").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    state = store.load("a", talk).state
    print(len(state.lines), state.lines[0].text, store.counters.snapshots_written < 30)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["3000", "text", "0", "True"], done.stderr
