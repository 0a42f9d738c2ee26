"""Replay: the same loop on a recorded run; it finds every change that matters, and shows both sides (I15)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tailfold.engine import MemoryBackend, Store
from tailfold.engine.agent.decide import End, StartTurn, decider
from tailfold.engine.agent.events import (
    AGENT_EVENTS,
    ModelDecision,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolCall,
    ToolCalled,
    ToolResult,
    TurnStarted,
    Usage,
)
from tailfold.engine.agent.loop import Agent, ModelError, Reply
from tailfold.engine.agent.messages import ModelRequest
from tailfold.engine.agent.models import RuleModel
from tailfold.engine.agent.replaying import Replayed, replay
from tailfold.engine.agent.runtime import resume, start
from tailfold.engine.agents.comparetiers import comparetiers, rule, shipped
from tailfold.engine.errors import BadArgument, RecordDamaged, ReplayDiverged, StreamNotFound
from tailfold.engine.errors import RunEnded as Ended

QUESTION = "How much is Notion Plus for 5 seats, billed monthly?"


def agent(**changes: Any) -> Agent:
    return msgspec.structs.replace(comparetiers(shipped(), "shipped"), **changes)


@pytest.fixture
def run() -> Store:
    """A store with the recorded run r-1."""
    store = Store.open(backend=MemoryBackend())
    asyncio.run(start(store, "r-1", agent(), RuleModel(rule), QUESTION))
    return store


def again(store: Store, changed: Agent | None = None, *, live_tools: bool = False, after: int = 1) -> Replayed:
    return asyncio.run(replay(store, "r-1", changed or agent(), live_tools=live_tools, after=after))


def changed_catalogue() -> Agent:
    catalogue = json.loads(shipped())
    catalogue["products"][0]["plans"][1]["monthly"] = "13.00"
    return comparetiers(json.dumps(catalogue).encode(), "changed")


def test_a_recorded_run_replays_to_its_end(run: Store) -> None:
    done = again(run)
    assert (done.ended, done.events) == (True, run.head("r-1").version)
    assert done.state.answer is not None
    assert "$60.00" in done.state.answer
    assert again(run, live_tools=True).ended


def test_replay_writes_nothing(run: Store) -> None:
    before = run.head("r-1")
    again(run)
    assert (run.head("r-1"), run.lease("r-1")) == (before, run.lease("r-1"))


def test_a_changed_catalogue_shows_only_when_the_tools_run(run: Store) -> None:
    assert again(run, changed_catalogue()).ended
    with pytest.raises(ReplayDiverged) as diverged:
        again(run, changed_catalogue(), live_tools=True)
    error = diverged.value
    assert isinstance(error.recorded, ToolResult)
    assert isinstance(error.replayed, ToolResult)
    assert error.version == 5
    assert '"monthly":"12.00"' in msgspec.json.encode(error.recorded.result).decode()
    assert '"monthly":"13.00"' in msgspec.json.encode(error.replayed.result).decode()


def test_a_changed_prompt_shows_at_the_first_decision(run: Store) -> None:
    with pytest.raises(ReplayDiverged, match="prompt") as diverged:
        again(run, agent(system="Answer in French."))
    assert diverged.value.version == 3
    assert "request_hash" in diverged.value.why


def test_a_changed_tool_schema_shows_too(run: Store) -> None:
    tools = agent().tools
    tools._tools["quote"].description = "Something else."
    with pytest.raises(ReplayDiverged, match="request_hash"):
        again(run, agent(tools=tools))


def test_a_changed_stop_rule_shows_where_it_acts(run: Store) -> None:
    with pytest.raises(ReplayDiverged) as diverged:
        again(run, agent(decide=decider(lambda state, answer: "I do not like it")))
    assert diverged.value.why == "the loop writes answer_rejected, the journal has run_ended"

    inner = decider()
    short = agent(
        decide=lambda s: End("budget_exhausted", None) if s.turn == 2 and inner(s) == StartTurn(3) else inner(s)
    )
    with pytest.raises(ReplayDiverged) as diverged:
        again(run, short)
    assert diverged.value.why == "the loop writes run_ended, the journal has turn_started"


def test_a_loop_that_ends_early_is_a_divergence(run: Store) -> None:
    run.append("r-1", TurnStarted(9), expected=run.head("r-1").version)
    with pytest.raises(ReplayDiverged, match="goes on with turn_started"):
        again(run)


def journal(*events: Any) -> Store:
    store = Store.open(backend=MemoryBackend(), events=AGENT_EVENTS)
    store.append("r-1", list(events), expected=0)
    return store


def request_hash(*, system: str | None = None) -> str:
    from tailfold.engine.agent.messages import Message

    use = agent(system=system) if system else agent()
    return ModelRequest("rules", use.system, [Message("user", "q")], use.tools.schemas(), use.options).hash()


def test_changed_arguments_of_a_call_show() -> None:
    call = ToolCall("c1", "get_plans", {"product": "notion"})
    other = ToolCall("c1", "get_plans", {"product": "slack"})
    store = journal(
        RunStarted("comparetiers", "q", "rules", 8),
        TurnStarted(1),
        ModelDecision(1, [call], "", request_hash(), Usage(1, 2, 3)),
        ToolCalled(1, other, "read_only"),
    )
    with pytest.raises(ReplayDiverged, match="tool_called differs in call") as diverged:
        again(store)
    assert diverged.value.recorded == ToolCalled(1, other, "read_only")
    assert diverged.value.replayed == ToolCalled(1, call, "read_only")


def test_token_usage_and_time_are_not_compared() -> None:
    store = journal(
        RunStarted("comparetiers", "q", "rules", 8),
        TurnStarted(1),
        ModelDecision(1, [], "hello", request_hash(), Usage(10, 20, 30)),
        RunEnded("answered", "hello"),
    )
    assert again(store).ended


@pytest.mark.parametrize("events", range(1, 13))
def test_an_interrupted_run_replays_as_far_as_it_goes(events: int, run: Store) -> None:
    store = journal(*[r.event for r in run.read("r-1", upto=events)])
    done = again(store)
    assert (done.events, done.ended) == (events, events == 12)


@pytest.mark.parametrize("events", range(1, 12))
def test_a_resumed_run_replays_with_its_interruption(events: int, run: Store) -> None:
    store = journal(*[r.event for r in run.read("r-1", upto=events)])
    state = asyncio.run(resume(store, "r-1", lambda started: agent(), lambda name: RuleModel(rule)))
    assert state.answer is not None
    assert "$60.00" in state.answer
    assert state.resumes == 1
    assert again(store).ended
    assert again(store, live_tools=True).ended
    resumed = [r for r in store.read("r-1") if isinstance(r.event, RunResumed)]
    assert [r.version for r in resumed] == [events + 1]


def test_failures_and_parallel_calls_replay_in_the_recorded_order() -> None:
    calls = [ToolCall("", "get_plans", {"product": name}) for name in ("notion", "nothing", "slack")]
    replies: list[Reply | ModelError] = [
        ModelError("gone"),
        Reply("", calls, Usage(5, 6, 7)),
        Reply("Slack Pro is $8.75 a month."),
    ]

    class Scripted:
        name = "scripted"

        async def reply(self, request: ModelRequest) -> Reply:
            reply = replies.pop(0)
            if isinstance(reply, ModelError):
                raise reply
            return reply

    store = Store.open(backend=MemoryBackend())
    state = asyncio.run(start(store, "r-1", agent(), Scripted(), "q"))
    assert (state.reason, state.failures, state.prompt_tokens, state.turn) == ("answered", 1, 5, 3)
    assert again(store).ended
    assert again(store, live_tools=True).ended
    kinds = [r.kind for r in store.read("r-1")]
    assert kinds.count("tool_called") == 3
    assert kinds.count("tool_error") == 1


def test_an_edited_journal_does_not_replay(run: Store) -> None:
    backend = run.backend
    rows = backend._streams["r-1"].rows  # type: ignore[attr-defined]
    rows[8] = rows[8]._replace(data=rows[8].data.replace(b"60.00", b"61.00"))
    with pytest.raises(RecordDamaged) as damaged:
        again(run)
    assert damaged.value.version == 9


def test_what_is_no_run_is_not_replayed_or_resumed(run: Store) -> None:
    with pytest.raises(StreamNotFound):
        asyncio.run(replay(run, "r-2", agent()))
    run.append("other", TurnStarted(1), expected=0)
    with pytest.raises(BadArgument, match="no run"):
        asyncio.run(replay(run, "other", agent()))
    with pytest.raises(Ended):
        asyncio.run(resume(run, "r-1", lambda started: agent(), lambda name: RuleModel(rule)))


def test_the_catalogue_that_a_run_started_with_is_in_its_journal(run: Store) -> None:
    [first] = run.read("r-1", limit=1)
    assert isinstance(first.event, RunStarted)
    assert first.event.inputs["catalogue"].data == shipped()


def test_what_stands_up_to_a_version_is_taken_as_it_is(run: Store) -> None:
    head = run.head("r-1").version
    for after in range(1, head + 1):
        done = again(run, after=after)
        assert (done.ended, done.events) == (True, head)
    changed = agent(system="Something else.")
    last = max(r.version for r in run.read("r-1") if isinstance(r.event, ModelDecision))
    with pytest.raises(ReplayDiverged):
        again(run, changed, after=last - 1)
    assert again(run, changed, after=last).ended
    with pytest.raises(BadArgument, match="after is a version from 1 on"):
        again(run, after=0)
    with pytest.raises(StreamNotFound):
        again(run, after=head + 1)


def test_a_run_that_went_on_under_another_prompt_replays_from_there(run: Store) -> None:
    at = next(r.version for r in run.read("r-1") if isinstance(r.event, ToolResult))
    run.fork("r-1", at=at, name="r-2")
    later = agent(system="Something else.")
    asyncio.run(resume(run, "r-2", lambda _: later, lambda _: RuleModel(rule)))
    for whole in (agent(), later):
        with pytest.raises(ReplayDiverged):
            asyncio.run(replay(run, "r-2", whole))
    assert asyncio.run(replay(run, "r-2", later, after=at)).ended


def test_a_run_is_driven_and_replayed_by_its_own_agent_only(run: Store) -> None:
    other = agent(name="other")
    with pytest.raises(BadArgument, match="belongs to agent 'comparetiers'"):
        again(run, other)
    run.fork("r-1", at=4, name="r-2")
    with pytest.raises(BadArgument, match="belongs to agent 'comparetiers'"):
        asyncio.run(resume(run, "r-2", lambda _: other, lambda _: RuleModel(rule)))
    assert run.head("r-2").version == 4
