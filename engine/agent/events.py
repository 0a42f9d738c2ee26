"""The events of an agent's run. Kinds and fields are a promise: change them as docs/events.md says."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from tailfold.engine.events import Blob, Event
from tailfold.upcasters import Upcasters

Effect = Literal["read_only", "idempotent", "unsafe"]
"""What running a tool again may do: nothing, nothing with the same key, or something."""

EndReason = Literal["answered", "budget_exhausted"]


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asked for. `id` is unique within the run."""

    id: str
    name: str
    arguments: dict[str, Any]


class Usage(msgspec.Struct, frozen=True):
    """What a model call took. Not compared by replay."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    duration_ms: int = 0


class RunStarted(Event, frozen=True):
    """The first event of every run: all that the loop needs to know from outside."""

    kind = "run_started"
    agent: str
    question: str
    model: str
    max_turns: int
    inputs: dict[str, Blob] = {}
    """Content the tools read, so that a resumed run sees what the started one saw."""
    origins: dict[str, str] = {}
    """Where each input came from, for people and for replay with live tools."""


class TurnStarted(Event, frozen=True):
    """Written before the model is called, so that a crash in the call does not buy a turn."""

    kind = "turn_started"
    turn: int


class ModelDecision(Event, frozen=True):
    """What the model decided: calls to make, or an answer."""

    kind = "model_decision"
    turn: int
    tool_calls: list[ToolCall]
    text: str
    request_hash: str
    """BLAKE2b-128 of the exact request that the model saw."""
    usage: Usage


class ModelFailed(Event, frozen=True):
    """The model gave no usable reply; the turn is spent."""

    kind = "model_failed"
    turn: int
    error: str
    request_hash: str


class ToolCalled(Event, frozen=True):
    """Written before the tool runs."""

    kind = "tool_called"
    turn: int
    call: ToolCall
    effect: Effect


class ToolResult(Event, frozen=True):
    """What the tool returned, as the model sees it."""

    kind = "tool_result"
    turn: int
    call_id: str
    result: Any


class ToolError(Event, frozen=True):
    """The call failed: bad arguments, an error of the tool, or an outcome that nobody knows."""

    kind = "tool_error"
    turn: int
    call_id: str
    error: str


class AnswerRejected(Event, frozen=True):
    """The agent's own check refused the answer; the model is told why."""

    kind = "answer_rejected"
    turn: int
    problem: str


class RunResumed(Event, frozen=True):
    """A driver took the run up again. Whatever was under way is lost or has to be run again."""

    kind = "run_resumed"
    epoch: int
    taken_from_pid: int | None
    """The process whose lease was taken over because it died; None if it had let go in good order."""


class RunRedirected(Event, frozen=True):
    """Whoever took the run up asks for something else from here on: the "what if" of a fork.

    Calls that had no result are set aside, and the model is told so.
    """

    kind = "run_redirected"
    question: str | None = None
    """The question from here on; None: as it was."""
    model: str | None = None
    max_turns: int | None = None


class RunEnded(Event, frozen=True):
    """The last event of a run."""

    kind = "run_ended"
    reason: EndReason
    answer: str | None


AGENT_EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    TurnStarted,
    ModelDecision,
    ModelFailed,
    ToolCalled,
    ToolResult,
    ToolError,
    AnswerRejected,
    RunResumed,
    RunRedirected,
    RunEnded,
)

AGENT_UPCASTERS = Upcasters(events=AGENT_EVENTS)
"""The events of a run and the steps that lift old ones. `tailfold schema check` guards both."""
