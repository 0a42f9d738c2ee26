"""Ollama behind the model port: what is sent, what is understood, and that no failure of it is a crash."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from tailfold.engine import MemoryBackend, Store
from tailfold.engine.agent import runtime
from tailfold.engine.agent.events import (
    AnswerRejected,
    ModelDecision,
    ModelFailed,
    RunEnded,
    ToolCall,
    ToolCalled,
    ToolError,
    ToolResult,
    Usage,
)
from tailfold.engine.agent.loop import Agent, ModelError, Reply
from tailfold.engine.agent.messages import Message, ModelRequest
from tailfold.engine.agent.models import DEFAULT_MODEL, OllamaModel, RuleModel, choose_model, named_model
from tailfold.engine.agent.models import ollama as adapter
from tailfold.engine.agent.replay import replay
from tailfold.engine.agent.runtime import resume, start
from tailfold.engine.agent.state import RunState
from tailfold.engine.agents.comparetiers import comparetiers, rule, shipped
from tailfold.engine.errors import BadArgument

from tests.engine.agent.fake_ollama import Answer, FakeOllama, calls, fails, fake_ollama, replies, says, sends

RUN = "r-1"
QUESTION = "How much is Notion Plus for 5 seats, billed monthly?"
NOTION = {"product": "Notion", "plan": "Plus", "seats": 5, "billing": "monthly"}
SLACK = {"product": "Slack", "plan": "Pro", "seats": 5, "billing": "monthly"}
LONG_S = 30.0

R = TypeVar("R")


@pytest.fixture(autouse=True)
def _nothing_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no proxy and no waits between the adapter and the fake."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv(adapter.TIMEOUT_VARIABLE, raising=False)
    monkeypatch.delenv("OLLAMA_API_KEY", raising=False)
    monkeypatch.setattr(runtime, "RETRY_FIRST_S", 0.0)


def agent() -> Agent:
    return comparetiers(shipped(), "shipped")


def request(*messages: Message) -> ModelRequest:
    """Return a request of the real agent, after *messages*."""
    asked = agent().request(RunState(model="ollama:m"))
    return msgspec.structs.replace(asked, messages=[Message("user", QUESTION), *messages])


def within(seconds: float, work: Coroutine[Any, Any, R]) -> R:
    """Run *work*; fail if it does not end, well or badly, within *seconds*."""
    begun = time.monotonic()
    try:
        return asyncio.run(work)
    finally:
        assert time.monotonic() - begun < seconds


def reply(*script: Answer, asked: ModelRequest | None = None) -> Reply:
    """Return what the adapter makes of the first answer of *script*."""
    with fake_ollama(*script) as server:
        model = OllamaModel("m", host=server.host, timeout_s=5)
        return asyncio.run(model.reply(asked or request()))


def sent(asked: ModelRequest) -> dict[str, Any]:
    """Return the body that the server gets for *asked*."""
    with fake_ollama(says("yes")) as server:
        asyncio.run(OllamaModel("m", host=server.host, timeout_s=5).reply(asked))
        [body] = server.chats
        return body


# -- the request -----------------------------------------------------------------------------------------


def test_the_system_message_comes_first_and_then_the_conversation() -> None:
    messages = sent(request())["messages"]
    assert messages[0] == {"role": "system", "content": agent().system}
    assert messages[1:] == [{"role": "user", "content": QUESTION}]


def test_the_model_is_asked_for_by_its_name_without_streaming_at_temperature_0() -> None:
    body = sent(request())
    assert body["model"] == "m"
    assert body["stream"] is False
    assert body["options"] == {"temperature": 0}


def test_a_request_without_options_sends_none() -> None:
    assert not sent(msgspec.structs.replace(request(), options={})).get("options")


def test_calls_and_their_results_are_sent_with_the_tools_name() -> None:
    call = ToolCall("c1", "quote", NOTION)
    messages = sent(
        request(
            Message("assistant", "", [call]),
            Message("tool", '{"total":"60.00"}', call_id="c1", tool_name="quote"),
        )
    )["messages"]
    assistant, tool = messages[2:]
    assert assistant["role"] == "assistant"
    assert assistant["tool_calls"] == [{"function": {"name": "quote", "arguments": NOTION}}]
    assert tool == {"role": "tool", "content": '{"total":"60.00"}', "tool_name": "quote"}


def test_every_tool_is_sent_with_its_name_description_and_required_arguments() -> None:
    asked = request()
    tools = sent(asked)["tools"]
    assert [tool["type"] for tool in tools] == ["function"] * 3
    functions = [tool["function"] for tool in tools]
    assert [f["name"] for f in functions] == ["get_plans", "quote", "compare"]
    assert [f["description"] for f in functions] == [schema.description for schema in asked.tools]
    quote = functions[1]["parameters"]
    assert quote["type"] == "object"
    assert quote["required"] == ["product", "plan", "seats", "billing"]
    assert quote["properties"]["seats"]["type"] == "integer"
    assert quote["properties"]["billing"]["enum"] == ["monthly", "yearly"]


def test_the_model_sees_the_very_schemas_that_the_request_hash_covers() -> None:
    asked = request()
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sent(asked)["tools"]}
    for schema in asked.tools:
        assert parameters[schema.name]["properties"] == schema.parameters["properties"], schema.name


# -- the reply -------------------------------------------------------------------------------------------


def test_a_text_is_a_reply_without_calls() -> None:
    assert reply(says("Sixty dollars.")) == Reply("Sixty dollars.")


def test_usage_is_counted_in_tokens_and_milliseconds() -> None:
    answer = says("yes", prompt_tokens=321, output_tokens=12, duration_ms=1500)
    assert reply(answer).usage == Usage(321, 12, 1500)


def test_usage_that_is_not_stated_counts_as_nothing() -> None:
    assert reply(replies({"content": "yes"})).usage == Usage(0, 0, 0)


def test_tool_calls_are_taken_with_their_arguments_in_order() -> None:
    got = reply(calls(("quote", NOTION), ("get_plans", {"product": "Slack"})))
    assert [(call.name, call.arguments) for call in got.tool_calls] == [
        ("quote", NOTION),
        ("get_plans", {"product": "Slack"}),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>Let me see.\n\nFive seats…</think>\n\nSixty dollars.", "Sixty dollars."),
        ("<think></think>Sixty dollars.", "Sixty dollars."),
        ("<think>a</think>Sixty <think>b</think>dollars.", "Sixty dollars."),
        ("  Sixty dollars.\n", "Sixty dollars."),
    ],
)
def test_thinking_is_stripped_from_the_text(content: str, text: str) -> None:
    assert reply(says(content)).text == text


BROKEN = {
    "500": fails(500, "model runner has unexpectedly stopped"),
    "500 without a body": sends(b"", 500),
    "500 with a page": sends(b"<html>Bad gateway</html>", 500),
    "500 with a list": sends([], 500),
    "500 with an error that is no text": fails(500, {"code": 7}),
    "404, no such model": fails(404, "model 'm' not found"),
    "malformed JSON": sends(b'{"message": {"role": "assist'),
    "no JSON": sends(b""),
    "a list": sends([]),
    "null": sends(None),
    "an object of something else": sends({"hello": "world"}),
    "an error with status 200": fails(200, "out of memory"),
    "a message that is none": sends({"message": 5}),
    "bytes that are no text": sends(b"\xff\xfe\xfd"),
    "nested too deeply": sends(b"[" * 100_000),
    "dropped": Answer(dropped=True),
    "cut short": says("yes")._replace(cut_short=True),
    "too slow": says("yes")._replace(wait_s=LONG_S),
    "stalled half-way": says("yes")._replace(stall_s=LONG_S),
    "an empty text": says(""),
    "a blank text": says(" \n "),
    "no content": replies({}),
    "only thinking": says("<think>Hm.</think>"),
    "an empty list of calls": replies({"content": "", "tool_calls": []}),
    "arguments as a JSON string": calls(("quote", '{"product": "Notion"}')),
    "arguments as a list": calls(("quote", ["Notion"])),
    "no arguments": calls(("quote", None)),
    "a call without a function": replies({"tool_calls": [{}]}),
    "calls that are no list": replies({"tool_calls": "quote"}),
}


@pytest.mark.parametrize("answer", [pytest.param(answer, id=name) for name, answer in BROKEN.items()])
def test_whatever_goes_wrong_is_a_model_error_within_the_time(answer: Answer) -> None:
    with fake_ollama(answer) as server:
        model = OllamaModel("m", host=server.host, timeout_s=0.4)
        with pytest.raises(ModelError) as caught:
            within(5, model.reply(request()))
        assert len(server.chats) == 1
    assert "\n" not in str(caught.value)
    assert 0 < len(str(caught.value)) < 400


def test_a_server_that_is_not_there_is_a_model_error() -> None:
    with fake_ollama() as server:
        gone = server.host
    with pytest.raises(ModelError):
        within(5, OllamaModel("m", host=gone, timeout_s=2).reply(request()))


@pytest.mark.parametrize("host", ["http://[", "127.0.0.1:99999", "127.0.0.1:abc", "ftp://127.0.0.1"])
def test_a_host_that_is_none_is_a_model_error_and_a_reason_to_do_without(host: str) -> None:
    model = OllamaModel("m", host=host, timeout_s=2)
    with pytest.raises(ModelError):
        asyncio.run(model.reply(request()))
    assert host in str(asyncio.run(model.unavailable()))


def test_the_errors_own_words_are_kept() -> None:
    with pytest.raises(ModelError, match="model 'm' not found"):
        reply(fails(404, "model 'm' not found"))


def test_a_reply_that_is_too_late_says_how_long_was_waited() -> None:
    with fake_ollama(says("yes")._replace(wait_s=LONG_S)) as server:
        model = OllamaModel("m", host=server.host, timeout_s=0.25)
        with pytest.raises(ModelError, match=r"within 0\.25 s"):
            within(5, model.reply(request()))


# -- settings --------------------------------------------------------------------------------------------


def test_ollama_host_says_where_the_server_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_ollama(says("yes")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.host)
        assert asyncio.run(OllamaModel("m").reply(request())).text == "yes"


def test_a_host_that_is_given_wins_over_ollama_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_ollama(says("yes")) as server:
        monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
        assert asyncio.run(OllamaModel("m", host=server.host).reply(request())).text == "yes"


def test_the_timeout_variable_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILFOLD_OLLAMA_TIMEOUT_S", "0.3")
    with (
        fake_ollama(says("yes")._replace(wait_s=LONG_S)) as server,
        pytest.raises(ModelError, match=r"within 0\.3 s"),
    ):
        within(5, OllamaModel("m", host=server.host).reply(request()))


def test_an_empty_timeout_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILFOLD_OLLAMA_TIMEOUT_S", "")
    with fake_ollama(says("yes")) as server:
        assert asyncio.run(OllamaModel("m", host=server.host).reply(request())).text == "yes"


@pytest.mark.parametrize("stated", ["soon", "0", "-1", "nan", "inf", "1e400", " "])
def test_a_timeout_that_is_nonsense_is_refused_by_name(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILFOLD_OLLAMA_TIMEOUT_S", stated)
    with pytest.raises(BadArgument, match="TAILFOLD_OLLAMA_TIMEOUT_S"):
        OllamaModel("m")


# -- which model -----------------------------------------------------------------------------------------


def test_a_server_that_has_the_model_is_available() -> None:
    with fake_ollama(models=["other:1b", "m:7b", "latest-one:latest"]) as server:
        assert asyncio.run(OllamaModel("m:7b", host=server.host).unavailable()) is None
        assert asyncio.run(OllamaModel("latest-one", host=server.host).unavailable()) is None


def test_a_server_without_the_model_says_how_to_get_it() -> None:
    with fake_ollama(models=["other:1b"]) as server:
        why = asyncio.run(OllamaModel("m:7b", host=server.host).unavailable())
    assert why is not None
    assert "does not have m:7b" in why
    assert "ollama pull m:7b" in why


def test_no_server_is_a_reason_that_names_the_host() -> None:
    with fake_ollama() as server:
        gone = server.host
    why = within(5, OllamaModel("m", host=gone).unavailable())
    assert why is not None
    assert f"no Ollama answers at {gone}" in why


def test_a_server_that_hangs_is_given_up_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PROBE_TIMEOUT_S", 0.3)
    with fake_ollama(tags=sends({"models": [{"model": "m"}]})._replace(wait_s=LONG_S)) as server:
        why = within(5, OllamaModel("m", host=server.host).unavailable())
    assert why is not None
    assert "no Ollama answers" in why


@pytest.mark.parametrize(
    "tags",
    [fails(500, "boom"), fails(404, "not found"), sends(b"<html>"), sends([]), Answer(dropped=True)],
)
def test_a_server_that_is_no_ollama_is_a_reason_that_names_the_host(tags: Answer) -> None:
    with fake_ollama(tags=tags) as server:
        why = within(5, OllamaModel("m", host=server.host).unavailable())
        assert why is not None
        assert server.host in why
        assert "\n" not in why


def test_auto_takes_ollama_where_it_has_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_ollama(models=[DEFAULT_MODEL]) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.host)
        model, why = asyncio.run(choose_model("auto", rule))
    assert model.name == f"ollama:{DEFAULT_MODEL}"
    assert server.host in why


def test_auto_takes_the_rules_where_ollama_lacks_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_ollama(models=["other:1b"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.host)
        model, why = asyncio.run(choose_model("auto", rule))
    assert model.name == "rules"
    assert "does not have" in why


def test_auto_takes_the_rules_where_no_ollama_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_ollama() as server:
        monkeypatch.setenv("OLLAMA_HOST", server.host)
    model, why = within(5, choose_model("auto", rule))
    assert isinstance(model, RuleModel)
    assert "no language model" in why
    assert "no Ollama answers" in why


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("rules", "rules"),
        ("ollama", f"ollama:{DEFAULT_MODEL}"),
        ("ollama:llama3.2", "ollama:llama3.2"),
        ("ollama:library/m:7b", "ollama:library/m:7b"),
    ],
)
def test_a_models_name_in_the_journal_gives_the_same_model_again(name: str, recorded: str) -> None:
    model = named_model(name, rule)
    assert model.name == recorded
    assert named_model(model.name, rule).name == recorded


@pytest.mark.parametrize(
    "name", ["", " ", "gpt-4", "ollama:", "ollama:  ", "Rules", "rules:x", "openai:m", ":m", "auto"]
)
def test_a_model_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match="no model is called"):
        named_model(name, rule)


# -- whole runs ------------------------------------------------------------------------------------------


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
