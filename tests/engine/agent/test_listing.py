"""The list of runs says what folding every run says, and passes over what is no run."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import msgspec
import pytest
from tailfold.engine import ANY, Event, Store
from tailfold.engine.agent.events import (
    ModelDecision,
    ModelFailed,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolCall,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnStarted,
    Usage,
)
from tailfold.engine.agent.listing import RunRow, run_list, runs_of
from tailfold.engine.agent.models import RuleModel
from tailfold.engine.agent.runtime import resume, start
from tailfold.engine.agent.state import run_fold
from tailfold.engine.agents.comparetiers import comparetiers, rule, shipped
from tailfold.engine.errors import SchemaTooNew
from tailfold.engine.records import Newer

from tests.domain import Deposited

QUESTION = "How much do Slack Pro and Notion Plus cost for 3 seats?"
BEGIN = RunStarted("comparetiers", "why?", "rules", 4)
SECOND = 1_000_000_000


def rows(store: Store, agent: str | None = None) -> dict[str, RunRow]:
    return {row.run: row for row in store.project(run_list(agent)).state.rows()}


def drive_some(store: Store) -> None:
    agent = comparetiers(shipped(), "shipped")
    for i in range(3):
        asyncio.run(start(store, f"r-{i}", agent, RuleModel(rule), QUESTION))
    store.append("r-killed", [BEGIN, TurnStarted(1)], expected=0)
    store.append("orders", Deposited(1), expected=0)


def test_it_says_what_folding_every_run_says(store: Store) -> None:
    drive_some(store)
    found = rows(store)
    assert list(found) == ["r-0", "r-1", "r-2", "r-killed"]
    for run, row in found.items():
        state = store.load(run, run_fold).state
        head = store.head(run)
        assert (row.agent, row.model, row.question) == (state.agent, state.model, state.question)
        assert (row.status, row.reason, row.answer) == (state.status, state.reason, state.answer)
        assert (row.turns, row.max_turns, row.tool_calls) == (state.turn, state.max_turns, state.tool_calls)
        assert (row.model_failures, row.resumes) == (state.failures, state.resumes)
        assert (row.prompt_tokens, row.output_tokens) == (state.prompt_tokens, state.output_tokens)
        assert (row.events, row.updated_ns, row.started_ns) == (head.version, head.updated_ns, head.created_ns)
    assert found["r-0"].last_kind == "run_ended"


def test_runs_of_one_agent_or_of_all_with_their_forks(store: Store) -> None:
    drive_some(store)
    other = msgspec.structs.replace(comparetiers(shipped(), "shipped"), name="other")
    asyncio.run(start(store, "o", other, RuleModel(rule), QUESTION))
    store.fork("r-1", at=4)
    store.delete("r-2")
    assert [row.run for row in runs_of(store)] == ["o", "r-0", "r-1", "r-1.2", "r-killed"]
    assert [(row.run, row.status) for row in runs_of(store, "other")] == [("o", "ended")]
    assert runs_of(store, "nobody") == []


def test_what_the_model_was_waited_for_comes_from_the_times_of_events(backend: Any) -> None:
    clock = count(0, SECOND)
    store = Store.open(backend=backend, clock=lambda: next(clock))
    usage = Usage(prompt_tokens=10, output_tokens=5, duration_ms=700)
    story: list[list[Event]] = [
        [BEGIN],
        [TurnStarted(1)],
        [ModelDecision(1, [ToolCall("c1", "x", {})], "", "h", usage)],  # one second
        [ToolCalled(1, ToolCall("c1", "x", {}), "read_only")],
        [ToolResult(1, "c1", 1)],
        [TurnStarted(2)],
        [RunResumed(2, None)],  # the reply was lost
        [TurnStarted(3)],
        [ModelFailed(3, "no", "h")],  # one second
        [TurnStarted(4)],
        [ModelDecision(4, [], "x" * 2000, "h", usage)],  # one second
        [RunEnded("answered", "x" * 2000)],
    ]
    for events in story:
        store.append("r", events, expected=ANY)
    row = rows(store)["r"]
    assert row.model_ns == 3 * SECOND
    assert (row.prompt_tokens, row.output_tokens, row.model_ms) == (20, 10, 1400)
    assert (row.turns, row.resumes, row.model_failures, row.tool_calls) == (4, 1, 1, 1)
    assert (len(str(row.answer)), row.last_kind) == (500, "run_ended")


class Theirs(Event, frozen=True):
    """Another program's event of the same kind."""

    kind = "run_started"
    distance_km: float


class TheirTurn(Event, frozen=True):
    kind = "turn_started"
    direction: str


def test_streams_of_other_programs_do_not_break_it(store: Store) -> None:
    marathon = Store.open(backend=store.backend)
    marathon.append("marathon", [Theirs(42.2), TheirTurn("left")], expected=0)
    turns = Store.open(backend=store.backend)
    turns.append("turns", [TheirTurn("left")], expected=0)
    store.append("other agent", RunStarted("theirs", "q", "m", 3), expected=0)
    store.append("r", [BEGIN, TurnStarted(1)], expected=0)
    assert list(rows(store)) == ["other agent", "r"]
    assert list(rows(store, "comparetiers")) == ["r"]


def test_a_run_of_newer_code_is_not_left_out_silently(backend: Any) -> None:
    class Later(Event, frozen=True):
        kind = "run_started"
        version = 9
        agent: str
        question: str

    Store.open(backend=backend).append("r", Later("comparetiers", "q"), expected=0)
    with pytest.raises(SchemaTooNew):
        rows(Store.open(backend=backend))
    assert rows(Store.open(backend=backend, newer=Newer.OPAQUE)) == {}


def causes(store: Store, run: str) -> list[tuple[int, str, str | None]]:
    return [(r.version, r.kind, r.causation) for r in store.read(run)]


def test_each_event_of_a_run_names_what_the_loop_acted_on(store: Store) -> None:
    asyncio.run(start(store, "r", comparetiers(shipped(), "shipped"), RuleModel(rule), QUESTION))
    called: dict[str, int] = {}
    decided = 0
    for recorded in store.read("r"):
        cause = recorded.causation
        match recorded.event:
            case ToolCalled(call=call):
                assert cause == f"r@{decided}"
                called[call.id] = recorded.version
            case ToolResult(call_id=call_id):
                assert cause == f"r@{called[call_id]}"
            case RunStarted():
                assert cause is None
            case _:
                assert cause == f"r@{recorded.version - 1}"
        if isinstance(recorded.event, ModelDecision):
            decided = recorded.version
    assert len(called) == 6
    whole = store.trace("r", 1)
    assert (len(whole.effects), whole.causes, whole.outside) == (store.head("r").version - 1, [], None)


def test_a_driver_that_takes_over_goes_on_with_the_causes(store: Store) -> None:
    calls = [ToolCall(f"c{i}", "get_plans", {"product": p}) for i, p in enumerate(("Slack", "Notion"), 1)]
    agent = comparetiers(shipped(), "shipped")
    begin = RunStarted("comparetiers", QUESTION, "rules", 8)
    store.append("r", [begin, TurnStarted(1), ModelDecision(1, calls, "", "h", Usage())], expected=0)
    store.append("r", [ToolCalled(1, call, "read_only") for call in calls], expected=3, causation="r@3")
    store.append("r", ToolError(1, "c1", "no such product"), expected=5, causation="r@4")
    asyncio.run(resume(store, "r", lambda started: agent, lambda name: RuleModel(rule)))
    assert causes(store, "r")[6:8] == [(7, "run_resumed", "r@6"), (8, "tool_result", "r@5")]
    store.append("s", [begin, TurnStarted(1), ModelDecision(1, [], "an answer", "h", Usage())], expected=0)
    asyncio.run(resume(store, "s", lambda started: agent, lambda name: RuleModel(rule)))
    assert causes(store, "s")[3][:2] == (4, "run_resumed")
    assert causes(store, "s")[4][2] == "s@3", "caused by the proposal, not by the resumption"
