"""The decision: a pure function of the state. Start, resume and replay all ask it for the next action.

By what the journal ends with:

run_started, a result, answer_rejected   stop rules, then a new turn or run_ended
turn_started                             ask the model; after run_resumed: the turn is lost, a new one
model_failed                             stop rules, then a new turn
model_decision with calls                write tool_called, run the tools
model_decision with an answer            judge it: run_ended, or answer_rejected
tool_called                              run the tool (again, if that is safe)
some of several calls done               run those that are left
run_resumed                              looked through: what stood before it decides
run_ended                                nothing
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import msgspec
from tailfold.engine.agent.events import EndReason, ToolCall
from tailfold.engine.agent.state import OpenCall, RunState
from tailfold.engine.errors import BadArgument

Judge = Callable[[RunState, str], str | None]
"""Looks at a proposed answer; returns what is wrong with it, or None. Pure."""


class StartTurn(msgspec.Struct, frozen=True):
    """Write turn_started."""

    turn: int


class AskModel(msgspec.Struct, frozen=True):
    """Call the model."""

    turn: int


class WriteCalls(msgspec.Struct, frozen=True):
    """Write tool_called for each call."""

    turn: int
    calls: list[ToolCall]


class RunTools(msgspec.Struct, frozen=True):
    """Run the calls that are written down and open."""

    calls: list[OpenCall]


class GiveUpCall(msgspec.Struct, frozen=True):
    """Write tool_error for a call whose outcome nobody can know: it is never run again silently."""

    open_call: OpenCall


class RejectAnswer(msgspec.Struct, frozen=True):
    """Write answer_rejected."""

    turn: int
    problem: str


class End(msgspec.Struct, frozen=True):
    """Write run_ended."""

    reason: EndReason
    answer: str | None


class Done(msgspec.Struct, frozen=True):
    """The run has ended: there is nothing to do."""


Action = StartTurn | AskModel | WriteCalls | RunTools | GiveUpCall | RejectAnswer | End | Done

Decide = Callable[[RunState], Action]


def no_judge(state: RunState, answer: str) -> str | None:
    """Accept every answer."""
    return None


def decider(judge: Judge = no_judge) -> Decide:
    """Return the decision function whose stop rules ask *judge* about answers."""
    if not callable(judge) or inspect.iscoroutinefunction(judge):
        raise BadArgument(f"a judge is a plain function of the state and an answer, not {judge!r:.60}")

    def decide(state: RunState) -> Action:
        if state.status == "ended":
            return Done()
        if state.open_calls:
            for open_call in state.open_calls:
                if open_call.interrupted and open_call.effect == "unsafe":
                    return GiveUpCall(open_call)
            return RunTools(list(state.open_calls))
        if state.wanted:
            return WriteCalls(state.turn, list(state.wanted))
        if state.asking:
            return AskModel(state.turn)
        if state.proposal is not None:
            problem = judge(state, state.proposal)
            if problem is None:
                return End("answered", state.proposal)
            if not isinstance(problem, str):
                raise BadArgument(f"the judge returned {problem!r:.60}: it says what is wrong, in a text, or None")
            return RejectAnswer(state.turn, problem)
        if state.turn >= state.max_turns:
            return End("budget_exhausted", None)
        return StartTurn(state.turn + 1)

    return decide
