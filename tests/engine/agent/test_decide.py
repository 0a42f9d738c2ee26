"""The decision: the whole resume table, row by row, and what holds for any run however it is interrupted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.engine.agent.decide import (
    Action,
    AskModel,
    Done,
    End,
    GiveUpCall,
    RejectAnswer,
    RunTools,
    StartTurn,
    WriteCalls,
    decider,
)
from tailfold.engine.agent.events import (
    AnswerRejected,
    Effect,
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
from tailfold.engine.agent.state import OpenCall, RunState, run_fold
from tailfold.engine.events import Event

BAD = "bad"
PROBLEM = "that is wrong"
EFFECTS: dict[str, Effect] = {"look": "read_only", "pay": "idempotent", "send": "unsafe"}


def judge(state: RunState, answer: str) -> str | None:
    return PROBLEM if answer == BAD else None


decide = decider(judge)


def started(max_turns: int = 3) -> RunStarted:
    return RunStarted("agent", "question", "model", max_turns)


def turn(number: int) -> TurnStarted:
    return TurnStarted(number)


def wants(number: int, *calls: ToolCall) -> ModelDecision:
    return ModelDecision(number, list(calls), "", "hash", Usage())


def answers(number: int, text: str) -> ModelDecision:
    return ModelDecision(number, [], text, "hash", Usage())


def failed(number: int) -> ModelFailed:
    return ModelFailed(number, "boom", "hash")


def called(call: ToolCall, number: int = 1) -> ToolCalled:
    return ToolCalled(number, call, EFFECTS[call.name])


def result(call: ToolCall, number: int = 1, value: Any = 1) -> ToolResult:
    return ToolResult(number, call.id, value)


def error(call: ToolCall, number: int = 1) -> ToolError:
    return ToolError(number, call.id, "no")


def opened(call: ToolCall, number: int = 1, *, interrupted: bool = False) -> OpenCall:
    return OpenCall(call, number, EFFECTS[call.name], interrupted)


def resumed(epoch: int = 2) -> RunResumed:
    return RunResumed(epoch, 4711)


def fold(*events: Event) -> RunState:
    return run_fold.fold(events)


def action(*events: Event) -> Action:
    return decide(fold(*events))


LOOK, PAY, SEND = ToolCall("c1", "look", {}), ToolCall("c2", "pay", {"n": 1}), ToolCall("c3", "send", {})
ONE = [started(), turn(1), wants(1, LOOK)]
ALL = [started(), turn(1), wants(1, LOOK, PAY, SEND)]
ALL_CALLED = [*ALL, called(LOOK), called(PAY), called(SEND)]
LAST = [started(2), turn(1), failed(1), turn(2)]
SPENT = End("budget_exhausted", None)

LOOKED_THROUGH: dict[str, tuple[list[Event], Action]] = {
    "run_started": ([started()], StartTurn(1)),
    "a result": ([*ONE, called(LOOK), result(LOOK)], StartTurn(2)),
    "an error": ([*ONE, called(LOOK), error(LOOK)], StartTurn(2)),
    "the last of several results": (
        [*ALL_CALLED, result(SEND), error(LOOK), result(PAY)],
        StartTurn(2),
    ),
    "answer_rejected": ([started(), turn(1), answers(1, BAD), AnswerRejected(1, PROBLEM)], StartTurn(2)),
    "a result, budget spent": (
        [*LAST, wants(2, LOOK), called(LOOK, 2), result(LOOK, 2)],
        SPENT,
    ),
    "answer_rejected, budget spent": ([*LAST, answers(2, BAD), AnswerRejected(2, PROBLEM)], SPENT),
    "model_failed": ([started(), turn(1), failed(1)], StartTurn(2)),
    "model_failed, budget spent": ([*LAST, failed(2)], SPENT),
    "model_decision with a call": (ONE, WriteCalls(1, [LOOK])),
    "model_decision with calls": (ALL, WriteCalls(1, [LOOK, PAY, SEND])),
    "model_decision with calls, in the last turn": ([*LAST, wants(2, PAY)], WriteCalls(2, [PAY])),
    "model_decision with an answer": ([started(), turn(1), answers(1, "fine")], End("answered", "fine")),
    "model_decision with an answer, in the last turn": (
        [*LAST, answers(2, "fine")],
        End("answered", "fine"),
    ),
    "model_decision with a bad answer": (
        [started(), turn(1), answers(1, BAD)],
        RejectAnswer(1, PROBLEM),
    ),
    "model_decision with an empty answer": ([started(), turn(1), answers(1, "")], End("answered", "")),
    "run_ended": ([started(), turn(1), answers(1, "fine"), RunEnded("answered", "fine")], Done()),
    "run_ended without an answer": ([*LAST, failed(2), RunEnded("budget_exhausted", None)], Done()),
}
"""Rows for which it makes no difference that the run was resumed."""

UNDER_WAY: dict[str, tuple[list[Event], Action, Action]] = {
    "turn_started": ([started(), turn(1)], AskModel(1), StartTurn(2)),
    "turn_started, the last": (LAST, AskModel(2), SPENT),
    "tool_called, read-only": (
        [*ONE, called(LOOK)],
        RunTools([opened(LOOK)]),
        RunTools([opened(LOOK, interrupted=True)]),
    ),
    "tool_called, idempotent": (
        [started(), turn(1), wants(1, PAY), called(PAY)],
        RunTools([opened(PAY)]),
        RunTools([opened(PAY, interrupted=True)]),
    ),
    "tool_called, unsafe": (
        [started(), turn(1), wants(1, SEND), called(SEND)],
        RunTools([opened(SEND)]),
        GiveUpCall(opened(SEND, interrupted=True)),
    ),
    "tool_called, several": (
        ALL_CALLED,
        RunTools([opened(LOOK), opened(PAY), opened(SEND)]),
        GiveUpCall(opened(SEND, interrupted=True)),
    ),
    "some of several calls done": (
        [*ALL_CALLED, result(LOOK), error(SEND)],
        RunTools([opened(PAY)]),
        RunTools([opened(PAY, interrupted=True)]),
    ),
    "some of several calls done, an unsafe one left": (
        [*ALL_CALLED, result(PAY)],
        RunTools([opened(LOOK), opened(SEND)]),
        GiveUpCall(opened(SEND, interrupted=True)),
    ),
    "tool_called in the last turn": (
        [*LAST, wants(2, LOOK), called(LOOK, 2)],
        RunTools([opened(LOOK, 2)]),
        RunTools([opened(LOOK, 2, interrupted=True)]),
    ),
}
"""Rows in which something was under way: the action, and the one after run_resumed."""


@pytest.mark.parametrize("row", LOOKED_THROUGH)
def test_what_the_journal_ends_with_decides_and_run_resumed_is_looked_through(row: str) -> None:
    events, expected = LOOKED_THROUGH[row]
    assert action(*events) == expected
    assert action(*events, resumed()) == expected
    assert action(*events, resumed(), resumed(3)) == expected


@pytest.mark.parametrize("row", UNDER_WAY)
def test_what_was_under_way_is_lost_run_again_or_given_up(row: str) -> None:
    events, expected, after_resume = UNDER_WAY[row]
    assert action(*events) == expected
    assert action(*events, resumed()) == after_resume
    assert action(*events, resumed(), resumed(3)) == after_resume


def test_a_lost_turn_stays_counted_and_the_next_one_is_a_new_one() -> None:
    state = fold(started(), turn(1), resumed(), turn(2))
    assert (state.turn, state.asking) == (2, True)
    assert decide(state) == AskModel(2)
    assert state.messages == fold(started()).messages


def test_a_turn_that_is_lost_twice_costs_two_turns() -> None:
    lost = [started(2), turn(1), resumed(), turn(2)]
    assert action(*lost) == AskModel(2)
    assert action(*lost, resumed(3)) == SPENT


def test_an_unsafe_call_that_was_interrupted_is_given_up_and_never_run_again() -> None:
    events: list[Event] = [started(), turn(1), wants(1, SEND), called(SEND), resumed()]
    assert action(*events) == GiveUpCall(opened(SEND, interrupted=True))
    events += [ToolError(1, SEND.id, "nobody knows")]
    assert action(*events) == StartTurn(2)
    assert action(*events, resumed(3)) == StartTurn(2)
    told = fold(*events).messages[-1]
    assert (told.role, told.call_id, told.tool_name) == ("tool", SEND.id, "send")
    assert msgspec.json.decode(told.content) == {"error": "nobody knows"}


def test_the_safe_calls_of_an_interrupted_batch_are_run_once_the_unsafe_ones_are_given_up() -> None:
    events = [*ALL_CALLED, resumed(), ToolError(1, SEND.id, "nobody knows")]
    assert action(*events) == RunTools([opened(LOOK, interrupted=True), opened(PAY, interrupted=True)])


def test_an_unsafe_call_that_is_written_down_after_the_resume_is_run() -> None:
    events = [started(), turn(1), wants(1, SEND), resumed(), called(SEND)]
    assert action(*events) == RunTools([opened(SEND)])


def test_an_idempotent_call_is_run_again_however_often_it_was_interrupted() -> None:
    events: list[Event] = [started(), turn(1), wants(1, PAY), called(PAY)]
    for interruption in ([], [resumed()], [resumed(), resumed(3)]):
        assert action(*events, *interruption) == RunTools([opened(PAY, interrupted=bool(interruption))])


def test_a_late_second_result_of_a_call_is_ignored() -> None:
    events = [*ALL_CALLED, result(LOOK)]
    for late in (result(LOOK, value="other"), error(LOOK)):
        state = fold(*events, late)
        assert state == fold(*events)
        assert decide(state) == RunTools([opened(PAY), opened(SEND)])


def test_a_result_of_a_call_that_was_never_made_is_ignored() -> None:
    assert fold(*ONE, result(PAY)) == fold(*ONE)


def test_a_wanted_call_is_written_down_only_once() -> None:
    assert action(*ALL, called(LOOK), called(PAY), called(SEND)) != WriteCalls(1, [LOOK, PAY, SEND])
    assert fold(*ALL_CALLED).wanted == []


def test_a_good_reply_ends_a_row_of_failures() -> None:
    failing = [started(), turn(1), failed(1), turn(2), failed(2)]
    assert (fold(*failing).failures_in_row, fold(*failing).failures) == (2, 2)
    state = fold(*failing, turn(3), answers(3, "fine"))
    assert (state.failures_in_row, state.failures) == (0, 2)


def test_the_judge_sees_the_state_and_the_answer_and_no_judge_accepts_all() -> None:
    seen: list[tuple[str, str]] = []

    def look(state: RunState, answer: str) -> str | None:
        seen.append((state.question, answer))
        return None

    state = fold(started(), turn(1), answers(1, BAD))
    assert decider(look)(state) == End("answered", BAD)
    assert seen == [("question", BAD)]
    assert decider()(state) == End("answered", BAD)


@pytest.mark.parametrize("row", [*LOOKED_THROUGH, *UNDER_WAY])
def test_to_decide_changes_nothing(row: str) -> None:
    events = (LOOKED_THROUGH.get(row) or UNDER_WAY[row])[0]
    state = fold(*events)
    assert decide(state) == decide(state)
    assert state == fold(*events)


REPLIES = st.one_of(
    st.just("failure"),
    st.sampled_from(["fine", BAD]),
    st.lists(st.sampled_from(sorted(EFFECTS)), min_size=1, max_size=3),
)


class World:
    """Does what `decide` asks for, with a model that replies anything, and is interrupted at any point."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.max_turns = data.draw(st.integers(1, 4), "max_turns")
        self.interruptions = data.draw(st.integers(0, 5), "interruptions")
        self.events: list[Event] = [started(self.max_turns)]
        self.state = run_fold.fold(self.events)
        self.ran: Counter[str] = Counter()
        self.terminal: Counter[str] = Counter()

    def happen(self, *events: Event) -> None:
        self.events += events
        self.state = run_fold.fold(events, self.state)

    def interrupted(self) -> bool:
        if self.interruptions and self.data.draw(st.booleans(), "interrupted"):
            self.interruptions -= 1
            self.happen(resumed(len(self.events)))
            return True
        return False

    def close(self, open_call: OpenCall, event: ToolResult | ToolError) -> None:
        assert open_call in self.state.open_calls
        self.terminal[open_call.call.id] += 1
        self.happen(event)

    def obey(self, asked: Action) -> None:
        match asked:
            case StartTurn(number):
                self.happen(TurnStarted(number))
            case AskModel(number):
                self.ask(number)
            case WriteCalls(number, calls):
                self.happen(*[called(call, number) for call in calls])
            case RunTools(open_calls):
                self.run(open_calls)
            case GiveUpCall(open_call):
                self.close(open_call, ToolError(open_call.turn, open_call.call.id, "nobody knows"))
            case RejectAnswer(number, problem):
                self.happen(AnswerRejected(number, problem))
            case End(reason, answer):
                self.happen(RunEnded(reason, answer))

    def ask(self, number: int) -> None:
        if self.interrupted():
            return  # the reply is lost
        replied = self.data.draw(REPLIES, "reply")
        if replied == "failure":
            self.happen(failed(number))
        elif isinstance(replied, str):
            self.happen(answers(number, replied))
        else:
            first = self.state.tool_calls + 1
            self.happen(wants(number, *[ToolCall(f"c{n}", name, {}) for n, name in enumerate(replied, first)]))

    def run(self, open_calls: list[OpenCall]) -> None:
        self.ran.update(open_call.call.id for open_call in open_calls)  # all at the same time
        for open_call in self.data.draw(st.permutations(open_calls), "order"):
            if self.interrupted():
                return  # the results that are left are lost
            call = open_call.call
            good = self.data.draw(st.booleans(), "good")
            number = open_call.turn
            self.close(open_call, result(call, number) if good else error(call, number))
            if self.data.draw(st.booleans(), "late second result"):
                self.happen(result(call, number, "late"))


@given(st.data())
def test_any_run_ends_within_its_budget_however_it_is_interrupted(data: st.DataObject) -> None:
    world = World(data)
    while not isinstance(asked := decide(world.state), Done):
        assert len(world.events) < 300, "the run does not end"
        if not world.interrupted():
            world.obey(asked)

    state, events = world.state, world.events
    assert run_fold.fold(events) == state
    assert (state.status, state.open_calls, state.wanted, state.asking) == ("ended", [], [], False)
    assert [isinstance(event, RunEnded) for event in events].count(True) == 1
    assert isinstance(events[-1], RunEnded)
    assert state.reason == ("answered" if state.answer is not None else "budget_exhausted")
    assert state.answer != BAD

    turns = [event.turn for event in events if isinstance(event, TurnStarted)]
    assert turns == list(range(1, len(turns) + 1))
    assert len(turns) <= world.max_turns
    if state.reason == "budget_exhausted":
        assert len(turns) == world.max_turns

    written = [event for event in events if isinstance(event, ToolCalled)]
    ids = [event.call.id for event in written]
    assert len(set(ids)) == len(ids)
    assert world.terminal == Counter(ids)
    for event in written:
        if event.effect == "unsafe":
            assert world.ran[event.call.id] <= 1
    told = [message.call_id for message in state.messages if message.role == "tool"]
    assert Counter(told) == Counter(ids)
    assert all(message.content != '"late"' for message in state.messages)
