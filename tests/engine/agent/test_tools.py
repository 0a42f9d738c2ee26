"""Tools: what the model is shown, what it may send, and that no tool takes a run down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine import MemoryBackend, Store
from tailfold.engine.agent.events import Effect, ToolCall
from tailfold.engine.agent.loop import Agent, Reply
from tailfold.engine.agent.messages import ModelRequest
from tailfold.engine.agent.replaying import replay
from tailfold.engine.agent.runtime import start
from tailfold.engine.agent.state import RunState
from tailfold.engine.agent.tools import Tool, Toolbox, ToolFailed
from tailfold.engine.errors import BadArgument


class Person(msgspec.Struct, frozen=True):
    name: str


class Order(msgspec.Struct, frozen=True, rename={"kind": "type"}):
    """What to order."""

    seats: Annotated[int, msgspec.Meta(ge=1, le=100, description="how many")]
    billing: Literal["monthly", "yearly"] = "monthly"
    discount: float = 0.0
    rush: bool = False
    price: Decimal | None = None
    kind: str = "plain"
    buyer: Person | None = None
    notes: list[str] = []


class Nothing(msgspec.Struct, frozen=True):
    pass


class Search(msgspec.Struct, frozen=True):
    pattern: str
    minimum: int
    title: str = ""
    type: str = ""
    items: list[str] = []


class Tree(msgspec.Struct, frozen=True):
    children: list[Tree] = []


def order(arguments: Order) -> dict[str, Any]:
    return {"seats": arguments.seats, "kind": arguments.kind}


ORDER = Tool("order", "Order seats.", Order, order)


def call(name: str = "order", /, **arguments: Any) -> ToolCall:
    return ToolCall("c1", name, arguments)


def run(tool: Tool, wanted: ToolCall) -> Any:
    return asyncio.run(tool.run(wanted, "r@4"))


def failure(tool: Tool, **arguments: Any) -> str:
    """Return what the model is told about a call that fails."""
    with pytest.raises(ToolFailed) as caught:
        run(tool, call(tool.name, **arguments))
    return str(caught.value)


# -- schemas ---------------------------------------------------------------------------------------------


def test_a_schema_is_one_flat_object_with_the_names_types_and_descriptions_of_the_arguments() -> None:
    schema = ORDER.schema()
    assert (schema.name, schema.description) == ("order", "Order seats.")
    parameters = schema.parameters
    assert parameters["type"] == "object"
    assert "title" not in parameters
    assert "$ref" not in parameters
    assert parameters["required"] == ["seats"]
    seats = parameters["properties"]["seats"]
    assert (seats["type"], seats["description"]) == ("integer", "how many")
    assert parameters["properties"]["billing"]["enum"] == ["monthly", "yearly"]


def test_a_renamed_argument_has_the_models_name_in_the_schema_and_in_calls() -> None:
    properties = ORDER.schema().parameters["properties"]
    assert "type" in properties
    assert "kind" not in properties
    assert run(ORDER, call(seats=1, type="fancy"))["kind"] == "fancy"
    assert "'kind'" in failure(ORDER, seats=1, kind="fancy")


def test_an_argument_may_be_called_like_a_word_of_json_schema() -> None:
    parameters = Tool("search", "", Search, lambda _: None).schema().parameters
    assert set(parameters["properties"]) == {"pattern", "minimum", "title", "type", "items"}
    assert set(parameters["required"]) == {"pattern", "minimum"}
    assert parameters["properties"]["pattern"]["type"] == "string"


def test_a_tool_without_arguments_has_an_empty_object_as_schema() -> None:
    parameters = Tool("ping", "", Nothing, lambda _: "pong").schema().parameters
    assert parameters["type"] == "object"
    assert parameters["properties"] == {}


@pytest.mark.parametrize("arguments", [Order, Nothing, Tree])
def test_every_reference_in_a_schema_leads_somewhere(arguments: type[msgspec.Struct]) -> None:
    parameters = Tool("t", "", arguments, lambda _: None).schema().parameters

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    for reference in references(parameters):
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/$defs"
        assert name in parameters.get("$defs", {})


def test_a_toolbox_shows_its_tools_in_the_order_in_which_they_were_given() -> None:
    ping = Tool("ping", "", Nothing, lambda _: "pong")
    assert [schema.name for schema in Toolbox(ORDER, ping).schemas()] == ["order", "ping"]
    assert Toolbox().schemas() == []


def test_a_tool_needs_a_name_and_a_toolbox_different_ones() -> None:
    with pytest.raises(BadArgument, match="name"):
        Tool("", "", Nothing, lambda _: None)
    with pytest.raises(BadArgument, match="same name"):
        Toolbox(ORDER, Tool("order", "", Nothing, lambda _: None))


# -- arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"seats": "5"}, Order(5)),
        ({"seats": 5.0}, Order(5)),
        ({"seats": 5, "discount": "0.5"}, Order(5, discount=0.5)),
        ({"seats": 5, "discount": 1}, Order(5, discount=1.0)),
        ({"seats": 5, "rush": "true"}, Order(5, rush=True)),
        ({"seats": 5, "rush": 0}, Order(5, rush=False)),
        ({"seats": 5, "price": "12.50"}, Order(5, price=Decimal("12.50"))),
        ({"seats": 5, "buyer": {"name": "Ada"}}, Order(5, buyer=Person("Ada"))),
        ({"seats": 5, "notes": ["a", "b"]}, Order(5, notes=["a", "b"])),
    ],
)
def test_what_can_be_read_as_the_declared_type_is(sent: dict[str, Any], read: Order) -> None:
    assert ORDER.parse(call(**sent)) == read


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({}, "seats"),
        ({"seats": None}, "seats"),
        ({"seats": "many"}, "seats"),
        ({"seats": 5.5}, "seats"),
        ({"seats": True}, "seats"),
        ({"seats": [5]}, "seats"),
        ({"seats": 0}, ">= 1"),
        ({"seats": 101}, "<= 100"),
        ({"seats": "9" * 5000}, "seats"),
        ({"seats": float("inf")}, "seats"),
        ({"seats": float("nan")}, "seats"),
        ({"seats": 5, "billing": "weekly"}, "billing"),
        ({"seats": 5, "buyer": {}}, "name"),
        ({"seats": 5, "notes": "a"}, "notes"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(sent: dict[str, Any], named: str) -> None:
    told = failure(ORDER, **sent)
    assert told.startswith("bad arguments for order")
    assert named in told


def test_arguments_that_do_not_exist_are_named() -> None:
    assert failure(ORDER, seats=5, seat=5, zzz=None) == "order has no argument 'seat', 'zzz'"


def test_a_tool_with_bad_arguments_does_not_run() -> None:
    ran: list[Order] = []
    tool = Tool("order", "", Order, ran.append)
    failure(tool, seats=0)
    failure(tool, seats=1, colour="red")
    assert ran == []


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [field.encode_name for field in msgspec.structs.fields(Order)]
ARGUMENTS = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), JSON, max_size=5)


@given(ARGUMENTS)
def test_whatever_a_model_sends_is_read_or_refused_in_words(arguments: dict[str, Any]) -> None:
    sent = ToolCall("c1", "order", arguments)
    try:
        read = ORDER.parse(sent)
    except ToolFailed as refused:
        assert str(refused).startswith(("bad arguments for order", "order has no argument"))
    else:
        assert isinstance(read, Order)
        assert 1 <= read.seats <= 100
        assert set(arguments) <= set(FIELDS)


# -- running ---------------------------------------------------------------------------------------------


def test_a_result_is_returned_as_builtins() -> None:
    tool = Tool("t", "", Nothing, lambda _: {"who": Person("Ada"), "price": Decimal("12.50")})
    assert run(tool, call("t")) == {"who": {"name": "Ada"}, "price": "12.50"}


def test_a_tool_may_return_nothing() -> None:
    assert run(Tool("t", "", Nothing, lambda _: None), call("t")) is None


def test_a_coroutine_function_is_awaited() -> None:
    async def wait(arguments: Order) -> int:
        await asyncio.sleep(0)
        return arguments.seats

    assert run(Tool("order", "", Order, wait), call(seats=7)) == 7


def test_what_the_tool_says_to_the_model_is_told_as_it_is() -> None:
    def refuse(_: Nothing) -> None:
        raise ToolFailed("only on weekdays")

    assert failure(Tool("t", "", Nothing, refuse)) == "only on weekdays"


def test_any_other_error_of_a_tool_is_told_with_its_type() -> None:
    def divide(_: Nothing) -> float:
        return 1 / 0

    async def divide_later(_: Nothing) -> float:
        return 1 / 0

    for broken in (divide, divide_later):
        assert failure(Tool("t", "", Nothing, broken)) == "t failed: ZeroDivisionError: division by zero"


def test_a_result_that_is_no_data_is_an_error_of_the_tool() -> None:
    assert failure(Tool("t", "", Nothing, lambda _: object())).startswith("t failed: TypeError")


def test_an_idempotent_tool_gets_the_key_of_the_call_and_the_others_get_none() -> None:
    def show(_: Nothing, **extra: Any) -> dict[str, Any]:
        return extra

    def extra(effect: Effect) -> Any:
        return run(Tool("t", "", Nothing, show, effect=effect), ToolCall("c7", "t", {}))

    assert extra("idempotent") == {"key": "r@4"}
    assert extra("read_only") == {}
    assert extra("unsafe") == {}


def test_a_toolbox_runs_the_tool_that_is_called() -> None:
    tools = Toolbox(ORDER, Tool("ping", "", Nothing, lambda _: "pong"))
    assert asyncio.run(tools.run(call("ping"), "r@4")) == "pong"
    assert asyncio.run(tools.run(call(seats=3), "r@4"))["seats"] == 3


def test_a_tool_that_does_not_exist_is_answered_with_those_that_do() -> None:
    tools = Toolbox(ORDER, Tool("ping", "", Nothing, lambda _: "pong"))
    with pytest.raises(ToolFailed, match="there is no tool 'pong'; the tools are: order, ping"):
        asyncio.run(tools.run(call("pong"), "r@4"))


def test_a_toolbox_knows_effects_and_an_unknown_name_can_do_nothing() -> None:
    tools = Toolbox(ORDER, Tool("mail", "", Nothing, lambda _: None, effect="unsafe"))
    assert tools.effect("mail") == "unsafe"
    assert tools.effect("order") == "read_only"
    assert tools.effect("nobody") == "read_only"


# -- in a run --------------------------------------------------------------------------------------------


class OneCall:
    """A model that calls the tool ``t`` once and then answers."""

    name = "one-call"

    async def reply(self, request: ModelRequest) -> Reply:
        if len(request.messages) == 1:
            return Reply("", [ToolCall("", "t", {})])
        return Reply("done")


def agent(tool: Callable[[Nothing], Any]) -> Agent:
    return Agent("tester", "", Toolbox(Tool("t", "", Nothing, tool)))


def run_with(tool: Callable[[Nothing], Any]) -> tuple[Store, RunState]:
    store = Store.open(backend=MemoryBackend())
    return store, asyncio.run(start(store, "r-1", agent(tool), OneCall(), "What?"))


def returning(value: Any) -> Callable[[Nothing], Any]:
    return lambda _: value


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


RESULTS: dict[str, Any] = {
    "a text": "fine",
    "nothing": None,
    "a tuple": (1, 2),
    "a set": {1},
    "bytes": b"\x00\xff",
    "not a number": float("nan"),
    "infinity": float("inf"),
    "a number too large": 2**70,
    "text that is no Unicode": "\ud800",
    "numbers as keys": {1: "one", 2.5: "two and a half"},
    "None as a key": {None: 1},
    "truth as a key": {True: 1},
    "a tuple as a key": {(1, 2): 3},
    "nested deeply": nested(200),
    "nested too deeply": nested(100_000),
    "an object": object(),
}


@pytest.mark.parametrize("name", RESULTS)
def test_whatever_a_tool_returns_the_run_goes_on_and_replays(name: str) -> None:
    store, state = run_with(returning(RESULTS[name]))
    assert (state.reason, state.answer, state.tool_calls) == ("answered", "done", 1)
    replayed = asyncio.run(replay(store, "r-1", agent(returning(None))))
    assert replayed.ended
    assert replayed.state == state


@pytest.mark.parametrize("name", RESULTS)
def test_a_replay_with_live_tools_that_return_the_same_does_not_diverge(name: str) -> None:
    store, state = run_with(returning(RESULTS[name]))
    replayed = asyncio.run(replay(store, "r-1", agent(returning(RESULTS[name])), live_tools=True))
    assert replayed.ended
    assert replayed.state == state


ERRORS: dict[str, Exception] = {
    "its own": ToolFailed("no"),
    "no words": ToolFailed(""),
    "an exception": ValueError("no"),
    "an exception without words": TimeoutError(),
    "too deep": RecursionError("too deep"),
    "a file name that is no Unicode": FileNotFoundError(2, "No such file", "caf\udce9.json"),
    "its own words, no Unicode": ToolFailed("caf\udce9"),
    "more words than an event holds": ToolFailed("x" * (65 << 20)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_whatever_a_tool_raises_the_run_goes_on_and_replays(name: str) -> None:
    def broken(_: Nothing) -> None:
        raise ERRORS[name]

    store, state = run_with(broken)
    assert (state.reason, state.answer) == ("answered", "done")
    assert "error" in state.messages[2].content
    assert asyncio.run(replay(store, "r-1", agent(broken), live_tools=True)).state == state


def test_no_depth_of_nesting_lets_a_result_be_written_that_cannot_be_read() -> None:
    for depth in range(800, 1000):
        store, state = run_with(returning(nested(depth)))
        assert state.reason == "answered", depth
        assert asyncio.run(replay(store, "r-1", agent(returning(None)))).ended, depth
