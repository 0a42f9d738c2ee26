"""tail, trace and list, as a user sees them."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tailfold.engine import ANY, Store
from tailfold.engine.agent.events import RunStarted, TurnStarted
from tailfold.engine.agent.listing import run_list

from tests.cli.command import QUESTION, json_lines, start, tailfold
from tests.domain import Deposited
from tests.surgery import change_event

BOTH = "How much do Slack Pro and Notion Plus cost for 3 seats?"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("follow") / "store"
    assert tailfold(path, "run", BOTH, "--model", "rules", "--run-id", "r-1").returncode == 0
    with Store.open(path) as opened:
        opened.append("orders", [Deposited(i) for i in range(3)], expected=0)
    return path


def test_tail_shows_the_last_events_of_a_run_or_of_the_store(store: Path) -> None:
    versions = [line["version"] for line in json_lines(tailfold(store, "tail", "r-1", "--json"))]
    assert versions == list(range(11, 21))
    assert [line.split()[0] for line in tailfold(store, "tail", "r-1", "--after", "18").stdout.splitlines()] == [
        "19",
        "20",
    ]
    everything = json_lines(tailfold(store, "tail", "--after", "19", "--json"))
    assert [line["id"] for line in everything] == ["r-1@20", "orders@1", "orders@2", "orders@3"]
    human = tailfold(store, "tail").stdout.splitlines()
    assert len(human) == 10
    assert human[-1].split()[:2] == ["23", "orders@3"]
    assert (
        tailfold(store, "tail", "r-1").stdout
        == "\n".join(tailfold(store, "show", "r-1").stdout.splitlines()[-10:]) + "\n"
    )


def test_tail_says_what_is_wrong(store: Path, tmp_path: Path) -> None:
    assert tailfold(store, "tail", "nope").returncode == 6
    assert tailfold(tmp_path / "none", "tail", "--follow").returncode == 6
    done = tailfold(store, "tail", "r-1", "--after", "21")
    assert done.returncode == 2
    assert "the last version is 20" in done.stderr
    assert tailfold(store, "tail", "--after", "-1").returncode == 2


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_tail_follows_a_run_that_another_process_drives_and_ctrl_c_ends_it(store: Path) -> None:
    follower = start(store, "tail", "r-2", "--follow")
    assert follower.stderr is not None
    assert "waiting for the first" in follower.stderr.readline()
    assert tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-2").returncode == 0
    lines = read_lines(follower, 12)
    assert [line.split()[0] for line in lines] == [str(v) for v in range(1, 13)]
    assert "run_started" in lines[0]
    assert "unknown kind" not in "".join(lines)
    follower.send_signal(signal.SIGINT)
    out, said = follower.communicate(timeout=20)
    assert (follower.returncode, out, said) == (130, "", "")


def test_tail_of_the_store_follows_every_stream(store: Path) -> None:
    follower = start(store, "tail", "--follow", "--after", "22")
    assert "orders@3" in read_lines(follower, 1)[0]
    with Store.open(store) as opened:
        opened.append("new", Deposited(1), expected=ANY)
    rest = read_lines(follower, 1)[0]
    while "new@1" not in rest:  # the run of another test may come first
        rest = read_lines(follower, 1)[0]
    follower.send_signal(signal.SIGTERM)
    follower.communicate(timeout=20)
    assert follower.returncode == 130


def test_trace_shows_the_way_to_the_root_and_the_tree_below(store: Path) -> None:
    lines = tailfold(store, "trace", "r-1", "4").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["r-1@1", "r-1@2", "r-1@3", "r-1@4", "r-1@6"]
    assert "◀ traced" in lines[3]
    tree = tailfold(store, "trace", "r-1", "3").stdout.splitlines()
    assert "  r-1@5  tool_called  ← r-1@3" in tree
    [shown] = json_lines(tailfold(store, "trace", "r-1", "4", "--json"))
    assert [one["id"] for one in shown["causes"]] == ["r-1@3", "r-1@2", "r-1@1"]
    assert [(one["id"], one["cause"], one["depth"]) for one in shown["effects"]] == [("r-1@6", "r-1@4", 1)]
    done = tailfold(store, "trace", "orders", "2")
    assert done.stdout == "orders@2  deposited  ◀ traced\n"
    assert "names no cause" in done.stderr
    assert tailfold(store, "trace", "r-1", "99").returncode == 6
    assert tailfold(store, "trace", "r-9", "1").returncode == 6
    assert tailfold(store, "trace", "r-1", "0").returncode == 2


def test_trace_goes_on_in_what_a_fork_inherited_from_a_deleted_run(store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(store, tmp_path / "s")  # others read the shared one
    assert tailfold(store, "fork", "r-1", "--at", "4", "--as", "f").returncode == 0
    with Store.open(store) as opened:
        opened.append("f", TurnStarted(9), expected=4, causation="f@4")
    for _ in range(2):
        lines = tailfold(store, "trace", "f", "5").stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["r-1@1", "r-1@2", "r-1@3", "r-1@4", "f@5"]
        lines = tailfold(store, "trace", "f", "4").stdout.splitlines()
        assert "r-1@4" in next(line for line in lines if "◀ traced" in line)
        assert any("f@5" in line for line in lines)
        tailfold(store, "delete", "r-1", "--reroot")
        assert tailfold(store, "gc").returncode == 0


def test_stats_count_once_what_forks_share(store: Path, tmp_path: Path) -> None:
    store = shutil.copytree(store, tmp_path / "s")  # others read the shared one
    [before] = json_lines(tailfold(store, "stats", "--json"))
    assert tailfold(store, "fork", "r-1", "--at", "4", "--as", "f").returncode == 0
    [shown] = json_lines(tailfold(store, "stats", "--json"))
    assert (shown["kinds"], shown["event_bytes"]) == (before["kinds"], before["event_bytes"])
    tailfold(store, "delete", "r-1", "--reroot")
    [shown] = json_lines(tailfold(store, "stats", "--json"))
    assert shown["kinds"]["run_started@1"] == before["kinds"]["run_started@1"]  # the fork's first event


def test_list_folds_no_run_and_keeps_its_list_in_the_store(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as opened:
        for i in range(200):
            begin = RunStarted("comparetiers", f"question {i}", "rules", 4)
            opened.append(f"r-{i:03}", [begin, TurnStarted(1)], expected=0)
    listed = json_lines(tailfold(path, "list", "--json"))
    assert [row["run"] for row in listed] == [f"r-{i:03}" for i in range(200)]
    assert (
        listed[7] | {"question": "question 7", "turns": 1, "events": 2, "last_event": "turn_started"} == listed[7]
    )
    with Store.open(path) as opened:
        assert opened.project(run_list(), catch_up=False).position == 400
        opened.append("r-000", TurnStarted(2), expected=2)
    change_event(path, 1, lambda data: data[:-1] + b"x", stream=9)  # not read: it is in the list already
    again = json_lines(tailfold(path, "list", "--json"))
    assert again[0]["turns"] == 2
    assert again[1:] == listed[1:]


def test_list_prints_nothing_of_a_store_whose_new_events_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path) as opened:
        for i in range(3):
            opened.append(f"r-{i}", RunStarted("comparetiers", "q", "rules", 4), expected=0)
            opened.append(f"r-{i}", TurnStarted(1), expected=1)
    change_event(path, 2, lambda data: data[:-3], stream=2)
    done = tailfold(path, "list")
    assert (done.returncode, done.stdout) == (7, "")
    assert "'r-1' version 2" in done.stderr
