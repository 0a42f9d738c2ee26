"""What cannot be driven is refused by name: when it is declared, when a run begins, or where the loop meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tailfold.engine import Event, MemoryBackend, Store
from tailfold.engine.agent import Agent, ModelRequest, Reply, Tool, Toolbox, decider, resume, start
from tailfold.engine.errors import BadArgument


class Nothing(msgspec.Struct, frozen=True):
    pass


ORDER = Tool("order", "Order seats.", Nothing, lambda _: "ordered")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Tool("", "", Nothing, lambda _: 1), "needs a name"),
        (lambda: Tool("t", "", dict, lambda _: 1), "its arguments are a msgspec.Struct class"),  # type: ignore[arg-type]
        (lambda: Tool("t", "", Nothing, lambda: 1), "takes its arguments, as one value"),
        (lambda: Tool("t", "", Nothing, lambda _, key: 1), "missing a required argument: 'key'"),
        (lambda: Tool("t", "", Nothing, lambda _: 1, effect="idempotent"), "and the keyword key"),
        (lambda: Tool("t", "", Nothing, lambda _: 1, effect="safe"), "effect is read_only or idempotent or unsafe"),  # type: ignore[arg-type]
        (lambda: Tool("t", "", Nothing, "run"), "what it runs is a function"),  # type: ignore[arg-type]
        (lambda: Toolbox([ORDER]), r"as in Toolbox\(one, two\)"),  # type: ignore[arg-type]
        (lambda: Agent("a", "", [ORDER]), "its tools are a Toolbox"),  # type: ignore[arg-type]
        (lambda: Agent("", "", Toolbox()), "needs a name"),
        (lambda: Agent("a", "", Toolbox(), "decide"), "decide is a function"),  # type: ignore[arg-type]
        (lambda: Agent("a", "", Toolbox(), inputs={"x": "text"}), "input 'x' is bytes, not str"),  # type: ignore[dict-item]
    ],
)
def test_what_would_fail_in_the_middle_of_a_run_is_refused_when_it_is_declared(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(BadArgument, match=said):
        make()


class Says:
    """A model that replies what it was made with."""

    def __init__(self, reply: Any, name: Any = "says") -> None:
        self.said, self.name = reply, name

    async def reply(self, request: ModelRequest) -> Reply:
        return self.said  # type: ignore[no-any-return]


class SaysAtOnce(Says):
    def reply(self, request: ModelRequest) -> Reply:  # type: ignore[override]
        return Reply("hello")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Says("hello"), "model 'says' replied a str, not a Reply"),
        (SaysAtOnce(None), "define it with async def"),
    ],
)
def test_a_model_that_replies_something_else_is_named_and_the_run_goes_on_with_another(
    model: Says, said: str
) -> None:
    agent = Agent("a", "", Toolbox(ORDER))
    with Store.open(backend=MemoryBackend()) as store:
        with pytest.raises(BadArgument, match=said):
            asyncio.run(start(store, "r", agent, model, "hi"))
        assert asyncio.run(resume(store, "r", lambda _: agent, lambda _: Says(Reply("hello")))).answer == "hello"


async def _waits(version: int, event: Event) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"agent": "agent"}, "the agent is an Agent"),
        ({"model": Says}, "has none"),
        ({"model": "rules"}, "a model has a method reply"),
        ({"model": Says(Reply("x"), None)}, "a model has a name"),
        ({"question": None}, "the question is a text"),
        ({"on_event": _waits}, "on_event is a plain function"),
    ],
)
def test_a_run_that_could_not_be_driven_is_not_begun(arguments: dict[str, Any], said: str) -> None:
    right: dict[str, Any] = {
        "agent": Agent("a", "", Toolbox(ORDER)),
        "model": Says(Reply("hello")),
        "question": "hi",
    }
    with Store.open(backend=MemoryBackend()) as store:
        with pytest.raises(BadArgument, match=said):
            asyncio.run(start(store, "r", **(right | arguments)))
        assert list(store.streams()) == []
        asyncio.run(start(store, "r", **right))
        store.fork("r", at=2)
        with pytest.raises(BadArgument, match="make_agent is a function"):
            asyncio.run(resume(store, "r.2", right["agent"], lambda _: right["model"]))


@pytest.mark.parametrize(
    ("decide", "said"),
    [
        (lambda state: None, "decide returned None, not an action"),
        (decider(lambda state, answer: False), "the judge returned False"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_decision_that_is_none_ends_the_driving_and_is_named(decide: Any, said: str) -> None:
    agent = Agent("a", "", Toolbox(ORDER), decide)
    with Store.open(backend=MemoryBackend()) as store, pytest.raises(BadArgument, match=said):
        asyncio.run(start(store, "r", agent, Says(Reply("hello")), "hi"))


def test_an_empty_reply_is_a_failure_of_the_model() -> None:
    agent = Agent("a", "", Toolbox(ORDER))
    with Store.open(backend=MemoryBackend()) as store:
        state = asyncio.run(start(store, "r", agent, Says(Reply(" ")), "hi", max_turns=1))
        assert (state.reason, state.answer, state.failures) == ("budget_exhausted", None, 1)
