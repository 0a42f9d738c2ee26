"""fork, rewind, tree, diff, delete, gc, and resuming a fork, as a user runs them."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from tailfold.engine import Store
from tailfold.engine.agent.state import run_fold

from tests.cli.command import QUESTION, json_lines, start, tailfold

EVENTS = 12
ANSWER = "Notion Plus for 5 seats, billed monthly: $60.00 per month"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("ended") / "store"
    assert tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1").returncode == 0
    return store


@pytest.fixture
def store(ended: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "store"
    shutil.copytree(ended, copied)
    return copied


def test_a_run_forked_at_every_version_and_resumed_ends(store: Path) -> None:
    for at in range(1, EVENTS + 1):
        name = f"f-{at}"
        [made] = json_lines(tailfold(store, "fork", "r-1", "--at", str(at), "--as", name, "--json"))
        assert (made["run"], made["parent"], made["at"], made["heads"]) == (name, "r-1", at, [])
        resumed = tailfold(store, "resume", name)
        assert resumed.stdout.startswith(ANSWER)
        assert resumed.returncode == (3 if at == EVENTS else 0)
        [diff] = json_lines(tailfold(store, "diff", "r-1", name, "--json"))
        assert diff["common"] == at, "exactly the common events"
        assert [line["version"] for line in diff["only_left"]] == list(range(at + 1, EVENTS + 1))
        if at < EVENTS:
            assert {one["path"] for one in diff["state"]} <= {"resumes", "turn"} | {
                one["path"] for one in diff["state"] if one["path"].startswith("messages")
            }
        replayed = tailfold(store, "replay", name)
        assert replayed.returncode == 0, replayed.stderr
    assert tailfold(store, "verify").returncode == 0
    listed = {line["run"]: line for line in json_lines(tailfold(store, "list", "--json"))}
    assert sorted(listed) == sorted(["r-1", *(f"f-{at}" for at in range(1, EVENTS + 1))])
    assert {line["reason"] for line in listed.values()} == {"answered"}


def test_what_if_with_another_question_model_and_budget(store: Path) -> None:
    tailfold(store, "fork", "r-1", "--at", str(EVENTS), "--as", "b")
    question = "How much is Slack Pro for 3 seats, yearly?"
    done = tailfold(store, "resume", "b", "--question", question, "--model", "rules", "--max-turns", "9")
    assert done.returncode == 0
    assert done.stdout.startswith("Slack Pro for 3 seats, billed yearly: $261.00 per year")
    [shown] = json_lines(tailfold(store, "state", "b", "--json"))
    assert (shown["state"]["question"], shown["state"]["max_turns"]) == (question, 9)
    assert tailfold(store, "replay", "b").returncode == 0
    refused = tailfold(store, "resume", "r-1", "--question", question)
    assert refused.returncode == 3, "a run that has ended by itself stays as it is"
    assert "a fork of it with another --question" in refused.stderr
    assert tailfold(store, "resume", "b", "--model", "nonsense").returncode == 2
    tailfold(store, "fork", "r-1", "--at", "4", "--as", "c")
    moved = tailfold(store, "resume", "c", "--question", question)
    assert moved.stdout.startswith("Slack Pro"), "calls of the old question are set aside"


def test_a_run_whose_turns_ran_out_goes_on_in_a_fork_with_more(store: Path) -> None:
    ended = tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "short", "--max-turns", "1")
    assert ended.returncode == 1
    refused = tailfold(store, "resume", "short", "--max-turns", "8")
    assert refused.returncode == 3, "a run that has ended by itself stays as it is"
    assert "a fork of it with a larger --max-turns" in refused.stderr
    [fork, resume] = re.findall(r"tailfold ((?:fork|resume) short.*?)(?: && |$)", ended.stderr, re.MULTILINE)
    forked = tailfold(store, *shlex.split(fork))
    assert forked.returncode == 0
    assert "--max-turns N" in forked.stderr
    assert tailfold(store, "resume", "short-on").returncode == 3
    assert tailfold(store, "resume", "short-on", "--max-turns", "1").returncode == 3, "no turn is left of it"
    assert tailfold(store, "resume", "short-on", "--max-turns", "8").stdout.startswith("Notion Plus for 5 seats")
    assert "--max-turns 2" in resume
    assert tailfold(store, "replay", "short-on").returncode == 0
    rows = {row["run"]: row for row in json_lines(tailfold(store, "list", "--json"))}
    assert [rows[run]["reason"] for run in ("short", "short-on")] == ["budget_exhausted", "answered"]
    again = tailfold(store, "fork", "short-on", "--at", str(rows["short-on"]["events"]))
    assert "--question" in again.stderr


def test_a_rewound_run_means_its_new_line_and_the_old_one_stays(store: Path) -> None:
    [made] = json_lines(tailfold(store, "rewind", "r-1", "--at", "5", "--json"))
    assert (made["run"], made["heads"]) == ("r-1.2", ["r-1"])
    assert len(json_lines(tailfold(store, "show", "r-1", "--json"))) == 5
    assert len(json_lines(tailfold(store, "show", ":r-1", "--json"))) == EVENTS
    assert tailfold(store, "resume", "r-1").stdout.startswith(ANSWER)
    assert tailfold(store, "resume", ":r-1").returncode == 3
    shown = tailfold(store, "list").stdout
    assert ":r-1 " in shown
    assert "r-1.2 (r-1)" in shown
    assert "◀ r-1" in tailfold(store, "tree", "r-1").stdout
    deleted = tailfold(store, "delete", "r-1")
    assert deleted.stdout == "deleted r-1.2\n"
    assert len(json_lines(tailfold(store, "show", "r-1", "--json"))) == EVENTS
    assert tailfold(store, "rewind", ":r-1", "--at", "5").returncode == 2


def test_deleting_a_parent_is_refused_then_rerooted_with_the_same_child_state(store: Path) -> None:
    tailfold(store, "fork", "r-1", "--at", "7", "--as", "child")
    tailfold(store, "resume", "child")
    [before] = json_lines(tailfold(store, "state", "child", "--json"))
    refused = tailfold(store, "delete", "r-1")
    assert refused.returncode == 9
    assert "'child'" in refused.stderr
    [done] = json_lines(tailfold(store, "delete", "r-1", "--reroot", "--json"))
    assert done == {"run": "r-1", "deleted": True, "rerooted": ["child"]}
    assert json_lines(tailfold(store, "state", "child", "--json")) == [before]
    [would] = json_lines(tailfold(store, "gc", "--dry-run", "--json"))
    [took] = json_lines(tailfold(store, "gc", "--json"))
    assert would["events"] == took["events"] == EVENTS - 7
    assert json_lines(tailfold(store, "state", "child", "--json")) == [before]
    assert tailfold(store, "show", "r-1").returncode == 6
    assert tailfold(store, "verify").returncode == 0
    assert tailfold(store, "delete", "child").returncode == 0
    [took] = json_lines(tailfold(store, "gc", "--json"))
    assert took["blobs"] == 1, "the catalogue, which no run needs any more"
    assert json_lines(tailfold(store, "list", "--json")) == []
    again = tailfold(store, "run", QUESTION, "--model", "rules", "--run-id", "r-1")
    assert again.returncode == 6, "the name stays taken"


def test_bad_input_is_named(store: Path) -> None:
    for arguments, code, says in (
        (("fork", "nobody", "--at", "1"), 6, "no stream 'nobody'"),
        (("fork", "r-1", "--at", "99"), 6, "there is no version 99"),
        (("fork", "r-1", "--at", "0"), 2, "--at"),
        (("fork", "r-1", "--at", "3", "--as", "r-1"), 9, "exists already"),
        (("fork", "r-1", "--at", "3", "--as", "../x"), 2, "run id"),
        (("delete", "nobody"), 6, "no stream 'nobody'"),
        (("diff", "r-1", "nobody"), 6, "no stream 'nobody'"),
        (("tree", "nobody"), 6, "no stream 'nobody'"),
        (("state", "r-1", "--at", "yesterday"), 2, "yesterday"),
    ):
        done = tailfold(store, *arguments)
        assert (done.returncode, says in done.stderr) == (code, True), (arguments, done.stderr)


def test_a_driven_run_is_not_deleted_or_rewound(store: Path) -> None:
    tailfold(store, "fork", "r-1", "--at", "3", "--as", "busy")
    with Store.open(store) as opened, opened.drive("busy"):
        assert tailfold(store, "delete", "busy").returncode == 4
        assert tailfold(store, "rewind", "busy", "--at", "2").returncode == 4


def test_the_state_at_a_time(store: Path) -> None:
    lines = json_lines(tailfold(store, "show", "r-1", "--json"))
    with Store.open(store) as opened:
        for line in lines:
            at = opened.version_at("r-1", line["time_ns"])
            assert at == max(one["version"] for one in lines if one["time_ns"] <= line["time_ns"])
        assert opened.version_at("r-1", lines[0]["time_ns"] - 1) == 0
    [shown] = json_lines(tailfold(store, "state", "r-1", "--at", "2000-01-01", "--json"))
    assert shown["version"] == 0
    [shown] = json_lines(tailfold(store, "state", "r-1", "--at", lines[4]["time"], "--json"))
    assert shown["version"] >= 5


def test_a_fork_that_is_killed_leaves_all_or_nothing(store: Path) -> None:
    for i in range(8):
        process = start(store, "rewind", "r-1", "--at", "4", "--as", f"k-{i}")
        try:
            process.wait(timeout=0.15 + i * 0.05)
        except Exception:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        with Store.open(store) as opened:
            there = {head.stream for head in opened.streams()}
            heads = opened.named_heads()
            name = f"k-{i}"
            assert (name in there) == (heads.get("r-1") == name), "fork and head are one transaction"
            if name in there:
                assert opened.load(name, run_fold).version == 4
            assert opened.verify().sound
    assert msgspec.json.decode(tailfold(store, "verify", "--json").stdout)["sound"]


@pytest.mark.parametrize("command", ["show", "tree", "delete", "tail", "export", "state", "verify"])
def test_a_colon_alone_names_nothing(command: str, store: Path) -> None:
    done = tailfold(store, command, ":")
    assert done.returncode == 2, "it is not the store that is damaged"
    assert "a stream name has 1 to 255 bytes" in done.stderr
