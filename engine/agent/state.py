"""The state of a run: the fold of its events. Start, resume, list and replay see this and nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec
from tailfold.engine.agent.events import (
    AnswerRejected,
    Effect,
    EndReason,
    ModelDecision,
    ModelFailed,
    RunEnded,
    RunRedirected,
    RunResumed,
    RunStarted,
    ToolCall,
    ToolCalled,
    ToolError,
    ToolResult,
    TurnStarted,
)
from tailfold.engine.agent.messages import Message
from tailfold.engine.errors import BadArgument
from tailfold.engine.events import Event
from tailfold.engine.fold import Fold
from tailfold.snapshots import Series

SET_ASIDE = '{"error":"set aside: another question was asked before there was a result"}'

Status = Literal["new", "running", "ended"]


class OpenCall(msgspec.Struct):
    """A call that is written down and has no result yet."""

    call: ToolCall
    turn: int
    effect: Effect
    interrupted: bool = False
    """The driver that ran it died or was stopped: it may have run."""


class RunState(msgspec.Struct):
    """All that the loop decides from."""

    status: Status = "new"
    agent: str = ""
    question: str = ""
    model: str = ""
    max_turns: int = 0
    turn: int = 0
    """Turns started, lost ones included: the spent part of the budget."""
    asking: bool = False
    """The turn is started, and the model has not replied in this driver's life."""
    wanted: list[ToolCall] = []
    """Calls that the model asked for and that are not written down yet."""
    open_calls: list[OpenCall] = []
    proposal: str | None = None
    """An answer that the stop rules have not judged yet."""
    messages: Series[Message] = msgspec.field(default_factory=Series[Message])
    failures_in_row: int = 0
    failures: int = 0
    resumes: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    model_ms: int = 0
    reason: EndReason | None = None
    answer: str | None = None


run_fold: Fold[RunState] = Fold("agent_run", RunState, version=1)


@run_fold.on(RunStarted)
def _(state: RunState, event: RunStarted) -> None:
    state.status = "running"
    state.agent = event.agent
    state.question = event.question
    state.model = event.model
    state.max_turns = event.max_turns
    state.messages.append(Message("user", event.question))


@run_fold.on(TurnStarted)
def _(state: RunState, event: TurnStarted) -> None:
    state.turn = event.turn
    state.asking = True


@run_fold.on(ModelDecision)
def _(state: RunState, event: ModelDecision) -> None:
    state.asking = False
    state.failures_in_row = 0
    state.prompt_tokens += event.usage.prompt_tokens
    state.output_tokens += event.usage.output_tokens
    state.model_ms += event.usage.duration_ms
    state.messages.append(Message("assistant", event.text, event.tool_calls))
    state.wanted = list(event.tool_calls)
    state.proposal = None if event.tool_calls else event.text


@run_fold.on(ModelFailed)
def _(state: RunState, event: ModelFailed) -> None:
    state.asking = False
    state.failures += 1
    state.failures_in_row += 1


@run_fold.on(ToolCalled)
def _(state: RunState, event: ToolCalled) -> None:
    state.tool_calls += 1
    state.wanted = [call for call in state.wanted if call.id != event.call.id]
    state.open_calls.append(OpenCall(event.call, event.turn, event.effect))


def _close(state: RunState, call_id: str, content: str) -> None:
    """Take the one terminal result of a call: the model sees it once (at most one result a call id)."""
    for index, open_call in enumerate(state.open_calls):
        if open_call.call.id == call_id:
            del state.open_calls[index]
            name = open_call.call.name
            state.messages.append(Message("tool", content, call_id=call_id, tool_name=name))
            return


@run_fold.on(ToolResult)
def _(state: RunState, event: ToolResult) -> None:
    _close(state, event.call_id, msgspec.json.encode(event.result).decode())


@run_fold.on(ToolError)
def _(state: RunState, event: ToolError) -> None:
    _close(state, event.call_id, msgspec.json.encode({"error": event.error}).decode())


@run_fold.on(AnswerRejected)
def _(state: RunState, event: AnswerRejected) -> None:
    state.proposal = None
    state.messages.append(Message("user", event.problem))


@run_fold.on(RunResumed)
def _(state: RunState, event: RunResumed) -> None:
    # A turn whose reply never came is lost, and stays counted; calls that were under way may have run.
    state.resumes += 1
    state.asking = False
    for open_call in state.open_calls:
        open_call.interrupted = True


@run_fold.on(RunRedirected)
def _(state: RunState, event: RunRedirected) -> None:
    if event.model is not None:
        state.model = event.model
    if event.max_turns is not None:
        state.max_turns = event.max_turns
        if state.reason == "budget_exhausted":
            state.status, state.reason = "running", None
    state.failures_in_row = 0
    if event.question is None:
        return
    # What the last turn wanted is about another question. A model that asked for calls is told of each what became
    # of it, or it would wait for results that never come.
    for call in [*(open_call.call for open_call in state.open_calls), *state.wanted]:
        state.messages.append(Message("tool", SET_ASIDE, call_id=call.id, tool_name=call.name))
    state.open_calls, state.wanted, state.proposal = [], [], None
    state.question = event.question
    state.messages.append(Message("user", event.question))
    state.status, state.reason, state.answer = "running", None, None


@run_fold.on(RunEnded)
def _(state: RunState, event: RunEnded) -> None:
    state.status = "ended"
    state.asking = False
    state.reason = event.reason
    state.answer = event.answer


def first_event(event: Event) -> RunStarted:
    """Return *event* if a run can begin with it; raise `BadArgument` if the stream is no run."""
    if not isinstance(event, RunStarted):
        raise BadArgument(f"the stream is no run: it begins with {type(event).__name__}")
    return event
