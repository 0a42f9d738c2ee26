"""Ollama behind the model port: what is sent, what is understood, and that no failure of it is a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tailfold.engine.agent.events import (
    ToolCall,
    Usage,
)
from tailfold.engine.agent.loop import ModelError, Reply
from tailfold.engine.agent.messages import Message, ModelRequest
from tailfold.engine.agent.models import DEFAULT_MODEL, OllamaModel, RuleModel, choose_model, named_model
from tailfold.engine.agent.models import ollama as adapter
from tailfold.engine.agent.state import RunState
from tailfold.engine.agents.comparetiers import rule
from tailfold.engine.errors import BadArgument

from tests.engine.agent.asking import LONG_S, NOTION, QUESTION, agent, within
from tests.engine.agent.fake_ollama import Answer, calls, fails, fake_ollama, replies, says, sends

pytestmark = pytest.mark.usefixtures("nothing_in_between")


def request(*messages: Message) -> ModelRequest:
    """Return a request of the real agent, after *messages*."""
    asked = agent().request(RunState(model="ollama:m"))
    return msgspec.structs.replace(asked, messages=[Message("user", QUESTION), *messages])


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
