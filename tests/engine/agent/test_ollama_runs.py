"""Whole runs with Ollama: whatever the server does, the run goes on, is recorded as it went, and replays."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

import msgspec
import pytest
from tailfold.engine import MemoryBackend, Store
from tailfold.engine.agent.events import (
    AnswerRejected,
    ModelDecision,
    ModelFailed,
    RunEnded,
    ToolCalled,
    ToolError,
    ToolResult,
)
from tailfold.engine.agent.models import OllamaModel
from tailfold.engine.agent.replaying import replay
from tailfold.engine.agent.runtime import resume, start
from tailfold.engine.agent.state import RunState

from tests.engine.agent.asking import LONG_S, NOTION, QUESTION, RUN, SLACK, agent, within
from tests.engine.agent.fake_ollama import Answer, FakeOllama, calls, fails, fake_ollama, says

pytestmark = pytest.mark.usefixtures("nothing_in_between")


def drive(server: FakeOllama, max_turns: int) -> tuple[Store, RunState]:
    """Start a run of the price agent on the model that *server* plays."""
    store = Store.open(backend=MemoryBackend())
    model = OllamaModel("m", host=server.host, timeout_s=0.4)
    state = asyncio.run(start(store, RUN, agent(), model, QUESTION, max_turns=max_turns))
    return store, state


def events(store: Store) -> list[Any]:
    return [recorded.event for recorded in store.read(RUN)]


def kinds(store: Store) -> list[str]:
    return [recorded.kind for recorded in store.read(RUN)]


class Scene(NamedTuple):
    """A script, the budget, and the kinds of events between run_started and run_ended."""

    script: list[Answer]
    max_turns: int
    kinds: list[str]
    reason: str = "answered"


TURN = ["turn_started", "model_decision"]
CALLED = [*TURN, "tool_called", "tool_result"]
MISCALLED = [*TURN, "tool_called", "tool_error"]
FAILED = ["turn_started", "model_failed"]
HONEST = says("I do not know.")

SCENES = {
    "answers after a call": Scene([calls(("quote", NOTION)), says("It is $60.00 a month.")], 2, [*CALLED, *TURN]),
    "fails twice, then answers": Scene(
        [fails(500, "boom"), Answer(dropped=True), HONEST], 3, [*FAILED, *FAILED, *TURN]
    ),
    "fails until the budget is spent": Scene(
        [fails(500, "boom"), says("yes")._replace(wait_s=LONG_S)],
        2,
        [*FAILED, *FAILED],
        "budget_exhausted",
    ),
    "an argument of the wrong type": Scene(
        [calls(("quote", {**NOTION, "seats": "many"})), HONEST], 2, [*MISCALLED, *TURN]
    ),
    "an argument missing": Scene([calls(("quote", {"product": "Notion"})), HONEST], 2, [*MISCALLED, *TURN]),
    "an argument too many": Scene(
        [calls(("get_plans", {"product": "Notion", "colour": "red"})), HONEST], 2, [*MISCALLED, *TURN]
    ),
    "an unknown tool": Scene([calls(("buy", NOTION)), HONEST], 2, [*MISCALLED, *TURN]),
    "a tool without a name": Scene([calls(("", {})), HONEST], 2, [*MISCALLED, *TURN]),
    "arguments as a JSON string": Scene([calls(("quote", '{"product": "Notion"}')), HONEST], 2, [*FAILED, *TURN]),
    "an argument that cannot be stored": Scene(
        [calls(("quote", {**NOTION, "seats": 10**30})), HONEST], 2, [*FAILED, *TURN]
    ),
    "a text that cannot be stored": Scene([says("\ud800"), HONEST], 2, [*FAILED, *TURN]),
    "an error text that cannot be stored": Scene([fails(500, "\ud800"), HONEST], 2, [*FAILED, *TURN]),
    "an amount out of thin air": Scene(
        [says("It is $61.00 a month."), calls(("quote", NOTION)), says("It is $60.00 a month.")],
        3,
        [*TURN, "answer_rejected", *CALLED, *TURN],
    ),
    "amounts out of thin air until the budget is spent": Scene(
        [says("It is $61.00."), says("It is $62.00.")],
        2,
        [*TURN, "answer_rejected", *TURN, "answer_rejected"],
        "budget_exhausted",
    ),
    "calls in parallel": Scene(
        [
            calls(("quote", NOTION), ("quote", SLACK), ("buy", {}), text="I look both up."),
            says("Notion Plus is $60.00, Slack Pro $43.75."),
        ],
        2,
        [*TURN, *["tool_called"] * 3, "tool_result", "tool_result", "tool_error", *TURN],
    ),
}


@pytest.mark.parametrize("name", SCENES)
def test_every_run_is_recorded_as_it_went_and_replays_without_the_server(name: str) -> None:
    scene = SCENES[name]
    expected = ["run_started", *scene.kinds, "run_ended"]
    with fake_ollama(*scene.script) as server:
        store, state = drive(server, scene.max_turns)
    assert kinds(store) == expected
    assert state.reason == scene.reason
    replayed = asyncio.run(replay(store, RUN, agent()))
    assert (replayed.ended, replayed.events) == (True, len(expected))
    assert replayed.state == state


def test_an_argument_that_is_not_a_number_ends_no_run_and_no_replay() -> None:
    with fake_ollama(calls(("quote", {**NOTION, "seats": float("nan")})), HONEST, HONEST) as server:
        store, state = drive(server, 3)
    assert state.status == "ended"
    assert asyncio.run(replay(store, RUN, agent())).ended


def test_failed_model_calls_count_against_the_budget_and_say_why() -> None:
    with fake_ollama(*SCENES["fails twice, then answers"].script) as server:
        store, state = drive(server, 3)
        assert len(server.chats) == 3
        assert server.chats[0] == server.chats[1] == server.chats[2]  # a failure adds no message
    assert (state.turn, state.failures, state.failures_in_row) == (3, 2, 0)
    assert state.answer == "I do not know."
    first, second = [event for event in events(store) if isinstance(event, ModelFailed)]
    assert (first.turn, second.turn) == (1, 2)
    assert "boom" in first.error
    assert second.error != first.error


def test_a_budget_of_two_with_only_failures_is_exhausted_without_an_answer() -> None:
    with fake_ollama(fails(500, "boom"), fails(500, "boom")) as server:
        store, state = drive(server, 2)
        assert len(server.chats) == 2
    assert events(store)[-1] == RunEnded("budget_exhausted", None)
    assert (state.status, state.turn, state.failures) == ("ended", 2, 2)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("an argument of the wrong type", "seats"),
        ("an argument missing", "plan"),
        ("an argument too many", "colour"),
        ("an unknown tool", "get_plans, quote, compare"),
    ],
)
def test_a_call_that_does_not_fit_is_told_to_the_model_and_the_run_goes_on(name: str, hint: str) -> None:
    with fake_ollama(*SCENES[name].script) as server:
        store, state = drive(server, 2)
        before, after = [chat["messages"] for chat in server.chats]
    [error] = [event for event in events(store) if isinstance(event, ToolError)]
    assert hint in error.error
    assert after[: len(before)] == before
    called, told = after[len(before) :]
    assert called["tool_calls"]
    assert told["role"] == "tool"
    assert told["tool_name"] == called["tool_calls"][0]["function"]["name"]
    assert msgspec.json.decode(told["content"]) == {"error": error.error}
    assert state.answer == "I do not know."


def test_an_amount_that_no_tool_returned_is_rejected_and_the_model_is_told() -> None:
    with fake_ollama(*SCENES["an amount out of thin air"].script) as server:
        store, state = drive(server, 3)
        messages = server.chats[1]["messages"]
    [rejected] = [event for event in events(store) if isinstance(event, AnswerRejected)]
    assert "$61.00" in rejected.problem
    assert messages[-2]["content"] == "It is $61.00 a month."
    assert messages[-1] == {"role": "user", "content": rejected.problem}
    assert state.answer == "It is $60.00 a month."


def test_call_ids_are_unique_in_a_run_over_all_of_its_turns() -> None:
    two = calls(("quote", NOTION), ("quote", SLACK))
    with fake_ollama(two, fails(500, "boom"), two, HONEST) as server:
        store, _ = drive(server, 4)
    ids = [event.call.id for event in events(store) if isinstance(event, ToolCalled)]
    assert len(ids) == len(set(ids)) == 4


def test_all_results_of_parallel_calls_are_in_the_next_request() -> None:
    with fake_ollama(*SCENES["calls in parallel"].script) as server:
        store, state = drive(server, 2)
        messages = server.chats[1]["messages"]
    [decision, _] = [event for event in events(store) if isinstance(event, ModelDecision)]
    called = [event.call for event in events(store) if isinstance(event, ToolCalled)]
    assert called == decision.tool_calls
    notion, slack, _ = [call.id for call in called]
    results = [event for event in events(store) if isinstance(event, ToolResult)]
    assert {event.call_id: event.result["total"] for event in results} == {notion: "60.00", slack: "43.75"}
    assert [message["role"] for message in messages[-4:]] == ["assistant", "tool", "tool", "tool"]
    assert [message["tool_name"] for message in messages[-3:]] == ["quote", "quote", "buy"]
    assert state.tool_calls == 3


def test_the_usage_of_all_calls_is_summed_in_the_state() -> None:
    first = says("It is $61.00.", prompt_tokens=100, output_tokens=10, duration_ms=700)
    second = says("I do not know.", prompt_tokens=150, output_tokens=5, duration_ms=300)
    with fake_ollama(first, second) as server:
        _, state = drive(server, 2)
    assert (state.prompt_tokens, state.output_tokens, state.model_ms) == (250, 15, 1000)


def test_a_turn_that_was_interrupted_while_the_model_thought_is_lost_and_counted() -> None:
    store = Store.open(backend=MemoryBackend())

    async def interrupted(server: FakeOllama) -> None:
        model = OllamaModel("m", host=server.host, timeout_s=LONG_S)
        run = asyncio.create_task(start(store, RUN, agent(), model, QUESTION, max_turns=2))
        assert await asyncio.to_thread(server.asked.wait, 5)
        run.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run

    with fake_ollama(says("too late")._replace(wait_s=LONG_S)) as slow:
        within(5, interrupted(slow))
    assert kinds(store) == ["run_started", "turn_started"]
    with fake_ollama(HONEST) as quick:
        model = OllamaModel("m", host=quick.host, timeout_s=5)
        state = asyncio.run(resume(store, RUN, lambda _: agent(), lambda _: model))
    assert kinds(store)[2:] == ["run_resumed", *TURN, "run_ended"]
    assert (state.turn, state.resumes, state.answer) == (2, 1, "I do not know.")
    assert asyncio.run(replay(store, RUN, agent())).state == state
