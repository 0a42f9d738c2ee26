"""The key of an idempotent call: the same whenever the call is run again, and no other call's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest
from tailfold.engine import MemoryBackend, Store
from tailfold.engine.agent import Agent, Model, ModelRequest, Reply, Tool, Toolbox, ToolCall, replay, resume, start
from tailfold.engine.agent.events import Effect


class Pay(msgspec.Struct):
    cents: int


class Died(BaseException):
    """Stands in for the end of the process, right after the call began."""


class Teller:
    """Pays twice in a turn, then answers."""

    name = "teller"

    async def reply(self, request: ModelRequest) -> Reply:
        if request.messages[-1].role == "tool":
            return Reply("paid")
        return Reply("", [ToolCall("", "pay", {"cents": cents}) for cents in (1, 2)])


class Cashier:
    """An agent whose one tool keeps the keys that it was given, and dies while *dying*."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.dying = False
        self.agent = Agent("cashier", "", Toolbox(Tool("pay", "", Pay, self.pay, effect="idempotent")))

    async def pay(self, _: Pay, key: str) -> str:
        self.keys.append(key)
        if self.dying and len(self.keys) == 2:
            raise Died
        return "ok"

    def taken(self) -> list[str]:
        keys, self.keys = self.keys, []
        return keys


def teller(name: str) -> Model:
    return Teller()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(backend=MemoryBackend()) as opened:
        yield opened


def test_calls_of_several_runs_have_keys_of_their_own(store: Store) -> None:
    cashier = Cashier()
    for run in ("a", "b"):
        asyncio.run(start(store, run, cashier.agent, Teller(), "pay"))
    assert cashier.taken() == ["a@4", "a@5", "b@4", "b@5"]


def test_a_call_that_is_run_again_has_the_key_that_it_had_also_in_a_fork_and_a_replay(store: Store) -> None:
    cashier = Cashier()
    cashier.dying = True
    with pytest.raises(Died):
        asyncio.run(start(store, "a", cashier.agent, Teller(), "pay"))
    first = cashier.taken()
    assert first == ["a@4", "a@5"]
    cashier.dying = False
    store.fork("a", at=5, name="b")
    for run, left in (("a", first[1:]), ("b", first)):  # of the first call, a has the result
        state = asyncio.run(resume(store, run, lambda started: cashier.agent, teller))
        assert state.answer == "paid"
        assert cashier.taken() == left, "a call was written down once, so one payment is made, whoever goes on"
        assert asyncio.run(replay(store, run, cashier.agent, live_tools=True)).ended
        assert cashier.taken() == first
    [resumed] = [recorded for recorded in store.read("b") if recorded.version == 6]
    assert resumed.causation == "a@5", "the event before it is the parent's"


def test_a_replay_never_runs_an_unsafe_tool(store: Store) -> None:
    def sender(effect: Effect, sent: list[int]) -> Agent:
        def send(pay: Pay) -> str:
            sent.append(pay.cents)
            return "ok"

        return Agent("sender", "", Toolbox(Tool("pay", "", Pay, send, effect=effect)))

    sent: list[int] = []
    asyncio.run(start(store, "a", sender("unsafe", sent), Teller(), "pay"))
    assert sent == [1, 2]
    for effect in get_args(Effect)[::2]:  # also if the code says something else of it today
        assert asyncio.run(replay(store, "a", sender(effect, sent), live_tools=True, after=5)).ended
    assert sent == [1, 2]
