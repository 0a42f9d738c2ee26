"""Runs of an agent of one's own at the command line: they are runs like any other, and replay with --agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tailfold.engine import Store
from tailfold.engine.agent import (
    Agent,
    ModelRequest,
    Reply,
    RunStarted,
    RunState,
    Tool,
    Toolbox,
    ToolCall,
    decider,
    start,
)

from tests.cli.command import QUESTION, json_lines, tailfold


class Nothing(msgspec.Struct):
    pass


class Echo:
    """Calls one tool, and says what it said."""

    name = "echo"

    async def reply(self, request: ModelRequest) -> Reply:
        last = request.messages[-1]
        return Reply(last.content) if last.role == "tool" else Reply("", [ToolCall("", "ping", {})])


def made(system: str = "You ping.", answer: str = "pong") -> Agent:
    return Agent("pinger", system, Toolbox(Tool("ping", "Ping.", Nothing, lambda _: answer)))


def made_of(started: RunStarted) -> Agent:
    assert started.question == "ping?"
    return made()


def refuses(started: RunStarted) -> Agent:
    raise LookupError("not today")


def shouts(state: RunState, answer: str) -> str | None:
    raise ArithmeticError("what is this")


agent = made()
changed = made(system="You pong.")
another_answer = made(answer="puff")
broken = Agent("pinger", "You ping.", agent.tools, decider(shouts))
other = Agent("ponger", "", Toolbox())
HERE = "tests.cli.test_own_agent"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "store"
    assert tailfold(path, "run", QUESTION, "--model", "rules", "--run-id", "shipped").returncode == 0
    with Store.open(path) as opened:
        state = asyncio.run(start(opened, "mine", agent, Echo(), "ping?"))
        assert state.answer == '"pong"'
    return path


def test_it_is_listed_shown_folded_and_checked_like_any_other(store: Path) -> None:
    rows = json_lines(tailfold(store, "list", "--json"))
    assert [(row["run"], row["agent"], row["status"]) for row in rows] == [
        ("mine", "pinger", "ended"),
        ("shipped", "comparetiers", "ended"),
    ]
    assert "AGENT" in tailfold(store, "list").stdout
    [state] = json_lines(tailfold(store, "state", "mine", "--json"))
    assert state["state"]["answer"] == '"pong"'
    assert all(line["opaque"] is False for line in json_lines(tailfold(store, "show", "mine", "--json")))
    for command in (("snapshots", "verify"), ("verify",), ("bench", "mine", "--json"), ("diff", "mine", "shipped")):
        assert tailfold(store, *command).returncode == 0, command
    done = tailfold(store, "fork", "mine", "--at", "3")
    assert done.returncode == 0
    assert "Go on with it in the program of agent 'pinger'" in done.stderr


@pytest.mark.parametrize(
    ("named", "code", "said"),
    [
        ("agent", 0, "no divergence"),
        ("made_of", 0, "no divergence"),
        ("changed", 5, "diverged at version 3"),
        ("another_answer", 0, "no divergence"),
        ("other", 2, "the run belongs to agent 'pinger'"),
        ("refuses", 2, "raised LookupError: not today"),
        ("Nothing", 2, "not an Agent"),
        ("HERE", 2, "is of type str, not an Agent"),
        ("broken", 1, "ArithmeticError"),
        ("gone", 2, "has no 'gone'"),
    ],
)
def test_replay_takes_the_agent_that_is_named(store: Path, named: str, code: int, said: str) -> None:
    done = tailfold(store, "replay", "mine", "--agent", f"{HERE}:{named}")
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr


def test_live_tools_of_an_agent_of_ones_own_are_compared(store: Path) -> None:
    done = tailfold(store, "replay", "mine", "--agent", f"{HERE}:another_answer", "--live-tools")
    assert done.returncode == 5
    assert "puff" in done.stdout


def test_commands_of_the_shipped_agent_say_whose_the_run_is(store: Path) -> None:
    assert tailfold(store, "fork", "mine", "--at", "3", "--as", "open").returncode == 0
    for command in (("replay", "mine"), ("resume", "open")):
        done = tailfold(store, *command)
        assert done.returncode == 2, done.stderr
        assert "belongs to agent 'pinger'" in done.stderr
    assert tailfold(store, "replay", "mine", "--agent", f"{HERE}:agent", "--catalog", "x.json").returncode == 2
